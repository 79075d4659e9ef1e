"""Machines: what a box holds, how boxes are joined and whose costs count; any number of boxes becomes a topology.

The data come from YAML (machine_file.py). Instances of a machine are itself and variants with others' published costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """Links of one class: ends are ranks of a box or names of switches; `across` goes to the other boxes."""

    link: str
    lanes: int
    arcs: tuple[tuple[End, End], ...]
    both: bool
    across: bool


@dataclass(frozen=True)
class Part:
    """A box, or a fabric that joins boxes: `box_switches` are in each box, `switches` are there once.

    `cycles` are permutations of a box's ranks that keep all links, `cuts` named sets of a box's vertices.
    """

    wires: tuple[Wires, ...]
    box_switches: tuple[Switch, ...] = ()
    switches: tuple[Switch, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[tuple[str, tuple[End, ...]], ...] = ()
    min_boxes: int = 1
    max_boxes: int | None = None


@dataclass(frozen=True)
class Instance:
    """A machine with one set of costs: `options` select it (empty: the machine itself)."""

    options: Mapping[str, str]
    gpus: int
    links: Mapping[str, LinkClass]
    min_piece_bytes: int
    box: Part
    fabrics: tuple[Part, ...]


@dataclass(frozen=True)
class Machine:
    """A machine file: its name, one line about it, and its instances, the machine itself first."""

    name: str
    summary: str
    instances: tuple[Instance, ...]

    @property
    def form(self) -> str:
        """`NAME` or `NAME:BOXES`, for lists."""
        return f"{self.name}:BOXES" if self.instances[0].fabrics else self.name

    def option_texts(self) -> tuple[str, ...]:
        """What selects each variant, as it stands behind the @ of a preset."""
        return tuple(_options_text(instance.options) for instance in self.instances[1:])


def machine_topology(machine: Machine, spec: Spec) -> Topology:
    """The topology of `spec.dims` boxes (one by default) with the options of `spec`; raises InputError."""
    instance = _chosen(machine, spec)
    if len(spec.dims) > 1 or spec.dims == (0,):
        spec.fail(f"expected {machine.form} with at least 1 box")
    boxes = spec.dims[0] if spec.dims else 1
    fabric = None
    if boxes > 1:
        fits = (part for part in instance.fabrics if part.min_boxes <= boxes <= (part.max_boxes or boxes))
        fabric = next(fits, None)
        if fabric is None:
            most = max((part.max_boxes or 0 for part in instance.fabrics), default=1)
            spec.fail(f"has {boxes} boxes; expected at most {most}, nothing is known that joins more")
    return _Assembly(_overridden(instance, spec), fabric, boxes, spec).topology()


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

    def __init__(self, instance: Instance, fabric: Part | None, boxes: int, spec: Spec) -> None:
        self.instance, self.boxes, self.spec = instance, boxes, spec
        self.parts = [instance.box, *([fabric] if fabric else [])]
        self.inner = [switch for part in self.parts for switch in part.box_switches]
        self.shared = [switch for part in self.parts for switch in part.switches]
        self.inner_ids = {switch.name: i for i, switch in enumerate(self.inner)}
        self.num_ranks = boxes * instance.gpus
        copies = {False: boxes, True: boxes * (boxes - 1)}
        num_links = sum(
            len(wires.arcs) * (1 + wires.both) * copies[wires.across] for part in self.parts for wires in part.wires
        )
        if num_links > MAX_LINKS:
            spec.fail(f"has {num_links} links; expected at most {MAX_LINKS}")
        first = self.num_ranks + boxes * len(self.inner)
        self.shared_ids = {switch.name: first + i for i, switch in enumerate(self.shared)}

    def vertex(self, box: int, end: End) -> int:
        if isinstance(end, int):
            return box * self.instance.gpus + end
        if end in self.inner_ids:
            return self.num_ranks + box * len(self.inner) + self.inner_ids[end]
        return self.shared_ids[end]

    def topology(self) -> Topology:
        rows = [row for part in self.parts for wires in part.wires for row in self._rows(wires)]
        columns: dict[str, Any] = dict(
            zip(
                ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count"),
                zip(*rows, strict=True),
                strict=True,
            )
        )
        boxes = range(self.boxes)
        inner = [replace(switch, name=f"box{box}.{switch.name}") for box in boxes for switch in self.inner]
        switches = [*inner, *self.shared]
        ranks = [False] * self.num_ranks
        bare = Topology(
            name=self.spec.text,
            num_ranks=self.num_ranks,
            **columns,
            switch_names=tuple(switch.name for switch in switches),
            multicast=np.array(ranks + [switch.multicast for switch in switches]),
            reduction=np.array(ranks + [switch.reduction for switch in switches]),
            boxes=tuple(self._box(box) for box in boxes),
            cuts=self._cuts(),
            min_piece_bytes=self.instance.min_piece_bytes,
            provenance={"source": "preset"},
        )
        return replace(bare, symmetries=self._symmetries(bare))

    def _rows(self, wires: Wires) -> list[tuple[int, int, float, float, float, int]]:
        link = self.instance.links[wires.link]
        overhead_s = min(link.overhead_s, link.alpha_s)
        costs = (link.alpha_s, link.beta_s_per_byte / wires.lanes, overhead_s, wires.lanes)
        rows = []
        for box in range(self.boxes):
            for other in (b for b in range(self.boxes) if b != box) if wires.across else (box,):
                for a, b in wires.arcs:
                    src, dst = self.vertex(box, a), self.vertex(other, b)
                    rows.append((src, dst, *costs))
                    if wires.both:
                        rows.append((dst, src, *costs))
        return rows

    def _box(self, box: int) -> tuple[int, ...]:
        ends: list[End] = [*range(self.instance.gpus), *self.inner_ids]
        return tuple(self.vertex(box, end) for end in ends)

    def _cuts(self) -> tuple[Cut, ...]:
        """Every box's own cuts (the fabric's list replaces the box's), and half of the boxes."""
        cuts = [
            Cut(f"box{box} {name}", tuple(self.vertex(box, end) for end in ends))
            for box in range(self.boxes)
            for name, ends in self.parts[-1].cuts
        ]
        if self.boxes > 1:
            half = tuple(vertex for box in range(self.boxes // 2) for vertex in self._box(box))
            cuts.append(Cut("half of the boxes", half))
        return tuple(cuts)

    def _symmetries(self, bare: Topology) -> tuple[tuple[int, ...], ...]:
        """Every box moved to the next one, and the file's cycles in all boxes at once; a wrong one is an InputError."""
        gpus, found = self.instance.gpus, []
        if self.boxes > 1:
            found.append([(rank + gpus) % self.num_ranks for rank in range(self.num_ranks)])
        for cycle in self.parts[-1].cycles:
            found.append([box * gpus + image for box in range(self.boxes) for image in cycle])
        whole = []
        for ranks in found:
            permutation = extended_to_switches(bare, ranks)
            if permutation is None:
                self.spec.fail(f"the machine file's symmetry {ranks} does not map links to equal links")
            whole.append(permutation)
        return tuple(whole)
