"""collsyn synthesize and collsyn compare."""

import json
from pathlib import Path

import pytest

from collsyn.check.simulate import retime
from collsyn.check.verify import verify_schedule
from collsyn.model.schedule_file import read_schedule
from collsyn.model.set_file import read_set
from collsyn.portfolio import trial
from collsyn.portfolio.candidates import ALIKE
from collsyn.synth.table import METHODS

# Keys that scripts rely on.
KEYS = {
    *("schema", "collective", "topology", "num_ranks", "size_bytes", "method", "seed", "options", "finish_us"),
    *("plan_us", "bound_us", "bound_kind", "gap", "plan_gap", "chunk_bound_us", "chunk_gap", "tree_bound_us"),
    *("algbw_gb_s", "busbw_gb_s", "num_chunks", "chunks_per_rank", "num_sends", "steps", "synthesis_s", "verify_s"),
    *("model", "certificate", "file"),
}


def run_json(run_cli, *args, cwd: Path | None = None):
    done = run_cli("synthesize", *args, "--json", cwd=cwd)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_json_has_every_promised_key(run_cli, tmp_path: Path) -> None:
    found = run_json(run_cli, "--collective", "allgather", "--topology", "ring:8", "--size", "8M", cwd=tmp_path)
    assert set(found) >= KEYS
    assert (found["collective"], found["topology"], found["num_ranks"]) == ("allgather", "ring:8", 8)
    assert found["size_bytes"] == 8 << 20
    assert found["gap"] == pytest.approx(found["finish_us"] / found["bound_us"] - 1)
    assert found["algbw_gb_s"] == pytest.approx((8 << 20) / found["finish_us"] / 1e3)
    assert found["busbw_gb_s"] == pytest.approx(found["algbw_gb_s"] * 7 / 8)
    assert {candidate["method"] for candidate in found["candidates"]} == set(METHODS)


def test_the_file_that_it_names_is_right(run_cli, tmp_path: Path) -> None:
    found = run_json(run_cli, "--collective", "reduce-scatter", "--topology", "full:4", cwd=tmp_path)
    assert found["file"] == "collsyn-out/schedules/reducescatter-full-4-64M.json"
    schedule = read_schedule(tmp_path / found["file"])
    verify_schedule(schedule).raise_if_bad()
    assert schedule.finish_s * 1e6 == pytest.approx(found["finish_us"])
    assert len(schedule.bounds) == 2


def test_same_command_same_bytes(run_cli, tmp_path: Path) -> None:
    arguments = ("synthesize", "--collective", "allreduce", "--topology", "mesh:3x2", "--size", "4K", "--seed", 3)
    texts = []
    for name in ("a.json", "b.json"):
        assert run_cli(*arguments, "-o", tmp_path / name).code == 0
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]


def test_a_method_by_name_meets_its_textbook_time(run_cli) -> None:
    arguments = ("--topology", "ring:8", "--size", "8M", "--method", "ring", "-o", "none")
    found = run_json(run_cli, "--collective", "allgather", *arguments)
    assert found["finish_us"] == pytest.approx(7 * (0.5 + (1 << 20) / 50e3), rel=1e-12)
    assert found["steps"] == pytest.approx(7, rel=1e-12)
    assert found["method"] == "ring" and found["file"] is None
    assert run_json(run_cli, "--collective", "allreduce", *arguments)["finish_us"] == pytest.approx(
        14 * (0.5 + (1 << 20) / 50e3), rel=1e-12
    )


def test_a_sweep_is_a_list_and_writes_one_set(run_cli, tmp_path: Path) -> None:
    found = run_json(
        run_cli, "--collective", "broadcast", "--topology", "switch:4", "--sizes", "1K:1M:32", "--root", 2, cwd=tmp_path
    )
    assert [row["size_bytes"] for row in found] == [1024, 32768, 1 << 20]
    (file,) = (tmp_path / "collsyn-out" / "schedules").iterdir()
    assert file.name == "broadcast-switch-4-1K-1M.set"
    made = read_set(file)
    for row in found:
        assert row["file"] == f"collsyn-out/schedules/{file.name}"
        assert [entry["from_bytes"] for entry in row["set"]] == list(made.from_bytes)
        serving = retime(made.at(row["size_bytes"]), row["size_bytes"])
        assert trial.plan_time_s(serving) <= row["plan_us"] / 1e6 * ALIKE * (1 + 1e-9)


def test_none_writes_nothing(run_cli, tmp_path: Path) -> None:
    done = run_cli("synthesize", "--collective", "gather", "--topology", "full:4", "-o", "none", cwd=tmp_path)
    assert done.code == 0 and "nothing written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_table_lists_methods_and_reasons(run_cli, tmp_path: Path) -> None:
    done = run_cli("synthesize", "--collective", "allgather", "--topology", "full:6", "-o", "none", cwd=tmp_path)
    assert done.code == 0
    assert "verified, kept" in done.stdout
    assert "needs a power of two of ranks, not 6" in done.stdout


def test_columns_on_request(run_cli, tmp_path: Path) -> None:
    done = run_cli(
        "synthesize", "--collective", "scatter", "--topology", "full:4", "-o", tmp_path / "s.npz", "--method", "direct"
    )
    assert done.code == 0
    verify_schedule(read_schedule(tmp_path / "s.npz")).raise_if_bad()


def test_the_profile_at_hand_is_taken_and_said(run_cli, tmp_path: Path) -> None:
    topology = tmp_path / "collsyn-out" / "profile.yaml"
    assert run_cli("synthesize", "--collective", "allgather", cwd=tmp_path).code == 2
    from collsyn.model.topology_file import write_topology
    from tests.support.topologies import zoo

    write_topology(zoo("pair"), topology)
    done = run_cli("synthesize", "--collective", "allgather", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "collsyn-out/profile.yaml" in done.stderr
    assert json.loads(done.stdout)["num_ranks"] == 2


def test_subset_groups_counts_and_spec(run_cli, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"counts": [[0, 2], [1, 0]]}))
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema: collsyn-collective/1\nkind: custom\nranks: 2\nreduces: false\n"
        "chunks:\n  - {from: [0], to: [1], length: 1}\n"
    )
    common = ("--topology", "dgx1", "--size", "1M", "-o", "none")
    subset = run_json(run_cli, "--collective", "allgather", "--subset", "0,1,4", *common)
    assert subset["num_ranks"] == 3
    groups = run_json(run_cli, "--collective", "allreduce", "--groups", "0-3/4-7", *common)
    assert groups["busbw_gb_s"] == pytest.approx(groups["algbw_gb_s"] * 2 * 3 / 4)
    skewed = run_json(run_cli, "--collective", "alltoallv", "--subset", "0,1", "--counts", counts, *common)
    assert skewed["num_sends"] >= 2
    custom = run_json(run_cli, "--collective", "custom", "--subset", "0,1", "--spec", spec, *common)
    assert custom["collective"] == "custom" and custom["num_sends"] >= 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--topology", "rung:8"), 2, "rung"),
        (("--topology", "ring:8", "--method", "rings"), 2, "method 'rings' is not known; expected auto or one of ring"),
        (("--topology", "ring:8", "--method", "recursive"), 2, "method recursive: needs a link"),
        (("--topology", "ring:8", "--chunks", "0"), 2, "chunks: is 0; expected at least 1"),
        (("--topology", "ring:8", "--size", "0"), 2, "size '0' must be a positive"),
        (("--topology", "ring:8", "--root", "0"), 2, "root: allgather has no root"),
        (("--topology", "ring:8", "--subset", "0,9"), 2, "subset: rank 9 is not in topology ring:8"),
        (("--topology", "ring:8", "--subset", "0,4"), 3, "rank 0"),
        (
            ("--topology", "ring:8", "--sizes", "1K:2K", "-o", "x.json"),
            2,
            "-o FILE: several sizes make an algorithm set",
        ),
        (("--topology", "ring:8", "--method", "ring", "-o", "/proc/none/x.json"), 2, "/proc/none/x.json: cannot be"),
        (("--topology", "ring:8", "--time-limit", "-1"), 2, "'-1' is not a positive number of seconds"),
        (("--topology", "ring:8", "--spec", "absent.yaml"), 2, "absent.yaml: cannot be read"),
    ],
)
def test_wrong_input_is_one_line(arguments, code: int, message: str, run_cli, tmp_path: Path) -> None:
    done = run_cli("synthesize", "--collective", "allgather", *arguments, cwd=tmp_path)
    assert done.code == code
    assert message in done.stderr.splitlines()[-1]
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("collective", "message"),
    [("alltoallv", "counts: alltoallv needs a matrix of counts"), ("custom", "spec: a custom collective needs its")],
)
def test_what_a_collective_needs_is_asked_for(collective: str, message: str, run_cli) -> None:
    done = run_cli("synthesize", "--collective", collective, "--topology", "ring:4")
    assert done.code == 2 and message in done.stderr


def test_interruption_keeps_the_best_so_far(run_cli, tmp_path: Path, monkeypatch) -> None:
    from collsyn.synth.paths import Paths

    def interrupt(self, problem, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "warm_up", lambda name, kind: None)
    monkeypatch.setattr(Paths, "synthesize", interrupt)
    asked = ("--collective", "allgather", "--topology", "ring:4", "--size", "1K")
    done = run_cli("synthesize", *asked, "--json", cwd=tmp_path)
    assert done.code == 130
    verify_schedule(read_schedule(tmp_path / json.loads(done.stdout)["file"])).raise_if_bad()
    assert "interrupted; this is the best so far" in done.stderr


def test_compare_has_a_row_for_every_method_and_size(run_cli) -> None:
    done = run_cli("compare", "--collective", "allreduce", "--topology", "full:4", "--sizes", "1K:1M:1024", "--json")
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["size_bytes"], row["method"]) for row in rows] == [
        (size, name) for size in (1024, 1 << 20) for name in METHODS
    ]
    for row in rows:
        assert (row["finish_us"] is None) == (row["refused"] is not None)
        if row["gap"] is not None:
            assert row["gap"] == pytest.approx(row["finish_us"] / row["bound_us"] - 1)
    at = {(row["method"], row["size_bytes"]): row["finish_us"] for row in rows}
    assert at["one-shot", 1024] < at["ring", 1024]
    assert at["one-shot", 1 << 20] > at["direct", 1 << 20]


def test_compare_shows_only_what_is_asked(run_cli) -> None:
    done = run_cli(
        "compare", "--collective", "allgather", "--topology", "ring:4", "--size", "1M", "--methods", "ring,recursive"
    )
    assert done.code == 0
    assert "needs a link or a way through switches" in done.stdout
    assert "greedy" not in done.stdout and "two-way-ring" not in done.stdout
    bad = run_cli("compare", "--collective", "allgather", "--topology", "ring:4", "--methods", "ring,rings")
    assert bad.code == 2 and "'rings' is not known" in bad.stderr


def test_compare_with_a_file(run_cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    made = run_json(run_cli, "--collective", "allgather", "--topology", "ring:4", "--method", "ring", "-o", file)
    arguments = ("compare", "--collective", "allgather", "--topology", "ring:4", "--methods", "ring", "--size", "64M")
    rows = json.loads(run_cli(*arguments, "--with", file, "--json").stdout)
    assert [row["method"] for row in rows] == ["ring", str(file)]
    assert rows[1]["finish_us"] == pytest.approx(made["finish_us"], rel=1e-9)
    other = run_cli("compare", "--collective", "allreduce", "--topology", "ring:4", "--with", file)
    assert other.code == 2 and "is a schedule of another collective" in other.stderr


def test_compare_with_programs_of_other_runtimes(run_cli, tmp_path: Path) -> None:
    asked = ("--collective", "allgather", "--topology", "full:4")
    schedule, xml, plan = tmp_path / "mine.json", tmp_path / "theirs.xml", tmp_path / "theirs.json"
    run_json(run_cli, *asked, "--size", "1M", "--method", "direct", "-o", schedule)
    for output, name in ((xml, "msccl-xml"), (plan, "mscclpp-json")):
        assert run_cli("export", schedule, "--format", name, "-o", output).code == 0
    files = [word for file in (schedule, xml, plan) for word in ("--with", file)]
    compared = ("compare", *asked, "--methods", "ring,direct", "--sizes", "64K:1M:16")
    rows = json.loads(run_cli(*compared, *files, "--json").stdout)
    assert [row["method"] for row in rows[:5]] == ["ring", "direct", str(schedule), str(xml), str(plan)]
    for file in (xml, plan):
        timed = [row["plan_us"] for row in rows if row["method"] == str(file)]
        simulated = json.loads(
            run_cli("simulate", file, "--topology", "full:4", "--sizes", "64K:1M:16", "--json").stdout
        )
        assert timed == pytest.approx([document["plan_us"] for document in simulated])
        assert [row["finish_us"] for row in rows if row["method"] == str(file)] == timed
    at_its_size = {row["method"]: row["plan_us"] for row in rows if row["size_bytes"] == 1 << 20}
    # Programs of other runtimes wait for a signal at their begin, which takes half a microsecond here.
    assert at_its_size[str(plan)] == pytest.approx(at_its_size["direct"] + 0.5, rel=0.02)
    assert at_its_size["ring"] > at_its_size[str(xml)]
    shown = run_cli(*compared, *files).stdout
    assert "us of plans (over the bound)" in shown
    alone = json.loads(run_cli(*compared, "--json").stdout)
    assert all(row["plan_us"] is None for row in alone)
    other = run_cli("compare", "--collective", "allreduce", "--topology", "full:4", "--size", "1M", "--with", xml)
    assert other.code == 2 and "theirs.xml: is MSCCL XML of another collective (allgather, 4 ranks)" in other.stderr
    plan.write_text(plan.read_text().replace('"signal"', '"nop"', 1))
    wrong = run_cli("compare", *asked, "--size", "1M", "--methods", "ring", "--with", plan)
    assert wrong.code == 5 and "theirs.json: mscclpp-json is wrong" in wrong.stderr
