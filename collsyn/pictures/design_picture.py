"""Draws what a search for a wiring found: steps against bandwidth factor, with what no wiring beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collsyn.pictures.sheet import COLOURS, FAINT, INK, WIDTH_IN, heading, place, sheet

_HEIGHT_IN, _LONGEST_LABEL = 4.2, 44


@dataclass(frozen=True)
class Point:
    """A graph's steps and factor; `label` is empty for what another one beats."""

    steps: int
    factor: float
    label: str = ""


def draw_designs(path: str | Path, title: str, line: str, points: Sequence[Point], least: Point) -> None:
    """Write the picture: labelled points joined by a staircase, the others small, and the bounds as lines.

    Raises InputError as `sheet` does.
    """
    best = sorted((point for point in points if point.label), key=lambda point: point.steps)
    with sheet(path, _HEIGHT_IN) as figure:
        heading(figure, title, line)
        axes = place(figure, 0.7, 0.55, WIDTH_IN - 0.9, _HEIGHT_IN - 1.2)
        axes.axvline(least.steps, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.axhline(least.factor, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
        others = [point for point in points if not point.label]
        axes.plot([p.steps for p in others], [p.factor for p in others], "o", color=COLOURS[5], markersize=3, alpha=0.6)
        axes.step([p.steps for p in best], [p.factor for p in best], where="post", color=COLOURS[0])
        axes.plot([p.steps for p in best], [p.factor for p in best], "o", color=COLOURS[0], markersize=6)
        # Points far from the best ones would leave these no room.
        right = max([p.steps for p in best] + [least.steps + 1]) * 1.6 + 1.5
        top = max([p.factor for p in best] + [least.factor * 1.1])
        top = least.factor + (top - least.factor) * 1.7 + 0.02
        bottom = least.factor - (top - least.factor) * 0.08
        axes.set_xlim(least.steps - 0.5, right)
        axes.set_ylim(bottom, top)
        for point in best:
            label = point.label if len(point.label) <= _LONGEST_LABEL else f"{point.label[: _LONGEST_LABEL - 3]}..."
            axes.annotate(
                label, (point.steps, point.factor), xytext=(7, 6), textcoords="offset points", color=INK, fontsize=7
            )
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("steps")
        axes.set_ylabel("bandwidth factor (M/B)")
        axes.annotate(
            "least steps", (least.steps, top), xytext=(3, -8), textcoords="offset points", color=FAINT, fontsize=7
        )
        axes.annotate(
            "least bytes", (right, least.factor), xytext=(-48, 3), textcoords="offset points", color=FAINT, fontsize=7
        )
