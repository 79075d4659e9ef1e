"""What a file says of one box, before costs: GPUs, how they are joined, the PCIe tree and the network cards in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# The first number of a distance between places that a link between sockets is on.
BEYOND = 2


@dataclass(frozen=True)
class Place:
    """A vertex of the PCIe tree: a socket (`parent` None), a host bridge or a switch.

    `gb_s` is the link to the parent, None where the file does not say.
    """

    name: str
    parent: int | None
    gb_s: float | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU, the place its PCIe link leads to (None: nothing known) and that link's GB/s (None: not said)."""

    name: str
    place: int | None = None
    gb_s: float | None = None


@dataclass(frozen=True)
class Card:
    """A network card with all its ports: GB/s of the network and of its PCIe link, None where not said."""

    name: str
    place: int
    gb_s: float | None = None
    pcie_gb_s: float | None = None


@dataclass(frozen=True)
class Described:
    """One box. Ranks are positions in `gpus`.

    `lanes` are direct links between GPUs (a < b) of the `family` nvlink or xgmi; each of `hubs` is a switch with the
    lanes of every GPU on it. `generation` is a key of links.GENERATIONS with `why` it was chosen; `lane_gb_s` is what
    the file says of a lane. `directed_gb_s` are links whose bandwidth the file gives outright. `processor` is a key of
    links.PROCESSORS.
    """

    kind: str
    gpus: tuple[Gpu, ...]
    places: tuple[Place, ...] = ()
    cards: tuple[Card, ...] = ()
    lanes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    hubs: tuple[Mapping[int, int], ...] = ()
    directed_gb_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    family: str = ""
    generation: str | None = None
    why: str = ""
    lane_gb_s: float | None = None
    processor: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of the box."""
        return len(self.gpus)

    def islands(self) -> list[list[int]]:
        """GPUs that direct links and switches join, as sorted lists in the order of their first GPU."""
        pairs = [*self.lanes, *self.directed_gb_s]
        pairs += [(min(hub), gpu) for hub in self.hubs if hub for gpu in hub]
        return groups(self.num_gpus, pairs)

    def distance(self, a: int, b: int) -> tuple[int, int]:
        """How far apart two places are: 0 under a switch, 1 under a socket, 2 beyond; then the links between them."""
        up, down = self.path(a), self.path(b)
        shared = next((place for place in up if place in down), None)
        if shared is None:
            return BEYOND, len(up) + len(down) - 1
        return int(self.places[shared].parent is None), up.index(shared) + down.index(shared)

    def root(self, place: int) -> int:
        """The socket above a place."""
        return self.path(place)[-1]

    def path(self, place: int) -> list[int]:
        """A place and all those above it."""
        found = [place]
        while (parent := self.places[found[-1]].parent) is not None:
            found.append(parent)
        return found


def groups(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The classes of 0 .. size-1 that pairs join, each sorted, in the order of their first members."""
    above = list(range(size))

    def top(member: int) -> int:
        while above[member] != member:
            above[member] = above[above[member]]
            member = above[member]
        return member

    for a, b in pairs:
        low, high = sorted((top(a), top(b)))
        above[high] = low
    found: dict[int, list[int]] = {}
    for member in range(size):
        found.setdefault(top(member), []).append(member)
    return list(found.values())


def names(members: Iterable[str], most: int = 6) -> str:
    """A list for a message: `GPU0, GPU1 and 4 more`."""
    listed = list(members)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
