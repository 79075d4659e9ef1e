"""Presets that are other graphs: switch, bipartite, petersen, kautz, genkautz."""

from collections.abc import Sequence
from math import gcd

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.topology import Cut
from collsyn.topology.wiring import Wiring, check_size, from_edges, permutation

MAX_KAUTZ_EXPONENT = 20


def switch(sizes: Sequence[int]) -> Wiring:
    """Ranks around one switch: a way from rank to rank is two links.

    0   1
     \\ /
      *      * switch
     / \\
    2   3
    """
    (size,) = sizes
    check_size(size, 2 * size)
    ranks = np.arange(size)
    return from_edges(
        size,
        np.stack([ranks, np.full(size, size)], axis=1),
        switch_names=("switch",),
        symmetries=(permutation([*np.roll(ranks, -1), size]),),
        cuts=(Cut("half", permutation(ranks[: size // 2])),),
    )


def bipartite(sizes: Sequence[int]) -> Wiring:
    """The complete bipartite graph: ranks 0 .. A-1 on one side, A .. A+B-1 on the other."""
    left, right = sizes
    check_size(left + right, 2 * left * right)
    a, b = np.arange(left), left + np.arange(right)
    symmetries = [permutation([*np.roll(a, -1), *b])] if left > 1 else []
    symmetries += [permutation([*a, *np.roll(b, -1)])] if right > 1 else []
    symmetries += [permutation([*b, *a])] if left == right else []
    half = Cut("half of both sides", permutation([*a[: left // 2], *b[: (right + 1) // 2]]))
    ends = np.stack([np.repeat(a, right), np.tile(b, left)], axis=1)
    return from_edges(left + right, ends, symmetries=tuple(symmetries), cuts=(half,))


def petersen(sizes: Sequence[int]) -> Wiring:
    """The Petersen graph: 10 ranks of degree 3, any two at most two hops apart.

    A pentagon 0 1 2 3 4, a pentagram 5 7 9 6 8 inside it, and a spoke from i to i+5.
    """
    i = np.arange(5)
    edges = np.concatenate(
        [np.stack(pair, axis=1) for pair in ((i, (i + 1) % 5), (5 + i, 5 + (i + 2) % 5), (i, 5 + i))]
    )
    turn = [*(i + 1) % 5, *(5 + (i + 1) % 5)]
    inside_out = [*(5 + 2 * i % 5), *(2 * i % 5)]
    return from_edges(10, edges, symmetries=(permutation(turn), permutation(inside_out)))


def kautz(sizes: Sequence[int]) -> Wiring:
    """The Kautz digraph K(D, K): D^K (D+1) ranks of degree D, at most K+1 hops apart; one-way links.

    A rank is a word of K+1 letters out of D+1 in which neighbours differ; links drop its first letter and add a last
    one. K(D, 1) is the line graph of the complete digraph on D+1 vertices.
    """
    degree, exponent = sizes
    letters = degree + 1
    if exponent > MAX_KAUTZ_EXPONENT:
        raise InputError(f"has diameter {exponent + 1}; expected at most {MAX_KAUTZ_EXPONENT + 1}")
    num_ranks = degree**exponent * letters
    check_size(num_ranks, num_ranks * degree)
    # A rank's number: its first letter, then every next letter as the step (1 .. D) from the one before it.
    steps = np.arange(num_ranks) % degree**exponent
    first = np.arange(num_ranks) // degree**exponent
    top = degree ** (exponent - 1)
    second = (first + 1 + steps // top) % letters
    kept = second * degree**exponent + steps % top * degree
    dst = (kept[:, None] + np.arange(degree)).reshape(-1)
    turn = permutation((first + 1) % letters * degree**exponent + steps)
    swap = permutation(_relabelled(degree, exponent, np.array([1, 0, *range(2, letters)])))
    src = np.repeat(np.arange(num_ranks), degree)
    return Wiring(num_ranks, src, dst, np.zeros(len(src), dtype=np.int64), symmetries=(turn, swap))


def genkautz(sizes: Sequence[int]) -> Wiring:
    """The generalised Kautz digraph (Imase and Itoh 1983): N ranks, links from u to -D u - a mod N for a = 1 .. D.

    A link from a rank to itself is left out; there are some unless N divides by D+1.
    """
    degree, num_ranks = sizes
    if num_ranks <= degree:
        raise InputError(f"has {num_ranks} ranks of degree {degree}; expected more ranks than the degree")
    check_size(num_ranks, num_ranks * degree)
    ranks = np.arange(num_ranks)
    src = np.repeat(ranks, degree)
    dst = (-degree * src - np.tile(np.arange(1, degree + 1), num_ranks)) % num_ranks
    proper = src != dst
    symmetries = [permutation(num_ranks - 1 - ranks)]
    common = gcd(degree + 1, num_ranks)
    if common > 1:
        symmetries.append(permutation((ranks + num_ranks // common) % num_ranks))
    zeros = np.zeros(int(proper.sum()), dtype=np.int64)
    return Wiring(num_ranks, src[proper], dst[proper], zeros, symmetries=tuple(symmetries))


def _relabelled(degree: int, exponent: int, new_letter: I64) -> I64:
    """Numbers of all words of `kautz` once their letters are renamed."""
    letters = degree + 1
    numbers = np.arange(len(new_letter) * degree**exponent)
    letter = numbers // degree**exponent
    renamed = new_letter[letter]
    result: I64 = renamed.copy()
    for position in range(exponent - 1, -1, -1):
        letter = (letter + 1 + numbers // degree**position % degree) % letters
        following = new_letter[letter]
        result = result * degree + (following - renamed - 1) % letters
        renamed = following
    return result
