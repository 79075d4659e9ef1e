"""Breadth-first broadcast of every collective between real ranks, every byte against the NumPy oracle."""

from pathlib import Path

import pytest

from collsyn.lower.lower import lower
from collsyn.model.plan_file import write_plan
from collsyn.runtime.launch import launch
from collsyn.synth.problem import Options
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology
from tests.support.problems import all_problems


@pytest.mark.parametrize(
    "name", ["dgx1", *(pytest.param(each, marks=pytest.mark.slow) for each in ("genkautz:4x12", "torus:4x4"))]
)
def test_plans_of_all_collectives(name: str, tmp_path: Path) -> None:
    machine, files = load_topology(name), []
    for number, problem in enumerate(all_problems(machine, 1 << 20)):
        for row in ("bfb", "bfb-repaired"):
            if method(row).accepts(problem) is None:
                file = tmp_path / f"{number}-{problem.kind}-{row}.json"
                write_plan(lower(method(row).synthesize(problem, Options())), file)
                files.append(str(file))
    assert len(files) == 10 + 3
    arguments = {"files": files, "elements": [1001], "kinds": [("float32", "sum")]}
    for wrong, runs in launch("tests.runtime.targets:check_files", arguments, machine.num_ranks, "fork", 240):
        assert wrong == []
        assert runs >= len(files)
