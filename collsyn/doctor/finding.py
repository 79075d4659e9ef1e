"""What a check found, and the report of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from collsyn.errors import DeviceError

Status = Literal["ok", "warning", "problem"]
SCHEMA = "collsyn-doctor/1"


def gib(size_bytes: int) -> str:
    """A size as people read it: `4 KiB`, `64 MiB`, `13.8 GiB`, `1500 GiB`."""
    power = 3 if size_bytes >= 1 << 30 else 2 if size_bytes >= 1 << 20 else 1
    size = size_bytes / (1 << 10 * power)
    digits = f"{size:.0f}" if size >= 100 else f"{size:.3g}"
    return f"{digits} {('KiB', 'MiB', 'GiB')[power - 1]}"


@dataclass(frozen=True)
class Finding:
    """One check's answer: `ok`, `warning` (works, but worse than it could) or `problem` (something here is broken).

    `detail` is what was found, `remedy` what to do about it (empty if ok), `facts` the figures behind it, JSON-able.
    """

    status: Status
    detail: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NotMade:
    """A check that has nothing to look at here, and why."""

    reason: str


@dataclass(frozen=True)
class Report:
    """All checks by name, in the order of the table; `home` is what texts show as `~`."""

    results: Mapping[str, Finding | NotMade]
    home: str = ""

    @property
    def findings(self) -> dict[str, Finding]:
        """The checks that were made."""
        return {name: result for name, result in self.results.items() if isinstance(result, Finding)}

    @property
    def not_made(self) -> dict[str, str]:
        """Why each of the other checks was not made."""
        return {name: result.reason for name, result in self.results.items() if isinstance(result, NotMade)}

    def names(self, status: Status) -> list[str]:
        """Checks that ended so."""
        return [name for name, finding in self.findings.items() if finding.status == status]

    def document(self) -> dict[str, Any]:
        """The report as JSON has it."""
        checks = [
            {
                "name": name,
                "status": finding.status,
                "detail": self.shown(finding.detail),
                "remedy": self.shown(finding.remedy) or None,
                "facts": self._shown_facts(finding.facts),
            }
            for name, finding in self.findings.items()
        ]
        return {
            "schema": SCHEMA,
            "ok": not self.names("problem"),
            "problems": self.names("problem"),
            "warnings": self.names("warning"),
            "checks": checks,
            "not_made": [{"name": name, "reason": reason} for name, reason in self.not_made.items()],
        }

    def shown(self, text: str) -> str:
        """The text without the name of the user's home, on one line."""
        line = " ".join(text.split())
        return line.replace(self.home, "~") if len(self.home) > 1 else line

    def raise_if_bad(self) -> None:
        """Raise DeviceError that names the problems, if there are any."""
        if problems := self.names("problem"):
            noun = "problem" if len(problems) == 1 else "problems"
            raise DeviceError(f"{len(problems)} {noun} on this machine: {', '.join(problems)}")

    def _shown_facts(self, facts: Any) -> Any:
        if isinstance(facts, str):
            return self.shown(facts)
        if isinstance(facts, Mapping):
            return {key: self._shown_facts(value) for key, value in facts.items()}
        return [self._shown_facts(value) for value in facts] if isinstance(facts, Sequence) else facts
