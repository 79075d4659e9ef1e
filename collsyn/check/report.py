"""What the checker found: named checks, and problems that say where, what was expected and what was there."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collsyn.errors import VerificationError

# A wrong schedule is often wrong everywhere; the first few places are what one reads.
SHOWN = 10


@dataclass(frozen=True)
class Check:
    """One property that was tested, and in a few words what it covered or why it failed."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Problem:
    """One place that is wrong: chunk, ranks and time in `where`, the rule in `what`, want and have in the other two."""

    where: str
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Report:
    """All checks of one schedule or plan, with the first problems of every check that failed."""

    kind: str
    checks: tuple[Check, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def raise_if_bad(self, where: str = "") -> None:
        """Raise VerificationError with the first problem in one line; `where` (a file) begins it."""
        if self.ok:
            return
        failed = next(check for check in self.checks if not check.ok)
        first = str(self.problems[0]) if self.problems else failed.detail
        raise VerificationError(f"{f'{where}: ' if where else ''}{self.kind} is wrong ({failed.name}): {first}")

    def document(self) -> dict[str, Any]:
        """The report as plain values, in the form of `collsyn verify --json`."""
        return {
            "kind": self.kind,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "problems": [asdict(problem) for problem in self.problems],
        }


class Findings:
    """A report in the making."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.checks: list[Check] = []
        self.problems: list[Problem] = []

    def add(self, name: str, problems: Sequence[Problem], passed: str, total: int | None = None) -> bool:
        """Record a check that failed if there are problems (`total` of them, where not all are listed)."""
        count = len(problems) if total is None else total
        shown = list(problems[:SHOWN])
        detail = passed if not shown else f"{count} problem{'s' if count > 1 else ''}"
        self.checks.append(Check(name, not shown, detail))
        self.problems += shown
        return not shown

    def skip(self, names: Iterable[str], why: str) -> None:
        """Record checks that could not be made, which counts as failing them."""
        self.checks += [Check(name, False, f"not checked: {why}") for name in names]

    @property
    def ok(self) -> bool:
        """Whether everything recorded so far passed."""
        return all(check.ok for check in self.checks)

    def report(self) -> Report:
        """The finished report."""
        return Report(self.kind, tuple(self.checks), tuple(self.problems))
