"""The PCIe tree behind the words of a matrix: PIX and PXB are switches, PHB a host bridge, NODE a socket."""

from collections.abc import Mapping

from collsyn.topology.imports.described import Place, groups

# How far apart two devices are, nearest first; the index is the level.
LEVELS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
SOCKET = LEVELS.index("NODE")
_KINDS = ("", "pcie", "pcie", "host", "socket")


def tree(size: int, levels: Mapping[tuple[int, int], int]) -> tuple[tuple[Place, ...], list[int]]:
    """Places, and the place of each of `size` devices, from the level of pairs of them (a pair not in it: SYS).

    Devices of one group at a level share a vertex there if the level joins groups of the level below; sockets are
    always there. The relation is closed: where a is near b and b near c, a counts as near c.
    """
    places: list[Place] = []
    at: list[int] = [-1] * size
    counts = dict.fromkeys(_KINDS, 0)
    # From the top: every group of a level gets a place under that of the level above, or shares it.
    above: list[int | None] = [None] * size
    for level in range(SOCKET, 0, -1):
        parts = groups(size, (pair for pair, found in levels.items() if found <= level))
        below = groups(size, (pair for pair, found in levels.items() if found < level))
        number = {device: index for index, part in enumerate(below) for device in part}
        for part in parts:
            if level < SOCKET and len({number[device] for device in part}) < 2:
                continue
            kind = _KINDS[level]
            places.append(Place(f"{kind}{counts[kind]}", above[part[0]]))
            counts[kind] += 1
            for device in part:
                above[device] = at[device] = len(places) - 1
    return _without_empty(tuple(places), at)


def _without_empty(places: tuple[Place, ...], at: list[int]) -> tuple[tuple[Place, ...], list[int]]:
    """The tree without a place whose only content is one place below it: a socket that is one host bridge."""
    inside = [0] * len(places)
    for above in (*at, *(place.parent for place in places)):
        if above is not None:
            inside[above] += 1
    direct = set(at)
    gone = {index for index in range(len(places)) if inside[index] == 1 and index not in direct}
    kept = [index for index in range(len(places)) if index not in gone]
    new = {index: position for position, index in enumerate(kept)}

    def parent(index: int) -> int | None:
        above = places[index].parent
        while above in gone:
            assert above is not None
            above = places[above].parent
        return None if above is None else new[above]

    counts = dict.fromkeys(_KINDS, 0)
    found = []
    for index in kept:
        # What is left at the top is the socket, whatever its own kind was.
        kind = "socket" if parent(index) is None else places[index].name.rstrip("0123456789")
        found.append(Place(f"{kind}{counts[kind]}", parent(index)))
        counts[kind] += 1
    return tuple(found), [new[index] for index in at]
