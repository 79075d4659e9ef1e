"""`collsyn profile`: what it writes, prints and refuses."""

import json

import pytest

from collsyn.model.profile import read_profile
from collsyn.topology.resolve import load_topology

QUICK = ("profile", "--ranks", 2, "--quick")


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """Two sizes and few repeats are enough to see the command work."""
    from collsyn.profiling import host

    monkeypatch.setattr(host, "QUICK", host.Effort((1, 65536), (1, 65536), (4096, 65536), 3))


def test_writes_a_profile_that_is_a_topology(run_cli, tmp_path):
    result = run_cli(*QUICK, cwd=tmp_path)
    assert result.code == 0, result.stderr
    file = tmp_path / "collsyn-out" / "profile.yaml"
    assert str(file.relative_to(tmp_path)) in result.stdout
    assert "0->1" in result.stdout
    profile = read_profile(file)
    assert (profile.name, profile.num_ranks, len(profile.links)) == ("host", 2, 2)
    assert load_topology(str(file)).num_ranks == 2
    assert [path.name for path in file.parent.iterdir()] == ["profile.yaml"]


def test_json_is_one_document_with_the_profile(run_cli, tmp_path):
    file = tmp_path / "box.yaml"
    result = run_cli(*QUICK, "--json", "--seed", 3, "--name", "box", "-o", file)
    assert result.code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["file"] == str(file)
    assert (document["name"], document["ranks"], document["method"]["seed"]) == ("box", 2, 3)
    assert {"alpha_us", "bandwidth_gb_s", "overhead_us", "linear", "residual"} <= document["links"][0].keys()
    assert document["links"][0]["points"] == [[size, pytest.approx(us)] for size, us in document["links"][0]["points"]]


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (("--backend", "cuda"), 6, "cuda"),
        (("--ranks", 1), 2, "at least 2"),
        (("--ranks", 0), 2, "--ranks"),
        (("--launcher", "fork", "--mpirun", "mpirun"), 2, "exclude"),
        (("--mpirun", "no-such-launcher"), 2, "no-such-launcher"),
        (("-o", "."), 2, "directory"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run_cli, tmp_path, arguments, code, told):
    result = run_cli("profile", "--quick", *arguments, cwd=tmp_path)
    assert result.code == code
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
