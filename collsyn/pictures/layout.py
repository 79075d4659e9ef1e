"""Where the vertices of a topology stand in a picture: grids as grids, boxes as boxes, everything else on circles.

even  odd                         switches between boxes
+------------+  +------------+
|   (nics)   |  |   (nics)   |    switches on the way to them
| 0  1  2  3 |  | 4  5  6  7 |    ranks: a row, or a circle where they are linked to each other
|  nvswitch  |  |  nvswitch  |    switches that stay in the box
+------------+  +------------+
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.errors import InputError
from collsyn.model.arrays import F64
from collsyn.model.topology import Topology
from collsyn.pictures.spread import spread
from collsyn.topology.spec import parse_spec

Place = tuple[float, float]
Frame = tuple[float, float, float, float]

# Neighbours on a circle or in a row stand this far apart, switches further, rows of switches further still.
RANK_APART, SWITCH_APART, LAYER_APART, BOX_APART, MARGIN = 1.1, 2.0, 1.7, 1.0, 0.75
_ROW_RANKS = 18
_BOXES_A_LINE = 4
_GRIDS = ("mesh", "torus", "hypercube", "hetero3d")


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the vertices (shape [vertices, 2], neighbours about 1 apart, y upwards), and frames around boxes.

    A frame is (left, bottom, right, top), one a box in their order.
    """

    xy: F64
    frames: tuple[Frame, ...] = ()


def layout(topology: Topology) -> Layout:
    """Places for all vertices, the same each time; O(links + vertices log vertices)."""
    kind, dims = _known_shape(topology)
    if kind in _GRIDS:
        return Layout(_grid_places(dims))
    if kind == "bipartite":
        row = np.repeat([0, 1], dims)
        column = np.concatenate([np.arange(size) - (size - 1) / 2 for size in dims])
        return Layout(np.stack([column * 1.5, row * -2.5], axis=1))
    near = _neighbours(topology)
    if not topology.boxes:
        places = _group(topology, near, range(topology.num_vertices), set())
        return Layout(np.array([places[v] for v in range(topology.num_vertices)]))
    return _boxed(topology, near)


def _known_shape(topology: Topology) -> tuple[str, tuple[int, ...]]:
    """Kind and sizes of a grid or bipartite graph, known by its name; ("", ()) for others."""
    try:
        spec = parse_spec(topology.name)
    except InputError:
        return "", ()
    if not spec.dims or topology.switch_names:
        return "", ()
    dims = (2,) * spec.dims[0] if spec.name == "hypercube" else spec.dims
    num_ranks = sum(dims) if spec.name == "bipartite" else math.prod(dims)
    known = spec.name in (*_GRIDS, "bipartite") and len(dims) > 1 and num_ranks == topology.num_ranks
    return (spec.name, dims) if known else ("", ())


def _grid_places(dims: Sequence[int]) -> F64:
    """The third dimension goes backwards, as in a drawing of a cube; further ones set cubes side by side and below."""
    rest = np.arange(math.prod(dims))
    deep = dims[2] - 1 if len(dims) > 2 else 0
    steps = [(max(1.3, 0.75 * deep + 1.3), 0.0), (0.0, -max(1.3, 0.55 * deep + 1.3)), (0.75, 0.55)]
    wide, tall = dims[0] * steps[0][0] + 0.75 * deep, -dims[1] * steps[1][1] + 0.55 * deep
    xy = np.zeros((len(rest), 2))
    for number, size in enumerate(dims):
        rest, at = rest // size, rest % size
        if number < len(steps):
            step = steps[number]
        elif number % 2:
            step, wide = (wide + 0.8, 0.0), (wide + 0.8) * size
        else:
            step, tall = (0.0, -tall - 0.8), (tall + 0.8) * size
        xy += at[:, None] * np.array(step)
    return xy


def _neighbours(topology: Topology) -> list[list[int]]:
    """Vertices joined to each vertex, whichever way, in ascending order."""
    near: list[set[int]] = [set() for _ in range(topology.num_vertices)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    return [sorted(vertices) for vertices in near]


def _boxed(topology: Topology, near: list[list[int]]) -> Layout:
    """Boxes in lines, what is in no box above them."""
    inside = {vertex for box in topology.boxes for vertex in box}
    outside = [vertex for vertex in range(topology.num_vertices) if vertex not in inside]
    groups = [_group(topology, near, box, set(outside)) for box in topology.boxes]
    loose = [vertex for vertex in outside if not topology.is_switch(vertex)]
    if loose:
        groups.append(_group(topology, near, loose, set(outside)))
    places, frames, top = _in_lines(groups)
    switches = [vertex for vertex in outside if topology.is_switch(vertex)]
    _stack(places, near, switches, top + 1.2, LAYER_APART)
    xy = np.array([places[vertex] for vertex in range(topology.num_vertices)])
    return Layout(xy, tuple(frames[: len(topology.boxes)]))


def _in_lines(groups: Sequence[dict[int, Place]]) -> tuple[dict[int, Place], list[Frame], float]:
    """Groups side by side in lines, the first line on top: places of all, a frame around each, and the upper end."""
    per_line = _BOXES_A_LINE if len(groups) <= 2 * _BOXES_A_LINE else math.ceil(math.sqrt(2 * len(groups)))
    places: dict[int, Place] = {}
    frames: list[Frame] = []
    bottom, top = 0.0, 0.0
    for first in reversed(range(0, len(groups), per_line)):
        left, line = 0.0, []
        for group in groups[first : first + per_line]:
            xs, ys = zip(*group.values(), strict=True)
            across, up = left + MARGIN - min(xs), bottom + MARGIN - min(ys)
            places |= {vertex: (x + across, y + up) for vertex, (x, y) in group.items()}
            line.append((left, bottom, max(xs) + across + MARGIN, max(ys) + up + MARGIN))
            left = line[-1][2] + BOX_APART
        frames[:0] = line
        top = max(frame[3] for frame in line)
        bottom = top + BOX_APART
    return places, frames, top


def _group(topology: Topology, near: list[list[int]], members: Sequence[int], outside: set[int]) -> dict[int, Place]:
    """Places within one box, or of a topology without boxes."""
    ranks = [vertex for vertex in members if not topology.is_switch(vertex)]
    switches = [vertex for vertex in members if topology.is_switch(vertex)]
    inside, linked = set(ranks), any(other in set(ranks) for rank in ranks for other in near[rank])
    upwards = _towards(near, set(switches), {vertex for vertex in outside if topology.is_switch(vertex)})
    staying = [switch for switch in switches if switch not in upwards]
    if linked or not switches or (not outside and len(switches) == 1) or len(inside) > _ROW_RANKS:
        centred = staying if not linked and len(staying) == 1 else []
        # Below switches the first half of the ranks is at the left, the second at the right.
        places = _circle(ranks, 0.5 + 0.5 / len(ranks) if len(switches) > len(centred) else 0.0)
        places |= dict.fromkeys(centred, (0.0, 0.0))
        above = [switch for switch in switches if switch not in centred]
        _stack(places, near, above, max((y for _, y in places.values()), default=0.0) + LAYER_APART, LAYER_APART)
        return places
    places = {rank: (place * RANK_APART, 0.0) for place, rank in enumerate(ranks)}
    above, below = (sorted(upwards), staying) if outside else (staying, [])
    _stack(places, near, above, LAYER_APART, LAYER_APART)
    _stack(places, near, below, -LAYER_APART, -LAYER_APART)
    return places


def _towards(near: list[list[int]], switches: set[int], goals: set[int]) -> set[int]:
    """The switches that lead to the goals through switches only."""
    found: set[int] = set()
    ahead = [other for goal in sorted(goals) for other in near[goal] if other in switches]
    while ahead:
        switch = ahead.pop()
        if switch not in found:
            found.add(switch)
            ahead += [other for other in near[switch] if other in switches]
    return found


def _circle(vertices: Sequence[int], begin: float) -> dict[int, Place]:
    """Vertices clockwise, `begin` of a whole turn from the top."""
    if len(vertices) == 1:
        return {vertices[0]: (0.0, 0.0)}
    radius = max(RANK_APART / (2 * math.sin(math.pi / len(vertices))), 0.9)
    turns = [2 * math.pi * (begin + place / len(vertices)) for place in range(len(vertices))]
    return {
        vertex: (radius * math.sin(turn), radius * math.cos(turn)) for vertex, turn in zip(vertices, turns, strict=True)
    }


def _stack(places: dict[int, Place], near: list[list[int]], switches: Sequence[int], level: float, step: float) -> None:
    """Add switches in layers: first those next to what has a place, each above the middle of its neighbours."""
    left = list(switches)
    while left:
        layer = [switch for switch in left if any(other in places for other in near[switch])] or left
        left = [switch for switch in left if switch not in layer]
        known = [x for x, _ in places.values()] or [0.0]
        middle = (min(known) + max(known)) / 2
        wanted = []
        for switch in layer:
            xs = [places[other][0] for other in near[switch] if other in places]
            wanted.append((sum(xs) / len(xs) if xs else middle, switch))
        wanted.sort()
        for x, (_, switch) in zip(spread([x for x, _ in wanted], SWITCH_APART), wanted, strict=True):
            places[switch] = (x, level)
        level += step
