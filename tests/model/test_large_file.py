"""Files of large schedules: the same bytes again, damage in one line, and no room said before the work."""

import json
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest

from collsyn import files
from collsyn.errors import InputError
from collsyn.model import large_file
from collsyn.model.large_file import is_large, new_table, read_large, write_large
from collsyn.synth.lockstep import LOCKSTEP
from collsyn.synth.problem import Options, Problem
from collsyn.synth.symmetric import SYMMETRIC
from collsyn.topology.presets import preset_topology

METHODS = {"steps": LOCKSTEP, "orbit": SYMMETRIC}


@pytest.fixture(scope="module")
def made():
    problem = Problem("allreduce", preset_topology("torus:3x3"), 1 << 20, 1)
    return {form: method.large(problem, Options()) for form, method in METHODS.items()}


def header_and_rest(path):
    first, rest = path.read_bytes().split(b"\n", 1)
    return json.loads(first), rest


def rewritten(path, document, rest):
    line = json.dumps(document).encode()
    path.write_bytes(line + b" " * (-(len(line) + 1) % 4096) + b"\n" + rest)


@pytest.mark.parametrize("form", METHODS)
def test_reading_and_writing_gives_the_same_bytes(form, made, tmp_path):
    first, again = tmp_path / "a.large", tmp_path / "b" / "b.large"
    write_large(made[form], first)
    found = read_large(first)
    assert is_large(first) and type(found) is type(made[form])
    assert found.finish_s == made[form].finish_s
    write_large(found, again)
    assert first.read_bytes() == again.read_bytes()
    write_large(found, first)  # over the file that it is mapped from
    assert first.read_bytes() == again.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.large", "b"]


def test_the_first_line_is_for_people(made, tmp_path):
    path = tmp_path / "a.large"
    write_large(made["steps"], path)
    document, rest = header_and_rest(path)
    assert list(document)[:3] == ["schema", "form", "size_bytes"]
    assert document["provenance"]["method"] == "lockstep"
    places = {entry["name"]: entry for entry in document["arrays"]}
    offset = places["steps"]["offset"]
    steps = np.frombuffer(rest[offset : offset + 162], "<u2").reshape(places["steps"]["shape"])
    assert np.array_equal(steps, made["steps"].steps)


@pytest.mark.parametrize("form", METHODS)
def test_every_cut_is_found(form, made, tmp_path):
    path = tmp_path / "a.large"
    write_large(made[form], path)
    content = path.read_bytes()
    begin = content.index(b"\n")
    for length in (50, begin, begin + 1, begin + 100, len(content) - 4096):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"a\.large:?.* is it cut off\?"):
            read_large(path)


EDITS = {
    "form": ("steps", lambda d: d.update(form="dance"), r"form: is 'dance'"),
    "missing": ("steps", lambda d: d.pop("lag"), r"lag: is missing"),
    "extra": ("steps", lambda d: d.update(colour=1), r"colour"),
    "lag": ("steps", lambda d: d.update(lag=0), r"lag: is 0"),
    "steps": ("steps", lambda d: d.update(num_steps=1 << 40), r"num_steps: is 1099511627776"),
    "kind": ("steps", lambda d: d["collective"].update(kind="broadcast", root=0), r"collective\.kind: is broadcast"),
    "ranks": ("orbit", lambda d: d["collective"].update(ranks=8), r"collective\.ranks: is 8"),
    "dtype": ("steps", lambda d: d["arrays"][0].update(dtype="<i4"), r"arrays\.steps: holds int32"),
    "object": ("steps", lambda d: d["arrays"][0].update(dtype="|O"), r"dtype: is '\|O'"),
    "shape": ("steps", lambda d: d["arrays"][1].update(shape=[9, 8]), r"arrays\.ports: has the shape"),
    "negative": ("steps", lambda d: d["arrays"][1].update(shape=[-9, -9]), r"shape"),
    "huge": ("steps", lambda d: d["arrays"][0].update(shape=[1 << 39, 1 << 39]), r"cut off"),
    "overlap": ("steps", lambda d: d["arrays"][1].update(offset=0), r"offset: is 0"),
    "name": ("steps", lambda d: d["arrays"][1].update(name="doors"), r"have no ports|doors"),
    "twice": ("orbit", lambda d: d["arrays"][1].update(name="generators"), r"a second time"),
    "no arrays": ("orbit", lambda d: d.update(arrays=[]), r"have no generators"),
    "topology": ("orbit", lambda d: d.update(topology=3), r"topology"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_wrong_first_line_is_one_line(name, made, tmp_path):
    form, edit, message = EDITS[name]
    path = tmp_path / "a.large"
    write_large(made[form], path)
    document, rest = header_and_rest(path)
    edit(document)
    rewritten(path, document, rest)
    with pytest.raises(InputError, match=message) as caught:
        read_large(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_numbers_out_of_range_are_found_in_orbits(made, tmp_path):
    path = tmp_path / "a.large"
    write_large(made["orbit"], path)
    document, rest = header_and_rest(path)
    for entry in document["arrays"]:
        damaged = bytearray(rest)
        damaged[entry["offset"] : entry["offset"] + 8] = b"\xff" * 8
        path.write_bytes(path.read_bytes().split(b"\n", 1)[0] + b"\n" + bytes(damaged))
        with pytest.raises(InputError, match=rf"arrays\.{entry['name']}: holds"):
            read_large(path)


def test_other_files_are_none(tmp_path):
    path = tmp_path / "other"
    path.write_text("{}")
    assert not is_large(path)
    assert not is_large(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_large(tmp_path / "nothing")


Usage = namedtuple("Usage", "total used free")


def test_no_room_is_said_before(monkeypatch, tmp_path):
    monkeypatch.setattr(large_file, "available_bytes", lambda: 10_000_000_000)
    monkeypatch.setattr(large_file.shutil, "disk_usage", lambda path: Usage(0, 0, 1_000_000_000))
    with pytest.raises(
        InputError, match=r"takes 4\.8 GB and 0\.0 GB to make; 10\.0 GB of memory and 1\.0 GB of the disk"
    ):
        new_table((40_000, 40_000), 20_000, tmp_path / "a.large")
    with pytest.raises(InputError, match=r"takes 30\.0 GB"):
        new_table((100_000, 100_000), 50_000, None)
    with pytest.raises(InputError, match=r"and 9\.0 GB to make"):
        new_table((10, 10), 5, None, 9_000_000_000)


def test_what_does_not_fit_the_memory_lies_on_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(large_file, "available_bytes", lambda: 100)
    steps, ports = new_table((30, 30), 1 << 20, tmp_path / "a.large")
    assert isinstance(steps, np.memmap) and isinstance(ports, np.memmap)
    assert (steps.dtype, ports.dtype) == (np.uint32, np.uint8)
    steps[:] = 7
    assert (steps == 7).all()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(InputError, match=r"a\.large: cannot be written: no space left on device"):
        write_large(made["steps"], tmp_path / "a.large")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(large_file.os, "posix_fallocate", full)
    monkeypatch.setattr(large_file, "available_bytes", lambda: 0)
    with pytest.raises(InputError, match="cannot be written: no space left on device"):
        new_table((3, 3), 5, tmp_path / "a.large")


def test_a_device_is_written_to_and_stays(made, tmp_path):
    path = tmp_path / "a.large"
    path.symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"a\.large: cannot be written: no space left on device"):
        write_large(made["steps"], path)
    assert path.is_symlink() and path.is_char_device()


def test_bounds_and_notes_come_along(made, tmp_path):
    noted = made["orbit"].with_notes(remark="seen")
    write_large(noted, tmp_path / "a.large")
    assert read_large(tmp_path / "a.large").provenance["remark"] == "seen"
    assert replace(noted, provenance={}).provenance == {}
