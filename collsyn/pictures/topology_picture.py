"""Draws a topology: ranks, switches and boxes, links as wide and as dark as they are quick."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import F64
from collsyn.model.topology import Topology
from collsyn.pictures.layout import Layout, layout
from collsyn.pictures.sheet import FAINT, INK, WIDTH_IN, heading, place, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 4000
_MOST_KINDS = 5
_TALLEST_IN, _HEAD_IN, _BELOW_IN, _SIDE_IN, _UNIT_IN = 6.5, 0.6, 0.4, 0.35, 0.6
_SHADES = ("#0b3c6f", "#2f7ab5", "#7fb0d6", "#b9a37e", "#d9c9a8")
_RANK, _SWITCH, _FRAME = "#ffffff", "#fdf0d5", "#f6f6f6"


@dataclass(frozen=True)
class Line:
    """Links drawn as one line: all from a vertex to another, both ways where these are equal."""

    ends: tuple[int, int]
    both_ways: bool
    gb_s: float


def lines(topology: Topology) -> list[Line]:
    """Lines for all links, parallel ones added up; in the order of their ends."""
    total: dict[tuple[int, int], float] = {}
    for a, b, bandwidth in zip(topology.src.tolist(), topology.dst.tolist(), topology.bandwidth.tolist(), strict=True):
        total[a, b] = total.get((a, b), 0.0) + bandwidth / 1e9
    found = []
    for (a, b), gb_s in sorted(total.items()):
        back = total.get((b, a))
        equal = back is not None and math.isclose(back, gb_s, rel_tol=1e-9)
        if not equal or a < b:
            found.append(Line((a, b), equal, gb_s))
    return found


def draw_topology(path: str | Path, topology: Topology) -> None:
    """Write a picture of a topology.

    Raises InputError where there is too much for a picture, and as `sheet` does.
    """
    found = lines(topology)
    if len(found) > MAX_LINES:
        raise InputError(
            f"{path}: not drawn: {topology.name} has {len(found)} lines; a picture has at most {MAX_LINES}"
        )
    where = layout(topology)
    ways = [_way(where.xy, line.ends, topology.num_ranks) for line in found]
    points = np.concatenate([where.xy, *((way[:1] + 2 * way[1:2] + way[2:]) / 4 for way in ways)])
    low, high = points.min(axis=0) - 0.6, points.max(axis=0) + 0.6
    for frame in where.frames:
        low, high = np.minimum(low, frame[:2]), np.maximum(high, frame[2:])
    wide, tall = high - low
    unit_in = min(_UNIT_IN, (WIDTH_IN - 2 * _SIDE_IN) / wide, _TALLEST_IN / tall)
    with sheet(path, _HEAD_IN + tall * unit_in + _BELOW_IN) as figure:
        switches = len(topology.switch_names)
        parts = [_count(topology.num_ranks, "rank"), *([_count(switches, "switch")] if switches else [])]
        parts += [f"{topology.num_links} links (one direction each)", f"overhead {topology.overhead_model}"]
        heading(figure, topology.name, ", ".join(parts))
        left_in = (WIDTH_IN - wide * unit_in) / 2
        axes = place(figure, left_in, _BELOW_IN, wide * unit_in, tall * unit_in)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        axes.set_axis_off()
        kinds = _kinds(found)
        _draw_frames(axes, where)
        _draw_lines(axes, ways, found, kinds)
        _draw_vertices(axes, where.xy, topology, unit_in)
        _draw_key(place(figure, 0.1, 0.02, WIDTH_IN - 0.2, _BELOW_IN - 0.1), found, kinds)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def _kinds(found: Sequence[Line]) -> list[float]:
    """Least bandwidth of every kind of line, the quickest first: the values, or equal parts of their logarithms."""
    values = sorted({float(f"{line.gb_s:.6g}") for line in found}, reverse=True)
    if len(values) <= _MOST_KINDS:
        return values
    parts = np.geomspace(values[0], values[-1], _MOST_KINDS + 1)[1:]
    floors = [next(value for value in reversed(values) if value >= part * (1 - 1e-9)) for part in parts.tolist()]
    return sorted(set(floors), reverse=True)


def _kind(line: Line, kinds: Sequence[float]) -> int:
    return next((number for number, least in enumerate(kinds) if line.gb_s >= least * (1 - 1e-5)), len(kinds) - 1)


def _width(number: int, kinds: Sequence[float], num_lines: int) -> float:
    """Points of a kind of line, less where there are many; the square root keeps slow links in sight."""
    most = 2.6 if num_lines <= 40 else 1.8 if num_lines <= 150 else 1.1 if num_lines <= 400 else 0.7
    if len(kinds) == 1:
        return 0.6 * most
    return 0.3 + (most - 0.3) * math.sqrt(kinds[number] / kinds[0])


def _draw_frames(axes: "Axes", where: Layout) -> None:
    from matplotlib.patches import FancyBboxPatch

    for left, bottom, right, top in where.frames:
        size = (right - left - 0.2, top - bottom - 0.2)
        style = "round,pad=0.1,rounding_size=0.3"
        axes.add_patch(
            FancyBboxPatch((left + 0.1, bottom + 0.1), *size, boxstyle=style, color=_FRAME, linewidth=0, zorder=0)
        )


def _draw_lines(axes: "Axes", ways: Sequence[F64], found: Sequence[Line], kinds: Sequence[float]) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path as Outline

    curve = [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3]
    triangle = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    for number in reversed(range(len(kinds))):
        here = [(way, line) for way, line in zip(ways, found, strict=True) if _kind(line, kinds) == number]
        outlines = [Outline(way, curve) for way, _ in here]
        heads = [Outline(_head(way), triangle) for way, line in here if not line.both_ways]
        width, colour = _width(number, kinds, len(found)), _SHADES[number]
        axes.add_collection(
            PathCollection(outlines, facecolors="none", edgecolors=colour, linewidths=width, zorder=1), autolim=False
        )
        if heads:
            axes.add_collection(
                PathCollection(heads, facecolors=colour, edgecolors="none", linewidths=0, zorder=1), autolim=False
            )


def _way(xy: F64, ends: tuple[int, int], num_ranks: int) -> F64:
    """Begin, control point and end of a line; bent where a straight one would run through a vertex."""
    begin, end = xy[ends[0]], xy[ends[1]]
    along = end - begin
    middle = (begin + end) / 2
    length = float(np.hypot(*along))
    others = np.delete(xy, list(ends), axis=0)
    part = np.clip((others - begin) @ along / max(length**2, 1e-12), 0, 1) if len(others) else np.zeros(0)
    distance = np.hypot(*(others - begin - part[:, None] * along).T) if len(others) else np.ones(1)
    between_ranks = max(ends) < num_ranks
    if between_ranks and distance.min(initial=1.0) < 0.3:
        middle = middle + np.array([-along[1], along[0]]) * (0.14 + 0.25 / max(length, 1))
    return np.array([begin, middle, end])


def _head(way: F64) -> F64:
    """A small triangle at two thirds of a line, closed."""
    at = 0.66
    spot = (1 - at) ** 2 * way[0] + 2 * at * (1 - at) * way[1] + at**2 * way[2]
    ahead = (1 - at) * (way[1] - way[0]) + at * (way[2] - way[1])
    ahead = ahead / max(float(np.hypot(*ahead)), 1e-12)
    aside = np.array([-ahead[1], ahead[0]])
    tip, back = spot + 0.14 * ahead, spot - 0.12 * ahead
    return np.array([tip, back + 0.11 * aside, back - 0.11 * aside, tip])


def _draw_vertices(axes: "Axes", xy: F64, topology: Topology, unit_in: float) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch

    size = min(8.0, 72 * unit_in * 0.27)
    for vertex, (x, y) in enumerate(xy.tolist()):
        name = topology.vertex_name(vertex)
        if not topology.is_switch(vertex):
            axes.add_patch(Circle((x, y), 0.33, facecolor=_RANK, edgecolor=INK, linewidth=0.8, zorder=2))
        else:
            name = re.sub(r"^box\d+\.", "", name)
            # Letters of this font are about 0.62 of its size wide.
            half = max(0.62 * size * len(name) / 72 / unit_in / 2 + 0.15, 0.4)
            axes.add_patch(
                FancyBboxPatch(
                    (x - half + 0.1, y - 0.16), 2 * half - 0.2, 0.32, boxstyle="round,pad=0.1,rounding_size=0.1",
                    facecolor=_SWITCH, edgecolor=INK, linewidth=0.8, zorder=2,
                )
            )  # fmt: skip
        if size >= 3:
            axes.text(x, y, name, ha="center", va="center_baseline", fontsize=size, zorder=3)


def _draw_key(axes: "Axes", found: Sequence[Line], kinds: Sequence[float]) -> None:
    """A sample of every kind of line, with its bandwidth and number."""
    axes.set(xlim=(0, WIDTH_IN - 0.2), ylim=(0, 1))
    axes.set_axis_off()
    of_kind = [[line.gb_s for line in found if _kind(line, kinds) == number] for number in range(len(kinds))]
    left = 0.0
    for number, values in enumerate(of_kind):
        low, high = min(values), max(values)
        span = f"{high:.4g}" if high - low < 1e-5 * high else f"{low:.4g} to {high:.4g}"
        text = f"{span} GB/s ({_count(len(values), 'line')})"
        width = _width(number, kinds, len(found))
        axes.plot([left, left + 0.3], [0.5, 0.5], color=_SHADES[number], linewidth=width, solid_capstyle="butt")
        axes.text(left + 0.36, 0.5, text, va="center", fontsize=7, color=FAINT)
        left += 0.36 + 0.056 * len(text) + 0.15
