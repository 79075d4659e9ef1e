"""What the greedy matching is for: known optima, small gaps on switched machines, sense on unequal links."""

from dataclasses import replace

import numpy as np
import pytest

from collsyn.bounds import fluid_bound
from collsyn.check.verify import verify_schedule
from collsyn.errors import Infeasible
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.synth import greedy_search
from collsyn.synth.greedy import GREEDY
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.support.topologies import build

M256 = 1 << 28


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work than by default is enough for what is tested here."""
    monkeypatch.setattr(greedy_search, "LOOKS", 60_000_000)


def solve(
    topology: Topology | str, kind: str = "allgather", size: int = M256, seed: int = 0, **more: object
) -> Schedule:
    """The verified schedule of greedy."""
    machine = load_topology(topology) if isinstance(topology, str) else topology
    problem = Problem(kind, machine, size, **more)  # type: ignore[arg-type]
    schedule = GREEDY.synthesize(problem, Options(seed=seed))
    verify_schedule(schedule).raise_if_bad()
    return schedule


def gap(schedule: Schedule) -> float:
    """Finish over the fluid bound, less 1."""
    return schedule.finish_s / fluid_bound(schedule.collective, schedule.topology, schedule.size_bytes).time_s - 1


def used(schedule: Schedule) -> set[tuple[int, int]]:
    """Pairs of ranks that exchange something."""
    return {*zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)}


# Steps of one whole chunk: (N-1) chunks through the links of one rank, the fewest that any schedule can take.
STEPS = {"torus:4x4": 4, "mesh:4x2x2": 5, "torus:6x6": 9, "hypercube:4": 4, "mesh:3x3": 4, "full:8": 1, "ring:5": 2}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_chunk_a_rank_takes_as_few_steps_as_the_links_of_one_rank_allow(name: str, seed: int) -> None:
    schedule = solve(name, chunks_per_rank=1, seed=seed)
    step_s = 0.5e-6 + M256 / schedule.topology.num_ranks / 50e9
    assert schedule.finish_s <= STEPS[name] * step_s * (1 + 1e-9)


@pytest.mark.slow
def test_256_ranks_of_a_torus_take_the_fewest_steps() -> None:
    schedule = solve("torus:16x16", chunks_per_rank=1)
    assert schedule.finish_s <= 64 * (0.5e-6 + M256 / 256 / 50e9) * (1 + 1e-9)


def test_on_a_dgx1_three_steps_of_double_links_suffice() -> None:
    schedule = solve("dgx1@bandwidth_gb_s=25,alpha_us=0.7,overhead=alpha", chunks_per_rank=1)
    assert schedule.finish_s == pytest.approx(3 * (0.7e-6 + M256 / 8 / 50e9), rel=1e-9)


@pytest.mark.parametrize("name", ["torus:8x8", "mesh:8x8", "hypercube:6", "full:8", "switch:8"])
def test_large_allgather_is_within_a_percent_of_the_fluid_bound(name: str) -> None:
    schedule = solve(name)
    assert gap(schedule) <= 0.01
    backwards = solve(name, "reducescatter")
    assert backwards.finish_s == pytest.approx(schedule.finish_s, rel=0.01)


@pytest.mark.parametrize("name", ["torus:8x8", "hypercube:6", "switch:8"])
def test_allreduce_takes_about_two_allgathers(name: str) -> None:
    schedule = solve(name, "allreduce")
    twice_s = (
        2 * fluid_bound(Problem("allgather", schedule.topology, M256).collective(1), schedule.topology, M256).time_s
    )
    assert schedule.finish_s <= 1.01 * twice_s


@pytest.mark.parametrize(("name", "most"), [("ndv2:2", 0.03), ("dgx2:2", 0.1), ("dgx-a100:2", 0.08), ("mi250:2", 0.15)])
def test_boxes_with_network_cards_come_close_to_the_fluid_bound(name: str, most: float) -> None:
    assert gap(solve(name)) <= most


def test_broadcast_is_pipelined_over_all_links_of_the_root() -> None:
    assert gap(solve("torus:4x4", "broadcast")) <= 0.03


def test_what_arrives_is_never_sent_before() -> None:
    # Independent of the checker: along every delivery, start at the source is not before the arrival there.
    schedule = solve(build(5, [(a, (a + 1) % 5, 10 + 15 * a, 0.3 + 0.4 * a) for a in range(5)], both=True))
    arrival = {
        (chunk, int(schedule.collective.contributors(chunk)[0])): 0.0 for chunk in range(schedule.collective.num_chunks)
    }
    messages = schedule.messages
    for m in np.argsort(messages.start_s, kind="stable").tolist():
        for row in messages.rows[m].tolist():
            chunk = int(schedule.chunk[row])
            assert messages.start_s[m] >= arrival[chunk, int(messages.src[m])] - 1e-15
            arrival[chunk, int(messages.dst[m])] = float(messages.arrival_s[m])


def test_a_slow_link_takes_nothing_that_fast_ones_bring_sooner() -> None:
    # 0 -> 1 -> 2 takes two units, 0 -> 2 directly ten.
    topology = build(3, [(0, 1, 100), (1, 2, 100), (0, 2, 10), (2, 0, 100)])
    schedule = solve(topology, "broadcast", chunks_per_rank=1)
    assert used(schedule) == {(0, 1), (1, 2)}


def test_a_slow_link_is_used_when_it_is_the_only_one() -> None:
    # Rank 2 hears fast from 1, but only 0 has what both need, and 1 hears of it only from 2.
    topology = build(3, [(0, 2, 1), (2, 1, 100), (1, 2, 100), (2, 0, 100)])
    assert (0, 2) in used(solve(topology, chunks_per_rank=1))


def test_a_network_card_behind_narrow_lanes_is_filled_by_two_flows() -> None:
    # Two boxes of two ranks; lanes of 12 to a card of 12.5: one flow at a time leaves 4% idle.
    inside = [(0, 1, 100), (2, 3, 100)]
    lanes = [(0, 4, 12), (1, 4, 12), (2, 5, 12), (3, 5, 12)]
    topology = build(4, [*inside, *lanes, (4, 5, 12.5)], switches=2, both=True)
    schedule = solve(topology)
    assert gap(schedule) < 0.03
    assert sorted(set(schedule.rate.tolist())) == pytest.approx([0.0, 6.25e9])


def test_many_small_chunks_travel_in_one_message_where_messages_cost_time() -> None:
    # Corners are 6 hops apart, but one chunk a message would take 8 steps.
    topology = load_topology("mesh:4x4@overhead=alpha")
    schedule = solve(topology, size=1024)
    assert schedule.finish_s < 7 * 0.5e-6
    assert (schedule.batch >= 0).any()


def test_equal_seeds_give_equal_schedules_and_others_may_differ() -> None:
    def columns(seed: int) -> list[list[float]]:
        return [values.tolist() for values in solve("torus:4x4", seed=seed, chunks_per_rank=1).columns().values()]

    assert columns(3) == columns(3)
    assert columns(3) != columns(4)


def test_time_limit_ends_a_search_that_could_go_on() -> None:
    problem = Problem("allgather", load_topology("dgx2:2"), M256)
    seen: list[float] = []
    schedule = GREEDY.synthesize(problem, Options(time_limit_s=0.5, progress=lambda share, detail: seen.append(share)))
    verify_schedule(schedule).raise_if_bad()
    assert seen and all(0 <= share <= 1 for share in seen)
    assert schedule.provenance["time_limit_s"] == 0.5


def test_uneven_counts_are_balanced() -> None:
    # Rank 0 contributes half of all: what enters the others rules.
    assert gap(solve("full:5", counts=[4, 1, 1, 1, 1])) <= 0.05


def test_groups_share_the_links() -> None:
    # Four rows at once: each chunk crosses three row links in all, whatever way it takes, and a rank has two.
    schedule = solve("torus:4x4", groups=tuple(tuple(range(4 * row, 4 * row + 4)) for row in range(4)))
    assert schedule.finish_s <= 1.02 * 1.5 * M256 / 4 / 50e9


def test_nothing_is_sent_where_everything_is_in_place() -> None:
    assert solve(replace(load_topology("ring:3"), name="r"), groups=((0,), (1,), (2,))).num_sends == 0
    assert solve(build(1, [])).finish_s == 0.0


def test_a_rank_without_a_way_in_is_named() -> None:
    with pytest.raises(Infeasible, match="2"):
        solve(build(3, [(0, 1), (1, 0), (2, 0)]))


def test_relays_pass_on_what_their_group_does_not_want() -> None:
    # On a one-way ring, neighbours of a group are never joined directly.
    topology = build(4, [(r, (r + 1) % 4) for r in range(4)])
    schedule = solve(topology, groups=((0, 2), (1, 3)), chunks_per_rank=1)
    assert used(schedule) == {(0, 1), (1, 2), (2, 3), (3, 0)}
