"""Allgathers carried along from a graph to a larger one, without solving anything again.

Source: Efficient Direct-Connect Topologies, arXiv 2202.03356, section 5. A carried schedule says of every rank's chunks
over which link and in which step they come to every other rank; a rank has a chunk's whole data before it passes it on.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial, reduce
from math import lcm

import numpy as np
import numpy.typing as npt

from collsyn.errors import VerificationError
from collsyn.finder.design import Cost, step_loads
from collsyn.model.arrays import I64, Rows
from collsyn.model.topology import Topology
from collsyn.synth.bfb_shares import Shares, shares
from collsyn.topology.composite import is_construction, parse_construction
from collsyn.topology.expansions import degree_expansion, line_graph, product
from collsyn.topology.presets import preset_wiring
from collsyn.topology.wiring import Costs, Wiring

# More chunks of a rank than this make balance no better than anyone could measure.
MAX_CHUNKS = 240


@dataclass(frozen=True, eq=False)
class Carried:
    """Of `chunks` equal chunks of every rank v, chunk c reaches rank u over `link[u, v, c]` in step `step[u, v]`.

    Steps begin at 1; of its own chunks a rank has step 0 and link -1. Shapes: [ranks, ranks], [ranks, ranks, chunks].
    """

    wiring: Wiring
    step: npt.NDArray[np.int32]
    link: I64

    @property
    def chunks(self) -> int:
        """Chunks a rank."""
        return int(self.link.shape[2])

    @cached_property
    def per_step(self) -> tuple[Fraction, ...]:
        """The bandwidth factor of every step, from the chunks over its busiest link."""
        n, links = self.wiring.num_ranks, len(self.wiring.src)
        moved = self.link >= 0
        at = np.broadcast_to(self.step[:, :, None], self.link.shape)[moved].astype(np.int64)
        loads = np.bincount((at - 1) * links + self.link[moved], minlength=int(self.step.max(initial=0)) * links)
        degree = int(np.bincount(self.wiring.dst, minlength=n).max(initial=0))
        return tuple(Fraction(int(load) * degree, self.chunks * n) for load in loads.reshape(-1, links).max(axis=1))

    def shares(self, topology: Topology) -> Shares:
        """The same in the form that schedules of breadth-first broadcast are made from; links are the topology's."""
        n, most = (
            self.wiring.num_ranks,
            int(np.bincount(self.wiring.dst, minlength=self.wiring.num_ranks).max(initial=1)),
        )
        entering = Rows.grouped(self.wiring.dst, n)
        links, place = np.full((n, most), -1, dtype=np.int32), np.full(len(self.wiring.dst), -1, dtype=np.int16)
        for rank in range(n):
            into = entering[rank]
            links[rank, : len(into)], place[into] = into, np.arange(len(into))
        via = np.where(self.link >= 0, place[self.link], -1).astype(np.int16).reshape(n, -1)
        solved_links = [entering[rank].astype(np.int64) for rank in range(n)]
        steps, own = int(self.step.max(initial=0)), np.arange(n)
        loads = []
        for rank in range(n):
            at = np.repeat(self.step[rank].astype(np.int64) - 1, self.chunks)
            other = np.repeat(own != rank, self.chunks)
            table = np.zeros((steps, len(solved_links[rank])), dtype=np.int64)
            np.add.at(table, (at[other], via[rank][other]), 1)
            loads.append(table)
        return Shares(topology, self.chunks, self.step.astype(np.int16), via, links, solved_links, loads)

    @property
    def cost(self) -> Cost:
        """Steps and bandwidth factor."""
        return Cost(len(self.per_step), sum(self.per_step, Fraction(0)))

    def check(self) -> None:
        """Raise VerificationError unless every chunk comes over a link into its receiver from a rank that has it."""
        n = self.wiring.num_ranks
        own = np.eye(n, dtype=np.bool_)
        if (self.link[own] != -1).any() or (self.step[own] != 0).any() or (self.step[~own] < 1).any():
            raise VerificationError("carried schedule: a rank receives its own data, or never another's")
        receiver, owner = np.nonzero(~own)
        links = self.link[receiver, owner]
        if (links < 0).any() or (self.wiring.dst[links] != receiver[:, None]).any():
            raise VerificationError("carried schedule: a chunk comes over a link that does not lead to its receiver")
        tails = self.wiring.src[links]
        late = self.step[tails, owner[:, None]] >= self.step[receiver, owner][:, None]
        if late.any():
            row, chunk = np.argwhere(late)[0].tolist()
            raise VerificationError(
                f"carried schedule: rank {int(tails[row, chunk])} passes on chunk {chunk} of rank {int(owner[row])} "
                f"in step {int(self.step[receiver[row], owner[row]])}, before it has it"
            )


def carried(text: str, base: str | None = None, most_chunks: int = MAX_CHUNKS) -> Carried:
    """The schedule of a graph's text, solved on the graph `base` in it and carried from there.

    Without a base, graphs that are no line graph, expansion, product or power are solved. Loads are balanced as far as
    that many chunks a rank allow. Raises InputError as presets do.
    """
    ends = text == base or not is_construction(text)
    name, parts, number = ("", [], 1) if ends else parse_construction(text)
    if name == "line":
        return carried_line(carried(parts[0], base, most_chunks))
    if name == "expand":
        return carried_copies(carried(parts[0], base, most_chunks), number, most_chunks)
    if name in ("product", "power"):
        factors = [carried(part, base, most_chunks) for part in parts] * number
        return reduce(partial(carried_product, most_chunks=most_chunks), factors)
    wiring = preset_wiring(text)
    return solved(wiring, min(exact_chunks(wiring), most_chunks))


def solved(wiring: Wiring, chunks: int | None = None) -> Carried:
    """Breadth-first broadcast on a base graph; without a number of chunks, as many as make its shares exact."""
    number = min(exact_chunks(wiring), MAX_CHUNKS) if chunks is None else chunks
    found = shares(wiring.topology("base", [Costs()] * len(wiring.share)), number)
    n = wiring.num_ranks
    via = found.via.reshape(n, n, number).astype(np.int64)
    rows = np.arange(n)[:, None, None]
    link = np.where(via >= 0, found.links[rows, np.maximum(via, 0)], -1).astype(np.int64)
    return Carried(wiring, found.hops.astype(np.int32), link)


def exact_chunks(wiring: Wiring) -> int:
    """Chunks a rank with which the shares of breadth-first broadcast are whole."""
    return lcm(*(load.denominator for load in step_loads(wiring)))


def split(base: Carried, parts: int) -> Carried:
    """Every chunk cut into so many."""
    return Carried(base.wiring, base.step, np.repeat(base.link, parts, axis=2))


def carried_line(base: Carried) -> Carried:
    """On the line graph: first every link's data to all that follow it, then as on the base, a step later.

    A rank is a link of the base. What rank v of the base sent over a link, the rank that is this link now passes on to
    all links that follow it, for all links into v.
    """
    old = base.wiring
    new = line_graph(old)
    leaving = Rows.grouped(old.src, old.num_ranks)
    follow = leaving.lengths()[old.dst]
    begin = np.cumsum(follow) - follow
    place = np.empty(len(old.src), dtype=np.int64)
    place[leaving.data] = np.arange(len(old.src)) - leaving.ptr[old.src[leaving.data]]
    at, owner = old.src[:, None], old.dst[None, :]
    step = base.step[at, owner] + 1
    through = np.where(base.link[at, owner] >= 0, base.link[at, owner], np.arange(len(old.src))[None, :, None])
    link = begin[through] + place[:, None, None]
    own = np.arange(len(old.src))
    step[own, own], link[own, own] = 0, -1
    return Carried(new, step, link)


def carried_copies(base: Carried, copies: int, most_chunks: int = MAX_CHUNKS) -> Carried:
    """On the degree expansion: copy i's data goes as on the base to all copies; then every rank's copies get it, too.

    These receive it over all their links alike, as soon as all their neighbours have it.
    """
    old, n = base.wiring, base.wiring.num_ranks
    new = degree_expansion(old, copies)
    degree = int(np.bincount(old.dst, minlength=n).max())
    exact = lcm(base.chunks, copies * degree)
    base = split(base, exact // base.chunks if exact <= most_chunks else max(most_chunks // base.chunks, 1))
    copy, rank = (part.reshape(-1) for part in np.divmod(np.arange(n * copies), n))
    into = copy[:, None, None]
    step = base.step[rank[:, None], rank[None, :]].copy()
    link = base.link[rank[:, None], rank[None, :]]
    # Links of the expansion are numbered by link, then copy it leaves, then copy it enters.
    link = link * copies**2 + copy[None, :, None] * copies + into
    entering = Rows.grouped(old.dst, n)
    for v in range(n):
        links = entering[v].astype(np.int64)
        ways = (links[:, None] * copies + np.arange(copies)).reshape(-1)
        chosen = ways[np.arange(base.chunks) * len(ways) // base.chunks]
        siblings = v + n * np.arange(copies)
        step[np.ix_(siblings, siblings)] = 1 + base.step[old.src[links], v].max()
        link[np.ix_(siblings, siblings)] = chosen * copies + np.arange(copies)[:, None, None]
    own = np.arange(n * copies)
    step[own, own], link[own, own] = 0, -1
    return Carried(new, step, link)


def carried_product(fast: Carried, slow: Carried, most_chunks: int = MAX_CHUNKS) -> Carried:
    """On the Cartesian product: what must move in both factors comes in part by a link of one, in part of the other.

    The parts balance both kinds of links in every step where whole parts can.
    """
    a, b = fast.wiring.num_ranks, slow.wiring.num_ranks
    parts = _parts(fast, slow)
    common = lcm(fast.chunks, slow.chunks)
    pieces = lcm(*(part.denominator for part in parts.values()))
    pieces = pieces if pieces * common <= most_chunks else max(most_chunks // common, 1)
    total = pieces * common
    x, y = np.arange(a * b) % a, np.arange(a * b) // a
    first, second = fast.step[x[:, None], x[None, :]], slow.step[y[:, None], y[None, :]]
    step = first + second
    by_fast = np.zeros(int(step.max()) + 1, dtype=np.int64)
    for number, part in parts.items():
        by_fast[number] = round(part * pieces) * common
    border = np.where(second == 0, total, np.where(first == 0, 0, by_fast[step]))
    chunk = np.arange(total)
    across = fast.link[x[:, None], x[None, :]][:, :, chunk % fast.chunks] + len(fast.wiring.src) * y[:, None, None]
    up = slow.link[y[:, None], y[None, :]][:, :, chunk % slow.chunks] + len(slow.wiring.src) * x[:, None, None]
    link = np.where(chunk < border[:, :, None], across, up + len(fast.wiring.src) * b)
    own = np.arange(a * b)
    step[own, own], link[own, own] = 0, -1
    return Carried(product([fast.wiring, slow.wiring]), step, link)


def _parts(fast: Carried, slow: Carried) -> dict[int, Fraction]:
    """For each step, which part of the data that moves in both factors comes by a link of the first."""
    counts = [_ranks_at(factor) for factor in (fast, slow)]
    d1, d2 = (int(np.bincount(factor.wiring.dst).max()) for factor in (fast, slow))
    parts = {}
    for step in range(2, len(counts[0]) + len(counts[1]) - 1):
        forced = [int(count[step]) if step < len(count) else 0 for count in counts]
        both = sum(
            int(counts[0][i]) * int(counts[1][step - i])
            for i in range(1, step)
            if i < len(counts[0]) and step - i < len(counts[1])
        )
        if both:
            wanted = Fraction((forced[1] + both) * d1 - forced[0] * d2, both * (d1 + d2))
            parts[step] = min(max(wanted, Fraction(0)), Fraction(1))
    return parts


def _ranks_at(factor: Carried) -> I64:
    """How many ranks' data a rank receives in each step, the mean over ranks rounded."""
    n = factor.wiring.num_ranks
    found: I64 = np.rint(np.bincount(factor.step.reshape(-1)) / n).astype(np.int64)
    return found
