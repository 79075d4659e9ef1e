"""Lowered schedules of every collective between real ranks, against the NumPy oracle."""

import pytest

from collsyn.lower.lower import lower
from collsyn.model.plan_file import write_plan
from collsyn.runtime.launch import launch
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.problems import all_problems, grouped_problems

# Direct, forwarding, and reducing on the way.
NAMES = ("direct", "ring", "recursive", "binomial", "paths")


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(("kind", "by"), [("allgather", "direct"), ("allreduce", "one-shot"), ("broadcast", "direct")])
def test_calls_that_run_ahead_of_each_other(kind, by, native, tmp_path, monkeypatch):
    monkeypatch.setenv("COLLSYN_NATIVE", native)
    file = write_ahead(tmp_path / "plan.json", kind, by)
    assert launch("tests.runtime.targets:in_a_row", {"file": file, "turns": 300}, 4, "fork", 120) == [[]] * 4


def write_ahead(file, kind, by):
    """A plan in which nobody waits for anybody to begin, as a file."""
    plan = lower(method(by).synthesize(Problem(kind, load_topology("full:4"), 4000), Options()), ahead=True)
    assert plan.runs_ahead
    write_plan(plan, file)
    return str(file)


@pytest.mark.parametrize(
    ("topology", "options"),
    [
        ("full:4", {}),
        ("ring:4", {"reduce_by": "put", "max_channels": 1}),
        ("switch:5", {"instances": 2, "piece_bytes": 1000}),
    ],
)
def test_plans_of_all_collectives(topology, options, tmp_path):
    machine = load_topology(topology)
    files = []
    for number, problem in enumerate([*all_problems(machine, 40_000), *grouped_problems(machine, 40_000)]):
        # One method for each problem, all of them in turn.
        names = [name for name in NAMES if method(name).accepts(problem) is None]
        name = names[number % len(names)]
        file = tmp_path / f"{number}-{problem.kind}-{name}.json"
        write_plan(lower(method(name).synthesize(problem, Options()), **options), file)
        files.append(str(file))
    assert len({name.split("-")[-1] for name in files}) > 1
    kinds = [("float32", "sum"), ("uint8", "avg"), ("bfloat16", "max")]
    arguments = {"files": files, "elements": [1, 1001], "kinds": kinds}
    found = launch("tests.runtime.targets:check_files", arguments, machine.num_ranks, "fork", 120)
    for wrong, runs in found:
        assert wrong == []
        assert runs >= 4 * len(files)
