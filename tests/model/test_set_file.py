"""Set files: what is written is read, and whatever is wrong is one line that says where."""

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.verify import verify_file
from collsyn.errors import InputError
from collsyn.model import set_file
from collsyn.model.schedule_file import read_schedule, schedule_text
from collsyn.model.schedule_set import ScheduleSet, ranges_text
from collsyn.model.set_file import is_set, read_set, set_bytes, write_set
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology


def schedule(name="ring", size_bytes=4096, kind="allgather", topology="ring:4"):
    return method(name).synthesize(Problem(kind, load_topology(topology), size_bytes), Options())


@pytest.fixture
def two():
    return ScheduleSet((schedule(), schedule("two-way-ring", 1 << 20)), (0, 70_000), {"sizes": [4096, 1 << 20]})


def test_what_is_written_is_read(two, tmp_path):
    write_set(two, tmp_path / "a.set")
    found = read_set(tmp_path / "a.set")
    assert found.from_bytes == two.from_bytes and found.provenance == two.provenance
    assert [schedule_text(one) for one in found.schedules] == [schedule_text(one) for one in two.schedules]
    assert set_bytes(found) == (tmp_path / "a.set").read_bytes()
    assert verify_file(tmp_path / "a.set").ok


def test_a_set_is_no_schedule(two, tmp_path):
    write_set(two, tmp_path / "a.set")
    with pytest.raises(InputError, match=r"a\.set: is an algorithm set; expected one schedule"):
        read_schedule(tmp_path / "a.set")


def test_many_sends_are_columns(two, tmp_path, monkeypatch):
    monkeypatch.setattr(set_file, "MAX_JSON_SENDS", two.schedules[0].num_sends)
    write_set(two, tmp_path / "a.set")
    assert zipfile.ZipFile(tmp_path / "a.set").namelist() == ["set.json", "0.json", "1.npz"]
    assert [schedule_text(one) for one in read_set(tmp_path / "a.set").schedules] == [
        schedule_text(one) for one in two.schedules
    ]


def test_every_size_has_its_schedule(two):
    small, large = two.schedules
    for size, one in ((1, small), (69_999, small), (70_000, large), (1 << 40, large)):
        assert two.at(size) is one
    assert two.ranges == [(0, 69_999), (70_000, None)]
    assert ranges_text(ScheduleSet(two.schedules, (0, 65536)).ranges) == ["0 .. 64K", "64K .."]


@pytest.mark.parametrize(
    ("schedules", "first", "message"),
    [
        ((), (), "0 schedules in 0 ranges"),
        (("a",), (), "1 schedules in 0 ranges"),
        (("a",), (1,), "expected 0 and larger ones that rise"),
        (("a", "a"), (0, 0), "expected 0 and larger ones that rise"),
        (("a", "reduce"), (0, 5), "different collectives or machines"),
        (("a", "larger"), (0, 5), "different collectives or machines"),
        (("a", "wired"), (0, 5), "different collectives or machines"),
    ],
)
def test_what_is_no_set_is_refused(schedules, first, message):
    known = {
        "a": schedule,
        "reduce": lambda: schedule(kind="reducescatter"),
        "larger": lambda: schedule(topology="ring:5"),
        "wired": lambda: schedule(topology="full:4"),
    }
    with pytest.raises(InputError, match=message):
        ScheduleSet(tuple(known[name]() for name in schedules), first)


def rewritten(path, **changed):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts |= {name.replace("_", "."): content for name, content in changed.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            if content is not None:
                archive.writestr(name, content)


def header(**changed):
    document = {
        "schema": set_file.SCHEMA,
        "entries": [{"from_bytes": 0, "file": "0.json"}, {"from_bytes": 70_000, "file": "1.json"}],
        "provenance": {},
    }
    return json.dumps({**document, **changed})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (header(schema="collsyn-schedule-set/9"), "set.json:schema: is 'collsyn-schedule-set/9'"),
        (header(entries=[]), "set.json:entries: 0 schedules"),
        (header(entries=[{"from_bytes": 0, "file": "7.json"}]), "names '7.json', which is not in the set"),
        (header(entries=[{"from_bytes": 0, "file": "set.json"}]), "names 'set.json', which is not in the set"),
        (header(entries=[{"from_bytes": -1, "file": "0.json"}]), "from_bytes"),
        (header(entries=[{"from_bytes": 0, "file": "0.json", "more": 1}]), "more"),
        (header(entries=[{"file": "0.json"}]), "from_bytes"),
        (header(entries=[{"from_bytes": 5, "file": "0.json"}]), "expected 0 and larger ones"),
        (header(extra=1), "extra"),
        ("{", "set.json"),
        ("[]", "set.json"),
    ],
)
def test_a_wrong_header_names_its_key(text, message, two, tmp_path):
    path = tmp_path / "a.set"
    write_set(two, path)
    rewritten(path, set_json=text)
    with pytest.raises(InputError) as caught:
        read_set(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_member_is_named(two, tmp_path):
    path = tmp_path / "a.set"
    write_set(two, path)
    rewritten(path, **{"1_json": b"{}"})
    with pytest.raises(InputError, match=r"a\.set:1\.json"):
        read_set(path)
    early = two.schedules[1].with_times(np.zeros(two.schedules[1].num_sends), two.schedules[1].size_bytes)
    write_set(ScheduleSet((two.schedules[0], early), two.from_bytes), path)
    report = verify_file(path)
    assert not report.ok and report.kind == "schedule-set"
    assert all(check.ok for check in report.checks if check.name.startswith("0 .. "))
    assert all(problem.where.startswith(ranges_text(two.ranges)[1]) for problem in report.problems)


def test_compressed_members_are_refused(two, tmp_path):
    path = tmp_path / "a.set"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set.json", header() + " " * 10_000)
    assert is_set(path)
    with pytest.raises(InputError, match="none compressed"):
        read_set(path)


CONTENT: list[bytes] = []


@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_files_are_refused_or_read(at, value, cut, tmp_path_factory):
    if not CONTENT:
        CONTENT.append(set_bytes(ScheduleSet((schedule(), schedule("two-way-ring", 1 << 20)), (0, 70_000))))
    content = bytearray(CONTENT[0])
    index = int(at * len(content))
    content[index] = value
    path = tmp_path_factory.mktemp("damaged") / "a.set"
    path.write_bytes(content[:index] if cut else content)
    if is_set(path):
        try:
            read_set(path)
        except InputError as error:
            assert "\n" not in str(error)
