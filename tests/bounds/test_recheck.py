"""Certificates are proofs: they hold as they are, and no number, vertex or kind in them can be changed."""

import copy
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from collsyn.bounds import chunk_bound, fluid_bound, recheck
from collsyn.bounds.bound import bounds_by_argument, whole_bounds_by_argument
from collsyn.bounds.table import ARGUMENTS, argument
from collsyn.model.bound import Bound, bound_from_fields
from collsyn.model.collective import make_collective
from collsyn.model.fields import Fields
from tests.conftest import REPOSITORY
from tests.support.problems import random_problems
from tests.support.topologies import zoo

M = 1 << 20
# Half of the usual examples: each looks at some thirty certificates.
FEWER = settings(max_examples=max(settings().max_examples // 2, 1))


def all_bounds(problem):
    asked = problem.collective(), problem.topology, problem.size_bytes
    yield from bounds_by_argument(*asked)
    yield from whole_bounds_by_argument(*asked)
    yield from whole_bounds_by_argument(*asked, batched=True)
    yield fluid_bound(*asked)
    yield chunk_bound(*asked)


@FEWER
@given(random_problems())
def test_every_certificate_holds_and_survives_a_file(problem):
    for bound in all_bounds(problem):
        asked = problem.collective(), problem.topology, problem.size_bytes
        assert recheck(bound, *asked) is None
        assert recheck(bound_from_fields(Fields(bound.document(), "file")), *asked) is None


@FEWER
@given(random_problems())
def test_a_larger_claim_is_refused(problem):
    asked = problem.collective(), problem.topology, problem.size_bytes
    for bound in all_bounds(problem):
        if bound.time_s > 0:
            assert "shows" in recheck(replace(bound, time_s=bound.time_s * 1.001), *asked)
        if bound.algbw_exact is not None:
            assert "GB/s" in recheck(replace(bound, algbw_exact=bound.algbw_exact * Fraction(999, 1000)), *asked)
        elif bound.kind == "distance":
            assert "GB/s" in recheck(replace(bound, algbw_exact=Fraction(1)), *asked)


def problem_of(kind="allgather", chunks=2):
    """On a ring without any symmetry, so that a certificate with other ranks in it shows another time."""
    return make_collective(kind, 5, chunks), zoo("unequal ring"), M


def one_of_each(kind="allgather"):
    """One bound of each argument and scope."""
    problem = problem_of(kind)
    found = [*bounds_by_argument(*problem), *whole_bounds_by_argument(*problem)]
    return problem, {(bound.kind, bound.scope): bound for bound in found}


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_there_is_one_of_each(kind):
    _, bounds = one_of_each(kind)
    fluid = {name for name, scope in bounds if scope == "fluid"}
    assert fluid == set(ARGUMENTS)
    assert {name for name, scope in bounds if scope == "chunk"} == {n for n in fluid if argument(n).counts_chunks}


def forged(value):
    """Other values in the place of one."""
    if isinstance(value, bool):
        return [not value, "yes"]
    if isinstance(value, int):
        return [value + 1, -1, 10**9, float(value), str(value), None]
    if isinstance(value, float):
        return [value * 1.01 + 1e-9, -value - 1.0, float("inf"), float("nan"), None, [value]]
    if isinstance(value, list):
        wrong = [[0, 0], [0, 10**6], [-1], ["0"], [True], "0", None, {}]
        return [*wrong, value[:-1], [*value, 99]] if value else wrong
    return ["other", "0", "-1/2", "1/0", "", None, 7, value + "0"]


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
@pytest.mark.parametrize("scope", ["fluid", "chunk"])
@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_a_changed_certificate_is_refused(name, scope, kind):
    problem, bounds = one_of_each(kind)
    bound = bounds.get((name, scope))
    if bound is None:
        assert not argument(name).counts_chunks
        return
    assert recheck(bound, *problem) is None
    tried = 0
    for key, value in bound.certificate.items():
        for other in forged(value):
            certificate = {**copy.deepcopy(dict(bound.certificate)), key: other}
            if key == "shared" and other in (True, False):
                # Without overhead on the links both ways of sending take the same time.
                continue
            said = recheck(replace(bound, certificate=certificate), *problem)
            assert isinstance(said, str) and said, (key, other)
            tried += 1
        lacking = {k: v for k, v in bound.certificate.items() if k != key}
        if key != "shared":
            assert recheck(replace(bound, certificate=lacking), *problem) is not None, key
    assert tried >= 10


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_another_argument_or_scope_is_refused(name):
    problem, bounds = one_of_each()
    bound = bounds[name, "fluid"]
    for other in (*ARGUMENTS, "guess"):
        if other != name:
            assert recheck(replace(bound, kind=other), *problem) is not None, other
    if (name, "chunk") in bounds:
        assert "whole chunks" in recheck(replace(bounds[name, "chunk"], scope="fluid"), *problem)
    assert recheck(replace(bound, scope="chunk"), *problem) is None, "what holds for any splitting holds for chunks"


def test_another_problem_is_refused():
    collective, topology, size_bytes = problem_of()
    bound = fluid_bound(collective, topology, size_bytes)
    assert recheck(bound, collective, topology, 2 * size_bytes) is not None
    assert recheck(bound, make_collective("broadcast", 5), topology, size_bytes) is not None
    assert recheck(bound, collective, replace(topology, alpha_s=topology.alpha_s + 1e-5), size_bytes) is not None
    assert "ranks" in recheck(bound, collective, zoo("pair"), size_bytes)
    # A fluid bound does not depend on the splitting.
    assert recheck(bound, make_collective("allgather", 5, 7), topology, size_bytes) is None


def test_the_throughput_has_a_certificate_of_its_own():
    problem = make_collective("allgather", 5), zoo("unequal ring"), 8
    bound = fluid_bound(*problem)
    inner = bound.certificate["throughput"]
    assert recheck(bound, *problem) is None
    assert ARGUMENTS[inner["argument"]]
    for other in ({**inner, "argument": "distance"}, {**inner, "vertices": [0]}, {**inner, "kind": "path"}, None, {}):
        certificate = {**bound.certificate, "throughput": other}
        assert recheck(replace(bound, certificate=certificate), *problem) is not None, other


def test_an_empty_certificate_is_refused():
    assert "kind" in recheck(Bound(1.0, "cut", "fluid", {}), *problem_of())


def test_the_page_lists_every_argument():
    page = (REPOSITORY / "docs" / "bounds.md").read_text()
    for name in ARGUMENTS:
        assert f"| `{name}` |" in page
