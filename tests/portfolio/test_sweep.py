"""Sets are short, right at every size, and change over where the other is quicker."""

from math import isqrt

import pytest

from collsyn.check.simulate import retime
from collsyn.check.verify import verify_set
from collsyn.portfolio import sweep
from collsyn.portfolio.candidates import ALIKE
from collsyn.portfolio.sweep import RESOLUTION, algorithm_set, set_of_all
from collsyn.portfolio.trial import plan_time_s
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology


def schedule(name, size_bytes, topology="full:4"):
    return method(name).synthesize(Problem("allreduce", load_topology(topology), size_bytes), Options())


def time_s(found, size_bytes, plans):
    timed = retime(found, size_bytes)
    return plan_time_s(timed) if plans else timed.finish_s


@pytest.mark.parametrize("plans", [False, True])
def test_the_crossover_is_where_the_other_gets_quicker(plans):
    small, large = schedule("one-shot", 1 << 10), schedule("direct", 1 << 24)
    made = algorithm_set([small, large], plans)
    assert made.schedules == (small, large) and made.from_bytes[0] == 0
    border = made.from_bytes[1]
    assert 1 << 10 < border < 1 << 24
    assert time_s(large, border, plans) <= time_s(small, border, plans)
    below = int(border / RESOLUTION) - 1
    assert time_s(small, below, plans) < time_s(large, below, plans)
    verify_set(made).raise_if_bad()


def test_known_crossover_of_the_textbook():
    # alpha + beta M against 2 (alpha + beta M / 4) on four ranks, a link for every pair: equal at M = 2 alpha / beta.
    made = algorithm_set([schedule("one-shot", 1 << 10), schedule("direct", 1 << 24)], plans=False)
    exact = 2 * 0.5e-6 * 50e9
    assert exact * (1 - 1e-6) <= made.from_bytes[1] <= exact * RESOLUTION + 1


def test_one_that_stays_as_good_serves_on():
    ring = [schedule("ring", size, "ring:4") for size in (1 << 20, 1 << 22, 1 << 24)]
    made = algorithm_set(ring, plans=True)
    assert made.schedules == (ring[0],) and made.from_bytes == (0,)
    assert made.provenance["sizes"] == [1 << 20, 1 << 22, 1 << 24]


def test_drift_is_noticed(monkeypatch):
    # Each is within ALIKE of the one before, but the first not of the last.
    found = [schedule("ring", size, "ring:4") for size in (1000, 2000, 3000, 4000)]
    worse = {0: 1.0, 1: 0.994, 2: 0.988, 3: 0.982}

    def timer(plans):
        return lambda each, size: worse[next(i for i, one in enumerate(found) if one is each)]

    monkeypatch.setattr(sweep, "_timer", timer)
    made = algorithm_set(found, plans=False)
    assert all(worse[0] <= ALIKE * worse[i] for i in (0, 1)) and worse[0] > ALIKE * worse[2]
    assert made.schedules[1] is found[2]


def test_what_cannot_run_at_a_size_is_infinitely_slow(monkeypatch):
    from collsyn.errors import Infeasible

    small, large = schedule("one-shot", 1 << 10), schedule("direct", 1 << 20)

    def refuse(each, size_bytes):
        if each is small and size_bytes > 1 << 12:
            raise Infeasible("no")
        return retime(each, size_bytes)

    monkeypatch.setattr(sweep, "retime", refuse)
    made = algorithm_set([small, large], plans=False)
    assert made.schedules == (small, large) and 1 << 12 < made.from_bytes[1] <= (1 << 12) * RESOLUTION + 1


def test_without_simulation_borders_lie_half_way():
    found = [schedule("ring", size, "ring:4") for size in (1 << 10, 1 << 20)]
    made = set_of_all(found)
    assert made.schedules == tuple(found)
    assert made.from_bytes == (0, isqrt((1 << 10) * (1 << 20)) + 1)
