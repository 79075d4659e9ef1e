"""Bounds of large problems: proven like all others, never above them, as strong where ranks have the fewest links."""

import pytest

from collsyn.bounds import chunk_bound, fluid_bound, recheck
from collsyn.bounds.large import large_bounds
from collsyn.errors import Infeasible
from collsyn.model.collective import make_collective
from collsyn.model.topology import Topology
from collsyn.topology.presets import preset_topology

TEXTS = ("mesh:4x3", "torus:4x4", "ring:5", "kautz:2x2", "mesh:5", "hetero3d:2x3x4@bandwidth_gb_s=200/100/50")
SIZES = (1 << 10, 1 << 30)


@pytest.mark.parametrize("kind", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize("text", TEXTS)
def test_they_hold_and_are_no_stronger_than_all(text, kind):
    topology = preset_topology(text)
    collective = make_collective(kind, topology.num_ranks, 2)
    for size_bytes in SIZES:
        problem = collective, topology, size_bytes
        fluid, whole = large_bounds(*problem)
        assert (fluid.scope, whole.scope) == ("fluid", "chunk")
        assert recheck(fluid, *problem) is None and recheck(whole, *problem) is None
        assert 0 < fluid.time_s <= fluid_bound(*problem).time_s * (1 + 1e-9)
        assert fluid.time_s <= whole.time_s <= chunk_bound(*problem).time_s * (1 + 1e-9)


@pytest.mark.parametrize("text", ["mesh:16x16", "torus:8x8", "hypercube:5"])
def test_they_are_near_the_strongest_where_data_comes_to_each_rank_alone(text):
    topology = preset_topology(text)
    problem = make_collective("allgather", topology.num_ranks), topology, 1 << 30
    assert large_bounds(*problem)[1].time_s > 0.999 * chunk_bound(*problem).time_s


def test_ranks_out_of_reach():
    costs = {"alpha_s": [1e-6], "beta_s_per_byte": [1e-10], "overhead_s": [0.0], "count": [1]}
    topology = Topology("one way", 2, src=[0], dst=[1], **costs)
    with pytest.raises(Infeasible, match="rank 1 cannot reach rank 0"):
        large_bounds(make_collective("allgather", 2), topology, 1024)
