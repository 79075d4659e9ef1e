"""Lower bounds on the time of a collective: the strongest of all arguments, and rechecking what was said earlier."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from collsyn.bounds.argument import Proof, Refused, refuse
from collsyn.bounds.case import Case
from collsyn.bounds.table import ARGUMENTS, TREE_ARGUMENTS, argument
from collsyn.errors import CollsynError
from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.schedule import RouteCosts, Schedule
from collsyn.model.topology import Topology

# What rounding can change of a time.
RELATIVE = 1e-9
_MAX_LENGTHS = 4


def fluid_bound(collective: Collective, topology: Topology, size_bytes: int) -> Bound:
    """The strongest bound that holds for any splitting of the data; seconds.

    `algbw_exact` is that of the strongest argument of throughput: no schedule exceeds it at any size. Where another
    certificate shows it than that of the time, it stands in the certificate as `throughput`. Raises Infeasible naming a
    pair without a way, InputError where the numbers of ranks differ. Complexity: a shortest-path search a rank, and the
    number of candidate sets (a few a rank, box and switch) times the rank sets of the collective.
    """
    return _strongest(list(bounds_by_argument(collective, topology, size_bytes)), "fluid")


def chunk_bound(collective: Collective, topology: Topology, size_bytes: int, batched: bool = False) -> Bound:
    """The strongest bound for this collective's chunks sent whole, one message each with its overhead.

    It holds for messages at the full rate of their routes. Set `batched` where several chunks may share a message, or
    where messages may run beside each other at lower rates (`avoids_overhead` tells it of a schedule): either way
    overhead can be avoided, and is not counted. Never below the fluid bound. Raises as `fluid_bound`.
    """
    fluid = fluid_bound(collective, topology, size_bytes)
    return _strongest([fluid, *whole_bounds_by_argument(collective, topology, size_bytes, batched)], "chunk")


def tree_bound(collective: Collective, topology: Topology, size_bytes: int) -> Bound | None:
    """The bound for an allreduce that sums up trees to roots and copies down trees from them; None for what is none.

    It is no bound on other schedules, and where latency counts it may be below `fluid_bound`. Raises as `fluid_bound`.
    Complexity: that of `joint_split`.
    """
    case = Case(collective, topology, size_bytes)
    case.check_reachable()
    return next((bound for name in TREE_ARGUMENTS for bound in _proofs(case, name, {}, "tree")), None)


def avoids_overhead(schedule: Schedule) -> bool:
    """Whether some message of a schedule carries several chunks or runs below the full rate of its route."""
    messages = schedule.messages
    full = RouteCosts.of(schedule.topology, schedule.routes).rate[messages.route]
    return bool((schedule.batch >= 0).any() or (messages.rate < full * (1 - RELATIVE)).any())


def bounds_by_argument(collective: Collective, topology: Topology, size_bytes: int) -> Iterator[Bound]:
    """The bound of every argument that applies, for any splitting: at most two each, by time and by throughput."""
    case = Case(collective, topology, size_bytes)
    case.check_reachable()
    for name in ARGUMENTS:
        proofs = _proofs(case, name, {})
        if proofs:
            by_time = max(proofs, key=lambda bound: bound.time_s)
            by_throughput = min(proofs, key=_algbw)
            yield by_time
            if _algbw(by_throughput) < _algbw(by_time):
                yield by_throughput


def whole_bounds_by_argument(
    collective: Collective, topology: Topology, size_bytes: int, batched: bool = False
) -> Iterator[Bound]:
    """The bound of every argument that applies to whole chunks."""
    Case(collective, topology, size_bytes).check_reachable()
    cases = [Case(collective, topology, size_bytes, length, batched) for length in _lengths(collective)]
    for name in ARGUMENTS:
        if argument(name).counts_chunks:
            extras = [{"length": str(case.length), "shared": batched} for case in cases]
            proofs = [b for case, extra in zip(cases, extras, strict=True) for b in _proofs(case, name, extra)]
            if proofs:
                yield max(proofs, key=lambda bound: bound.time_s)


def recheck(bound: Bound, collective: Collective, topology: Topology, size_bytes: int) -> str | None:
    """None if the certificate proves exactly what the bound says of this problem, else what is wrong.

    Additions and shortest paths only. A fluid bound may be checked with any splitting of the same collective.
    """
    try:
        proof = _prove(bound.kind, bound.scope, bound.certificate, collective, topology, size_bytes)
        if not math.isclose(proof.time_s, bound.time_s, rel_tol=RELATIVE):
            refuse(f"the certificate shows {proof.time_s:.9g} s, not {bound.time_s:.9g} s")
        exact = proof.algbw_exact
        if "throughput" in bound.certificate:
            exact = _throughput(bound.certificate["throughput"], collective, topology, size_bytes)
        if bound.algbw_exact is not None and bound.algbw_exact != exact:
            refuse(f"the certificate shows {exact} GB/s, not {bound.algbw_exact}")
    except (Refused, CollsynError) as wrong:
        return str(wrong)
    return None


def _strongest(found: list[Bound], scope: str) -> Bound:
    best = max(found, key=lambda bound: bound.time_s)
    widest = min(found, key=_algbw)
    certificate = dict(best.certificate)
    if best.algbw_exact != widest.algbw_exact:
        known = widest.certificate.get("throughput")
        certificate["throughput"] = known or {"argument": widest.kind, **widest.certificate}
    return Bound(best.time_s, best.kind, scope, certificate, widest.algbw_exact)


def _algbw(bound: Bound) -> Fraction | float:
    return math.inf if bound.algbw_exact is None else bound.algbw_exact


def _proofs(case: Case, name: str, extra: Mapping[str, Any], scope: str | None = None) -> list[Bound]:
    this = argument(name)
    scope = scope or ("fluid" if case.length is None else "chunk")
    found = []
    for certificate in this.propose(case):
        try:
            proof = this.prove(case, certificate)
        except Refused:
            continue
        found.append(Bound(proof.time_s, name, scope, {**certificate, **extra, **proof.facts}, proof.algbw_exact))
    return found


def _lengths(collective: Collective) -> list[Fraction]:
    """Up to four lengths of chunks, the shortest and longest among them, as parts of the size."""
    units = np.unique(collective.units)
    picks = np.unique(np.linspace(0, len(units) - 1, _MAX_LENGTHS).astype(np.int64))
    return [Fraction(int(units[i]), collective.total_units) for i in picks]


def _prove(
    name: str,
    scope: str,
    certificate: Mapping[str, Any],
    collective: Collective,
    topology: Topology,
    size_bytes: int,
) -> Proof:
    if name not in (TREE_ARGUMENTS if scope == "tree" else ARGUMENTS):
        refuse(f"there is no argument {name!r} for a {scope} bound")
    this = argument(name)
    if certificate.get("kind") != this.kind:
        refuse(f"a certificate of kind {certificate.get('kind')!r} does not serve the argument {name}")
    length, shared = None, certificate.get("shared", False)
    if "length" in certificate:
        if scope != "chunk" or not this.counts_chunks:
            refuse(f"the argument {name} does not count whole chunks in a {scope} bound")
        length = _read_length(certificate["length"])
    if not isinstance(shared, bool):
        refuse(f"shared is {shared!r}, not true or false")
    case = Case(collective, topology, size_bytes, length, shared)
    if not len(case.pairs[2]):
        refuse("no chunk is that long")
    proof = this.prove(case, certificate)
    _check_facts(certificate, proof)
    known = {"kind", "length", "shared", "throughput", "argument", *this.keys, *proof.facts}
    unknown = [key for key in certificate if key not in known]
    if unknown:
        refuse(f"{unknown[0]} does not belong to the argument {name}")
    return proof


def _read_length(value: object) -> Fraction:
    try:
        length = Fraction(value) if isinstance(value, str) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        length = Fraction(0)
    if length <= 0:
        refuse(f"length is {value!r}, not a part of the size")
    return length


def _check_facts(certificate: Mapping[str, Any], proof: Proof) -> None:
    for key, value in proof.facts.items():
        said = certificate.get(key)
        same = repr(said) == repr(value)  # tells True from 1 and 1 from 1.0, unlike ==
        if isinstance(value, float) and isinstance(said, int | float) and not isinstance(said, bool):
            same = math.isclose(said, value, rel_tol=RELATIVE)
        if not same:
            refuse(f"{key} is {said!r}; the certificate shows {value!r}")


def _throughput(value: object, collective: Collective, topology: Topology, size_bytes: int) -> Fraction | None:
    if not isinstance(value, Mapping):
        refuse("throughput is not a certificate")
    return _prove(str(value.get("argument")), "fluid", value, collective, topology, size_bytes).algbw_exact
