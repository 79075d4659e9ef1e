"""Epochs: lengths that lose little, whole times that are never rounded down, and cuts that are counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.synth.exact_grid import LOSS, MAX_PARTS, Grid, _Windows, epoch_length_s, grids, least_epochs
from collsyn.synth.exact_steps import StepCase
from collsyn.synth.problem import Problem
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ([1.0, 10.0], 1.0),
        ([2.0, 3.0], 1.0),
        ([1.0, 2.02], 1.01),
        ([4.0, 6.0, 10.0], 2.0),
        ([5.0], 5.0),
    ],
)
def test_epochs_are_the_longest_common_parts(busy: list[float], expected: float) -> None:
    assert epoch_length_s(np.array(busy)) == pytest.approx(expected)
    assert epoch_length_s(np.array(busy) * 1e-6) == pytest.approx(expected * 1e-6)


def test_epochs_lose_no_more_than_any_part_would() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        busy = rng.uniform(1, 4, 3)
        parts = [length / part for length in busy for part in range(1, MAX_PARTS + 1)]
        losses = {e: max(np.ceil(b / e - 1e-6) * e / b for b in busy) - 1 for e in parts if e <= (1 + LOSS) * min(busy)}
        chosen = epoch_length_s(busy)
        loss = losses[min(losses, key=lambda e: abs(e - chosen))]
        assert loss <= max(LOSS, min(losses.values()) + 1e-9)
        assert all(e <= chosen * (1 + 1e-9) for e, lost in losses.items() if lost <= LOSS - 1e-9)


def test_no_time_is_rounded_down() -> None:
    case = StepCase.of(Problem("allgather", load_topology("ndv2:2"), 1 << 24))
    num_bytes = float(1 << 20)
    table = case.table
    for grid in grids(case, num_bytes):
        loaded = table.overhead_s + num_bytes * table.beta_s_per_byte
        assert (grid.busy * grid.epoch_s >= loaded * (1 - 1e-6)).all()
        assert ((grid.travel + grid.late) * grid.epoch_s >= table.seconds(num_bytes) * (1 - 1e-6)).all()
        assert (grid.share <= 1 + 1e-9).all()


def least(topology, kind: str, chunks: int = 1) -> int:
    case = StepCase.of(Problem(kind, topology, 1_000_000 * chunks))
    chunk_bytes = float(case.problem.collective(chunks).chunk_bytes(case.problem.size_bytes)[0])
    return least_epochs(case, Grid.of(case, chunk_bytes, chunk_bytes * 1e-9 / 50), chunks)


def test_cuts_count_what_must_cross() -> None:
    ring = build(4, [(i, (i + 1) % 4, 50, 0) for i in range(4)])
    assert least(ring, "allgather") == 3
    # Ten chunks leave rank 0 one after another; the last still has three hops to go.
    assert least(ring, "broadcast", chunks=10) == 10 + 2
    assert least(ring, "scatter") == 3
    # A chain: all that rank 2 needs comes over one link, to which the first comes at once.
    chain = build(3, [(0, 1, 50, 0), (1, 0, 50, 0), (1, 2, 50, 0), (2, 1, 50, 0)])
    assert least(chain, "allgather") == 2


def test_a_port_in_the_middle_of_ways_counts() -> None:
    # Two ranks and two ranks, joined by two switches: two chunks each way over the link between these.
    ways = [(0, 4, 50, 0), (1, 4, 50, 0), (4, 5, 50, 0), (5, 2, 50, 0), (5, 3, 50, 0)]
    machine = build(4, ways, switches=2, both=True)
    boxed = Problem("alltoall", machine, 16_000_000).topology
    case = StepCase.of(Problem("alltoall", boxed, 16_000_000))
    grid = Grid.of(case, 1e6, 1e6 / 50e9)
    # Three chunks out of every port; four cross the middle only if the boxes are known.
    assert least_epochs(case, grid, 1) == 3


@given(
    links=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 8), st.sampled_from([0.5, 1, 2, 7, 33.3])),
        min_size=1,
        max_size=4,
    ),
    number=st.integers(1, 20),
    epochs=st.integers(0, 30),
)
def test_the_first_number_of_epochs_is_that_of_trying_all(links, number, epochs):
    windows = _Windows(*np.array(links, dtype=np.float64).T)
    tried = epochs
    while not windows.bear(number, tried):
        tried += 1
    assert windows.least(number, epochs) == tried


def test_chunks_that_take_a_million_epochs_are_counted_at_once():
    windows = _Windows(*(np.array([value]) for value in (0.0, 0.0, 0.0, 1e5)))
    assert windows.least(1000, 5) == 10**8
