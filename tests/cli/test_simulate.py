"""`collsyn simulate`: sizes, other costs, plans, drawings, and wrong inputs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from collsyn.check.simulate import retime, timeline
from collsyn.model.plan_file import write_plan
from collsyn.model.schedule_file import write_schedule
from collsyn.model.topology_file import write_topology
from tests.support.hand_plans import swap_plan
from tests.support.mutate import edited
from tests.support.schedules import by_hand, ring, ring_allgather


@pytest.fixture
def schedule():
    return ring_allgather(4, 1)


@pytest.fixture
def files(tmp_path, monkeypatch, schedule):
    """A schedule and a plan, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_schedule(schedule, "ring.json")
    write_plan(swap_plan(), "plan.json")
    return tmp_path


def document(result):
    """The JSON that a run printed."""
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def test_its_own_size_and_times(files, schedule, run_cli):
    found = document(run_cli("simulate", "ring.json", "--json"))
    assert found["finish_us"] == pytest.approx(schedule.finish_s * 1e6)
    assert (found["size_bytes"], found["file"], found["steps"]) == (schedule.size_bytes, "ring.json", pytest.approx(3))
    assert found["plan_us"] > 0
    assert found["gap"] > 0
    assert found["busiest_links"][0]["utilisation"] == pytest.approx(2 * found["mean_utilisation"])


def test_other_sizes_are_a_list(files, schedule, run_cli):
    one = document(run_cli("simulate", "ring.json", "--json", "--size", "4K"))
    assert one["finish_us"] == pytest.approx(retime(schedule, 4096).finish_s * 1e6)
    several = document(run_cli("simulate", "ring.json", "--json", "--sizes", "1K:4K"))
    assert [found["size_bytes"] for found in several] == [1024, 2048, 4096]
    assert several[2] | {"verify_s": 0} == one | {"verify_s": 0}
    assert len(document(run_cli("simulate", "ring.json", "--json", "--sizes", "1K:1K"))) == 1


def test_other_costs_of_equal_wiring(files, schedule, run_cli):
    slow = replace(ring(4, 25, 0.5), name="slow")
    write_topology(slow, "slow.yaml")
    found = document(run_cli("simulate", "ring.json", "--json", "--topology", "slow.yaml"))
    assert found["topology"] == "slow"
    assert found["finish_us"] == pytest.approx(retime(schedule, schedule.size_bytes, slow).finish_s * 1e6)


def test_another_wiring_is_refused_by_name(files, run_cli):
    result = run_cli("simulate", "ring.json", "--topology", "full:4")
    assert (result.code, result.stdout) == (2, "")
    assert "full:4" in result.stderr
    assert "ring 4" in result.stderr


def test_the_table_and_the_busiest_links(files, run_cli):
    result = run_cli("simulate", "ring.json")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith("allgather on ring 4, 4 ranks, overhead none\n")
    for word in ("schedule us", "plan us", "bound us", "gap", "busbw GB/s", "0->1"):
        assert word in result.stdout


def test_drawings(files, schedule, run_cli):
    whole = run_cli("simulate", "ring.json", "--show-ranks", "0-1").stdout
    assert timeline(schedule, [0, 1]) in whole
    window = run_cli("simulate", "ring.json", "--window", "1.5:3", "--show-ranks", "2").stdout
    assert timeline(schedule, [2], (1.5e-6, 3e-6)) in window
    found = document(run_cli("simulate", "ring.json", "--show-ranks", "0", "--json"))
    assert found["timeline"] == timeline(schedule, [0]).splitlines()


def test_plans_have_plan_times_only(files, run_cli):
    found = document(run_cli("simulate", "plan.json", "--json", "--size", "1M"))
    assert found["finish_us"] is None
    assert found["plan_us"] > 2**20 / 2 / 50e3
    text = run_cli("simulate", "plan.json").stdout
    assert "64M" in text
    slow = document(run_cli("simulate", "plan.json", "--json", "--size", "1M", "--topology", "full:2@bandwidth_gb_s=1"))
    assert slow["plan_us"] > 10 * found["plan_us"]


def test_a_plan_without_a_topology_needs_one(files, run_cli):
    write_plan(replace(swap_plan(), topology=None), "bare.json")
    result = run_cli("simulate", "bare.json")
    assert result.code == 2
    assert "bare.json: is a plan that names no topology; give one with --topology" in result.stderr
    assert run_cli("simulate", "bare.json", "--topology", "full:2").code == 0


def test_above_64_ranks_the_plan_is_simulated_on_request(files, run_cli, monkeypatch):
    from collsyn.portfolio import auto

    assert auto.MAX_PLAN_RANKS == 64
    monkeypatch.setattr(auto, "MAX_PLAN_RANKS", 3)
    assert document(run_cli("simulate", "ring.json", "--json"))["plan_us"] is None
    assert document(run_cli("simulate", "ring.json", "--json", "--plan"))["plan_us"] > 0


def test_nothing_wrong_is_timed(files, schedule, run_cli):
    write_schedule(edited(schedule, keep=np.arange(schedule.num_sends) > 0), "bad.json")
    result = run_cli("simulate", "bad.json")
    assert (result.code, result.stdout) == (5, "")
    assert result.stderr.startswith("collsyn: error: bad.json: schedule is wrong (")


@pytest.mark.parametrize(
    "args, says",
    [
        (["nowhere.json"], "nowhere.json: cannot be read"),
        (["ring.json", "--size", "0"], "--size"),
        (["ring.json", "--size", "1K", "--sizes", "1K:2K"], "exclude each other"),
        (["ring.json", "--window", "3:1"], "must rise"),
        (["ring.json", "--window", "now"], "two times in microseconds"),
        (["ring.json", "--show-ranks", "0-4"], "rank 4 is not there; expected 0 .. 3"),
        (["ring.json", "--topology", "rings:4"], "rings"),
        (["plan.json", "--show-ranks", "0"], "a plan has no times of its own"),
    ],
)
def test_wrong_inputs_are_one_line(files, run_cli, args, says):
    result = run_cli("simulate", *args)
    assert (result.code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_shared_links_and_batches_keep_their_plan(files, run_cli):
    for number, name in enumerate(("shared gather", "star broadcast", "one shot allreduce", "chain reduce")):
        write_schedule(by_hand(name), f"{number}.json")
        assert document(run_cli("simulate", f"{number}.json", "--json"))["plan_us"] > 0
