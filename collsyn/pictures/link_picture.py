"""Draws how busy links are over time: a row a link, dark where it is full."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collsyn.errors import InputError
from collsyn.model.topology import Topology
from collsyn.pictures.link_use import LinkRow, LinkUse, link_rows, row_means
from collsyn.pictures.sheet import COLOURS, FAINT, INK, LINES, PAPER, heading, place, sheet, time_text, unit_of_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_SHADES = ("#f3f5f7", "#c6d9ea", "#7fb0d6", "#2f7ab5", "#0b3c6f")
_HEAD_IN, _STRIP_IN, _GAP_IN, _ROW_IN, _BELOW_IN, _BETWEEN_IN = 0.72, 0.34, 0.09, 0.128, 0.42, 0.25
_DASHES = (0, (4, 2))


@dataclass(frozen=True, eq=False)
class Panel:
    """One simulation: its name, the use of the links, and how far it is over the bound (None: not known)."""

    name: str
    use: LinkUse
    gap: float | None


def draw_links(path: str | Path, title: str, topology: Topology, panels: Sequence[Panel], bound_s: float) -> None:
    """Write a picture of one or several simulations on the same links, side by side, in rows as the first orders them.

    Raises InputError where nothing is sent, the file cannot be written, its suffix is not known or matplotlib missing.
    """
    end_s = max(panel.use.span_s for panel in panels)
    if end_s <= 0 or not topology.num_links:
        raise InputError(f"{path}: not drawn: nothing passes any link of {topology.name}")
    rows = link_rows(topology, panels[0].use.per_link)
    folded = len(rows) < topology.num_links
    names = max((name for row in rows for name in row.group.split(", ")), key=len)
    map_in = _ROW_IN * len(rows)
    height_in, left_in = _HEAD_IN + _STRIP_IN + _GAP_IN + map_in + _BELOW_IN, 0.3 + 0.058 * max(len(names), 8)
    with sheet(path, height_in) as figure:
        width_in = figure.get_figwidth()
        each_in = (width_in - left_in - 0.15 - _BETWEEN_IN * (len(panels) - 1)) / len(panels)
        heading(figure, title, _explanation(topology, rows, bound_s))
        _draw_key(figure)
        for number, panel in enumerate(panels):
            begin_in = left_in + number * (each_in + _BETWEEN_IN)
            strip = place(figure, begin_in, _BELOW_IN + map_in + _GAP_IN, each_in, _STRIP_IN)
            area = place(figure, begin_in, _BELOW_IN, each_in, map_in)
            _draw_mean(strip, panel, end_s, labelled=number == 0)
            _draw_rows(area, panel, rows, end_s, folded)
            for axes in (strip, area):
                axes.axvline(_scaled(bound_s, end_s), color=COLOURS[1], linewidth=0.9, linestyle=_DASHES)
            if number == 0:
                _label_rows(area, rows, folded)


def _explanation(topology: Topology, rows: Sequence[LinkRow], bound_s: float) -> str:
    """The line below the title."""
    most = max(len(row.links) for row in rows)
    each = f"{topology.num_links} links, {most} of a kind a row" if most > 1 else "one row a link"
    return f"lower bound {time_text(bound_s)}; overhead {topology.overhead_model}; {each}, the busiest on top"


def _draw_mean(axes: "Axes", panel: Panel, end_s: float, labelled: bool) -> None:
    """The mean over all links as an area, with the panel's name above."""
    fine = panel.use.busy.mean(axis=0)
    # Two bins a step, and one step for all that is as high: half the file.
    first = np.arange(0, len(fine), 2)
    mean = (np.add.reduceat(fine, first) / np.diff(first, append=len(fine))).round(2)
    edges = np.append(first, len(fine)) * (_scaled(panel.use.span_s, end_s) / len(fine))
    changes = np.flatnonzero(np.diff(mean, prepend=-1))
    mean, edges = mean[changes], np.append(edges[changes], edges[-1])
    axes.stairs(mean, edges, fill=True, color=_SHADES[2])
    axes.set(xlim=(0, _scaled(end_s, end_s)), ylim=(0, 1.02), yticks=[0, 1])
    axes.set_yticklabels(["0", "100%"] if labelled else ["", ""])
    axes.tick_params(bottom=False, labelbottom=False, length=2, labelsize=7)
    if labelled:
        axes.text(-0.012, 0.5, "all links", ha="right", va="center", fontsize=7, transform=axes.transAxes)
    over = "" if panel.gap is None else f", {100 * panel.gap:z.1f}% over the bound"
    axes.text(0, 1.12, panel.name, fontweight="bold", transform=axes.transAxes, va="bottom")
    axes.annotate(
        f"{time_text(panel.use.finish_s)}{over}; links {100 * panel.use.per_link.mean():.0f}% busy",
        (0, 1.12), (5 + 5.6 * len(panel.name), 0), xycoords="axes fraction", textcoords="offset points",
        color=FAINT, va="bottom",
    )  # fmt: skip


def _draw_rows(axes: "Axes", panel: Panel, rows: Sequence[LinkRow], end_s: float, folded: bool) -> None:
    span = _scaled(panel.use.span_s, end_s)
    axes.imshow(
        np.clip(row_means(rows, panel.use.busy), 0, 1).round(2),
        cmap=_shades(), vmin=0, vmax=1, aspect="auto", interpolation="none", extent=(0, span, len(rows), 0),
    )  # fmt: skip
    for row in range(1, len(rows)):
        apart = folded and rows[row].group != rows[row - 1].group
        axes.axhline(row, color=PAPER, linewidth=2.5 if apart else 0.6)
    axes.set(xlim=(0, _scaled(end_s, end_s)), ylim=(len(rows), 0), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=2.5)
    axes.set_xlabel(f"time, {unit_of_time(end_s)[0]}", labelpad=1)


def _label_rows(axes: "Axes", rows: Sequence[LinkRow], folded: bool) -> None:
    """Names at the left: of every link, or of every kind beside all its rows."""
    first = 0
    for group, members in groupby(rows, key=lambda row: row.group):
        rows_here = list(members)
        links = sum(len(row.links) for row in rows_here)
        text = f"{group.replace(', ', chr(10))}\n{links} links" if folded else group.replace("->", " → ")
        middle = first + len(rows_here) / 2
        axes.annotate(
            text, (0, middle), (-6 if folded else -3, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7, color=INK, linespacing=1.05, annotation_clip=False,
        )  # fmt: skip
        if folded:
            axes.annotate(
                "", (0, first + 0.1), xytext=(0, first + len(rows_here) - 0.1), annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": LINES, "linewidth": 2, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
        first += len(rows_here)


def _draw_key(figure: "Figure") -> None:
    """What the shades and the dashed line mean, at the upper right."""
    axes = place(figure, figure.get_figwidth() - 1.9, figure.get_figheight() - 0.24, 1.8, 0.15)
    axes.imshow(
        np.linspace(0, 1, 32)[None, :],
        cmap=_shades(),
        aspect="auto",
        interpolation="none",
        extent=(1.05, 1.55, 0.2, 0.8),
    )
    axes.plot([0, 0.2], [0.5, 0.5], color=COLOURS[1], linewidth=0.9, linestyle=_DASHES)
    axes.text(0.25, 0.5, "bound", va="center", fontsize=7, color=FAINT)
    axes.text(1.01, 0.5, "idle", ha="right", va="center", fontsize=7, color=FAINT)
    axes.text(1.59, 0.5, "full", va="center", fontsize=7, color=FAINT)
    axes.set(xlim=(0, 1.8), ylim=(0, 1))
    axes.set_axis_off()


def _shades() -> "Colormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("use", list(_SHADES), N=64)


def _scaled(time_s: float, end_s: float) -> float:
    """A time in the unit of an axis that goes up to the end."""
    return time_s * unit_of_time(end_s)[1]
