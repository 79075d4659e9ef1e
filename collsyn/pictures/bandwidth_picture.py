"""Draws bandwidth against size: points for what was measured, dashes for the model, grey for what it rules out."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collsyn.errors import InputError
from collsyn.pictures.bandwidth import BOUND, MEASURED, RIVAL, SIMULATED, Chart, Curve
from collsyn.pictures.sheet import COLOURS, FAINT, INK, WIDTH_IN, heading, place, sheet
from collsyn.pictures.spread import spread
from collsyn.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT_IN, _LABELS_IN, _HEAD_IN, _BELOW_IN, _ABOVE_IN, _TALL_IN = 0.52, 1.05, 0.55, 0.48, 0.28, 2.2
_RULED_OUT, _BOUND = "#f0f0f0", "#8a8a8a"
# A range of bandwidths that is wider than this is drawn on a logarithmic axis.
_WIDE = 50.0
# Up to here such an axis has ticks at 1, 2 and 5, beyond it at powers of ten.
_MANY = 2000.0
_MOST_TICKS = 8
_DASHES = (0, (3, 2))


def draw_bandwidth(path: str | Path, title: str, charts: Sequence[Chart]) -> None:
    """Write a picture with one chart a collective, two in a row.

    Raises InputError where there is nothing to draw, the file cannot be written, its suffix is not known, or matplotlib
    is missing.
    """
    charts = [chart for chart in charts if chart.curves]
    if not charts:
        raise InputError(f"{path}: not drawn: nothing took any time")
    columns = min(2, len(charts))
    lines = -(-len(charts) // columns)
    each_in = _ABOVE_IN + _TALL_IN + _BELOW_IN
    kinds = {curve.kind for chart in charts for curve in chart.curves}
    with sheet(path, _HEAD_IN + lines * each_in) as figure:
        heading(figure, title, _explanation(kinds))
        for number, chart in enumerate(charts):
            line, column = divmod(number, columns)
            left_in = _LEFT_IN + column * WIDTH_IN / columns
            bottom_in = (lines - 1 - line) * each_in + _BELOW_IN
            axes = place(figure, left_in, bottom_in, WIDTH_IN / columns - _LEFT_IN - _LABELS_IN, _TALL_IN)
            _draw(axes, chart)
            if column == 0:
                axes.set_ylabel("bus bandwidth, GB/s", labelpad=2)


def _explanation(kinds: set[str]) -> str:
    """The line below the title: how the curves of these kinds are drawn."""
    words = {
        MEASURED: "points: measured, median block; bars: slowest to quickest",
        SIMULATED: "dashed: simulated" if MEASURED in kinds else "simulated",
        BOUND: "grey: beyond the lower bound of the model",
    }
    return "; ".join(text for kind, text in words.items() if kind in kinds)


def _draw(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import LogLocator

    values = [value for curve in chart.curves for value in (*curve.gb_s, *curve.low, *curve.high) if value > 0]
    low, high = min(values, default=1.0), max(values, default=1.0)
    sizes = [size for curve in chart.curves for size in curve.size_bytes]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)
    if high > _WIDE * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _MANY * low else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(low / 1.6, high * 1.6)
    else:
        axes.set_ylim(0, 1.1 * high)
    labels = list(dict.fromkeys(curve.label for curve in chart.curves if curve.kind in (MEASURED, SIMULATED)))
    # The second colour is that of rivals.
    colours = {label: (COLOURS[0], *COLOURS[2:])[number % 5] for number, label in enumerate(labels)}
    measured = any(curve.kind == MEASURED for curve in chart.curves)
    ends: list[tuple[float, str, str]] = []
    named: set[str] = set()
    for curve in chart.curves:
        colour = {RIVAL: COLOURS[1], BOUND: _BOUND}.get(curve.kind) or colours[curve.label]
        again = curve.kind == SIMULATED and labels.index(curve.label) >= len(COLOURS) - 1
        _draw_curve(axes, curve, colour, _DASHES if measured or again else "solid")
        if curve.label not in named:
            named.add(curve.label)
            ends.append((curve.gb_s[-1], curve.label, FAINT if curve.kind == BOUND else colour))
    _label_ends(axes, max(sizes) * 1.25, ends)
    _label_sizes(axes, min(sizes), max(sizes))
    axes.set_title(
        f"{chart.collective}, {chart.group_size} ranks", loc="left", fontsize=8, color=INK, fontweight="bold"
    )
    axes.yaxis.grid(True, color="#e6e6e6", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5)
    axes.minorticks_off()


def _draw_curve(axes: "Axes", curve: Curve, colour: str, simulated: Any) -> None:
    """One curve; `simulated` is the style of lines of the model."""
    if curve.kind == BOUND:
        axes.plot(curve.size_bytes, curve.gb_s, color=colour, linewidth=1.0)
        axes.fill_between(curve.size_bytes, curve.gb_s, axes.get_ylim()[1], color=_RULED_OUT, linewidth=0, zorder=0)
    elif curve.kind == SIMULATED:
        axes.plot(curve.size_bytes, curve.gb_s, color=colour, linewidth=1.2, linestyle=simulated, zorder=3)
    else:
        # Pale, so that the dashes of the model show where the two agree.
        axes.plot(curve.size_bytes, curve.gb_s, color=colour, linewidth=2.2, alpha=0.4)
        axes.plot(curve.size_bytes, curve.gb_s, color=colour, marker="o", markersize=3.6, linestyle="none", zorder=4)
        axes.vlines(curve.size_bytes, curve.low, curve.high, color=colour, linewidth=0.9, alpha=0.7)
    for point, method in enumerate(curve.methods):
        if point == 0 or method != curve.methods[point - 1]:
            axes.annotate(
                method, (curve.size_bytes[point], curve.gb_s[point]), (2, -4), textcoords="offset points",
                fontsize=6.5, color=colour, va="top",
            )  # fmt: skip


def _label_ends(axes: "Axes", right: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the right ends of the curves, moved apart where they would touch."""
    apart = 10 / (72 * _TALL_IN)
    bottom, top = axes.get_ylim()
    if axes.get_yscale() == "log":
        bottom, top, ends = math.log(bottom), math.log(top), [(math.log(v), *rest) for v, *rest in ends]  # type: ignore[misc]
    places = sorted(((value - bottom) / (top - bottom), label, colour) for value, label, colour in ends)
    heights = spread([place for place, _, _ in places], apart)
    for height, (_, label, colour) in zip(heights, places, strict=True):
        axes.annotate(
            label, (1, height), (3, 0), xycoords="axes fraction", textcoords="offset points", color=colour, va="center"
        )


def _label_sizes(axes: "Axes", first: int, last: int) -> None:
    """Ticks at powers of two (of a larger power where there would be too many)."""
    low, high = math.ceil(math.log2(first) - 0.1), math.floor(math.log2(last) + 0.1)
    step = max(1, -(-(high - low + 1) // _MOST_TICKS))
    ticks = [1 << power for power in range(low, high + 1, step)] or [first]
    axes.set_xticks(ticks, [format_size(tick) for tick in ticks])
    axes.set_xlabel("size", labelpad=1)
