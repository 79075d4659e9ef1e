"""All kinds of parts of a DGX-1: bounds and trees against a table of optima from another program."""

import csv
from fractions import Fraction

import pytest

from collsyn.bounds.tightest import tightest_rate
from collsyn.model.collective import make_collective
from collsyn.synth.problem import Problem
from collsyn.synth.trees_demand import pool_for
from collsyn.synth.trees_pool import Pricing, mixes
from collsyn.topology.resolve import load_topology
from tests.conftest import REPOSITORY

TABLE = REPOSITORY / "tests" / "support" / "dgx1_allocations.csv"
MACHINES = {"DGX-1P": ("dgx1p", 20), "DGX-1V": ("dgx1", 25)}
with TABLE.open() as _file:
    ROWS = list(csv.DictReader(line for line in _file if not line.startswith("#")))


def part_of(row):
    """The topology of a row, and GB/s of a link."""
    name, link_gb_s = MACHINES[row["machine"]]
    return load_topology(name).subset([int(rank) for rank in row["gpus"].split()]), link_gb_s


def test_the_table_is_whole():
    assert len(ROWS) == 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['machine']}-{row['gpus'].replace(' ', '')}")
def test_known_rates(row):
    topology, link_gb_s = part_of(row)
    n = topology.num_ranks
    by_root = [tightest_rate(make_collective("broadcast", n, root=r), topology) / link_gb_s for r in range(n)]
    assert by_root == [Fraction(rate) for rate in row["broadcast"].split()]
    assert tightest_rate(make_collective("allgather", n), topology) / link_gb_s / n == Fraction(row["allgather"])
    root = by_root.index(max(by_root))
    for problem in (Problem("allgather", topology, 1 << 30), Problem("broadcast", topology, 1 << 30, root=root)):
        found = mixes(Pricing(pool_for(problem), 0, lambda: False))
        assert found[-1].congestion == pytest.approx(1.0, abs=1e-6)
