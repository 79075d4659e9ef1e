"""A lower bound together with what proves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from collsyn.model.fields import Fields
from collsyn.units import s_to_us


@dataclass(frozen=True)
class Bound:
    """No schedule of the problem finishes before `time_s`; `certificate` lets anyone recheck it without a solver.

    `scope` is `fluid` (any splitting of the data allowed), `chunk` (this schedule's chunks whole, one message each
    unless batched, overhead counted) or `tree` (any splitting, but only allreduces along trees). `kind` names the
    argument (docs/bounds.md lists them), and `algbw_exact` is the exact algorithm bandwidth in GB/s that no schedule
    exceeds at any size, where an argument of throughput gives one.
    """

    time_s: float
    kind: str
    scope: str
    certificate: Mapping[str, Any]
    algbw_exact: Fraction | None = None

    def document(self) -> dict[str, Any]:
        """The bound as plain values."""
        document = {"scope": self.scope, "kind": self.kind, "bound_us": s_to_us(self.time_s), "bound_s": self.time_s}
        if self.algbw_exact is not None:
            document["algbw_exact"] = str(self.algbw_exact)
        return {**document, "certificate": dict(self.certificate)}


def bound_from_fields(fields: Fields) -> Bound:
    """The bound of a document; raises InputError."""
    scope = fields.text("scope", choices=["fluid", "chunk", "tree"])
    kind = fields.text("kind")
    fields.number("bound_us", minimum=0)
    time_s = fields.number("bound_s", minimum=0)
    exact = fields.fraction("algbw_exact") if fields.has("algbw_exact") else None
    certificate = fields.mapping("certificate")
    fields.done()
    return Bound(time_s, kind, scope, certificate, exact)
