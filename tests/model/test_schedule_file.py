"""Schedule files: both forms give back the same schedule and the same bytes; broken ones are answered in one line."""

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError
from collsyn.model.bound import Bound
from collsyn.model.schedule_file import read_schedule, schedule_text, write_schedule
from tests.support.schedules import SCHEDULES, by_hand, random_schedules


def assert_equal(a, b):
    """Two schedules mean the same; costs may differ by the rounding of units in files."""
    for name, values in a.columns().items():
        assert getattr(b, name).tolist() == values.tolist(), name
    assert a.routes.tuples() == b.routes.tuples()
    assert a.collective.spec == b.collective.spec
    assert a.topology.wiring == b.topology.wiring
    for name in ("alpha_s", "beta_s_per_byte", "overhead_s"):
        assert getattr(b.topology, name).tolist() == pytest.approx(getattr(a.topology, name).tolist(), rel=1e-13)
    assert (a.size_bytes, dict(a.provenance), a.bounds) == (b.size_bytes, dict(b.provenance), b.bounds)


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_written_read_and_written_again(name, ending, tmp_path):
    schedule = by_hand(name).with_notes([Bound(1e-6, "cut", "fluid", {"vertices": [0, 1]})], seed=7)
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    write_schedule(schedule, first)
    back = read_schedule(first)
    assert_equal(schedule, back)
    write_schedule(back, second)
    assert first.read_bytes() == second.read_bytes()
    assert all(check.ok for check in verify_schedule(back).checks if check.name != "bounds")


@given(random_schedules(), st.sampled_from(["json", "npz"]))
def test_random_schedules_survive_both_forms_byte_for_byte(tmp_path_factory, schedule, ending):
    folder = tmp_path_factory.mktemp("files")
    first, other, again = folder / f"a.{ending}", folder / "b.json", folder / f"c.{ending}"
    write_schedule(schedule, first)
    back = read_schedule(first)
    assert_equal(schedule, back)
    write_schedule(back, other)
    through = read_schedule(other)
    write_schedule(through, again)
    assert first.read_bytes() == again.read_bytes()
    assert verify_schedule(through).ok


def test_forms_are_told_by_content_not_by_name(tmp_path):
    schedule = by_hand("tree reduce")
    write_schedule(schedule, tmp_path / "a.npz")
    (tmp_path / "a.npz").rename(tmp_path / "a.json")
    assert_equal(schedule, read_schedule(tmp_path / "a.json"))


def document():
    """A schedule as a JSON document."""
    return json.loads(schedule_text(by_hand("star broadcast")))


def set_in(path, value):
    """A change of a document at a path like `sends.chunk.0`."""

    def change(doc):
        *parents, last = path.split(".")
        for part in parents:
            doc = doc[int(part) if isinstance(doc, list) else part]
        doc[int(last) if isinstance(doc, list) else last] = value

    return change


def without(path):
    """A change that removes a key."""

    def change(doc):
        *parents, last = path.split(".")
        for part in parents:
            doc = doc[part]
        del doc[last]

    return change


@pytest.mark.parametrize(
    "change, key",
    [
        (set_in("schema", "collsyn-schedule/9"), "schema"),
        (without("size_bytes"), "size_bytes"),
        (set_in("size_bytes", 0), "size_bytes"),
        (set_in("size_bytes", 10**400), "size_bytes"),
        (set_in("sends.chunk.0", 99), "sends.chunk"),
        (set_in("sends.chunk.0", -1), "sends.chunk"),
        (set_in("sends.chunk.0", 1.5), "sends.chunk"),
        (set_in("sends.chunk.0", 2**40), "sends.chunk"),
        (set_in("sends.src.0", 5), "sends.src"),
        (set_in("sends.dst.0", -1), "sends.dst"),
        (set_in("sends.route.0", 4), "sends.route"),
        (set_in("sends.start_s.0", -1.0), "sends.start_s"),
        (set_in("sends.start_s.0", "soon"), "sends.start_s"),
        (set_in("sends.start_s", [0.0]), "sends"),
        (set_in("sends.rate", [-1.0] * 8), "sends.rate"),
        (set_in("sends.rate", [1e-320] * 8), "sends.rate"),
        (set_in("sends.op", [2] * 8), "sends.op"),
        (set_in("sends.src_slot", [-2] * 8), "sends.src_slot"),
        (set_in("sends.dst_slot", [-1] * 8), "sends.dst_slot"),
        (set_in("sends.speed", [1] * 8), "sends.speed"),
        (without("sends.chunk"), "sends.chunk"),
        (set_in("routes", [[0], ["a"]]), "routes"),
        (set_in("routes.0.0", 99), "routes"),
        (set_in("routes.0.0", 10**30), "routes"),
        (set_in("collective.ranks", 4), "collective.ranks"),
        (set_in("collective.kind", "gossip"), "collective.kind"),
        (set_in("topology.ranks", 4), ""),
        (set_in("colour", "red"), "colour"),
    ],
)
def test_wrong_documents_name_file_and_key(change, key, tmp_path):
    doc = document()
    change(doc)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(doc))
    with pytest.raises(InputError) as error:
        read_schedule(path)
    assert str(error.value).startswith(f"{path}:{key}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_files_cut_off_are_told(ending, kept, tmp_path):
    path = tmp_path / f"a.{ending}"
    write_schedule(by_hand("ring allgather"), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(InputError, match=r"a\.(json|npz)"):
        read_schedule(path)


@pytest.mark.parametrize(
    "name, values, what",
    [
        ("chunk", None, "is missing"),
        ("chunk", np.zeros(8), "holds 1 dimensions of float64; expected 1 dimension of int32"),
        ("chunk", np.zeros((4, 2), dtype=np.int32), "holds 2 dimensions of int32"),
        ("route_ptr", np.array([0, 4 + 0j]), "holds 1 dimensions of complex128"),
        ("route_links", np.array(5), "holds 0 dimensions of int64"),
        ("route_links", np.array(["a"] * 4), "holds 1 dimensions of <U1"),
        ("route_ptr", np.array([0, 9]), "does not divide route_links"),
        ("colour", np.zeros(8), "is not a column"),
    ],
)
def test_wrong_columnar_files_name_the_column(name, values, what, tmp_path):
    path = tmp_path / "a.npz"
    write_schedule(by_hand("star broadcast"), path)
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    if values is None:
        del arrays[name]
    else:
        arrays[name] = values
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=what) as error:
        read_schedule(path)
    assert f"{path}:{name}" in str(error.value)


def test_default_columns_are_left_out():
    doc = json.loads(schedule_text(by_hand("ring allgather")))
    assert list(doc["sends"]) == ["chunk", "src", "dst", "route", "start_s"]
    assert doc["finish_us"] == pytest.approx(by_hand("ring allgather").finish_s * 1e6)


def damaged(content, kind):
    """The bytes of an .npz file after something happened to them."""
    if kind == "member that is no array":
        stream = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
            for name in old.namelist():
                new.writestr(*((name, old.read(name)) if name != "header.npy" else ("header", "{}")))
        return stream.getvalue()
    if kind in ("shape of terabytes", "header of an array"):
        head = {
            "shape of terabytes": b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }",
            "header of an array": b"{'descr': ((((",
        }[kind]
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("chunk.npy", b"\x93NUMPY\x01\x00v\x00" + head.ljust(117) + b"\n")
        return stream.getvalue()
    # Offsets of the directory's first entry: flags and method of compression.
    place = content.index(b"PK\x01\x02") + {"flags": 8, "method": 10}[kind]
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize(
    "kind", ["member that is no array", "shape of terabytes", "header of an array", "flags", "method"]
)
def test_damaged_columnar_files_are_told_in_one_line(kind, tmp_path):
    path = tmp_path / "a.npz"
    write_schedule(by_hand("star broadcast"), path)
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(InputError) as error:
        read_schedule(path)
    assert str(error.value).startswith(f"{path}:")
    assert "\n" not in str(error.value)
