"""Moves things on a line apart that would touch."""

from collections.abc import Sequence


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Ascending places moved as little as it takes to lie apart; those that touch stay centred on where they were."""
    blocks: list[list[float]] = []
    for place in places:
        blocks.append([place])
        while len(blocks) > 1 and _end(blocks[-1], apart, -1) - _end(blocks[-2], apart, +1) < apart:
            last = blocks.pop()
            blocks[-1] += last
    return [_end(block, apart, -1) + number * apart for block in blocks for number in range(len(block))]


def _end(block: Sequence[float], apart: float, side: int) -> float:
    """The lower (-1) or upper (+1) end of a block of places that lie apart around their mean."""
    return sum(block) / len(block) + side * apart * (len(block) - 1) / 2
