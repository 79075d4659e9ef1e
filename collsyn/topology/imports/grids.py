"""Square tables with a title above them: names of columns in a first line, then a row for each name."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collsyn.topology.imports.described import names
from collsyn.topology.imports.text import Paste


@dataclass(frozen=True)
class Grid:
    """A table: its title and the number of the title's line, names in order, and the cells of the rows that are whole.

    `lost` names rows that are missing or have another number of cells than columns.
    """

    title: str
    line: int
    names: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    lost: tuple[str, ...]

    def both(self, a: str, b: str) -> list[str]:
        """What the table says of a pair, both ways, as far as it does."""
        return [self.cells[key] for key in ((a, b), (b, a)) if key in self.cells]


def grids(paste: Paste, title_of: Callable[[str], str | None], name: str, corner: str = "") -> Iterator[Grid]:
    """All tables of a paste, also several with one title.

    `title_of` tells titles in lines with single spaces, `name` is the pattern of names, `corner` of what precedes the
    names of columns. A table without names after its title is skipped.
    """
    lines = paste.lines
    for number, line in enumerate(paste.squeezed):
        title = title_of(line)
        if title is None:
            continue
        found = _header(lines, number + 1, name, corner)
        if found is None:
            continue
        start, columns = found
        yield _table(paste, title, number, start, columns, name)


def _header(lines: Sequence[str], start: int, name: str, corner: str) -> tuple[int, tuple[str, ...]] | None:
    """The line of names within the next three lines, and the names."""
    for number in range(start, min(start + 3, len(lines))):
        words = _words(lines[number])
        while words and corner and re.fullmatch(corner, words[0]):
            words = words[1:]
        if words and all(re.fullmatch(name, word) for word in words):
            return number, tuple(words)
    return None


def _table(paste: Paste, title: str, line: int, start: int, columns: tuple[str, ...], name: str) -> Grid:
    cells: dict[tuple[str, str], str] = {}
    rows: set[str] = set()
    labels: list[str] = []
    for number in range(start + 1, len(paste.lines)):
        words = _words(paste.lines[number])
        if not words:
            if rows and len(rows) >= len(columns):
                break
            continue
        if not re.fullmatch(name, words[0]) or len(words) < 2 or words[0] in rows:
            break
        label, entries = words[0], words[1:]
        rows.add(label)
        labels.append(label)
        # The last word of a cut text may be half of one; in the last row it is the diagonal, which nobody needs.
        half = paste.cut and number == len(paste.lines) - 1 and len(rows) < len(columns)
        if len(entries) == len(columns) and not half:
            cells |= {(label, column): entry for column, entry in zip(columns, entries, strict=True)}
    if len(set(columns)) < len(columns):
        paste.fail(f"{title} has a column twice; {names(columns)}", start)
    order = [*columns, *(label for label in labels if label not in columns)]
    whole = {label for label, _ in cells}
    return Grid(title, line, tuple(order), cells, tuple(label for label in order if label not in whole))


def _words(line: str) -> list[str]:
    return re.sub(r"[|\u2500-\u257f]|^\s*[>]", " ", line).split()
