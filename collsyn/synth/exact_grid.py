"""Epochs: time cut into equal parts, how many of them messages of one length take, and how many are needed at least."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, I64, Bools, Rows
from collsyn.model.schedule import RouteCosts
from collsyn.synth.exact_steps import NEVER, StepCase

# Rounding up to whole epochs may lengthen no time on a link by more than this share, if some epoch does so.
LOSS = 0.03
# Parts into which some hop's time on its links is cut to get an epoch, and into which epochs are cut to get finer ones.
MAX_PARTS, MAX_FINER = 8, 4
# Share of an epoch that counts as none, and by which arrivals may be late where latencies are not to be rounded up.
TOLERANCE, LATE = 1e-6, 0.1


@dataclass(frozen=True, eq=False)
class Grid:
    """Times of one chunk in whole epochs of `epoch_s` seconds.

    Over hop h it loads links for `busy[h]` and has arrived after `travel[h]`. `shift` has an entry for each link of a
    route: how much later than with the quickest hop over that link its load begins. `share` has one, too: the part of
    the link. `late`: arrivals may be so much of an epoch late, which the true times of the sends then make up for.
    `rounds_up`: no time is rounded down, so that schedules take at most their epochs.
    """

    epoch_s: float
    busy: I64
    travel: I64
    shift: I64
    share: F64
    late: float
    rounds_up: bool

    @classmethod
    def of(cls, case: StepCase, num_bytes: float, epoch_s: float, late: float = TOLERANCE) -> "Grid":
        """The grid of chunks of that many bytes."""
        table, topology = case.table, case.problem.topology
        before_s = RouteCosts.of(topology, table.routes).before_s
        first_s = np.full(topology.num_links, np.inf)
        np.minimum.at(first_s, table.routes.data, before_s)
        rate = np.repeat(1.0 / table.beta_s_per_byte, table.routes.lengths())
        shift = (before_s - first_s[table.routes.data]) / epoch_s
        whole_shift = np.rint(shift).astype(np.int64)
        busy = np.maximum(_rounded_up(busy_s(case, num_bytes) / epoch_s, TOLERANCE), 1)
        return cls(
            epoch_s,
            busy,
            np.maximum(_rounded_up(table.seconds(num_bytes) / epoch_s, late), busy),
            whole_shift,
            rate / topology.bandwidth[table.routes.data],
            late,
            late <= TOLERANCE and bool((abs(shift - whole_shift) <= TOLERANCE).all()),
        )


def _rounded_up(epochs: F64, tolerance: float) -> I64:
    return np.ceil(epochs - tolerance).astype(np.int64)


def busy_s(case: StepCase, num_bytes: float) -> F64:
    """Seconds for which a chunk loads the links of every hop."""
    return case.table.overhead_s + num_bytes * case.table.beta_s_per_byte


def epoch_length_s(busy: F64) -> float:
    """The longest part of some hop's time on its links that loses little of any, else the one that loses least."""
    lengths = np.unique(busy)
    parts = np.unique(np.divide.outer(lengths, np.arange(1, MAX_PARTS + 1)))[::-1]
    parts = parts[parts <= (1 + LOSS) * lengths[0]]
    epochs = np.maximum(np.ceil(lengths / parts[:, None] - TOLERANCE), 1)
    loss = (epochs * parts[:, None] / lengths).max(axis=1) - 1
    good = np.flatnonzero(loss <= LOSS)
    return float(parts[good[0] if len(good) else int(loss.argmin())])


def grids(case: StepCase, num_bytes: float) -> Iterator[Grid]:
    """Grids to be tried, the coarsest first; that with late arrivals only where it differs.

    Whole epochs that a chunk waits for its latency cost nothing where others move meanwhile, and much where none do.
    """
    epoch_s = epoch_length_s(busy_s(case, num_bytes))
    whole = Grid.of(case, num_bytes, epoch_s)
    yield whole
    if np.array_equal(whole.travel * epoch_s, case.table.seconds(num_bytes)):
        return
    loose = Grid.of(case, num_bytes, epoch_s, LATE)
    if not np.array_equal(loose.travel, whole.travel):
        yield loose
    for parts in range(2, MAX_FINER + 1):
        yield Grid.of(case, num_bytes, epoch_s / parts)


def least_epochs(case: StepCase, grid: Grid, chunks: int) -> int:
    """Epochs that no schedule of so many chunks a flow can do without (NEVER: so many, or a receiver out of reach).

    The longest way, and sets of ranks that chunks must enter or leave, each over one of the hops across: a link bears
    only so many after each other, between the first that can get there and the last that must still go on.
    Complexity: O(sets x flows x hops).
    """
    away = case.away(grid.travel)
    wants = np.zeros((len(case.source), case.table.num_ranks), dtype=np.bool_)
    for flow, receivers in enumerate(case.receivers):
        wants[flow, list(receivers)] = True
    least = int(np.where(wants, away[case.source], 0).max(initial=0))
    if least >= NEVER:
        return NEVER
    for inside in _sets(case):
        wanted = wants[~inside[case.source]] & inside
        crossing = wanted.any(axis=1)
        if not crossing.any():
            continue
        sources = np.unique(case.source[~inside[case.source]][crossing])
        for windows in _windows(case, grid, away, inside, sources, wanted[crossing]):
            least = windows.least(chunks * int(crossing.sum()), least)
    return min(least, NEVER)


def _sets(case: StepCase) -> Iterator[Bools]:
    """Every rank alone, every box, and all others of each."""
    ranks = np.arange(case.table.num_ranks)
    for part in [*((rank,) for rank in ranks.tolist()), *case.problem.topology.rank_boxes]:
        inside = np.isin(ranks, part)
        yield inside
        yield ~inside


class _Windows(NamedTuple):
    """Epochs at each of some links: before a chunk gets there, after it to any receiver and to the last, and on it."""

    before: F64
    after: F64
    to_last: F64
    length: F64

    def least(self, number: int, epochs: int) -> int:
        """The first number of epochs, from `epochs` on, in which so many chunks may cross; O(log(result)) looks."""
        step = 1
        while not self.bear(number, epochs + step - 1):
            step *= 2
        # Not in the first half of the steps, but in all of them.
        low, high = epochs + step // 2 - 1, epochs + step - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.bear(number, middle) else (middle, high)
        return high

    def bear(self, number: int, epochs: int) -> bool:
        """Whether so many chunks may cross the links within so many epochs.

        A chunk that crosses once must go on to its last receiver; one that crosses twice takes two places.
        """
        places = [
            np.floor((epochs - self.before - after) / self.length + TOLERANCE).clip(0).sum()
            for after in (self.after, self.to_last)
        ]
        return bool(places[0] >= number and sum(places) >= 2 * number)


def _windows(case: StepCase, grid: Grid, away: I64, inside: Bools, sources: I64, wanted: Bools) -> Iterator[_Windows]:
    """The windows of the hops into a set, told apart by their first link, by their last or by the busiest.

    `sources` are those outside of the flows that must cross, `wanted[f, r]` says who needs them inside.
    """
    table = case.table
    hops = np.flatnonzero(~inside[table.src] & inside[table.dst])
    head = away[sources][:, table.src[hops]].min(axis=0)
    last = np.zeros(len(hops), dtype=np.int64)
    # Where receivers differ, what comes after the crossing depends on the chunk.
    if (wanted == wanted[0]).all():
        last = away[table.dst[hops]][:, wanted[0]].max(axis=1)
    rest = grid.travel[hops] - grid.busy[hops]
    for entry in (table.routes.ptr[:-1][hops], table.routes.ptr[1:][hops] - 1, _busiest(table.routes, grid, hops)):
        shift = grid.shift[entry]
        costs = head + shift, rest - shift, rest - shift + last, grid.busy[hops] * grid.share[entry]
        yield _Windows(*(_least(table.routes.data[entry], cost) for cost in costs))


def _busiest(routes: Rows, grid: Grid, hops: I64) -> I64:
    """The entry of every hop's route whose link all of them together load longest."""
    entry = np.concatenate([np.arange(routes.ptr[hop], routes.ptr[hop + 1]) for hop in hops])
    lengths = routes.lengths()[hops]
    epochs = np.repeat(grid.busy[hops], lengths) * grid.share[entry]
    load = np.bincount(routes.data[entry], epochs)[routes.data[entry]]
    owner = np.repeat(np.arange(len(hops)), lengths)
    order = np.lexsort((load, owner))
    return np.asarray(entry[order[np.cumsum(lengths) - 1]])


def _least(link: npt.NDArray[np.integer], cost: npt.NDArray[Any]) -> F64:
    """The least cost of every link that occurs."""
    _, place = np.unique(link, return_inverse=True)
    least = np.full(int(place.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, place, cost)
    return least
