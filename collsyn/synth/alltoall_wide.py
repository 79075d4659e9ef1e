"""Balanced paths for very many pieces that each have one receiver, a search for all receivers of a source."""

from dataclasses import dataclass

import numpy as np

from collsyn.model.arrays import F64, I32, I64
from collsyn.synth import alltoall_wide_kernels as kernels
from collsyn.synth.event_kernels import Machine

# Powers of the load that prices rise with, one a pass, and what a link costs besides, as a share of its time: the more,
# the fewer detours. More of these must lower the highest load to WORTH_IT of it. Loads this near to all equal are EVEN.
POWERS, OWN, WORTH_IT, EVEN = np.geomspace(4.0, 64.0, 8), (0.3, 0.02), 0.99, 1.005
# Pieces of a source that are rerouted at once are at most this part of all.
LEAST_PARTS = 64
# Searches for pieces on the busiest links, and the power of their prices.
SEARCHES, HIGH_POWER = 40_000, 64.0


@dataclass(frozen=True, eq=False)
class Ways:
    """Hops of every piece (rows) and their number, seconds of the busiest link, and how many searches were made."""

    hops: I32
    lengths: I64
    top_s: float
    searches: int


def balanced(
    machine: Machine,
    distance: F64,
    source: I64,
    target: I64,
    num_bytes: F64,
    seed: int,
    given_s: F64 | None = None,
    searches: int = SEARCHES,
) -> Ways:
    """Paths of every piece such that the busiest link has little to carry, besides `given_s` of other pieces.

    `distance` are the fewest hops between ranks; paths are at most a quarter longer than the longest of them. The
    search ends where all links carry the same over shortest paths; else pieces on the busiest links are rerouted one by
    one, by up to `searches` searches.
    """
    order = np.argsort(source, kind="stable")
    sources, first = np.unique(source[order], return_index=True)
    piece_ptr = np.append(first, len(source))
    parts = max(1, -(-LEAST_PARTS // max(len(sources), 1)))
    diameter = int(distance[np.isfinite(distance)].max())
    ends, sizes = target[order], num_bytes[order]
    least_s = float((distance[source, target] * num_bytes).sum() / machine.bandwidth.sum())
    given_s = np.zeros(len(machine.bandwidth)) if given_s is None else given_s
    best: Ways | None = None
    for turn, own in enumerate(OWN):
        paths = np.zeros((len(source), diameter + diameter // 4 + 2), np.int32)
        lengths = np.zeros(len(source), np.int64)
        top_s = kernels.route_by_source(
            machine, sources, piece_ptr, ends, sizes, parts, own, POWERS, 2 * seed + turn, given_s, paths, lengths
        )
        assert top_s >= 0, "what the bound found reachable was not reached"
        if best is None or top_s < WORTH_IT * best.top_s:
            best = Ways(paths, lengths, top_s, (turn + 1) * len(POWERS) * len(sources) * parts)
        if best.top_s <= EVEN * least_s:
            break
    assert best is not None
    top_s, made = best.top_s, best.searches
    if top_s > EVEN * least_s:
        top_s, more = kernels.relieve(
            machine, source[order], ends, sizes, HIGH_POWER, OWN[1], searches, seed, given_s, best.hops, best.lengths
        )
        made += more
    hops, count = np.empty_like(best.hops), np.empty_like(best.lengths)
    hops[order], count[order] = best.hops, best.lengths
    return Ways(hops, count, float(top_s), made)
