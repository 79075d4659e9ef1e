"""The text of a graph made from graphs: `line:(bipartite:4x4)`, `product:(ring:8)x(full:4)`, nested as one likes.

The parts are formulas or such texts again, without costs: costs are given at the end, for all.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collsyn.errors import InputError
from collsyn.topology import expansions
from collsyn.topology.wiring import MAX_LINKS, Wiring

MAX_DEPTH = 32
MAX_FACTORS = 16


@dataclass(frozen=True)
class Construction:
    """A row of the table: `number` says what the number after the part counts, if one is taken."""

    form: str
    summary: str
    build: Callable[[Sequence[Wiring], int], Wiring]
    number: str | None = None
    several: bool = False


CONSTRUCTIONS: dict[str, Construction] = {
    "line": Construction(
        "line:(G)", "line graph: a rank a link of G", lambda parts, _: expansions.line_graph(parts[0])
    ),
    "expand": Construction(
        "expand:(G)xN",
        "N copies of every rank of G",
        lambda parts, n: expansions.degree_expansion(parts[0], n),
        "copies",
    ),
    "product": Construction(
        "product:(G)x(H)...", "Cartesian product", lambda parts, _: expansions.product(parts), None, True
    ),
    "power": Construction(
        "power:(G)xN", "Cartesian product of N times G", lambda parts, n: expansions.product([parts[0]] * n), "factors"
    ),
    "trunk": Construction("trunk:(G)xN", "every link N times", lambda parts, n: expansions.trunk(parts[0], n), "lanes"),
    "double": Construction("double:(G)", "bipartite double", lambda parts, _: expansions.bipartite_double(parts[0])),
    "edges": Construction("edges:(G)", "a rank an edge of G", lambda parts, _: expansions.graph_of_edges(parts[0])),
}


def split_costs(text: str) -> tuple[str, str]:
    """What stands before the first @ outside of parentheses, and what follows it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "@" and depth == 0:
            return text[:place], text[place + 1 :]
    return text, ""


def composite_wiring(text: str, wiring_of: Callable[[str], Wiring], depth: int = 0) -> Wiring:
    """The graph of a text that begins with a construction's name; `wiring_of` makes the formulas in it.

    Raises InputError without the text in front.
    """
    if depth > MAX_DEPTH:
        raise InputError(f"has constructions in each other {depth} deep; expected at most {MAX_DEPTH}")
    name, parts, number = parse_construction(text)
    return CONSTRUCTIONS[name].build([_inner(part, wiring_of, depth + 1) for part in parts], number)


def is_construction(text: str) -> bool:
    """Whether a text begins with the name of a construction."""
    return re.split("[:@]", text.strip(), maxsplit=1)[0] in CONSTRUCTIONS


def parse_construction(text: str) -> tuple[str, list[str], int]:
    """Name, texts of the parts, and the number (1 where none is taken) of a construction's text; raises InputError."""
    name, _, rest = text.strip().partition(":")
    row = CONSTRUCTIONS[name]
    parts, numbers = _arguments(rest, row.form)
    enough = len(parts) > 1 if row.several else len(parts) == 1
    if not enough or len(numbers) != (row.number is not None):
        raise InputError(f"has {len(parts)} graphs and {len(numbers)} numbers; expected {row.form}")
    number = numbers[0] if numbers else 1
    if row.number == "factors" and number > MAX_FACTORS:
        raise InputError(f"has {number} factors; expected at most {MAX_FACTORS}")
    if number > MAX_LINKS:
        raise InputError(f"has {number} {row.number}; expected at most {MAX_LINKS}")
    if "@" in rest:
        raise InputError("has costs inside; expected them behind the last parenthesis, for all links")
    return name, parts, number


def _inner(text: str, wiring_of: Callable[[str], Wiring], depth: int) -> Wiring:
    wiring = composite_wiring(text, wiring_of, depth) if is_construction(text) else wiring_of(text)
    if wiring.switch_names:
        raise InputError(f"{text} has switches; expected a graph of ranks alone")
    if any(share > 1 for share in wiring.share):
        raise InputError(f"{text} shares bandwidths; expected a graph of equal links")
    return wiring


def _arguments(text: str, form: str) -> tuple[list[str], list[int]]:
    """The texts in parentheses, and after them the numbers; they are separated by x."""
    parts: list[str] = []
    numbers: list[int] = []
    place = 0
    while place < len(text):
        if text[place] == "(" and not numbers:
            end = _closing(text, place)
            parts.append(text[place + 1 : end].strip())
        else:
            match = re.compile(r"\d+", re.ASCII).match(text, place)
            if match is None:
                break
            if not 0 < len(match[0].lstrip("0")) < 10:
                raise InputError(f"has the number {match[0]}; expected 1 .. {MAX_LINKS}")
            numbers.append(int(match[0]))
            end = match.end() - 1
        place = end + 1
        if place == len(text):
            return parts, numbers
        if text[place] != "x":
            break
        place += 1
    rest = f"cannot read {text[place:]!r}" if text[place:] else "it ends too early"
    raise InputError(f"is not of the form {form}: {rest}")


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise InputError("has an opening parenthesis without a closing one")
