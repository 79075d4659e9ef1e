"""The yardstick is a right allgather of its parts between others, on any number of ranks."""

import pytest

from collsyn.bench.yardstick import exchange
from collsyn.model.plan import Op


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_every_rank_puts_its_part_to_every_other(num_ranks):
    columns = exchange(num_ranks).columns
    assert (columns["op"] == Op.PUT).sum() == num_ranks * (num_ranks - 1)
    assert (columns["op"] == Op.WAIT).sum() == (columns["op"] == Op.SIGNAL).sum() == num_ranks * (num_ranks - 1)
