"""`collsyn topology find`: its table, its JSON, the files it writes, pictures, and answers to impossible questions."""

import json
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest

from collsyn.check.verify import verify_schedule
from collsyn.finder.design import Cost, Design
from collsyn.finder.search import Search
from collsyn.model.schedule_file import read_schedule
from collsyn.model.topology_file import read_topology
from collsyn.topology.resolve import load_topology


def find(run_cli, *args, cwd=None):
    return run_cli("topology", "find", *args, cwd=cwd)


def document(run_cli, *args, cwd=None):
    result = find(run_cli, *args, "--json", cwd=cwd)
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("collective", "more"), [("allgather", []), ("reduce-scatter", ["--two-way"]), ("allreduce", [])]
)
def test_best_topology_and_its_schedule_are_written(tmp_path, run_cli, collective, more):
    out = tmp_path / "net.yaml"
    asked = ["--num-ranks", 12, "--degree", 3, "--collective", collective, "--size", "1M", "-o", out, *more]
    found = document(run_cli, *asked)
    best = found["designs"][0]
    topology = read_topology(out)
    assert topology.num_ranks == 12
    assert topology.name.startswith(best["topology"] + "@")
    assert topology.wiring == load_topology(best["topology"]).wiring
    schedule = read_schedule(found["schedule"])
    assert verify_schedule(schedule).ok
    assert schedule.collective.kind == found["collective"] == collective.replace("-", "")
    assert schedule.size_bytes == 1 << 20
    assert schedule.topology.wiring == topology.wiring
    assert found["finish_us"] == pytest.approx(schedule.finish_s * 1e6)
    # Ranks need not begin a step together, so that it may end sooner, not later.
    assert found["finish_us"] <= best["time_us"] * 1.02
    again = run_cli("verify", found["schedule"])
    assert again.code == 0, again.stderr


def test_designs_come_by_time_at_the_size(run_cli):
    asked = ["--num-ranks", 16, "--degree", 4, "-o", "none"]
    small, large = (document(run_cli, *asked, "--size", size) for size in ("1K", "1G"))
    assert [row["steps"] for row in small["designs"]] == [2, 3]
    assert [row["steps"] for row in large["designs"]] == [3, 2]
    for found in (small, large):
        times = [row["time_us"] for row in found["designs"]]
        assert times == sorted(times)
        for row in found["designs"]:
            seconds = row["steps"] * 0.5e-6 + float(Fraction(row["factor_exact"])) * found["size_bytes"] / (4 * 50e9)
            assert row["time_us"] == pytest.approx(seconds * 1e6)
            assert row["steps"] >= found["bound"]["steps"] == 2
            assert Fraction(row["factor_exact"]) >= Fraction(found["bound"]["factor_exact"]) == Fraction(15, 16)
        assert found["file"] is None


def test_costs_of_links(tmp_path, run_cli):
    asked = ["--num-ranks", 8, "--degree", 4, "--alpha-us", "2", "--bandwidth-gb-s", "12.5", "--size", "8K"]
    found = document(run_cli, *asked, "-o", tmp_path / "a.yaml")
    assert found["designs"][0]["time_us"] == pytest.approx(2 * 2 + 7 / 8 * 8192 / 50e3)
    topology = read_topology(tmp_path / "a.yaml")
    assert set(topology.bandwidth.round().tolist()) == {12.5e9}
    assert set(topology.alpha_s.tolist()) == {2e-6}


def test_table_and_default_files(tmp_path, run_cli):
    result = find(run_cli, "--num-ranks", 8, "--degree", 4, cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert "bipartite:4x4" in result.stdout
    assert "bounds (no wiring has fewer)" in result.stdout
    assert (tmp_path / "collsyn-out/topologies/N8-D4.yaml").is_file()
    assert (tmp_path / "collsyn-out/topologies/N8-D4-allgather-64M.json").is_file()


def test_a_carried_schedule_is_written(tmp_path, run_cli, monkeypatch):
    text = "expand:(random1:9x3x1)x2"
    design = Design(text, 18, 6, Cost(4, Fraction(23, 18)), Cost(4, Fraction(23, 18)), base="random1:9x3x1")
    monkeypatch.setattr(Search, "find", lambda self, n, d: [design])
    found = document(run_cli, "--num-ranks", 18, "--degree", 6, "-o", tmp_path / "x.yaml")
    assert found["designs"][0]["schedule_by"] == "carried"
    schedule = read_schedule(found["schedule"])
    assert schedule.provenance["method"] == "carried"
    assert schedule.bounds
    assert verify_schedule(schedule).ok


def test_picture(tmp_path, run_cli):
    pytest.importorskip("matplotlib")
    asked = ["--num-ranks", 16, "--degree", 4, "-o", "none", "--plot", tmp_path / "a.svg"]
    assert find(run_cli, *asked).code == 0
    texts = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    for words in ("16 ranks, degree 4", "steps", "bandwidth factor", "twisted-torus:4x4x1"):
        assert words in texts


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--num-ranks", 4, "--degree", 4], "only 3 others"),
        (["--num-ranks", 8, "--degree", 0], "degree: is 0"),
        (["--num-ranks", 0, "--degree", 3], "num-ranks: is 0"),
        (["--num-ranks", 9, "--degree", 3, "--two-way"], "both odd"),
        (["--num-ranks", 10**6, "--degree", 3], "at most 4096"),
        (["--num-ranks", 8, "--degree", "x"], "not a valid integer"),
        (["--num-ranks", 8], "--degree"),
        (["--num-ranks", 8, "--degree", 3, "--size", "12Q"], "is not a size"),
        (["--num-ranks", 8, "--degree", 3, "--size", "0"], "positive"),
        (["--num-ranks", 8, "--degree", 3, "--collective", "alltoall"], "alltoall is not designed for"),
        (["--num-ranks", 8, "--degree", 3, "--collective", "dance"], "no collective"),
        (["--num-ranks", 8, "--degree", 3, "--alpha-us", "-1"], "--alpha-us"),
        (["--num-ranks", 8, "--degree", 3, "--bandwidth-gb-s", "0"], "--bandwidth-gb-s"),
        (["--num-ranks", 8, "--degree", 3, "--bandwidth-gb-s", "nan"], "--bandwidth-gb-s"),
        (["--num-ranks", 8, "--degree", 3, "-o", "/dev/null/a.yaml"], "/dev/null"),
        (["--num-ranks", 8, "--degree", 3, "--plot", "a.txt"], "a.txt"),
    ],
)
def test_wrong_questions_are_answered_in_a_line(tmp_path, run_cli, args, why):
    result = find(run_cli, *args, cwd=tmp_path)
    assert result.code == 2
    assert why in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_zero_latency_is_a_latency(run_cli):
    found = document(run_cli, "--num-ranks", 8, "--degree", 4, "--alpha-us", "0", "-o", "none")
    assert found["designs"][0]["time_us"] == pytest.approx(7 / 8 * (1 << 26) / 200e3)
    assert np.isfinite(found["designs"][0]["gap"])


def test_an_interruption_keeps_the_best_so_far(tmp_path, run_cli, monkeypatch):
    find_all = Search.find

    def interrupted(self, n, d):
        find_all(self, n, d)
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "find", interrupted)
    result = find(run_cli, "--num-ranks", 12, "--degree", 4, "-o", tmp_path / "a.yaml", "--json")
    assert result.code == 130
    assert json.loads(result.stdout)["designs"][0]["topology"] == read_topology(tmp_path / "a.yaml").name.split("@")[0]
    assert "best so far" in result.stderr


def test_an_interruption_before_anything_was_found(tmp_path, run_cli, monkeypatch):
    monkeypatch.setattr(Search, "find", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = find(run_cli, "--num-ranks", 12, "--degree", 4, cwd=tmp_path)
    assert (result.code, result.stdout) == (130, "")
    assert not list(tmp_path.iterdir())
