"""What the environment says, and what is said of it when it is wrong; torch itself is not needed."""

import pytest

from collsyn import synthesize, write_schedule
from collsyn.errors import InputError
from collsyn.model.topology import Topology


@pytest.fixture
def settings():
    """The module, which is importable where torch is: its package registers the backend."""
    pytest.importorskip("torch")
    from collsyn.torch import settings

    return settings


@pytest.fixture
def version():
    pytest.importorskip("torch")
    from collsyn.torch import version

    return version


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"COLLSYN_TOPOLOGY": "dgx1"}, "COLLSYN_TOPOLOGY: dgx1 has 8 ranks, this job 3; COLLSYN_SUBSET=0,1,... takes"),
        ({"COLLSYN_TOPOLOGY": "nowhere.yaml"}, "COLLSYN_TOPOLOGY: nowhere.yaml"),
        ({"COLLSYN_TOPOLOGY": "dgx1", "COLLSYN_SUBSET": "0,1"}, "COLLSYN_TOPOLOGY: .* has 2 ranks, this job 3$"),
        ({"COLLSYN_TOPOLOGY": "dgx1", "COLLSYN_SUBSET": "0,1,x"}, "COLLSYN_SUBSET: is '0,1,x'; expected ranks"),
        ({"COLLSYN_TOPOLOGY": "dgx1", "COLLSYN_SUBSET": "0,1,9"}, "COLLSYN_SUBSET: "),
        ({"COLLSYN_SUBSET": "0,1,2"}, "COLLSYN_SUBSET: needs COLLSYN_TOPOLOGY"),
        ({"COLLSYN_SCHEDULES": "nowhere"}, "COLLSYN_SCHEDULES: nowhere: is not a folder"),
        ({"COLLSYN_STRICT": "yes"}, "COLLSYN_STRICT: is 'yes'; expected 0 or 1"),
        ({"COLLSYN_SYNTHESIS": "later"}, "COLLSYN_SYNTHESIS: is 'later'; expected one of off, background, wait"),
        ({"COLLSYN_SYNTHESIS_LIMIT": "-1"}, "COLLSYN_SYNTHESIS_LIMIT: is '-1'; expected a number above 0"),
        ({"COLLSYN_EMULATE": "10"}, "COLLSYN_EMULATE: needs a machine to emulate; name it in COLLSYN_TOPOLOGY"),
    ],
)
def test_wrong_settings_are_told_in_a_line(settings, environment, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^{message}") as found:
        settings.read_settings(3, environment)
    assert "\n" not in str(found.value)


def test_settings_are_read(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = settings.read_settings(3, {})
    assert (nothing.topology, nothing.search, nothing.emulation_factor, nothing.is_strict) == (None, "off", None, False)
    found = settings.read_settings(
        3, {"COLLSYN_TOPOLOGY": "dgx1", "COLLSYN_SUBSET": "0,1,4", "COLLSYN_EMULATE": "100", "COLLSYN_STRICT": "1"}
    )
    assert isinstance(found.topology, Topology)
    assert (found.topology.num_ranks, found.search, found.emulation_factor) == (3, "background", 100.0)
    assert found.summary != nothing.summary


def test_a_missing_schedule_is_an_error_where_nothing_else_may_serve(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_schedule(synthesize("allreduce", "full:3", "1M", method="direct"), tmp_path / "one.json")
    given = {"COLLSYN_SCHEDULES": str(tmp_path)}
    assert settings.read_settings(3, given).algorithms.choices("allgather", 3, None, 1024)
    strict = settings.read_settings(3, {**given, "COLLSYN_STRICT": "1"}).algorithms
    assert len(strict.choices("allreduce", 3, None, 1024)) == 1
    with pytest.raises(InputError, match="no schedule of allgather for 3 ranks and 1024 bytes is given"):
        strict.choices("allgather", 3, None, 1024)


@pytest.mark.parametrize("found", ["1.13.1", "2.5.0+cpu"])
def test_an_old_torch_is_refused_in_a_line(version, found):
    with pytest.raises(InputError, match=r"^collsyn.torch: torch .* is too old; expected 2.6 or newer: pip install"):
        version.check_version(found)


@pytest.mark.parametrize("found", ["2.6.0", "2.13.0+cpu", "2.14.0a0+git12", "3.0"])
def test_a_newer_one_is_taken(version, found):
    version.check_version(found)
