"""The yardstick moves what it says, on any number of ranks."""

import numpy as np
import pytest

from collsyn.bench.yardstick import exchange
from collsyn.check.execute import execute
from collsyn.model.bind import bind
from collsyn.model.plan import Op


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@pytest.mark.parametrize("kind, rounds, reductions", [("allgather", 1, 0), ("alltoall", 1, 0), ("allreduce", 2, 1)])
def test_every_pair_has_its_messages(kind, rounds, reductions, num_ranks):
    ops = exchange(kind, num_ranks).columns["op"]
    pairs = num_ranks * (num_ranks - 1)
    for op, times in ((Op.PUT, rounds), (Op.SIGNAL, rounds), (Op.WAIT, rounds), (Op.REDUCE, reductions)):
        assert (ops == op).sum() == times * pairs


@pytest.mark.parametrize("kind", ["broadcast", "alltoallv"])
def test_parts_end_where_they_belong(kind):
    several = kind == "alltoallv"
    inputs = [np.arange(8 if several else 2, dtype=np.int32) + 100 * rank for rank in range(4)]
    outputs = execute(bind(exchange(kind, 4), 8, 4), "int32", "sum", inputs)
    for rank, output in enumerate(outputs):
        for peer in set(range(4)) - {rank}:
            want = inputs[peer].reshape(-1, 2)[rank if several else 0]
            assert (output[2 * peer : 2 * peer + 2] == want).all()
