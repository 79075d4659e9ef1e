"""Plans of what the synthesizers make are right and without races, for every collective."""

import pytest

from collsyn.lower.lower import lower
from collsyn.synth.problem import Options
from collsyn.synth.table import METHODS, method
from tests.support.plans import assert_no_races, assert_right
from tests.support.problems import all_problems, grouped_problems
from tests.support.topologies import zoo

OPTIONS = ({}, {"reduce_by": "get", "piece_bytes": 3000}, {"instances": 2, "max_channels": 3, "paced": True})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("topology", ["star", "lopsided"])
def test_plans_of_all_methods(topology, name):
    made = 0
    for problem in [*all_problems(zoo(topology), 40_000), *grouped_problems(zoo(topology), 40_000)]:
        if method(name).accepts(problem) is None:
            schedule = method(name).synthesize(problem, Options())
            plan = lower(schedule, **OPTIONS[made % len(OPTIONS)])
            assert_no_races(plan)
            sizes = (1, 41) if problem.kind != "custom" else (3 * schedule.collective.total_units,)
            assert_right(plan, sizes, seeds=(made,))
            made += 1
