"""Files are judged by what is in them, whatever they are called."""

import shutil

import numpy as np
import pytest

from collsyn.check.recognise import FORMATS, read_any
from collsyn.check.verify import verify_file
from collsyn.errors import InputError
from collsyn.model.plan import Plan
from collsyn.model.plan_file import write_plan
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import write_schedule
from collsyn.model.topology_file import write_topology
from tests.support.hand_plans import sum_plan, swap_plan
from tests.support.mutate import edited
from tests.support.schedules import SCHEDULES, by_hand
from tests.support.topologies import zoo


@pytest.fixture
def files(tmp_path):
    """One file of every kind that can be judged."""
    write_schedule(by_hand("ring allgather"), tmp_path / "schedule.json")
    write_schedule(by_hand("one shot allreduce"), tmp_path / "schedule.npz")
    write_plan(swap_plan(), tmp_path / "plan.json")
    write_plan(sum_plan(), tmp_path / "sum.json")
    return tmp_path


@pytest.mark.parametrize(
    "name, kind, of",
    [
        ("schedule.json", "schedule", Schedule),
        ("schedule.npz", "schedule", Schedule),
        ("plan.json", "plan", Plan),
        ("sum.json", "plan", Plan),
    ],
)
def test_kinds_are_told_by_content(files, name, kind, of):
    odd = files / "file.txt"
    shutil.copy(files / name, odd)
    assert read_any(odd)[0] == kind
    assert isinstance(read_any(odd)[1], of)
    report = verify_file(odd)
    assert (report.kind, report.ok) == (kind, True)


def test_a_wrong_schedule_in_a_file(tmp_path):
    schedule = by_hand("ring allgather")
    write_schedule(edited(schedule, keep=np.arange(schedule.num_sends) > 3), tmp_path / "a.json")
    assert not verify_file(tmp_path / "a.json").ok


def test_other_files_of_ours_are_named(tmp_path):
    path = tmp_path / "a.json"
    write_topology(zoo("star"), path)
    with pytest.raises(InputError) as error:
        verify_file(path)
    known = "a schedule, a plan, MSCCL XML or MSCCL++ JSON"
    assert str(error.value) == f"{path}:schema: is collsyn-topology/1; expected {known}"


@pytest.mark.parametrize("content", ["", "{}", "{", "[]", "<algo/>", "a: b", "schema: 3", "\tx", "\xff\xfe"])
def test_what_is_neither_is_refused_in_one_line(content, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as error:
        verify_file(path)
    assert str(error.value).startswith(f"{path}:")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: cannot be read"):
        verify_file(tmp_path / "nowhere.json")


def test_the_table_of_formats_names_every_kind():
    assert {known.kind for known in FORMATS} >= {"schedule", "plan"}


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_bounds_hold_after_a_file(name, ending, tmp_path):
    from collsyn.bounds import avoids_overhead, chunk_bound, fluid_bound

    schedule = by_hand(name)
    problem = (schedule.collective, schedule.topology, schedule.size_bytes)
    bounds = [fluid_bound(*problem), chunk_bound(*problem, batched=avoids_overhead(schedule))]
    path = tmp_path / f"a.{ending}"
    write_schedule(schedule.with_notes(bounds), path)
    report = verify_file(path)
    assert report.ok, report
    assert report.checks[-1].detail == "2 rechecked"
