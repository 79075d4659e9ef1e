"""How a search gets on, on stderr: a table that moves on a terminal, a line a schedule elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ._output import note

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from collsyn.portfolio.auto import Watcher
    from collsyn.portfolio.candidates import Candidate

# Times a second that the table is drawn anew.
REFRESH = 4


@contextmanager
def watched(title: str) -> "Iterator[Watcher]":
    """A watcher for `portfolio.auto.best`, for as long as the block runs."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stderr, markup=False, highlight=False)
    moving = Moving(title)
    with Live(moving.table(), console=console, refresh_per_second=REFRESH, transient=True) as live:
        moving.live = live
        yield moving


class Lines:
    """A line on stderr for every schedule that is found."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def done(self, candidate: "Candidate", seconds: float) -> None:
        """A method has ended, or its plan is simulated, which says nothing new to who reads lines."""
        if candidate.served and candidate.method not in self._said:
            self._said.add(candidate.method)
            gap = "" if candidate.gap is None else f", {100 * candidate.gap:z.1f}% over the bound"
            note(f"{candidate.method}: {candidate.finish_s * 1e6:.4g} us{gap}, {seconds:.2g} s")

    def tick(self, running: Sequence[str]) -> None:
        """Nobody watches."""


class Moving:
    """Rows of methods, the best first, those under way last."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.live: Live | None = None
        self._found: dict[str, tuple[Candidate, float]] = {}
        self._refused = 0
        self._running: dict[str, float] = {}

    def done(self, candidate: "Candidate", seconds: float) -> None:
        """Another row, or one that is fuller."""
        self._running.pop(candidate.method, None)
        if candidate.served:
            spent = seconds + self._found[candidate.method][1] if candidate.method in self._found else seconds
            self._found[candidate.method] = candidate, spent
        else:
            self._refused += 1
        self._draw()

    def tick(self, running: Sequence[str]) -> None:
        """What is under way."""
        now = time.monotonic()
        self._running = {name: self._running.get(name, now) for name in running}
        self._draw()

    def table(self) -> "Table":
        """The table as it stands."""
        from rich import box
        from rich.table import Table

        title = self.title + (f" ({self._refused} methods do not serve)" if self._refused else "")
        grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        grid.add_column("method")
        for column in ("schedule us", "plan us", "gap", "seconds"):
            grid.add_column(column, justify="right")
        for candidate, seconds in sorted(self._found.values(), key=_place):
            plan = "" if candidate.plan_s is None else f"{candidate.plan_s * 1e6:.4g}"
            gap = "" if candidate.gap is None else f"{100 * candidate.gap:z.1f}%"
            grid.add_row(candidate.method, f"{candidate.finish_s * 1e6:.4g}", plan, gap, f"{seconds:.1f}")
        for name, begun in self._running.items():
            grid.add_row(name, "...", "", "", f"{time.monotonic() - begun:.1f}")
        return grid

    def _draw(self) -> None:
        if self.live is not None:
            self.live.update(self.table())


def _place(row: "tuple[Candidate, float]") -> Any:
    candidate = row[0]
    return candidate.plan_s is None, candidate.plan_s or candidate.finish_s
