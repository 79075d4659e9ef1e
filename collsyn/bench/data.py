"""Data whose right result every rank can compute for itself, and the count of elements that differ from it.

As in nccl-tests, an element is a hash of its rank and place, so that a misplaced one is found, and reductions use small
whole numbers, whose results are exact in any order.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.model.bind import layout
from collsyn.model.collective import Collective
from collsyn.model.dtypes import divide, dtype_of, reducer, to_numbers, to_stored

Array = npt.NDArray[Any]

# Whole numbers up to this are exact in bfloat16, the coarsest type.
_EXACT = 256
# Elements that are made at a time: hashing takes some 40 bytes an element, and all ranks of a machine do it at once.
_BLOCK = 1 << 20


class Pattern:
    """Inputs and right outputs of a collective at one size, type and reduction; `seed` changes all of them."""

    def __init__(self, collective: Collective, num_elements: int, dtype_name: str, op_name: str, seed: int = 0) -> None:
        self.collective, self.op = collective, op_name
        self.dtype = dtype_of(dtype_name)
        self.places = layout(collective, num_elements)
        self._seed = seed
        contributors = collective.sets.lengths()[collective.pre]
        self._amplitude = max(1, min(4, _EXACT // int(contributors.max(initial=1))))
        # Not reduced and held by several ranks: they must hold the same.
        self._shared = contributors > 1 if not collective.reduces else np.zeros(collective.num_chunks, dtype=np.bool_)

    def fill_input(self, rank: int, stored: Array) -> None:
        """Write the rank's input (its whole input buffer, in the storage type)."""
        for begin, length in _blocks(len(stored)):
            stored[begin : begin + length] = self._elements(rank, begin, length)
        chunks, first, _ = self.places.input[rank]
        for chunk, at in zip(chunks.tolist(), first.tolist(), strict=True):
            if self._shared[chunk]:
                length = int(self.places.lengths[chunk])
                for begin, part in _blocks(length):
                    stored[at + begin : at + begin + part] = self._contribution(rank, chunk, begin, part)

    def wrong_elements(self, rank: int, output: Array) -> int:
        """Elements of the rank's output buffer that are not as they must be; gaps between chunks do not count."""
        wrong = 0
        for chunk, at, length in self._runs(rank):
            for begin, part in _blocks(length):
                want, found = self._result(chunk, begin, part), output[at + begin : at + begin + part]
                wrong += int((self._comparable(found) != self._comparable(want)).sum())
        return wrong

    def poison(self, output: Array) -> None:
        """Fill a buffer with bytes that no right result consists of everywhere."""
        output.view(np.uint8)[...] = 0xA5

    def _runs(self, rank: int) -> list[tuple[int, int, int]]:
        """(first chunk, first element, elements) of stretches of the output that come from the same ranks, where chunks
        that follow each other in it also do so in their contributors' inputs."""
        collective = self.collective
        chunks, first, _ = self.places.output[rank]
        lengths = self.places.lengths[chunks]
        joined = np.zeros(len(chunks), dtype=np.bool_)
        joined[1:] = (np.diff(collective.pre[chunks]) == 0) & ~self._shared[chunks[1:]]
        for begin in (collective.in_offset, collective.out_offset):
            joined[1:] &= begin[chunks[1:]] == (begin + collective.units)[chunks[:-1]]
        starts = np.flatnonzero(~joined)
        totals = np.add.reduceat(lengths, starts) if len(starts) else lengths
        return list(zip(chunks[starts].tolist(), first[starts].tolist(), totals.tolist(), strict=True))

    def _result(self, chunk: int, begin: int, length: int) -> Array:
        """Right elements from element `begin` of a chunk on."""
        contributors = self.collective.contributors(chunk).tolist()
        result = self._contribution(contributors[0], chunk, begin, length)
        if not self.collective.reduces:
            return result
        combine = reducer(self.op, self.dtype.name)
        for rank in contributors[1:]:
            combine(result, result, self._contribution(rank, chunk, begin, length))
        if self.op == "avg" and len(contributors) > 1:
            divide(self.dtype.name, result, len(contributors))
        return result

    def _contribution(self, rank: int, chunk: int, begin: int, length: int) -> Array:
        """Elements from element `begin` of a chunk on in a contributor's input."""
        if self._shared[chunk]:
            return self._elements(self.collective.num_ranks + chunk, begin, length)
        chunks, first, _ = self.places.input[rank]
        return self._elements(rank, int(first[chunks == chunk][0]) + begin, length)

    def _elements(self, owner: int, begin: int, length: int) -> Array:
        """Stored elements `begin` .. `begin + length` of an owner."""
        bits = _hash(np.arange(begin, begin + length, dtype=np.uint64), owner, self._seed)
        if not self.collective.reduces or not self.dtype.is_float:
            width = self.dtype.num_bytes
            return bits.astype(np.dtype(f"u{width}")).view(self.dtype.storage)
        if self.op == "prod":
            numbers = np.array([1, -1, 1, -1, 1, -1, 1, 2], dtype=np.float32)[bits % np.uint64(8)]
        else:
            numbers = (bits % np.uint64(2 * self._amplitude + 1)).astype(np.float32) - self._amplitude
        return to_stored(self.dtype.name, numbers)

    def _comparable(self, stored: Array) -> Array:
        """Numbers where reductions computed them, else raw bits (a copied NaN must be the same NaN)."""
        if self.collective.reduces:
            return to_numbers(self.dtype.name, stored)
        return stored.view(np.dtype(f"u{self.dtype.num_bytes}"))


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """(first element, elements) of the parts of a stretch."""
    for begin in range(0, length, _BLOCK):
        yield begin, min(_BLOCK, length - begin)


def _hash(index: npt.NDArray[np.uint64], owner: int, seed: int) -> npt.NDArray[np.uint64]:
    """Well mixed bits of a place (the finisher of SplitMix64)."""
    z = index + np.uint64((owner * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)
