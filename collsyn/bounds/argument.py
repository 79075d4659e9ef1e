"""What an argument is: it proposes certificates, and it proves from one certificate alone how much time must pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import numpy as np

from collsyn.bounds.case import Case
from collsyn.model.arrays import F64, Bools

Certificate = Mapping[str, Any]

# How many certificates an argument hands over after its rough look at all candidates.
PROPOSALS = 6


class Refused(Exception):
    """A certificate that proves nothing, and why."""


@dataclass(frozen=True)
class Proof:
    """No schedule ends before `time_s`; `algbw_exact` (GB/s) is exceeded at no size, where the argument shows that.

    `facts` are the numbers that the certificate quotes: amounts, capacities, distances.
    """

    time_s: float
    algbw_exact: Fraction | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Argument(Protocol):
    """A row of the table; stateless."""

    kind: str
    """`kind` of its certificates: cut, path, parts or lengths."""

    keys: tuple[str, ...]
    """What its certificates hold besides `kind` and facts."""

    counts_chunks: bool
    """Whether it also holds for whole chunks (a Case with a length)."""

    def propose(self, case: Case) -> list[dict[str, Any]]:
        """A few certificates worth proving, without their facts; empty where the argument does not apply."""

    def prove(self, case: Case, certificate: Certificate) -> Proof:
        """What follows from a certificate, by additions and shortest paths; raises Refused if it is not one."""


def refuse(what: str) -> NoReturn:
    """Raise Refused."""
    raise Refused(what)


def vertex_mask(case: Case, value: object, what: str) -> Bools:
    """A vertex set from a certificate's list; raises Refused unless it names distinct vertices of the topology."""
    limit = case.topology.num_vertices
    if not isinstance(value, Sequence) or isinstance(value, str):
        refuse(f"{what} is not a list of vertices")
    if not all(type(v) is int and 0 <= v < limit for v in value) or len(set(value)) != len(value):
        refuse(f"{what} does not name distinct vertices 0 .. {limit - 1}")
    mask = np.zeros(limit, dtype=np.bool_)
    mask[list(value)] = True
    return mask


def rank_of(case: Case, certificate: Certificate, key: str) -> int:
    """A rank from a certificate; raises Refused."""
    value = certificate.get(key)
    if type(value) is not int or not 0 <= value < case.topology.num_ranks:
        refuse(f"{key} is {value!r}, not a rank 0 .. {case.topology.num_ranks - 1}")
    return value


def side_of(certificate: Certificate, choices: tuple[str, str]) -> str:
    """The `side` of a certificate; raises Refused."""
    value = certificate.get("side")
    if value not in choices:
        refuse(f"side is {value!r}, not {choices[0]} or {choices[1]}")
    return str(value)


def best_distinct(values: F64, limit: int = PROPOSALS) -> list[int]:
    """Positions of the largest values, one for each distinct value (to 9 digits), first come first."""
    order = np.argsort(-values, kind="stable")
    chosen: list[int] = []
    for index in order.tolist():
        if not np.isfinite(values[index]) or values[index] <= 0 or len(chosen) == limit:
            break
        if not chosen or values[index] < values[chosen[-1]] * (1 - 1e-9):
            chosen.append(index)
    return chosen
