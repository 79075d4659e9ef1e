"""Every mutant of a good schedule that is no longer right is rejected, and none that still is."""

from collections import Counter

import pytest

from tests.support.mutate import MUTATIONS, check_mutants
from tests.support.schedules import SCHEDULES, by_hand

SEEDS = range(4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_checker_and_brute_force_agree_on_mutants(name):
    found: Counter[str] = Counter()
    for seed in SEEDS:
        found += check_mutants(by_hand(name), seed)
    assert found["drop"] == len(SEEDS) * 3
    assert len(found) >= 8


def test_every_kind_of_mutation_has_wrong_mutants():
    found: Counter[str] = Counter()
    for name in SCHEDULES:
        found += check_mutants(by_hand(name), seed=99, per_kind=2)
    assert set(found) == set(MUTATIONS)
