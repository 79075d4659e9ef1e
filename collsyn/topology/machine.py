"""Machines: what boxes hold, how they are joined and whose costs count; any number of boxes becomes a topology.

The data come from YAML (machine_file.py). Instances of a machine are itself and variants with others' published costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from collsyn.model.topology import Cut, Topology
from collsyn.topology.spec import COST_KEYS, Spec
from collsyn.topology.symmetry import extended_to_switches
from collsyn.units import gb_s_to_beta, s_to_us, us_to_s

# Assembled link by link, so fewer than the presets that are arrays from the start.
MAX_LINKS = 1 << 20

# A vertex of a box or fabric: a rank of the box, or a switch's name.
End = int | str


@dataclass(frozen=True)
class LinkClass:
    """Costs of the links of one kind, one lane and direction; the alpha caps the overhead (infinite: all of alpha)."""

    alpha_s: float
    beta_s_per_byte: float
    overhead_s: float


@dataclass(frozen=True)
class Switch:
    """A switch of a box or fabric, and what it can do on the way."""

    name: str
    multicast: bool = False
    reduction: bool = False


@dataclass(frozen=True)
class Wires:
    """Links of one class: ends are ranks of a box or names of switches; `across` to the other boxes of its kind."""

    link: str
    lanes: int
    arcs: tuple[tuple[End, End], ...]
    both: bool
    across: bool


@dataclass(frozen=True)
class Part:
    """What each box of a kind has, by itself or for a fabric: links, switches, and what is known of them.

    `cycles` are permutations of a box's ranks that keep all links, `cuts` named sets of a box's vertices.
    """

    wires: tuple[Wires, ...]
    switches: tuple[Switch, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[tuple[str, tuple[End, ...]], ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of box (no name where there is one kind only); `count` are there unless the user says how many."""

    name: str
    gpus: int
    box: Part
    count: int = 1


@dataclass(frozen=True)
class Fabric:
    """What joins that many boxes: `parts` has a Part for each kind of box, `switches` are there once."""

    parts: tuple[Part, ...]
    switches: tuple[Switch, ...] = ()
    min_boxes: int = 2
    max_boxes: int | None = None


@dataclass(frozen=True)
class Instance:
    """A machine with one set of costs: `options` select it (empty: the machine itself)."""

    options: Mapping[str, str]
    kinds: tuple[Kind, ...]
    links: Mapping[str, LinkClass]
    min_piece_bytes: int
    fabrics: tuple[Fabric, ...]


@dataclass(frozen=True)
class Machine:
    """A machine file: its name, one line about it, and its instances, the machine itself first."""

    name: str
    summary: str
    instances: tuple[Instance, ...]

    @property
    def form(self) -> str:
        """`NAME`, `NAME:BOXES` or, with several kinds of boxes, `NAME:THISxTHAT`, for lists."""
        kinds = self.instances[0].kinds
        if len(kinds) > 1:
            return f"{self.name}:{'x'.join(kind.name.upper() for kind in kinds)}"
        return f"{self.name}:BOXES" if self.instances[0].fabrics else self.name

    def option_texts(self) -> tuple[str, ...]:
        """What selects each variant, as it stands behind the @ of a preset."""
        return tuple(_options_text(instance.options) for instance in self.instances[1:])


def machine_topology(machine: Machine, spec: Spec) -> Topology:
    """The topology of `spec.dims` boxes of each kind (the machine's own number by default); raises InputError."""
    instance = _chosen(machine, spec)
    counts = spec.dims or tuple(kind.count for kind in instance.kinds)
    boxes = sum(counts)
    if len(counts) != len(instance.kinds) or boxes == 0:
        spec.fail(f"expected {machine.form} with at least 1 box")
    fabric = None
    if boxes > 1:
        fits = (part for part in instance.fabrics if part.min_boxes <= boxes <= (part.max_boxes or boxes))
        fabric = next(fits, None)
        if fabric is None:
            most = max((part.max_boxes or 0 for part in instance.fabrics), default=1)
            spec.fail(f"has {boxes} boxes; expected at most {most}, nothing is known that joins more")
    return _Assembly(_overridden(instance, spec), fabric, counts, spec).topology()


def _chosen(machine: Machine, spec: Spec) -> Instance:
    keys = dict.fromkeys(key for instance in machine.instances for key in instance.options)
    spec.check_options([*COST_KEYS, *keys])
    wanted = {key: value for key, value in spec.options.items() if key in keys}
    # The first option of a variant names it; for the others the first variant that fits is the default.
    fits = (
        instance
        for instance in machine.instances
        if wanted.items() <= instance.options.items() and set([*instance.options][:1]) <= wanted.keys()
    )
    chosen = next(fits, None)
    if chosen is None:
        known = " or ".join(machine.option_texts())
        spec.fail(f"{_options_text(wanted)} is not known here; expected {known}")
    return chosen


def _options_text(options: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def _overridden(instance: Instance, spec: Spec) -> Instance:
    """The instance with the user's bandwidth, alpha and overhead in every class of links."""
    bandwidth = spec.values("bandwidth_gb_s", 1, zero_allowed=False)
    alpha = spec.values("alpha_us", 1, zero_allowed=True)
    overhead = spec.overheads(1)
    links = {
        name: LinkClass(
            alpha_s=us_to_s(alpha[0]) if alpha else old.alpha_s,
            beta_s_per_byte=gb_s_to_beta(bandwidth[0]) if bandwidth else old.beta_s_per_byte,
            overhead_s=us_to_s(overhead[0]) if overhead else old.overhead_s,
        )
        for name, old in instance.links.items()
    }
    spec.check_overheads(overhead or (), [s_to_us(link.alpha_s) for link in links.values()])
    return replace(instance, links=links)


class _Assembly:
    """Numbers the vertices of all boxes (ranks, then each box's switches, then the fabric's) and lays the links."""

    def __init__(self, instance: Instance, fabric: Fabric | None, counts: Sequence[int], spec: Spec) -> None:
        self.instance, self.spec = instance, spec
        self.kinds = instance.kinds
        # For every kind what its boxes have by themselves, then what they have for the fabric.
        self.parts = [[kind.box, *([fabric.parts[k]] if fabric else [])] for k, kind in enumerate(self.kinds)]
        self.inner = [[switch for part in parts for switch in part.switches] for parts in self.parts]
        self.shared = fabric.switches if fabric else ()
        num_links = sum(
            len(wires.arcs) * (1 + wires.both) * count * (count - 1 if wires.across else 1)
            for count, parts in zip(counts, self.parts, strict=True)
            for part in parts
            for wires in part.wires
        )
        if num_links > MAX_LINKS:
            spec.fail(f"has {num_links} links; expected at most {MAX_LINKS}")
        self.kind_of = [k for k, count in enumerate(counts) for _ in range(count)]
        ranks = [self.kinds[k].gpus for k in self.kind_of]
        switches = [len(self.inner[k]) for k in self.kind_of]
        self.num_ranks = sum(ranks)
        self.first_rank = [0, *accumulate(ranks)]
        self.first_switch = [self.num_ranks + before for before in (0, *accumulate(switches))]

    def vertex(self, box: int, end: End) -> int:
        if isinstance(end, int):
            return self.first_rank[box] + end
        inner = [switch.name for switch in self.inner[self.kind_of[box]]]
        if end in inner:
            return self.first_switch[box] + inner.index(end)
        return self.first_switch[-1] + [switch.name for switch in self.shared].index(end)

    def topology(self) -> Topology:
        layers = range(len(self.parts[0]))
        rows = [
            row
            for layer in layers
            for k, parts in enumerate(self.parts)
            for wires in parts[layer].wires
            for row in self._rows(k, wires)
        ]
        columns: dict[str, Any] = dict(
            zip(
                ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count"),
                zip(*rows, strict=True),
                strict=True,
            )
        )
        inner = [
            replace(switch, name=f"box{box}.{switch.name}")
            for box, k in enumerate(self.kind_of)
            for switch in self.inner[k]
        ]
        switches = [*inner, *self.shared]
        ranks = [False] * self.num_ranks
        bare = Topology(
            name=self.spec.text,
            num_ranks=self.num_ranks,
            **columns,
            switch_names=tuple(switch.name for switch in switches),
            multicast=np.array(ranks + [switch.multicast for switch in switches]),
            reduction=np.array(ranks + [switch.reduction for switch in switches]),
            boxes=tuple(self._box(box) for box in range(len(self.kind_of))),
            cuts=self._cuts(),
            min_piece_bytes=self.instance.min_piece_bytes,
            provenance={"source": "preset"},
        )
        return replace(bare, symmetries=self._symmetries(bare))

    def _boxes_of(self, kind: int) -> list[int]:
        return [box for box, k in enumerate(self.kind_of) if k == kind]

    def _rows(self, kind: int, wires: Wires) -> list[tuple[int, int, float, float, float, int]]:
        link = self.instance.links[wires.link]
        overhead_s = min(link.overhead_s, link.alpha_s)
        costs = (link.alpha_s, link.beta_s_per_byte / wires.lanes, overhead_s, wires.lanes)
        rows = []
        boxes = self._boxes_of(kind)
        for box in boxes:
            for other in (b for b in boxes if b != box) if wires.across else (box,):
                for a, b in wires.arcs:
                    src, dst = self.vertex(box, a), self.vertex(other, b)
                    rows.append((src, dst, *costs))
                    if wires.both:
                        rows.append((dst, src, *costs))
        return rows

    def _box(self, box: int) -> tuple[int, ...]:
        ranks = range(self.first_rank[box], self.first_rank[box + 1])
        return (*ranks, *range(self.first_switch[box], self.first_switch[box + 1]))

    def _cuts(self) -> tuple[Cut, ...]:
        """Every box's own cuts (the fabric's list replaces the box's), half of the boxes, and all boxes of a kind."""
        cuts = [
            Cut(f"box{box} {name}", tuple(self.vertex(box, end) for end in ends))
            for box, k in enumerate(self.kind_of)
            for name, ends in self.parts[k][-1].cuts
        ]
        sets = {"half of the boxes": list(range(len(self.kind_of) // 2))}
        if len(set(self.kind_of)) > 1:
            sets |= {f"{self.kinds[k].name} boxes": self._boxes_of(k) for k in sorted(set(self.kind_of))}
        cuts += [Cut(name, tuple(v for box in boxes for v in self._box(box))) for name, boxes in sets.items() if boxes]
        return tuple(cuts)

    def _symmetries(self, bare: Topology) -> tuple[tuple[int, ...], ...]:
        """Every box moved to the next of its kind, and the file's cycles in all boxes of a kind at once.

        A wrong one is an InputError.
        """
        found = []
        for k, kind in enumerate(self.kinds):
            boxes = self._boxes_of(k)
            starts = [self.first_rank[box] for box in boxes]
            if len(boxes) > 1:
                found.append(self._moved(zip(starts, starts[1:] + starts[:1], strict=True), range(kind.gpus)))
            if boxes:
                found += [self._moved(zip(starts, starts, strict=True), cycle) for cycle in self.parts[k][-1].cycles]
        whole = []
        for ranks in found:
            permutation = extended_to_switches(bare, ranks)
            if permutation is None:
                self.spec.fail(f"the machine file's symmetry {ranks} does not map links to equal links")
            whole.append(permutation)
        return tuple(whole)

    def _moved(self, starts: Iterable[tuple[int, int]], image: Sequence[int]) -> list[int]:
        """All ranks where they are, but those of boxes that begin at some rank in those that begin at another."""
        ranks = list(range(self.num_ranks))
        for here, there in starts:
            ranks[here : here + len(image)] = [there + rank for rank in image]
        return ranks
