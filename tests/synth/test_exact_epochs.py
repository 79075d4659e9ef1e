"""The fewest epochs are those that a search of all schedules finds on tiny machines; what is said of them is true."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from collsyn.bounds import chunk_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible, InputError
from collsyn.model.topology import Topology
from collsyn.synth import exact_epochs
from collsyn.synth.exact_epoch_search import Budget, EpochSearch, as_schedule
from collsyn.synth.exact_epochs import EPOCHS
from collsyn.synth.exact_grid import Grid, least_epochs
from collsyn.synth.exact_steps import NEVER
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build, zoo

SIZE = 1 << 20
MOST = 24


def problem(kind: str, topology: str, chunks: int | None = None, size_bytes: int = SIZE) -> Problem:
    return Problem(kind, load_topology(topology), size_bytes, chunks_per_rank=chunks)


class Oracle:
    """All schedules of a case, epoch by epoch: who has what, what is under way, and until when links are loaded."""

    def __init__(self, search: EpochSearch, grid: Grid) -> None:
        table, plain = search.case.table, search.plain
        self.hops = [
            (
                int(table.src[h]),
                int(table.dst[h]),
                int(grid.busy[h]),
                int(grid.travel[h]),
                tuple(table.routes[h].tolist()),
            )
            for h in range(len(table))
        ]
        ranks = range(table.num_ranks)
        self.away = [[0 if a == b else MOST for b in ranks] for a in ranks]
        for _ in ranks:
            for a, b, _, travel, _ in self.hops:
                for src in ranks:
                    self.away[src][b] = min(self.away[src][b], self.away[src][a] + travel)
        flows = list(zip(plain.source.tolist(), plain.receivers, strict=True))
        self.chunks = [flow for flow in flows for _ in range(search.chunks)]

    def fewest(self) -> int:
        """Epochs of the quickest schedule."""
        return next(epochs for epochs in range(1, MOST) if self._possible(epochs))

    def _possible(self, epochs: int) -> bool:
        seen: set[object] = set()
        wanted = {(chunk, rank) for chunk, (_, receivers) in enumerate(self.chunks) for rank in receivers}

        def search(now: int, has: frozenset[tuple[int, int, int]], loaded: frozenset[tuple[int, int]]) -> bool:
            """`has` are (chunk, rank, from when on), `loaded` (link, until when)."""
            if wanted <= {(chunk, rank) for chunk, rank, _ in has}:
                return True
            if now >= epochs or (now, has, loaded) in seen or self._late(now, epochs, has, wanted):
                return False
            seen.add((now, has, loaded))
            return any(
                search(now + 1, has | new, frozenset((x, t) for x, t in loaded | busy if t > now))
                for new, busy in self._choices(now, epochs, has, loaded)
            )

        return search(0, frozenset((c, source, 0) for c, (source, _) in enumerate(self.chunks)), frozenset())

    def _late(self, now, epochs, has, wanted) -> bool:
        """Whether some chunk cannot get to a rank in time from any that has it, or will have it."""
        known = {(chunk, rank) for chunk, rank, _ in has}
        return any(
            min(max(now, since) + self.away[rank][to] for c, rank, since in has if c == chunk) > epochs
            for chunk, to in wanted - known
        )

    def _choices(self, now, epochs, has, loaded) -> Iterator[tuple[frozenset, frozenset]]:
        known = {(chunk, rank) for chunk, rank, _ in has}
        freed, options = {link for link, until in loaded if until == now}, []
        for src, dst, _, travel, links in self.hops:
            # What could start before starts before: its data comes now, or a link of it is free from now on.
            here = [
                chunk
                for chunk, rank, since in has
                if rank == src and (chunk, dst) not in known and (since == now or (since < now and freed & set(links)))
            ]
            options.append([None, *here] if now + travel <= epochs else [None])
        for choice in product(*options):
            new, busy, taken = [], [], {link for link, until in loaded if until > now}
            for chunk, (_, dst, length, travel, links) in zip(choice, self.hops, strict=True):
                if chunk is None:
                    continue
                if taken & set(links) or any((chunk, dst) == other[:2] for other in new):
                    break
                taken |= set(links)
                new.append((chunk, dst, now + travel))
                busy += [(link, now + length) for link in links]
            else:
                yield frozenset(new), frozenset(busy)


def tiny(seed: int) -> Problem:
    """Three or four ranks on a ring with a chord or two; times of a chunk are 1 to 3 us, latency holds links or not."""
    rng = np.random.default_rng(seed)
    kind = ("allgather", "broadcast", "scatter", "alltoall")[seed % 4]
    n, holds = 4 if kind in ("broadcast", "scatter") else 3, bool(rng.integers(2))
    pairs = [(i, (i + 1) % n) for i in range(n)]
    pairs += [pair for pair in [(1, 0), (0, 2)] if pair not in pairs and rng.integers(2)]
    edges = []
    for a, b in pairs:
        alpha_us = float(rng.integers(0, 3))
        edges.append((a, b, 50 / rng.integers(1, 4), alpha_us, alpha_us if holds else 0))
    chunks = 2 if kind == "broadcast" else 1
    # Chunks of 50,000 bytes: 1 us at 50 GB/s.
    return Problem(kind, build(n, edges), 50_000 * (chunks if kind == "broadcast" else n), chunks_per_rank=chunks)


@pytest.mark.parametrize("seed", range(4, 20))
def test_no_schedule_has_fewer_epochs(seed: int) -> None:
    asked = tiny(seed)
    search = EpochSearch(asked, asked.chunks_per_rank or 1)
    grid = next(search.grids())
    expected = Oracle(search, grid).fewest()
    assert least_epochs(search.case, grid, search.chunks) <= expected
    assert search.bound(grid, Budget(Options())) <= expected
    found = search.fewest(grid, Budget(Options()))
    assert found is not None
    assert (found.epochs, found.fewest) == (expected, True)
    schedule = as_schedule(asked, search.chunks, found)
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s <= expected * grid.epoch_s * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "topology"), [("broadcast", "star"), ("allgather", "ring:3"), ("scatter", "star")])
def test_symmetry_and_ports_lose_nothing(kind: str, topology: str) -> None:
    machine = zoo("star") if topology == "star" else load_topology(topology)
    search = EpochSearch(Problem(kind, machine, 1 << 22), 1)
    grid = next(search.grids())
    found = search.fewest(grid, Budget(Options()))
    assert found is not None
    assert found.epochs == Oracle(search, grid).fewest()


@pytest.mark.parametrize("holds", [False, True])
def test_latency_is_a_delay_or_holds_the_link(holds: bool) -> None:
    overhead_us = 4.0 if holds else 0.0
    line = build(3, [(0, 1, 50, 4, overhead_us), (1, 2, 50, 4, overhead_us)])
    search = EpochSearch(Problem("broadcast", line, 100_000), 2)
    schedule = as_schedule(search.problem, 2, search.fewest(next(search.grids()), Budget(Options())))
    # Two chunks of 1 us over two hops, the second as long after the first as the link is held.
    assert schedule.finish_s == pytest.approx((2 * 5 + 1 + overhead_us) * 1e-6, rel=1e-9)


@pytest.mark.parametrize(
    "kind", ["allgather", "reducescatter", "allreduce", "broadcast", "reduce", "gather", "alltoall"]
)
@pytest.mark.parametrize("costs", ["teccl", "taccl"])
def test_guarantees_hold_for_both_conventions(kind: str, costs: str) -> None:
    machine = load_topology("dgx1" if costs == "teccl" else "ring:4@overhead=alpha")
    asked = Problem(kind, machine, SIZE, chunks_per_rank=1)
    schedule = EPOCHS.synthesize(asked, Options())
    verify_schedule(schedule).raise_if_bad()
    least_s = chunk_bound(schedule.collective, machine, SIZE).time_s
    guarantee = schedule.provenance["options"]["guarantee"]
    assert schedule.finish_s >= least_s * (1 - 1e-9)
    assert ("proven optimal for one chunk a rank" in guarantee) == (schedule.finish_s <= least_s * (1 + 1e-9))


@pytest.mark.parametrize("kind", ["allgather", "scatter", "broadcast"])
def test_halving_all_times_halves_the_finish(kind: str) -> None:
    def faster(topology: Topology, by: float) -> Topology:
        names = "alpha_s", "beta_s_per_byte", "overhead_s"
        return replace(topology, **{name: getattr(topology, name) / by for name in names})

    machine = zoo("unequal ring")
    slow, fast, third = (
        EPOCHS.synthesize(Problem(kind, faster(machine, by), SIZE, chunks_per_rank=1), Options()) for by in (1, 2, 3)
    )
    assert fast.finish_s == pytest.approx(slow.finish_s / 2, rel=1e-9)
    assert third.finish_s == pytest.approx(slow.finish_s / 3, rel=1e-9)


def test_numbers_of_epochs_are_decided() -> None:
    asked = problem("allgather", "ring:4", chunks=1)
    found = method("exact:epochs/6").synthesize(asked, Options())
    assert found.provenance["options"]["epochs"] <= 6
    with pytest.raises(Infeasible, match=r"2 epochs of .* us for one chunk a rank are impossible: allgather needs"):
        method("exact:epochs/2").synthesize(asked, Options())
    both = method("exact:epochs/12").synthesize(problem("allreduce", "ring:4", chunks=1), Options())
    verify_schedule(both).raise_if_bad()
    with pytest.raises(Infeasible, match="impossible"):
        method("exact:epochs/5").synthesize(problem("allreduce", "ring:4", chunks=1), Options())


@pytest.mark.parametrize("inner", ["epochs/0", "epochs/-1", "epochs/x", "epochs/", "epochs:3", "epochs/1234567"])
def test_what_is_no_number_of_epochs_is_told(inner: str) -> None:
    with pytest.raises(InputError, match="expected a number of epochs, such as exact:epochs/31"):
        method(f"exact:{inner}")


def test_the_number_of_chunks_is_chosen_where_it_is_free() -> None:
    schedule = EPOCHS.synthesize(problem("allgather", "ring:4"), Options())
    # Two chunks use both directions evenly; with one, a link carries two and its opposite one.
    assert schedule.collective.chunks_per_rank == 2
    assert schedule.provenance["options"]["guarantee"] == "proven optimal for 2 chunks a rank"


def test_what_is_too_large_or_hopeless_is_refused() -> None:
    assert "entries with one chunk a rank" in str(EPOCHS.accepts(problem("alltoall", "dgx2:2")))
    assert "more than the bound with one chunk a rank" in str(EPOCHS.accepts(problem("broadcast", "dgx1")))
    assert EPOCHS.accepts(problem("broadcast", "dgx1", chunks=4)) is None
    assert "more than 64" in str(EPOCHS.accepts(problem("allgather", "ring:65")))
    uneven = Problem("allgather", load_topology("ring:4"), SIZE, counts=[1, 2, 1, 1])
    assert "chunks differ in length" in str(EPOCHS.accepts(uneven))


@pytest.mark.parametrize(("kind", "chunks"), [("sendrecv", 2), ("allgather", 1), ("allgather", None)])
def test_links_of_which_one_is_a_million_times_as_quick_are_refused(kind: str, chunks: int | None) -> None:
    # A byte takes 3 ps on some hops and 2.6 us on another, all of which are on the way.
    ends = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 0), (0, 3)]).T
    alpha = np.array([1.3e-6, 0, 0, 0, 2.6e-6, 5e-7, 0])
    beta = 1e-12 * np.array([200, 200, 200, 100, 10 / 3, 20, 10 / 3])
    columns = {"src": ends[0], "dst": ends[1], "alpha_s": alpha, "overhead_s": alpha, "beta_s_per_byte": beta}
    uneven = replace(load_topology("full:4"), **columns, count=np.ones(7, dtype=int), symmetries=())
    asked = Problem(kind, uneven, 1, chunks)
    assert "needs a program of over" in str(EPOCHS.accepts(asked))
    search = EpochSearch(asked, 2)
    with pytest.raises(Infeasible, match="exact: needs 1048576 epochs or more"):
        search.least(next(search.grids()))


def test_ranks_without_a_way_are_named() -> None:
    apart = Problem("scatter", build(3, [(0, 1)], both=True), SIZE)
    assert EPOCHS.accepts(apart) is None
    with pytest.raises(Infeasible, match=r"rank 0.*rank 2|rank 2.*rank 0"):
        EPOCHS.synthesize(apart, Options())
    search = EpochSearch(apart, 1)
    assert least_epochs(search.case, next(search.grids()), 1) == NEVER


def test_ctrl_c_and_short_limits_keep_the_schedule_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem("allgather", "dgx1", chunks=1)
    hurried = EPOCHS.synthesize(asked, Options(time_limit_s=1e-3))
    verify_schedule(hurried).raise_if_bad()

    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact_epochs, "_better", pressed)
    kept = EPOCHS.synthesize(asked, Options())
    verify_schedule(kept).raise_if_bad()
    assert "epochs" not in kept.provenance["options"]
    with pytest.raises(KeyboardInterrupt):
        EPOCHS.synthesize(problem("allgather", "ring:4"), Options())


@pytest.mark.slow
def test_two_boxes_of_sixteen_meet_the_bound() -> None:
    schedule = EPOCHS.synthesize(problem("allgather", "dgx2:2@costs=teccl", size_bytes=64_000_000), Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s == pytest.approx(496.7e-6, rel=1e-9)
    assert schedule.provenance["options"]["guarantee"] == "proven optimal for one chunk a rank"


def test_a_way_of_a_million_epochs_is_refused() -> None:
    # One fast link of great latency among slow ones without any.
    ring = load_topology("ring:5")
    kept = np.flatnonzero((ring.dst - ring.src) % 5 == 1)
    columns = ring.link_columns(kept, np.arange(5))
    columns |= {"alpha_s": np.array([0, 0, 0, 0, 7e-7]), "overhead_s": np.zeros(5)}
    columns |= {"beta_s_per_byte": np.array([2e-10, 2e-10, 2e-10, 2e-10, 1 / 3e11])}
    topology = replace(ring, **columns, symmetries=())
    assert "needs a program of over" in str(EPOCHS.accepts(Problem("allgather", topology, 1)))
