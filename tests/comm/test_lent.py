"""Plans that work on users' arrays where they are: proved for many ranks, and run on arrays of all layouts."""

import pytest

from collsyn.check.verify import verify_plan
from collsyn.comm.lent import LENDING, lent_plan, may_be_lent
from collsyn.errors import InputError
from collsyn.runtime.launch import launch


@pytest.mark.parametrize("kind", sorted(LENDING))
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_plans_are_right_and_touch_nobody_elses_buffers(kind, num_ranks):
    plan = lent_plan(kind, num_ranks)
    assert verify_plan(plan).ok
    assert may_be_lent(plan)


@pytest.mark.parametrize(("kind", "num_ranks"), [("broadcast", 4), ("allreduce", 1)])
def test_others_have_none(kind, num_ranks):
    with pytest.raises(InputError, match=f"method lent: does not make a {kind} of {num_ranks} ranks"):
        lent_plan(kind, num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_arrays_of_all_layouts(num_ranks):
    assert launch("tests.comm.targets:lend", {}, num_ranks, "fork", 100) == [[]] * num_ranks
