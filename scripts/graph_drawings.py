"""Draws base graphs of direct-connect networks side by side, with what breadth-first broadcast costs on them.

    python scripts/graph_drawings.py docs/pictures/direct-connect-graphs.svg
    python scripts/graph_drawings.py out.svg --graphs petersen "line:(bipartite:2x2)" circulant:13x1x5

Grids stand as grids, some graphs along a circle through all their ranks, the others in the order of their numbers.
"""

import argparse
import math
import sys

import numpy as np

from collsyn.errors import CollsynError, InputError
from collsyn.model.topology import Topology
from collsyn.pictures.layout import layout
from collsyn.pictures.sheet import COLOURS, FAINT, INK, WIDTH_IN, heading, place, sheet
from collsyn.pictures.topology_picture import lines
from collsyn.synth.bfb_cost import bfb_cost
from collsyn.topology.resolve import load_topology

GRAPHS = ["full:5", "bipartite:4x4", "petersen", "projective:2", "circulant:12x2x3", "twisted-torus:4x3x2"]
GRAPHS += ["hypercube:3", "torus:3x4", "paley:9", "genkautz:2x6", "line:(bipartite:2x2)", "cayley:7x3x2x1x8"]
ALONG_A_CIRCLE = ("projective:2", "paley:9")
A_ROW, _CELL_IN, _HEAD_IN = 4, 2.1, 0.6


def main() -> int:
    """Write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    options = parser.parse_args()
    topologies = [load_topology(text) for text in options.graphs]
    down = math.ceil(len(topologies) / A_ROW)
    height_in = _HEAD_IN + down * (_CELL_IN + 0.35)
    with sheet(options.file, height_in) as figure:
        heading(figure, "Graphs for direct-connect networks", "arrows are links one way; steps and bandwidth factor")
        across_in = WIDTH_IN / A_ROW
        for number, topology in enumerate(topologies):
            left_in = number % A_ROW * across_in + 0.1
            bottom_in = height_in - _HEAD_IN - (number // A_ROW + 1) * (_CELL_IN + 0.35) + 0.05
            axes = place(figure, left_in, bottom_in, across_in - 0.2, _CELL_IN - 0.05)
            draw(axes, topology)
            cost = bfb_cost(topology)
            figure.text(
                left_in / WIDTH_IN, (bottom_in + _CELL_IN + 0.13) / height_in, topology.name, color=INK, fontsize=8
            )
            facts = f"{topology.num_ranks} ranks, degree {max(np.bincount(topology.dst))}: {cost.steps}, {cost.factor}"
            figure.text(left_in / WIDTH_IN, (bottom_in + _CELL_IN) / height_in, facts, color=FAINT, fontsize=7)
    return 0


def draw(axes, topology: Topology) -> None:
    """One graph: lines, arrows a little behind the middle of one-way links, ranks."""
    xy = places(topology)
    found = lines(topology)
    segments = [xy[list(line.ends)] for line in found]
    # One curve with gaps is a short file.
    gap = np.full((1, 2), np.nan)
    axes.plot(*np.concatenate([part for one in segments for part in (one, gap)]).T, color=COLOURS[0], linewidth=0.7)
    one_way = np.array([part for part, line in zip(segments, found, strict=True) if not line.both_ways])
    if len(one_way):
        step = one_way[:, 1] - one_way[:, 0]
        step /= np.linalg.norm(step, axis=1)[:, None]
        at = one_way[:, 0] + 0.62 * (one_way[:, 1] - one_way[:, 0])
        axes.quiver(
            *at.T, *step.T, angles="xy", pivot="mid", scale=40, width=0.001, headwidth=28, headlength=32,
            headaxislength=32, color=COLOURS[0], zorder=2,
        )  # fmt: skip
    axes.plot(*xy.T, "o", color=INK, markersize=4, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.08)


def circle(topology: Topology) -> list[int]:
    """All ranks in an order in which each is linked to the next, by trying."""
    near = [set(topology.dst[topology.out_links[rank]].tolist()) for rank in range(topology.num_ranks)]
    stack = [[0]]
    while stack:
        way = stack.pop()
        if len(way) == topology.num_ranks and 0 in near[way[-1]]:
            return way
        stack += [[*way, rank] for rank in near[way[-1]] if rank not in way]
    raise InputError(f"{topology.name}: no circle leads through all ranks")


def places(topology: Topology):
    """Where ranks stand: grids a little askew, so that links along a line are seen beside each other."""
    xy = layout(topology).xy.astype(float)
    if topology.name == "petersen":
        turns = 2 * np.pi * np.arange(5) / 5
        inner = np.stack([np.sin(turns), np.cos(turns)], axis=1)
        return np.concatenate([2 * inner, inner])
    if topology.name in ALONG_A_CIRCLE:
        return xy[np.argsort(circle(topology))]
    if topology.name.startswith("torus"):
        x, y = (xy - xy.mean(axis=0)).T
        xy = np.stack([x + 0.12 * y * y, y + 0.12 * x * x], axis=1)
    return xy


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CollsynError as error:
        sys.exit(str(error))
