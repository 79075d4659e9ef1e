"""`collsyn topology import`, what later commands say of its topologies, and logs of others in `compare`."""

import io
import json
import sys

import pytest

from collsyn.model.topology_file import read_topology
from tests.support import pastes

ROWS = [(1 << power, 20 + 2**power / 1e5) for power in range(10, 31, 5)]
MACHINES = {
    "cube mesh": pastes.tabs(pastes.cube_mesh()),
    "switch": pastes.spaces(pastes.switched(8, 12)),
    "four GPUs, all joined": pastes.markdown(pastes.switched(4, 4)),
    "pairs": pastes.escapes(pastes.bridged()),
    "xGMI": pastes.rocm([["XGMI"] * 8] * 8),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pasted(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_paste_becomes_a_file_that_other_commands_take(folder, run_cli, monkeypatch):
    pasted(monkeypatch, MACHINES["cube mesh"])
    done = run_cli("topology", "import", "-", "-o", "m.yaml")
    assert done.code == 0
    assert "nvidia-smi topo -m" in done.stdout
    assert "assumed, not in the file: nvlink: 25 GB/s a lane" in done.stderr
    assert read_topology("m.yaml").num_ranks == 8
    shown = run_cli("topology", "show", "m.yaml")
    assert "assumed, not in the file: nvlink" in shown.stderr
    for command in ("bound", "synthesize"):
        later = run_cli(command, "--collective", "allgather", "--topology", "m.yaml", "--size", "1M")
        assert later.code == 0
        assert "assumed, not in the file: costs, nvlink" in later.stderr


def test_a_schedule_carries_on_what_was_assumed(folder, run_cli):
    (folder / "m.txt").write_text(MACHINES["pairs"])
    asked = ("--collective", "allgather", "--topology", "m.txt", "--size", "1M", "--method", "ring")
    assert run_cli("synthesize", *asked, "-o", "s.json").code == 0
    done = run_cli("simulate", "s.json")
    assert (done.code, "assumed, not in the file: costs, nvlink, pcie" in done.stderr) == (0, True)


def test_without_a_file_the_topology_is_printed_as_it_would_be_written(folder, run_cli):
    (folder / "m.txt").write_text(MACHINES["pairs"])
    printed = run_cli("topology", "import", "m.txt", "--name", "mine").stdout
    assert run_cli("topology", "import", "m.txt", "--name", "mine", "-o", "m.yaml").code == 0
    assert printed == (folder / "m.yaml").read_text()
    assert printed.startswith("schema: collsyn-topology/1\nname: mine\n")
    assert run_cli("topology", "import", "m.yaml", "-o", "again.yaml").code == 0
    assert (folder / "again.yaml").read_text() == printed


def test_any_command_takes_the_foreign_file_itself(folder, run_cli):
    (folder / "topo.xml").write_text(pastes.topology_xml(8, switch=18, kind='sm="90"'))
    (folder / "p2p.log").write_text(pastes.p2p([[9.0 if a == b else 2.0 + a for b in range(3)] for a in range(3)]))
    (folder / "nccl.log").write_text(pastes.nccl_log(ROWS, 8, 1.75))
    shown = json.loads(run_cli("topology", "show", "topo.xml", "--json").stdout)
    assert shown["degree"]["out"]["gb_s"] == [450, 450]
    assert shown["topology"]["provenance"]["assumed"]["nvlink"]
    assert json.loads(run_cli("topology", "show", "p2p.log", "--json").stdout)["num_ranks"] == 3
    done = run_cli("topology", "show", "nccl.log")
    assert (done.code, done.stdout) == (2, "")
    assert "holds no topology" in done.stderr


def test_json_has_everything_once(folder, run_cli):
    (folder / "m.txt").write_text(MACHINES["pairs"])
    document = json.loads(run_cli("topology", "import", "m.txt", "--json").stdout)
    assert (document["kind"], document["num_ranks"], document["file"]) == ("topology", 4, None)
    assert set(document["assumed"]) == {"costs", "nvlink", "pcie", "uplink"}
    assert document["topology"]["schema"] == "collsyn-topology/1"
    (folder / "p.txt").write_text(pastes.p2p([[9.0, 2.0], [2.0, 9.0]]))
    assert json.loads(run_cli("topology", "import", "p.txt", "--json").stdout)["profile"]["ranks"] == 2
    done = run_cli("topology", "import", "p.txt", "-o", "p.yaml")
    assert "2 ranks, pairs of 2 .. 2 GB/s" in done.stdout
    assert run_cli("topology", "show", "p.yaml").code == 0


def test_options_reach_the_topology(folder, run_cli):
    (folder / "m.txt").write_text(MACHINES["switch"])
    args = ("--boxes", 2, "--bandwidth", "nic=50", "--bandwidth", "nvlink=20", "--fabric", "one")
    document = json.loads(run_cli("topology", "import", "m.txt", *args, "--json").stdout)
    assert document["num_ranks"] == 16
    assert document["topology"]["provenance"]["fabric"].startswith("one switch")
    assert {link["bandwidth_gb_s"] for link in document["topology"]["links"]} == {20, 50}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("m.txt", "--bandwidth", "nvlink"), "KEY=VALUE"),
        (("m.txt", "--bandwidth", "nvlink=-1"), "above 0"),
        (("m.txt", "--bandwidth", "foo=1"), "expected one of nvlink"),
        (("m.txt", "--boxes", "2"), "names no network card"),
        (("m.txt", "--with", "absent.xml"), "absent.xml: cannot be read"),
        (("empty.txt",), "empty.txt: is empty"),
        (("m.txt", "--num-ranks", "4"), "are for logs of collectives"),
        (("m.txt", "--pairs", "own"), "measured bandwidths"),
        (("prose.txt",), "holds nothing that is known here"),
        (("binary.txt",), "is not a text file"),
    ],
)
def test_mistakes_are_one_line(folder, run_cli, args, message):
    (folder / "m.txt").write_text(MACHINES["pairs"])
    (folder / "empty.txt").write_text("\n")
    (folder / "prose.txt").write_text("GPU0 and GPU1 are slow, please help\n")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 4 + b"\0" * 100)
    done = run_cli("topology", "import", *args)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_becomes_a_baseline_beside_the_bound(folder, run_cli):
    (folder / "nccl.log").write_text(pastes.nccl_log(ROWS, 8, 1.75))
    done = run_cli("topology", "import", "nccl.log", "--topology", "dgx-a100", "-o", "nccl.json")
    assert done.code == 0
    assert "the bound for this topology is 300 GB/s" in done.stdout
    document = json.loads((folder / "nccl.json").read_text())
    assert [row["size"] for row in document["results"]] == [size for size, _ in ROWS]
    assert document["provenance"]["source"] == "nccl-tests log"
    wrong = run_cli("topology", "import", "nccl.log", "--topology", "full:4")
    assert (wrong.code, "the log is of 8" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("file", ["nccl.log", "nccl.json"])
def test_compare_shows_what_was_measured(folder, run_cli, file):
    (folder / "nccl.log").write_text(pastes.nccl_log(ROWS, 8, 1.75))
    assert run_cli("topology", "import", "nccl.log", "-o", "nccl.json").code == 0
    asked = ("--collective", "allreduce", "--topology", "dgx-a100", "--sizes", "1M:2M", "--methods", "ring")
    rows = json.loads(run_cli("compare", *asked, "--with", file, "--json").stdout)
    found = {row["size_bytes"]: row["finish_us"] for row in rows if row["method"] == file}
    assert found == {1 << 20: pytest.approx(20 + 2**20 / 1e5, rel=1e-3), 1 << 21: None}
    shown = run_cli("compare", *asked, "--with", file)
    assert "nccl measured" in shown.stdout
    other = run_cli("compare", "--collective", "alltoall", *asked[2:], "--with", file)
    assert (other.code, "expected alltoall of 8 ranks" in other.stderr) == (2, True)


def test_show_has_the_bound_of_every_collective(run_cli):
    document = json.loads(run_cli("topology", "show", "full:8@alpha_us=0", "--json").stdout)
    found = {row["collective"]: row["algbw_gb_s"] for row in document["bounds"]}
    # Every rank has 7 links of 50 GB/s; it must take in 7/8 of what is gathered, or all of what is broadcast.
    assert found["allgather"] == pytest.approx(400)
    assert found["reducescatter"] == pytest.approx(400)
    assert found["allreduce"] == pytest.approx(200)
    assert found["alltoall"] == pytest.approx(400)
    assert found["broadcast"] == pytest.approx(350)
    assert set(found) >= {"reduce", "gather", "scatter"}
    assert "No schedule is quicker at 1 GiB" in run_cli("topology", "show", "full:8").stdout
    assert json.loads(run_cli("topology", "show", "torus:20x20", "--json").stdout)["bounds"] == []


@pytest.mark.parametrize("name", MACHINES)
def test_from_paste_to_a_program_for_the_runtime(folder, run_cli, name):
    (folder / "m.txt").write_text(MACHINES[name])
    assert run_cli("topology", "import", "m.txt", "-o", "m.yaml").code == 0
    asked = ("--collective", "allreduce", "--topology", "m.yaml", "--method", "ring")
    sweep = run_cli("synthesize", *asked, "--sizes", "1K:1G:1024", "-o", "none", "--json")
    assert [row["size_bytes"] for row in json.loads(sweep.stdout)] == [1 << 10, 1 << 20, 1 << 30]
    assert run_cli("synthesize", *asked, "--size", "1M", "-o", "s.json").code == 0
    assert run_cli("verify", "s.json").code == 0
    assert "topology_assumed" in json.loads((folder / "s.json").read_text())["provenance"]
    assert run_cli("export", "s.json", "--format", "msccl-xml", "-o", "s.xml").code == 0
    assert run_cli("verify", "s.xml").code == 0
