"""The one way to print: results to stdout, everything else to stderr."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from os import PathLike, fspath
from typing import Any, Protocol

import click

Cell = str | int | float | None
# Wide enough for any table: without a terminal nothing is cut or wrapped.
NO_TERMINAL_WIDTH = 10_000


def emit_json(doc: object) -> None:
    """Prints one JSON document on stdout; a command with `--json` calls this once.

    NumPy scalars and arrays become numbers and lists, fractions and paths text, and numbers that
    JSON cannot hold (infinite, undefined) null.
    """
    click.echo(json.dumps(_plain(doc), indent=2, allow_nan=False))


def note(message: str) -> None:
    """Prints a line for the person watching, on stderr."""
    click.echo(message, err=True)


def text(message: str) -> None:
    """Prints a line of the result on stdout."""
    click.echo(message)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints a table on stdout, numbers to the right and with four digits, None as a dash."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(not isinstance(row[index], str) for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    width = None if sys.stdout.isatty() else NO_TERMINAL_WIDTH
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(grid)


class Update(Protocol):
    """Moves a progress bar to `done`, with the `detail` that is worth knowing now."""

    def __call__(self, done: float, detail: str = "") -> None: ...


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Update]:
    """A progress bar on stderr, for as long as the block runs; silent where no terminal is.

    `done` counts towards `total`; `detail` is, say, the best so far and its gap to the bound.
    Without a total the bar only pulses.
    """
    if not sys.stderr.isatty():
        yield _no_update
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr, markup=False, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, detail="")

        def update(done: float, detail: str = "") -> None:
            bar.update(task, completed=done, detail=detail)

        yield update


def _no_update(done: float, detail: str = "") -> None:
    """For a stream that nobody watches."""


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, PathLike):
        return fspath(value)
    # NumPy is not imported here; its scalars and arrays are known by this method.
    return _plain(value.tolist())
