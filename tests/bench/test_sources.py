"""Where plans come from: files, the newest of a folder, a method on the spot; and what is refused."""

import os

import pytest

from collsyn.bench.sources import Preparation, check_same_ranks, from_file, newest, on_the_spot
from collsyn.check.execute import execute
from collsyn.check.reference import make_inputs, reference
from collsyn.errors import InputError, VerificationError
from collsyn.model.bind import bind
from collsyn.model.fields import parse_document
from collsyn.model.plan_file import plan_from_fields, write_plan
from collsyn.model.schedule_file import schedule_text, write_schedule
from collsyn.portfolio.auto import best_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.runtime.plans import put_allgather


def made(kind="allgather", size=1 << 16, method="direct", ranks=3):
    """A small schedule."""
    return best_schedule(Problem(kind, load_topology(f"full:{ranks}"), size), Options(), method)


def runs_right(prepared, elements):
    """Whether the text of a prepared plan gives the right result at a size."""
    plan = plan_from_fields(parse_document(prepared.text.encode(), "text"))
    inputs = make_inputs(plan.collective, "int32", "sum", elements)
    outputs = execute(bind(plan, elements, 4), "int32", "sum", inputs)
    wanted = reference(plan.collective, "int32", "sum", inputs, elements)
    return all((a == b).all() for a, b in zip(outputs, wanted, strict=True))


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_schedule_file_is_lowered_at_every_size(tmp_path, suffix):
    file = tmp_path / f"allgather{suffix}"
    write_schedule(made(), file)
    source = from_file(file)
    assert (source.label, source.method, source.num_ranks) == (str(file), "direct", 3)
    preparation = Preparation(source)
    times = []
    for size in (12, 1 << 16, 3 << 20):
        prepared = preparation.at(size)
        assert runs_right(prepared, size // 4)
        assert 0 < prepared.bound_s <= prepared.simulated_s * (1 + 1e-9)
        times.append(prepared.simulated_s)
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_a_plan_file_runs_as_it_is(tmp_path):
    file = tmp_path / "plan.json"
    write_plan(put_allgather(3), file)
    prepared = Preparation(from_file(file)).at(1200)
    assert runs_right(prepared, 300)
    # Without a topology there is no model to time it with.
    assert (prepared.simulated_s, prepared.bound_s) == (None, None)


def test_on_the_spot_is_solved_for_every_size():
    source = on_the_spot(Problem("allreduce", load_topology("full:4"), 1), "auto")
    preparation = Preparation(source)
    small, large = preparation.at(64), preparation.at(64 << 20)
    assert runs_right(small, 16)
    # What is best for latency is not best for bandwidth.
    assert small.method != large.method
    assert "auto" not in (small.method, large.method)


def test_the_newest_schedule_of_every_collective_is_taken(tmp_path):
    for age, (name, kind) in enumerate(
        [("old", "allgather"), ("new", "allgather"), ("other", "allreduce")],
    ):
        write_schedule(made(kind), tmp_path / f"{name}.json")
        os.utime(tmp_path / f"{name}.json", ns=(age * 10**9, age * 10**9))
    (tmp_path / "notes.txt").write_text("no schedule")
    found = newest(tmp_path)
    assert [source.label for source in found] == [str(tmp_path / "new.json"), str(tmp_path / "other.json")]


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_schedules_is_refused(tmp_path, exists):
    folder = tmp_path if exists else tmp_path / "nowhere"
    with pytest.raises(InputError, match="collsyn synthesize"):
        newest(folder)


def test_a_wrong_schedule_is_refused_by_file(tmp_path):
    file = tmp_path / "wrong.json"
    file.write_text(schedule_text(made()).replace('"dst": [', '"dst": [0, ', 1))
    with pytest.raises(InputError, match=r"wrong\.json"):
        from_file(file)
    schedule = made()
    write_schedule(schedule.with_times(schedule.start_s, schedule.size_bytes, rate=schedule.rate + 1e12), file)
    with pytest.raises(VerificationError, match=r"wrong\.json"):
        from_file(file)


def test_numbers_of_ranks_must_agree(tmp_path):
    file = tmp_path / "three.json"
    write_schedule(made(), file)
    check_same_ranks([from_file(file)], 3)
    check_same_ranks([from_file(file)], None)
    with pytest.raises(InputError, match=r"three\.json: is for 3 ranks; --ranks says 4"):
        check_same_ranks([from_file(file)], 4)
