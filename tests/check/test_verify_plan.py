"""The judge of plans: right ones pass, and each kind of mistake fails the check that is meant for it."""

import pytest

from collsyn.check.verify import PLAN_CHECKS, verify_plan
from collsyn.errors import VerificationError
from collsyn.model.collective import make_collective
from collsyn.model.plan import Plan
from tests.support.hand_plans import IN, OUT, SCRATCH, copy, put, signal, sum_plan, swap_plan, wait


def failed(plan):
    """Names of the checks that fail, and the report."""
    report = verify_plan(plan)
    assert [check.name for check in report.checks] == list(PLAN_CHECKS)
    assert report.ok == (not report.problems)
    return [check.name for check in report.checks if not check.ok], report


def test_plans_by_hand_are_right():
    names, report = failed(swap_plan())
    assert names == []
    assert report.checks[-1].detail == "5 runs"
    assert failed(sum_plan())[0] == []


def at(rank, number, **values):
    """A change of one instruction."""

    def change(channels):
        channels[rank][number].update(values)

    return change


def gone(rank, number):
    """A change that leaves an instruction out."""

    def change(channels):
        del channels[rank][number]

    return change


@pytest.mark.parametrize(
    "change, names, where, expected",
    [
        (
            at(0, 3, dst_offset=2),
            ["ranges", "flags", "races", "data"],
            "rank 0 channel 0 instruction 3",
            "memory inside",
        ),
        (
            at(0, 3, dst_buffer=7),
            ["ranges", "flags", "races", "data"],
            "rank 0 channel 0 instruction 3",
            "memory inside",
        ),
        (at(1, 3, peer=2), ["ranges", "flags", "races", "data"], "rank 1 channel 0 instruction 3", "memory inside"),
        (at(0, 4, flag=1), ["flags", "races", "data"], "rank 0 channel 0 instruction 4", "every wait to end"),
        (gone(0, 4), ["flags", "races", "data"], "deadlock", "every wait to end"),
        (at(0, 5, value=3), ["flags", "races", "data"], "deadlock", "every wait to end"),
        (at(0, 3, dst_offset=1), ["races", "data"], "out of place", "an order between the two"),
        (gone(0, 2), ["races"], "out of place", "an order between the two"),
        (at(0, 1, dst_offset=1), ["races", "data"], "out of place", "an order between the two"),
        (gone(0, 1), ["data"], "rank 0 output element 0 of chunk 0", ""),
    ],
)
def test_mistakes_fail_the_check_meant_for_them(change, names, where, expected):
    found, report = failed(swap_plan(change))
    assert found == names
    assert report.problems[0].where.startswith(where)
    assert report.problems[0].expected.startswith(expected)


def test_wrong_data_is_shown():
    report = failed(swap_plan(gone(1, 1)))[1]
    problem = report.problems[0]
    assert problem.where == "rank 1 output element 1 of chunk 1 (2 x int64 out of place, order None)"
    assert problem.what == "is not the result"
    # What no instruction has written is filled with this byte.
    assert problem.found == str(int.from_bytes(b"\xa5" * 8, "little", signed=True))
    assert problem.expected != problem.found
    with pytest.raises(VerificationError, match=r"^p\.json: plan is wrong \(data\): rank 1 output"):
        report.raise_if_bad("p.json")


def test_a_plan_must_leave_the_input_as_it_is():
    def change(channels):
        channels[0].append(dict(copy((IN, 0), (OUT, 1))))

    names, report = failed(swap_plan(change))
    assert names == ["data"]
    assert any(problem.what == "was changed by the plan" for problem in report.problems)


def test_races_are_looked_for_in_place_as_well():
    # Rank 1 writes the part of rank 0 back to it while another channel there reads its input: in place the same bytes.
    channels = [
        (0, [signal(1, 1), wait(1, 1), put(1, (OUT, 0), (IN, 0)), signal(1, 2), wait(1, 2), wait(1, 3)]),
        (1, [signal(0, 1), copy((OUT, 1), (IN, 0)), wait(0, 1), put(0, (OUT, 1), (IN, 0)), signal(0, 2), wait(0, 2)]),
        (0, [copy((SCRATCH, 0), (IN, 0))]),
    ]
    channels[1][1].extend([put(0, (OUT, 0), (OUT, 0)), signal(0, 3)])
    plan = Plan.build(make_collective("allgather", 2), channels, [[(0, 0, 1)], []], [1, 1])
    names, report = failed(plan)
    assert names == ["races"]
    assert {problem.where for problem in report.problems} == {"in place"}


def test_sizes_that_a_plan_refuses_are_not_tried():
    # Scratch of no chunk has a length only where the units divide the size.
    names, report = failed(swap_plan(scratch=[[(-1, 0, 1)], []]))
    assert names == []
    assert report.checks[-1].detail == "2 runs; runs only at sizes that 2 divides"
