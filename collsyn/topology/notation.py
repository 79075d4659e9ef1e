"""How files write sets of a box's links, ranks and symmetries in short: `0..7>nic`, `0-1`, `(0 1)(2 3)`."""

import re
from collections.abc import Sequence

from collsyn.model.fields import Fields
from collsyn.topology.machine import End


def read_arcs(fields: Fields, key: str, token: str, gpus: int, names: Sequence[str]) -> list[tuple[End, End]]:
    """The links of `A-B` (pairs) or `A>B` (arcs, across), where each of A and B is an end or a range of ranks."""
    sign = "-" if key == "pairs" else ">"
    left, found, right = token.partition(sign)
    if not found:
        fields.fail(key, f"holds {token!r}; expected ends with {sign} between them, like 0{sign}1")
    ends = [read_ends(fields, key, part, gpus, names) for part in (left, right)]
    return [(a, b) for a in ends[0] for b in ends[1]]


def read_ends(fields: Fields, key: str, token: str, gpus: int, names: Sequence[str]) -> list[End]:
    """A rank of the box, a range `0..7` of them, or a switch's name."""
    if token in names:
        return [token]
    match = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", token, re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
    if not first <= last < gpus:
        fields.fail(key, f"names {token!r}; expected a rank 0 .. {gpus - 1}, a range like 0..{gpus - 1}, or a switch")
    return list(range(first, last + 1))


def read_cycles(fields: Fields, key: str, text: str, gpus: int) -> tuple[int, ...]:
    """The image of each rank of a box under a permutation written as cycles: (0 1 2)(3 4)."""
    image = list(range(gpus))
    if not re.fullmatch(r"(\s*\(\s*\d{1,6}(\s+\d{1,6})*\s*\)\s*)+", text, re.ASCII):
        fields.fail(key, f"holds {text!r}; expected cycles of ranks like (0 1)(2 3)")
    moved = [[int(rank) for rank in cycle.split()] for cycle in re.findall(r"\(([^)]*)\)", text)]
    everyone = [rank for cycle in moved for rank in cycle]
    if len(set(everyone)) != len(everyone) or max(everyone) >= gpus:
        fields.fail(key, f"holds {text!r}; expected ranks 0 .. {gpus - 1}, each at most once")
    for cycle in moved:
        for rank, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            image[rank] = following
    return tuple(image)
