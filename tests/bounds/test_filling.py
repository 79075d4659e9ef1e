"""Earliest times at which links have carried enough: against a step-by-step count."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.bounds.filling import earliest_bytes, earliest_count

RATES = st.sampled_from([0.5, 1.0, 3.0, 12.5, 100.0])
TIMES = st.sampled_from([0.0, 0.1, 0.35, 0.7, 2.0, 5.0])
LINKS = st.lists(st.tuples(RATES, TIMES), min_size=1, max_size=6)


def carried(links, time):
    return sum(rate * max(0.0, time - ready) for rate, ready in links)


@given(LINKS, st.sampled_from([0.01, 1.0, 7.0, 300.0]))
def test_the_links_have_carried_just_enough(links, amount):
    rate, ready = np.array(links).T
    time = float(earliest_bytes(amount, rate, ready))
    assert carried(links, time) == pytest.approx(amount, rel=1e-9)


@given(LINKS, st.integers(1, 40))
def test_messages_one_by_one(links, count):
    step, first = np.array(links).T
    heap = [(f + s, s) for s, f in links]
    heapq.heapify(heap)
    time = 0.0
    for _ in range(count):
        time, s = heapq.heappop(heap)
        heapq.heappush(heap, (time + s, s))
    assert earliest_count(count, first, step) == pytest.approx(time, rel=1e-12)


def test_rows_at_once():
    rate, ready = np.array([1.0, 2.0]), np.array([[0.0, 0.0], [0.0, 4.0]])
    assert earliest_bytes(np.array([3.0, 3.0]), rate, ready).tolist() == [1.0, 3.0]
    assert [earliest_count(3, row, 1 / rate) for row in ready] == [1.0, 3.0]


def test_nothing_to_carry_and_nothing_to_carry_it():
    assert earliest_bytes(0.0, np.array([1.0]), np.array([5.0])) == 0
    assert earliest_count(0, np.array([5.0]), np.array([1.0])) == 0
    assert np.isinf(earliest_bytes(1.0, np.empty(0), np.empty(0)))
    assert np.isinf(earliest_count(1, np.empty(0), np.empty(0)))


def test_many_messages_and_unequal_links():
    first, step = np.array([0.0, 0.5]), np.array([1.0, 1e-3])
    # By 1000.5 the quick link has brought a million messages and the slow one a thousand.
    assert earliest_count(1_001_000, first, step) == pytest.approx(1000.5, rel=1e-12)
    assert earliest_count(1_001_001, first, step) == pytest.approx(1000.501, rel=1e-12)
