"""What is to be done: chunks at rational places of the users' buffers, who holds them and who must end with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import F64, I32, I64, Rows, column
from collsyn.model.kinds import ALIASES, KINDS, PAIRWISE, REDUCING, ROOTED

# Beyond this a slip of the keyboard is likelier than a wish: the largest alltoall of 2048 ranks just fits.
MAX_CHUNKS = 1 << 22
# Lengths and offsets are whole numbers of units, which floats must hold exactly, too.
MAX_UNITS = 1 << 53

# Shards of unequal length are rounded to whole elements in one buffer; lengths in the other one follow from it.
_ROUNDED_BY_INPUT = frozenset({"reducescatter", "scatter", "alltoall", "alltoallv"})

# Where input and output may be one memory: input is a part of output, output a part of input, or both are the same.
_INPUT_INSIDE, _OUTPUT_INSIDE = frozenset({"allgather", "gather"}), frozenset({"reducescatter", "scatter"})
_SAME = frozenset({"allreduce", "broadcast", "reduce"})


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective over all ranks or over process groups, as columns with one entry a chunk.

    Lengths and offsets count units; `total_units` of them are the size that users give (the size column of nccl-tests).
    Chunk c stands at `in_offset[c]` of the input of every rank in set `pre[c]` and must end at `out_offset[c]` of the
    output of every rank in set `post[c]`, reduced over all of `pre[c]` if the collective `reduces`; if it does not, the
    ranks of `pre[c]` hold the same bytes. `sets` lists the rank sets. `spec` is what it was made from.
    """

    kind: str
    num_ranks: int
    groups: tuple[tuple[int, ...], ...]
    root: int | None
    chunks_per_rank: int
    reduces: bool
    total_units: int
    units: I64
    in_offset: I64
    out_offset: I64
    pre: I32
    post: I32
    sets: Rows
    spec: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("units", "in_offset", "out_offset"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))
        for name in ("pre", "post"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))

    @property
    def num_chunks(self) -> int:
        """Chunks in all."""
        return len(self.units)

    def contributors(self, chunk: int) -> I32:
        """Ranks that hold the chunk (or their part of it) at the start."""
        return self.sets[int(self.pre[chunk])]

    def receivers(self, chunk: int) -> I32:
        """Ranks that must hold the chunk at the end."""
        return self.sets[int(self.post[chunk])]

    def chunk_bytes(self, size_bytes: int) -> F64:
        """Length of every chunk in bytes (a fraction of a byte is kept: times are those of the fluid size)."""
        return np.asarray(self.units * (size_bytes / self.total_units), dtype=np.float64)

    @cached_property
    def rounded_by_input(self) -> bool:
        """Whether lengths in whole elements are rounded in the input buffer (else in the output buffer)."""
        return self.kind in _ROUNDED_BY_INPUT

    @property
    def has_in_place(self) -> bool:
        """Whether users may give one memory for input and output."""
        return self.kind in _SAME | _INPUT_INSIDE | _OUTPUT_INSIDE

    def in_place_chunk(self, rank: int) -> tuple[str, int | None]:
        """How the two buffers lie in place: (`same`, None), or which one lies inside the other and at which chunk.

        `("input", c)`: the rank's input begins where chunk c stands in its output; `("output", c)`: the reverse;
        `("apart", None)`: this rank's buffers do not overlap (a gather's rank that is not the root).
        """
        if self.kind in _SAME:
            return "same", None
        inside = "input" if self.kind in _INPUT_INSIDE else "output" if self.kind in _OUTPUT_INSIDE else "apart"
        if inside == "apart" or (self.root is not None and rank not in [group[self.root] for group in self.groups]):
            return "apart", None
        mine = self.held_by(rank) if inside == "input" else self.wanted_by(rank)
        return (inside, int(mine[np.argmin(self.units_start(mine, inside))])) if len(mine) else ("apart", None)

    def units_start(self, chunks: I64, buffer: str) -> I64:
        """Offsets in units of some chunks in the buffer `input` or `output`."""
        return (self.in_offset if buffer == "input" else self.out_offset)[chunks]

    def held_by(self, rank: int) -> I64:
        """Chunks of the rank's input buffer, in ascending order."""
        return np.flatnonzero(self._set_has(rank)[self.pre])

    def wanted_by(self, rank: int) -> I64:
        """Chunks of the rank's output buffer, in ascending order."""
        return np.flatnonzero(self._set_has(rank)[self.post])

    def _set_has(self, rank: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        has = np.zeros(len(self.sets), dtype=np.bool_)
        has[np.repeat(np.arange(len(self.sets)), self.sets.lengths())[self.sets.data == rank]] = True
        return has

    def element_lengths(self, num_elements: int) -> I64:
        """Whole elements of every chunk when the user's size is `num_elements`; equal chunks differ by at most one."""
        offset = self.in_offset if self.rounded_by_input else self.out_offset
        return (offset + self.units) * num_elements // self.total_units - offset * num_elements // self.total_units


def make_collective(
    kind: str,
    num_ranks: int,
    chunks_per_rank: int = 1,
    root: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    counts: Sequence[Any] | None = None,
) -> Collective:
    """A named collective, over all ranks or in each of some process groups at once.

    `chunks_per_rank` cuts every shard (every pair's bytes for alltoall, the root's buffer for broadcast and reduce; the
    buffer of an allreduce into that many chunks a rank). `root` is a rank (the first of every group by default; with
    groups it counts inside the group). `counts` are relative lengths: one a rank of the group for allgather,
    reduce-scatter, gather and scatter, a matrix [sender][receiver] for alltoallv. Raises InputError.
    """
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS or kind == "custom":
        raise InputError(f"collective {kind!r} is not known; expected one of {', '.join(KINDS[:-1])}")
    if chunks_per_rank < 1:
        raise InputError(f"chunks: is {chunks_per_rank}; expected at least 1 chunk a rank")
    members = _checked_groups(groups, num_ranks)
    most = chunks_per_rank * sum(len(group) ** (2 if kind in PAIRWISE else 1) for group in members)
    if most > MAX_CHUNKS:
        raise InputError(f"chunks: {chunks_per_rank} a rank make {most} chunks of {kind}; at most {MAX_CHUNKS} fit")
    _check_root(kind, root, members, num_ranks, groups is not None)
    cells = [_cells(kind, len(group), root or 0, chunks_per_rank, counts) for group in members]
    total = lcm(*(cell.total for cell in cells))
    builder = _Builder()
    for group, cell in zip(members, cells, strict=True):
        builder.add_group(group, cell, total // cell.total)
    spec: dict[str, Any] = {"kind": kind, "ranks": num_ranks, "chunks_per_rank": chunks_per_rank}
    if kind in ROOTED:
        spec["root"] = root or 0
    if groups is not None:
        spec["groups"] = [list(group) for group in members]
    if counts is not None:
        spec["counts"] = [list(row) if isinstance(row, Sequence) else row for row in counts]
    return builder.build(
        kind, num_ranks, members, (root or 0) if kind in ROOTED else None, chunks_per_rank, total, spec
    )


_Row = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class _Cells:
    """Chunks of one group with local ranks: rows of (units, in offset, out offset, contributors, receivers)."""

    total: int
    rows: Sequence[_Row]


class _Builder:
    def __init__(self) -> None:
        self.columns: list[tuple[int, int, int, int, int]] = []
        self.set_ids: dict[tuple[int, ...], int] = {}

    def add_group(self, group: tuple[int, ...], cells: _Cells, scale: int) -> None:
        # Long ones are told by identity: chunks share them, and to hash all ranks anew for each would take long.
        known: dict[tuple[int, ...] | int, int] = {}
        for units, in_offset, out_offset, pre, post in cells.rows:
            if units == 0:
                continue
            ids = []
            for local in (pre, post):
                key = local if len(local) < 32 else id(local)
                if key not in known:
                    ranks = tuple(sorted(group[i] for i in local))
                    known[key] = self.set_ids.setdefault(ranks, len(self.set_ids))
                ids.append(known[key])
            self.columns.append((units * scale, in_offset * scale, out_offset * scale, ids[0], ids[1]))

    def build(
        self,
        kind: str,
        num_ranks: int,
        groups: tuple[tuple[int, ...], ...],
        root: int | None,
        chunks_per_rank: int,
        total: int,
        spec: dict[str, Any],
        reduces: bool | None = None,
    ) -> Collective:
        if not self.columns:
            raise InputError("collective: all counts are 0; expected at least one above 0")
        most = max(total, *(units + max(ins, outs) for units, ins, outs, _, _ in self.columns))
        if most > MAX_UNITS:
            what = "chunks: lengths and offsets" if kind == "custom" else "counts: sums and chunks a rank"
            raise InputError(f"{what} come to more than 2^{most.bit_length() - 1} units; expected at most 2^53")
        units, in_offset, out_offset, pre, post = (np.array(c, dtype=np.int64) for c in zip(*self.columns, strict=True))
        return Collective(
            kind=kind,
            num_ranks=num_ranks,
            groups=groups,
            root=root,
            chunks_per_rank=chunks_per_rank,
            reduces=kind in REDUCING if reduces is None else reduces,
            total_units=total,
            units=units,
            in_offset=in_offset,
            out_offset=out_offset,
            pre=pre.astype(np.int32),
            post=post.astype(np.int32),
            sets=Rows.of(self.set_ids),
            spec=spec,
        )


def _checked_groups(groups: Sequence[Sequence[int]] | None, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    if groups is None:
        return (tuple(range(num_ranks)),)
    seen: set[int] = set()
    for group in groups:
        for rank in group:
            if not 0 <= rank < num_ranks:
                raise InputError(f"groups: rank {rank} is not there; expected 0 .. {num_ranks - 1}")
            if rank in seen:
                raise InputError(f"groups: rank {rank} stands in two groups or twice in one")
            seen.add(rank)
    if not groups or not all(len(group) for group in groups):
        raise InputError("groups: a group is empty; expected at least one rank in each")
    return tuple(tuple(int(rank) for rank in group) for group in groups)


def _check_root(
    kind: str, root: int | None, members: tuple[tuple[int, ...], ...], num_ranks: int, grouped: bool
) -> None:
    if root is None:
        return
    if kind not in ROOTED:
        raise InputError(f"root: {kind} has no root; leave it out")
    limit = min(len(group) for group in members) if grouped else num_ranks
    if not 0 <= root < limit:
        raise InputError(f"root: is {root}; expected 0 .. {limit - 1}")


def _cells(kind: str, n: int, root: int, chunks: int, counts: Sequence[Any] | None) -> _Cells:
    if kind == "alltoallv":
        return _alltoallv(n, chunks, _count_matrix(counts, n))
    if kind == "alltoall":
        _no_counts(kind, counts)
        return _alltoallv(n, chunks, [[1] * n for _ in range(n)])
    if kind in ("allgather", "reducescatter", "gather", "scatter"):
        return _sharded(kind, n, root, chunks, _count_list(counts, n))
    _no_counts(kind, counts)
    everyone = tuple(range(n))
    if kind == "sendrecv":
        rows: list[_Row] = [(1, j, j, (r,), ((r + 1) % n,)) for r in range(n) for j in range(chunks)]
        return _Cells(chunks, rows)
    ends = {"allreduce": (everyone, everyone), "broadcast": ((root,), everyone), "reduce": (everyone, (root,))}[kind]
    pieces = chunks * n if kind == "allreduce" else chunks
    return _Cells(pieces, [(1, j, j, *ends) for j in range(pieces)])


def _sharded(kind: str, n: int, root: int, chunks: int, counts: list[int]) -> _Cells:
    """Collectives with one big buffer of shards (`whole`) and small buffers of one shard."""
    everyone, start = tuple(range(n)), 0
    rows: list[_Row] = []
    for rank, count in enumerate(counts):
        owner, others = (rank,), everyone if kind in ("allgather", "reducescatter") else (root,)
        for j in range(chunks):
            whole, shard = start + j * count, j * count
            if kind in ("allgather", "gather"):
                rows.append((count, shard, whole, owner, others))
            else:
                rows.append((count, whole, shard, others, owner))
        start += chunks * count
    return _Cells(max(start, 1), rows)


def _alltoallv(n: int, chunks: int, counts: list[list[int]]) -> _Cells:
    """The size is the largest send buffer of a rank; a pair's bytes follow each other in both buffers."""
    rows: list[_Row] = []
    received = [0] * n
    for s in range(n):
        sent = 0
        for d in range(n):
            for j in range(chunks):
                step = j * counts[s][d]
                rows.append((counts[s][d], sent + step, received[d] + step, (s,), (d,)))
            sent += chunks * counts[s][d]
            received[d] += chunks * counts[s][d]
    return _Cells(max(chunks * max(sum(row) for row in counts), 1), rows)


def _count_list(counts: Sequence[Any] | None, n: int) -> list[int]:
    if counts is None:
        return [1] * n
    if len(counts) != n or not all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in counts):
        raise InputError(f"counts: expected {n} whole numbers of at least 0, one a rank")
    return list(counts)


def _count_matrix(counts: Sequence[Any] | None, n: int) -> list[list[int]]:
    if counts is None:
        raise InputError(f"counts: alltoallv needs a {n} x {n} matrix of counts [sender][receiver]")
    if len(counts) != n or not all(isinstance(row, Sequence) and not isinstance(row, str) for row in counts):
        raise InputError(f"counts: expected {n} rows [sender][receiver]")
    return [_count_list(row, n) for row in counts]


def _no_counts(kind: str, counts: Sequence[Any] | None) -> None:
    if counts is not None:
        raise InputError(f"counts: {kind} takes none; alltoallv and the sharded collectives do")


def custom_collective(
    num_ranks: int,
    chunks: Sequence[tuple[Fraction, Fraction, Fraction, Sequence[int], Sequence[int]]],
    reduces: bool,
    spec: Mapping[str, Any],
) -> Collective:
    """A collective of one's own: rows of (length, in offset, out offset, contributors, receivers), lengths in sizes."""
    if not chunks:
        raise InputError("chunks: is empty; expected at least one")
    total = lcm(*(Fraction(value).denominator for row in chunks for value in row[:3]))
    builder = _Builder()
    for length, in_offset, out_offset, pre, post in chunks:
        everyone = tuple(sorted({*pre, *post}))
        local = {rank: i for i, rank in enumerate(everyone)}
        rows = [
            (
                int(length * total),
                int(in_offset * total),
                int(out_offset * total),
                tuple(local[r] for r in pre),
                tuple(local[r] for r in post),
            )
        ]
        builder.add_group(everyone, _Cells(total, rows), 1)
    return builder.build("custom", num_ranks, (tuple(range(num_ranks)),), None, 1, total, dict(spec), reduces)
