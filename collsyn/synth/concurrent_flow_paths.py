"""The ways of a concurrent flow: paths of every pair with their shares, and equal pieces dealt out to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collsyn.bounds.concurrent_program import Flows, Program, Source
from collsyn.model.arrays import F64, I32, I64, Rows
from collsyn.model.topology import Topology
from collsyn.synth import concurrent_flow_kernels as kernels
from collsyn.topology.hops import Hops, hops_along

# Powers of the loads in the passes over pieces, which end when the busiest link is that near to the flow's time.
POWERS, CLOSE_ENOUGH = np.repeat((8.0, 16.0, 32.0, 64.0, 128.0), 3), 1.0005


@dataclass(frozen=True, eq=False)
class Ways:
    """Paths of all pairs: pair i is from `source[i]` to `target[i]` and has the paths `ptr[i] : ptr[i + 1]`.

    Path p carries `share[k, p]` of what its pair exchanges (`demand`, in bytes) over `links[p]` in solution k. `time_s`
    is when the busiest link of the flow is done: no schedule's bytes are through earlier.
    """

    topology: Topology
    source: I64
    target: I64
    demand: F64
    ptr: I64
    share: F64
    links: Rows
    time_s: float

    @cached_property
    def _cut(self) -> tuple[Hops, Rows]:
        """All hops of the paths, and the hops of every path: a path is cut where it passes a rank."""
        t, entry = self.topology, self.links.data
        ends = t.dst[entry] < t.num_ranks
        last = np.flatnonzero(ends)
        first = np.concatenate([[0], last[:-1] + 1])
        width = int((last - first).max(initial=0)) + 1
        padded = np.full((len(last), width), -1)
        for place in range(width):
            inside = first + place <= last
            padded[inside, place] = entry[first[inside] + place]
        routes, hop = np.unique(padded, axis=0, return_inverse=True)
        table = hops_along(t, [tuple(link for link in route if link >= 0) for route in routes.tolist()])
        hops_before = np.concatenate([[0], np.cumsum(ends)])
        return table, Rows(hops_before[self.links.ptr], hop.reshape(-1))

    @property
    def table(self) -> Hops:
        """All hops of the paths."""
        return self._cut[0]

    @property
    def hops(self) -> Rows:
        """The hops of every path."""
        return self._cut[1]

    def dealt_out(self, pieces: I64, seed: int) -> tuple[I64, float]:
        """The path of every one of so many pieces of each pair, in turn, and seconds of the busiest link's load."""
        best, best_s = np.zeros(0, dtype=np.int64), np.inf
        for share in self.share:
            many, top_s = kernels.dealt_out(
                self.ptr,
                share,
                np.array(self.links.ptr),
                np.array(self.links.data),
                self.demand / pieces,
                np.array(self.topology.beta_s_per_byte),
                pieces,
                CLOSE_ENOUGH * self.time_s,
                POWERS,
                seed,
            )
            if top_s < best_s:
                best, best_s = many, float(top_s)
        return np.repeat(np.arange(len(best)), best), best_s

    def of_pairs(self, source: I64, target: I64) -> I64:
        """The number of the pair of each (source, target)."""
        n = self.topology.num_ranks
        number = np.full(n * n, -1)
        number[self.source * n + self.target] = np.arange(len(self.source))
        found: I64 = number[source * n + target]
        return found


def ways_of(program: Program, solutions: Sequence[Flows]) -> Ways:
    """The paths of all pairs in any of the solutions, those of a source moved to all ranks that it stands for.

    O(paths x links).
    """
    t = program.topology
    key, share, lengths, links = [], [], [], []
    for i, source in enumerate(program.sources):
        pool = _pool(program, source, [flows.flow[i] for flows in solutions])
        for rank, moved, carried in zip(source.images.tolist(), source.vertices, source.links, strict=True):
            key.append(rank * t.num_ranks + moved[pool.target])
            share.append(pool.share)
            lengths.append(pool.rows.lengths())
            links.append(carried[pool.rows.data])
    # Paths of a pair stand together, and no two of its pairs are alike.
    pair = np.concatenate(key)
    begins = np.flatnonzero(np.concatenate([[True], pair[1:] != pair[:-1]]))
    ends = np.divmod(pair[begins], t.num_ranks)
    return Ways(
        topology=t,
        source=ends[0],
        target=ends[1],
        demand=program.demand[ends],
        ptr=np.append(begins, len(pair)).astype(np.int64),
        share=np.concatenate(share, axis=1),
        links=Rows(np.concatenate([[0], np.cumsum(np.concatenate(lengths))]), np.concatenate(links)),
        time_s=min(flows.time_s for flows in solutions),
    )


@dataclass(frozen=True, eq=False)
class _Pool:
    """Paths of a source in the order of their targets: `share[k, p]` of solution k over the links `rows[p]`."""

    target: I64
    share: F64
    rows: Rows


def _pool(program: Program, source: Source, flow: Sequence[F64]) -> _Pool:
    """The distinct paths of all flows of one source."""
    t = program.topology
    need = np.zeros(t.num_vertices)
    need[: t.num_ranks] = program.demand[source.rank]
    src, dst, out_links = (ends.astype(np.int64) for ends in (t.src, t.dst, t.out_links.data))
    shares: dict[tuple[int, tuple[int, ...]], F64] = {}
    for k, each in enumerate(flow):
        found = kernels.paths_of(each, need, source.rank, src, dst, np.array(t.out_links.ptr), out_links)
        target, amount = found[:2]
        total = np.bincount(target, amount, t.num_vertices)[target]
        for end, part, links in zip(target.tolist(), amount / total, Rows(*found[2:]).tuples(), strict=True):
            shares.setdefault((end, links), np.zeros(len(flow)))[k] += part
    order = sorted(shares)
    return _Pool(
        target=np.array([target for target, _ in order], dtype=np.int64),
        share=np.array([shares[path] for path in order]).T.copy(),
        rows=Rows.of([links for _, links in order]),
    )


def padded(rows: Rows, chosen: I64, more: int) -> tuple[I32, I64]:
    """Some rows as a matrix with room for so many more, filled up with zeros, and their lengths."""
    lengths = rows.lengths()[chosen]
    found = np.zeros((len(chosen), int(lengths.max(initial=1)) + more), np.int32)
    for place in range(int(lengths.max(initial=0))):
        inside = lengths > place
        found[inside, place] = rows.data[rows.ptr[chosen[inside]] + place]
    return found, lengths
