"""From what files say of a box to a topology: costs from the table of links, boxes joined through their cards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collsyn.errors import InputError
from collsyn.model.profile import Profile
from collsyn.model.topology import Cut, Topology
from collsyn.topology.imports import links
from collsyn.topology.imports.described import Described, names
from collsyn.topology.imports.wires import Edge, End, Graph, box_graph
from collsyn.topology.symmetry import extended_to_switches, is_symmetry
from collsyn.topology.wiring import check_size
from collsyn.units import gb_s_to_beta, us_to_s

_COLUMNS = ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")
KEYS = ("nvlink", "xgmi", "pcie", "uplink", "smp", "nic")
# Beyond these a fit of symmetries is left to whoever needs it.
MAX_SYMMETRY_RANKS = 128


@dataclass(frozen=True)
class Options:
    """What the user adds: GB/s by key (of KEYS: one lane, link or card), boxes and how they are joined, a name.

    `fabric` is rails (card k of every box on switch k) or one (all cards on one switch); None: rails where every GPU
    has a card of its own.
    """

    gb_s: Mapping[str, float] = field(default_factory=dict)
    boxes: int = 1
    fabric: str | None = None
    name: str | None = None


def topology_of(described: Described, options: Options, file: str, inputs: Sequence[str]) -> Topology:
    """The topology of `options.boxes` such boxes; raises InputError where there is too little to join.

    Provenance: `source` (kinds of the files), `inputs` (hashes), `given` (the user's bandwidths), `assumed` (what no
    file says, by key), `warnings`, `cards` (GPUs nearest to each network card) and `fabric` (how boxes are joined).
    """
    unknown = next((key for key in options.gb_s if key not in KEYS), None)
    if unknown is not None:
        raise InputError(f"bandwidth {unknown!r} is not known; expected one of {', '.join(KEYS)}")
    warnings = list(described.warnings)
    warnings += _uneven(described)
    table = _Table(described, options.gb_s)
    graph = box_graph(described, options.boxes > 1, warnings)
    if options.boxes > 1:
        graph = replace(graph, ports=graph.ports or _ports_of_the_user(described, options, table, file))
    elif not graph.edges and not described.directed_gb_s:
        raise InputError(f"{file}: names one GPU; expected at least two, or boxes joined by network cards")
    rails = options.fabric == "rails" or (options.fabric is None and len(graph.ports) >= described.num_gpus)
    per_box = 2 * (len(graph.edges) + len(graph.ports)) + len(described.directed_gb_s)
    try:
        check_size(max(2, options.boxes * described.num_gpus), options.boxes * per_box)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    built = _built(described, graph, table, options, rails)
    idle = [key for key in options.gb_s if key not in table.used]
    if idle:
        warnings.append(f"--bandwidth {' and '.join(idle)} changes nothing: there is no such link in this topology")
    provenance: dict[str, Any] = {"source": described.kind, "inputs": list(inputs)}
    if options.gb_s:
        provenance["given"] = dict(options.gb_s)
    provenance["assumed"] = table.assumed
    if described.cards:
        provenance["cards"] = [
            {"near": list(near), **({} if card.gb_s is None else {"gb_s": round(card.gb_s, 6)})}
            for card, near in zip(described.cards, nearest_gpus(described), strict=True)
        ]
    if options.boxes > 1:
        provenance["fabric"] = _fabric_text(len(graph.ports), rails)
    if warnings:
        provenance["warnings"] = list(dict.fromkeys(warnings))
    symmetries = (*built.symmetries, *_symmetries(built, described.num_gpus))
    return replace(built, symmetries=symmetries, provenance=provenance)


def _uneven(described: Described) -> list[str]:
    """A warning where GPUs on one switch have different numbers of lanes: some are down, or lines are lost."""
    found = []
    for hub in described.hubs:
        most = max(hub.values())
        fewer = [f"GPU {gpu} {count}" for gpu, count in sorted(hub.items()) if count < most]
        if fewer:
            found.append(
                f"GPUs have up to {most} lanes to their switch, but {names(fewer)}: links down, or lines lost?"
            )
    return found


def nearest_gpus(described: Described) -> list[tuple[int, ...]]:
    """For every card the GPUs that are nearest to it in the PCIe tree; none where nothing is near."""
    found = []
    for card in described.cards:
        distance = {
            number: described.distance(card.place, gpu.place)
            for number, gpu in enumerate(described.gpus)
            if gpu.place is not None
        }
        least = min(distance.values(), default=None)
        found.append(tuple(number for number, far in distance.items() if far == least))
    return found


class _Table:
    """Costs of links as they are needed, with what was assumed for each kind."""

    def __init__(self, described: Described, given: Mapping[str, float]) -> None:
        self.described, self.given = described, given
        self.generation = links.GENERATIONS.get(described.generation or "", links.UNKNOWN)
        self.assumed: dict[str, str] = {"costs": links.COSTS_SOURCE}
        self.used: set[str] = set()

    def costs(self, edge: Edge) -> tuple[float, float, float, int]:
        """Alpha, beta of all lanes, overhead and lanes of a link."""
        alpha_s = us_to_s(links.ALPHA_US[edge.kind])
        beta = gb_s_to_beta(self.gb_s(edge.kind, edge.gb_s)) / edge.lanes
        return alpha_s, beta, min(us_to_s(links.OVERHEAD_US), alpha_s), edge.lanes

    def able(self, described: Described) -> bool:
        """Whether switches of NVLink multicast and reduce, which is noted."""
        able = self.generation.capable and bool(described.hubs)
        if able:
            self.assumed["multicast"] = f"the switch multicasts and reduces: {self.generation.title}"
        return able

    def gb_s(self, kind: str, said: float | None) -> float:
        """The user's number, else the file's, else that of the table, which is noted."""
        key = self.described.family or "nvlink" if kind in ("hub", "nvlink", "xgmi") else kind
        for name in (key, "pcie") if key == "uplink" else (key,):
            if name in self.given:
                self.used.add(name)
                return self.given[name]
        if said is not None:
            return said
        gb_s, why = self._usual(key)
        self.assumed[key] = f"{gb_s:.6g} GB/s {why}"
        return gb_s

    def _usual(self, key: str) -> tuple[float, str]:
        known = self.generation
        if key in ("nvlink", "xgmi"):
            title = known.title or "an unknown generation"
            reason = f" ({self.described.why})" if self.described.why else ""
            return known.lane_gb_s, f"a lane, {title}{reason}: {known.source or 'ours'}"
        if key == "smp":
            processor = links.PROCESSORS[self.described.processor or ""]
            return processor.gb_s, f"between sockets of {processor.title}: {links.PROCESSOR_SOURCE}"
        if key == "nic":
            return known.nic_gb_s, f"a card, usual {self._with()}: ours"
        gb_s = links.pcie_gb_s(known.pcie_gt_s, 16)
        assert gb_s is not None
        what = "above a switch or host bridge" if key == "uplink" else "a device"
        return gb_s, f"{what}, PCIe of {known.pcie_gt_s:g} GT/s x16, usual {self._with()}: {links.PCIE_SOURCE}"

    def _with(self) -> str:
        return f"with {self.generation.title}" if self.generation.title else "where the GPUs are not known"


def _ports_of_the_user(described: Described, options: Options, table: "_Table", file: str) -> tuple[Edge, ...]:
    """One card a GPU, beside it, where the user gives a bandwidth of cards and the files name none."""
    if "nic" not in options.gb_s:
        raise InputError(
            f"{file}: names no network card to join {options.boxes} boxes with; add a file that does (--with "
            "topo.xml), or --bandwidth nic=GB/s for one card a GPU"
        )
    table.assumed["cards"] = "one a GPU"
    return tuple(Edge(number, "", "nic", None) for number in range(described.num_gpus))


def _fabric_text(ports: int, rails: bool) -> str:
    return f"{ports} rails: card k of every box on switch k" if rails else "one switch for all cards, without a limit"


def _built(described: Described, graph: Graph, table: "_Table", options: Options, rails: bool) -> Topology:
    """All boxes: ranks box by box, then the switches of each box, then those between boxes."""
    boxes, gpus, inner = options.boxes, described.num_gpus, list(graph.switches)
    shared = [] if boxes == 1 else [f"rail{k}" for k in range(len(graph.ports))] if rails else ["fabric"]
    first_shared = boxes * (gpus + len(inner))
    place_of = {name: place for place, name in enumerate(inner)}

    def vertex(box: int, end: End) -> int:
        return box * gpus + end if isinstance(end, int) else boxes * gpus + box * len(inner) + place_of[end]

    rows: list[tuple[int, int, float, float, float, int]] = []
    for box in range(boxes):
        for edge in graph.edges:
            costs = table.costs(edge)
            a, b = vertex(box, edge.a), vertex(box, edge.b)
            rows += [(a, b, *costs), (b, a, *costs)]
        for (a, b), gb_s in described.directed_gb_s.items():
            rows.append((vertex(box, a), vertex(box, b), *table.costs(Edge(a, b, described.family, gb_s))))
        for number, port in enumerate(graph.ports if shared else ()):
            costs = table.costs(port)
            a, b = vertex(box, port.a), first_shared + (number if rails else 0)
            rows += [(a, b, *costs), (b, a, *costs)]
    ends: list[End] = [*range(gpus), *inner]
    members = tuple(tuple(vertex(box, end) for end in ends) for box in range(boxes))
    cuts = [
        Cut(f"box{box} {name}", tuple(vertex(box, end) for end in side))
        for box in range(boxes)
        for name, side in graph.cuts
    ]
    if boxes > 1:
        cuts.append(Cut("half of the boxes", tuple(sorted(sum(members[: boxes // 2], ())))))
    able = table.able(described)
    capable = np.array(
        [False] * boxes * gpus
        + [able and name.startswith("nvswitch") for name in inner] * boxes
        + [False] * len(shared)
    )
    around = [vertex((box + 1) % boxes, end) for kind in (range(gpus), inner) for box in range(boxes) for end in kind]
    columns: dict[str, Any] = dict(zip(_COLUMNS, map(np.array, zip(*rows, strict=True)), strict=True))
    return Topology(
        name=options.name or _name(described, boxes),
        num_ranks=boxes * gpus,
        **columns,
        switch_names=(*(f"box{box}.{name}" for box in range(boxes) for name in inner), *shared),
        multicast=capable,
        reduction=capable,
        boxes=members,
        symmetries=(tuple(around + list(range(first_shared, first_shared + len(shared)))),) if boxes > 1 else (),
        cuts=tuple(cuts),
        min_piece_bytes=links.MIN_PIECE_BYTES,
    )


def _name(described: Described, boxes: int) -> str:
    """A name of the kind and size: files and hosts have names of people in them."""
    kinds = {"nvidia": "nvidia-smi", "rocm": "rocm-smi", "amd": "amd-smi", "NCCL": "nccl"}
    kind = next((name for word, name in kinds.items() if described.kind.startswith(word)), "imported")
    return f"{kind}-{described.num_gpus}gpu" + (f"-{boxes}boxes" if boxes > 1 else "")


def _symmetries(topology: Topology, gpus: int) -> tuple[tuple[int, ...], ...]:
    """Symmetries among a few usual ones: GPUs of all boxes turned round, or swapped in pairs, fours, halves."""
    if topology.num_ranks > MAX_SYMMETRY_RANKS:
        return ()
    within = [[(gpu + 1) % gpus for gpu in range(gpus)]]
    step = 1
    while step < gpus:
        if gpus % (2 * step) == 0:
            within.append([gpu ^ step for gpu in range(gpus)] if gpus & (gpus - 1) == 0 else _swapped(gpus, step))
        step *= 2
    found = []
    for image in within:
        ranks = [rank - rank % gpus + image[rank % gpus] for rank in range(topology.num_ranks)]
        permutation = extended_to_switches(topology, ranks)
        if permutation is not None and is_symmetry(topology, permutation) and permutation not in found:
            found.append(permutation)
    identity = tuple(range(topology.num_vertices))
    return tuple(permutation for permutation in found if permutation != identity)


def _swapped(gpus: int, step: int) -> list[int]:
    """Neighbouring runs of `step` GPUs swapped."""
    return [gpu + step if gpu // step % 2 == 0 else gpu - step for gpu in range(gpus)]


def combined(first: Described, others: Sequence[tuple[str, Described]]) -> Described:
    """One description of several files of the same box: links from one, PCIe and cards from the best of them.

    PCIe and cards are taken together, from a file that knows speeds of either. Raises InputError where numbers of GPUs
    differ.
    """
    found = first
    warnings = list(first.warnings)
    for file, other in others:
        if other.num_gpus != first.num_gpus:
            raise InputError(f"{file}: has {other.num_gpus} GPUs; expected {first.num_gpus} as in the first file")
        links_told = bool(found.lanes or found.hubs or found.directed_gb_s)
        if not links_told and (other.lanes or other.hubs):
            found = replace(
                found,
                lanes=other.lanes,
                hubs=other.hubs,
                family=other.family,
                directed_gb_s=other.directed_gb_s,
                generation=other.generation if found.generation is None else found.generation,
                why=other.why if found.generation is None else found.why,
            )
        elif (
            links_told
            and (other.lanes or other.hubs)
            and (dict(found.lanes), found.hubs) != (dict(other.lanes), other.hubs)
        ):
            warnings.append(
                f"{other.kind} and {found.kind} differ in links between GPUs; those of {first.kind} are taken"
            )
        if _detail(other) > _detail(found):
            found = replace(found, gpus=other.gpus, places=other.places, cards=other.cards)
        # A file that names the GPU's kind knows more than a count of lanes.
        if other.generation is not None and other.why.startswith("the ") and not found.why.startswith("the "):
            found = replace(found, generation=other.generation, why=other.why)
        found = replace(
            found,
            processor=found.processor or other.processor,
            lane_gb_s=found.lane_gb_s or other.lane_gb_s,
            kind=f"{found.kind} with {other.kind}",
        )
        warnings += other.warnings
    hidden = ("in a virtual machine NVLink may be hidden", "by their PCI class only")
    if found.lanes or found.hubs:
        warnings = [warning for warning in warnings if not any(words in warning for words in hidden)]
    return replace(found, warnings=tuple(dict.fromkeys(warnings)))


def _detail(described: Described) -> int:
    """How much a file says of PCIe and cards: speeds count more than places."""
    said = sum(card.gb_s is not None for card in described.cards) + sum(gpu.gb_s is not None for gpu in described.gpus)
    return 1000 * said + 10 * len(described.cards) + len(described.places)


def measured_topology(profile: Profile) -> Topology:
    """The topology of a profile, with what was assumed of it."""
    topology = profile.topology()
    found = profile.facts.get("assumed")
    return replace(topology, provenance={**topology.provenance, "assumed": found}) if found else topology


def assumed(topology: Topology) -> list[str]:
    """One line on what was assumed of an imported topology; nothing where nothing was."""
    found, warnings = topology.provenance.get("assumed"), topology.provenance.get("warnings")
    if not isinstance(found, Mapping) or not found:
        return []
    also = f"; warnings: {len(warnings)}" if isinstance(warnings, list) and warnings else ""
    return [f"{topology.name}: assumed, not in the file: {', '.join(map(str, found))}{also} (topology show says what)"]
