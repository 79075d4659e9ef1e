"""Trees over NVLink and PCIe at once: never slower than over one of them, quicker where links are few."""

from dataclasses import replace

import numpy as np
import pytest

from collsyn.bounds import fluid_bound
from collsyn.check.execute import execute
from collsyn.check.reference import make_inputs, reference
from collsyn.check.verify import verify_schedule
from collsyn.lower.lower import lower
from collsyn.model.bind import bind
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology

SIZE = 64 << 20


def finish_s(kind: str, topology: str, ranks: tuple[int, ...] | None, size: int = SIZE) -> tuple[float, Problem]:
    machine = load_topology(topology)
    problem = Problem(kind, machine if ranks is None else machine.subset(ranks), size)
    schedule = method("trees").synthesize(problem, Options())
    verify_schedule(schedule).raise_if_bad()
    assert schedule.topology is problem.topology
    return schedule.finish_s, problem


@pytest.mark.parametrize("kind", ["allgather", "broadcast", "allreduce"])
def test_an_allocation_gains_what_the_second_fabric_adds(kind: str) -> None:
    alone, first = finish_s(kind, "dgx1", (0, 1, 4))
    both, second = finish_s(kind, "dgx1@pcie=beside", (0, 1, 4))
    bounds = [fluid_bound(each.collective(), each.topology, SIZE).time_s for each in (first, second)]
    assert bounds[1] < bounds[0]
    assert alone / both > 1.2
    if kind != "allreduce":
        assert both < 1.02 * bounds[1]


def test_gpus_without_nvlink_are_joined_by_the_other_fabric() -> None:
    both, problem = finish_s("allgather", "dgx1@pcie=beside", (1, 4, 6))
    assert both < 1.01 * fluid_bound(problem.collective(), problem.topology, SIZE).time_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["allgather", "reducescatter"])
def test_the_second_fabric_is_left_alone_where_it_slows(kind: str) -> None:
    alone, _ = finish_s(kind, "dgx1", None)
    both, _ = finish_s(kind, "dgx1@pcie=beside", None)
    assert both < 1.005 * alone


def test_plans_over_both_fabrics_move_the_right_bytes() -> None:
    machine = load_topology("dgx1@pcie=beside").subset((0, 1, 4))
    plan = lower(method("trees").synthesize(Problem("allreduce", machine, 1 << 20), Options()))
    inputs = make_inputs(plan.collective, "int32", "sum", 5000)
    outputs = execute(bind(plan, 5000, 4), "int32", "sum", inputs, seed=1)
    for output, wanted in zip(outputs, reference(plan.collective, "int32", "sum", inputs, 5000), strict=True):
        assert np.array_equal(output, wanted)


def test_every_link_of_one_fabric_alone_is_its_own_machine() -> None:
    machine = load_topology("dgx1@pcie=beside")
    direct = (machine.src < 8) & (machine.dst < 8)
    plain = load_topology("dgx1")
    columns = machine.link_columns(np.flatnonzero(direct), np.arange(machine.num_vertices))
    left = replace(machine, **columns, symmetries=())
    assert sorted(map(left.link_name, range(left.num_links))) == sorted(map(plain.link_name, range(plain.num_links)))
