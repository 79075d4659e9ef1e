"""The links of one box as a graph: NVLink and switches, and as much of the PCIe tree as messages need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from collsyn.topology.imports.described import BEYOND, Described
from collsyn.topology.imports.described import names as listed

# A vertex of a box: a GPU, or the name of a switch or place.
End = int | str


@dataclass(frozen=True)
class Edge:
    """A link both ways between two vertices of a box: its kind (as in links.ALPHA_US, or `uplink`), GB/s where said."""

    a: End
    b: End
    kind: str
    gb_s: float | None
    lanes: int = 1


@dataclass(frozen=True)
class Graph:
    """Links inside a box, names of its switches, and the ports (kind nic, `b` empty) of the network cards in use."""

    edges: tuple[Edge, ...]
    switches: tuple[str, ...]
    ports: tuple[Edge, ...]
    cuts: tuple[tuple[str, tuple[End, ...]], ...]


def box_graph(described: Described, with_cards: bool, warnings: list[str]) -> Graph:
    """The graph of a box. The PCIe tree is left out where NVLink joins all GPUs, but for the ways to network cards.

    A place with only two links is no vertex: it becomes part of one link, as slow as the slower of the two.
    """
    edges, switches = _fast(described)
    islands = described.islands()
    tree: set[tuple[End, End]] = set()
    pcie = len(islands) > 1
    if pcie:
        _require_places(described, islands, warnings)
        gpus = [number for number, gpu in enumerate(described.gpus) if gpu.place is not None]
        for a in gpus[:1]:
            for b in gpus[1:]:
                tree.update(_way(described, ("gpu", a), ("gpu", b)))
        roots = sorted({described.root(place) for gpu in described.gpus if (place := gpu.place) is not None})
        tree.update((_vertex(described, a), _vertex(described, b)) for a in roots for b in roots if a < b)
        if described.lanes or described.hubs:
            parts = ", ".join("[" + " ".join(map(str, island)) + "]" for island in islands[:8])
            warnings.append(f"NVLink or xGMI joins the GPUs only in parts {parts}: between parts messages take PCIe")
    cards = _used_cards(described, warnings) if with_cards else []
    for number, near in cards:
        for gpu in near:
            tree.update(_way(described, ("card", number), ("gpu", gpu)))
    ports = [Edge(_card_end(described, number), "", "nic", _card_gb_s(described, number)) for number, _ in cards]
    index = {place.name: number for number, place in enumerate(described.places)}
    pcie_edges, ports = _merged([_tree_edge(described, index, a, b) for a, b in sorted(tree, key=str)], ports)
    used = {end for edge in (*pcie_edges, *ports) for end in (edge.a, edge.b) if isinstance(end, str) and end}
    order = [place.name for place in described.places if place.name in used]
    cuts = _cuts(described, order) if pcie else ()
    return Graph((*edges, *pcie_edges), (*switches, *order), tuple(ports), cuts)


def _fast(described: Described) -> tuple[list[Edge], list[str]]:
    """Links between GPUs and to NVSwitches."""
    edges = [
        Edge(a, b, described.family, described.lane_gb_s, count) for (a, b), count in sorted(described.lanes.items())
    ]
    switches = []
    for number, hub in enumerate(described.hubs):
        name = "nvswitch" if len(described.hubs) == 1 else f"nvswitch{number}"
        switches.append(name)
        edges += [Edge(gpu, name, "hub", described.lane_gb_s, count) for gpu, count in sorted(hub.items()) if count]
    return edges, switches


def _require_places(described: Described, islands: list[list[int]], warnings: list[str]) -> None:
    if all(gpu.place is not None for gpu in described.gpus):
        return
    from collsyn.errors import InputError

    raise InputError(
        f"{described.kind}: joins its GPUs only in parts ({listed(str(part) for part in islands)}) and says nothing of "
        "PCIe; combine it with a file that does"
    )


def _vertex(described: Described, place: int) -> End:
    return described.places[place].name


def _card_end(described: Described, number: int) -> End:
    return _vertex(described, described.cards[number].place)


def _card_gb_s(described: Described, number: int) -> float | None:
    """GB/s of a card: of the network or of its PCIe link, whichever is less, where both are said."""
    card = described.cards[number]
    if card.gb_s is None or card.pcie_gb_s is None:
        return card.gb_s
    return min(card.gb_s, card.pcie_gb_s)


def _way(described: Described, start: tuple[str, int], end: tuple[str, int]) -> list[tuple[End, End]]:
    """Links of the tree from a card or GPU to another, each as (lower end, upper end), sockets in order."""
    found: list[tuple[End, End]] = []
    paths = []
    for kind, number in (start, end):
        place = described.gpus[number].place if kind == "gpu" else described.cards[number].place
        assert place is not None
        if kind == "gpu":
            found.append((number, _vertex(described, place)))
        paths.append(described.path(place))
    shared = set(paths[0]) & set(paths[1])
    for path in paths:
        for lower, upper in pairwise(path):
            if lower in shared:
                break
            found.append((_vertex(described, lower), _vertex(described, upper)))
    if not shared:
        a, b = sorted((paths[0][-1], paths[1][-1]))
        found.append((_vertex(described, a), _vertex(described, b)))
    return found


def _tree_edge(described: Described, index: Mapping[str, int], a: End, b: End) -> Edge:
    """The link above a GPU or place; `index` has the number of each place."""
    if isinstance(a, int):
        return Edge(a, b, "pcie", described.gpus[a].gb_s)
    place = described.places[index[a]]
    if place.parent is None:
        return Edge(a, b, "smp", None)
    return Edge(a, b, "uplink", place.gb_s)


def _used_cards(described: Described, warnings: list[str]) -> list[tuple[int, tuple[int, ...]]]:
    """Cards that are nearest to some GPU, each with the GPUs it is nearest for (all its own nearest where none is)."""
    distance = {
        (number, gpu): described.distance(card.place, place)
        for number, card in enumerate(described.cards)
        for gpu, found in enumerate(described.gpus)
        if (place := found.place) is not None
    }
    nearest = {
        gpu: min((far for (_, other), far in distance.items() if other == gpu), default=None)
        for gpu in range(described.num_gpus)
    }
    # A GPU without a card on its socket goes through those of the others, if there are any.
    near = [gpu for gpu, least in nearest.items() if least is not None and least[0] < BEYOND]
    chosen: dict[int, list[int]] = {}
    for (number, gpu), far in distance.items():
        if far == nearest[gpu] and (gpu in near or not near):
            chosen.setdefault(number, []).append(gpu)
    left = [described.cards[number].name for number in range(len(described.cards)) if number not in chosen]
    if left and distance:
        warnings.append(f"cards {listed(left)} are nearest to no GPU and are left out")
    result = []
    for number, gpus in sorted(chosen.items()):
        least = min(distance[number, gpu] for gpu in gpus)
        result.append((number, tuple(gpu for gpu in gpus if distance[number, gpu] == least)))
    return result


def _merged(edges: Sequence[Edge], ports: Sequence[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Links through places with two links made one, until there is no such place. O(links).

    Two GPUs on one place keep it, and so do two links that would become a second one between the same ends.
    """
    near: dict[End, dict[End, Edge]] = {}
    for edge in edges:
        near.setdefault(edge.a, {})[edge.b] = near.setdefault(edge.b, {})[edge.a] = edge
    of_port: dict[End, list[int]] = {}
    for number, port in enumerate(ports):
        of_port.setdefault(port.a, []).append(number)
    moved = list(ports)
    waiting = [end for end in (*near, *of_port) if isinstance(end, str)]
    while waiting:
        end = waiting.pop()
        around, here = near.get(end, {}), of_port.get(end, [])
        if len(around) == 1 and len(here) == 1:
            (far, edge), number = next(iter(around.items())), here[0]
            port = moved[number]
            gb_s = None if port.gb_s is None else _slower(port.gb_s, edge.gb_s)
            moved[number] = replace(port, a=far, gb_s=gb_s)
            del near[end], near[far][end]
            of_port.setdefault(far, []).append(number)
            of_port[end] = []
            waiting += [far] if isinstance(far, str) else []
        elif len(around) == 2 and not here:
            (low, first), (high, second) = sorted(
                around.items(), key=lambda item: (isinstance(item[0], str), str(item[0]))
            )
            joined = _joined(low, high, first, second)
            if joined is None or high in near[low]:
                continue
            del near[end], near[low][end], near[high][end]
            near[low][high] = near[high][low] = joined
    kept = dict.fromkeys(edge for around in near.values() for edge in around.values())
    return sorted(kept, key=_by_number), moved


def _by_number(edge: Edge) -> tuple[bool, int, str, str]:
    """Links of GPUs by their numbers, then those between places."""
    number = edge.a if isinstance(edge.a, int) else 0
    return isinstance(edge.a, str), number, str(edge.a), str(edge.b)


def _gpus_first(item: tuple[End, Edge]) -> tuple[bool, str]:
    return isinstance(item[0], str), str(item[0])


def _joined(low: End, high: End, first: Edge, second: Edge) -> Edge | None:
    """One link for two in a row; None where the place between them says something."""
    if isinstance(high, int):
        return None
    kind = "smp" if "smp" in (first.kind, second.kind) else "pcie" if isinstance(low, int) else "uplink"
    if kind == "smp" and isinstance(low, int):
        return None
    return Edge(low, high, kind, _slower(first.gb_s, second.gb_s))


def _slower(a: float | None, b: float | None) -> float | None:
    """The lesser of two where both are said, else the one that is."""
    return min((value for value in (a, b) if value is not None), default=None)


def _cuts(described: Described, used: list[str]) -> tuple[tuple[str, tuple[End, ...]], ...]:
    """The GPUs and places of each socket that has some of several."""
    members: dict[int, list[End]] = {}
    for number, gpu in enumerate(described.gpus):
        if gpu.place is not None:
            members.setdefault(described.root(gpu.place), []).append(number)
    if len(members) < 2:
        return ()
    for index, place in enumerate(described.places):
        if place.name in used and described.root(index) in members:
            members[described.root(index)].append(place.name)
    return tuple((f"socket {number}", tuple(ends)) for number, ends in enumerate(members.values()))
