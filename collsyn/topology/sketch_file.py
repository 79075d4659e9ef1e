"""Sketch files, `collsyn-sketch/1` (docs/formats/sketch.md): YAML in numbers of a box, bound to one topology."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from collsyn.data import data_file, data_names
from collsyn.errors import InputError
from collsyn.model.fields import Fields, load_document
from collsyn.model.sketch import PEERS, Sketch
from collsyn.model.topology import Topology
from collsyn.topology.hops import hops
from collsyn.topology.notation import read_arcs, read_cycles

SCHEMA = "collsyn-sketch/1"
MAX_CHUNKS = 1 << 16


def load_sketch(text: str, topology: Topology) -> Sketch:
    """The sketch that a text names, a file or one that ships, for a topology; raises InputError."""
    if Path(text).is_file():
        return read_sketch(text, topology)
    shipped = data_file("configs", f"sketches/{text}")
    if shipped is None:
        names = [name.removeprefix("sketches/") for name in data_names("configs") if name.startswith("sketches/")]
        raise InputError(f"sketch {text!r} is neither a file nor one that ships ({', '.join(names)})")
    return read_sketch(shipped, topology)


def read_sketch(path: str | Path, topology: Topology) -> Sketch:
    """The sketch in a YAML file for a topology; raises InputError that names file and key."""
    return sketch_from_fields(load_document(path), topology)


def sketch_from_fields(fields: Fields, topology: Topology) -> Sketch:
    """The sketch of a document for a topology; raises InputError that names file and key."""
    fields.text("schema", choices=[SCHEMA])
    name = fields.text("name", default=Path(fields.file).stem)
    for key in ("summary", "source"):
        fields.text(key, default="")
    boxes = _boxes(fields, topology)
    size = fields.size_bytes("size") if fields.has("size") else None
    chunks = _optional(fields, "chunks_per_rank", 1, MAX_CHUNKS)
    message_chunks = _optional(fields, "message_chunks", 1, MAX_CHUNKS)
    sketch = Sketch(
        name=name,
        num_ranks=topology.num_ranks,
        pairs=_pairs(fields, boxes),
        carriers=_through(fields, "relays", boxes),
        receivers=_through(fields, "receivers", boxes),
        extra_hops=_optional(fields, "extra_hops", 0, topology.num_ranks),
        permutations=_permutations(fields, boxes, topology.num_ranks),
        peers=_peers(fields, topology),
        chunks=chunks,
        message_chunks=message_chunks,
        own_first=fields.flag("own_first", default=False),
        size_bytes=size,
    )
    fields.done()
    _require_symmetric(fields, topology, sketch)
    return sketch


def _boxes(fields: Fields, topology: Topology) -> Sequence[Sequence[int]]:
    boxes = topology.rank_boxes
    gpus = fields.integer("gpus_per_box", minimum=1)
    fewest = fields.integer("min_boxes", default=1, minimum=1)
    most = fields.integer("max_boxes", minimum=fewest) if fields.has("max_boxes") else None
    other = next((box for box in boxes if len(box) != gpus), None)
    if other is not None or sum(map(len, boxes)) != topology.num_ranks:
        has = f"a box of {len(other)}" if other else "ranks outside its boxes"
        fields.fail("gpus_per_box", f"is {gpus}; topology {topology.name} has {has}")
    if len(boxes) < fewest or (most is not None and len(boxes) > most):
        key = "min_boxes" if len(boxes) < fewest else "max_boxes"
        fields.fail(key, f"is {fewest if len(boxes) < fewest else most}; topology {topology.name} has {len(boxes)}")
    return boxes


def _optional(fields: Fields, key: str, minimum: int, maximum: int) -> int | None:
    return fields.integer(key, minimum=minimum, maximum=maximum) if fields.has(key) else None


def _pairs(fields: Fields, boxes: Sequence[Sequence[int]]) -> frozenset[tuple[int, int]] | None:
    """Who may send to whom, or None where nothing is said."""
    if not fields.has("inside") and not fields.has("across"):
        return None
    gpus = len(boxes[0])
    inside = _local(fields, "inside", gpus, own=True)
    across = _local(fields, "across", gpus, own=False)
    found = {(box[a], box[b]) for box in boxes for a, b in inside}
    for here in boxes:
        for there in boxes:
            if here is not there:
                found |= {(here[a], there[b]) for a, b in across}
    return frozenset(found)


def _local(fields: Fields, key: str, gpus: int, own: bool) -> list[tuple[int, int]]:
    text = fields.text(key, default="all")
    if text in ("all", "none"):
        every = range(gpus) if text == "all" else ()
        return [(a, b) for a in every for b in every if not own or a != b]
    arcs: list[tuple[int, int]] = []
    for token in text.split():
        both = own and "-" in token
        found = _numbers(read_arcs(_Named(fields, key), "pairs" if both else "arcs", token, gpus, ()))
        arcs += found + ([(b, a) for a, b in found] if both else [])
    if not arcs:
        fields.fail(key, "is empty; expected all, none, or pairs of a box's GPUs like 0>1")
    loop = next((a for a, b in arcs if own and a == b), None)
    if loop is not None:
        fields.fail(key, f"lets {loop} send to itself; expected two GPUs")
    return arcs


class _Named(Fields):
    """Fields under whose one name all mistakes are told, whatever key the notation asks for."""

    def __init__(self, fields: Fields, name: str) -> None:
        super().__init__({}, fields.file, fields.key)
        self._name = name

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise InputError for the name."""
        super().fail(self._name, what)


def _numbers(arcs: Iterable[tuple[int | str, int | str]]) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in arcs]


def _through(fields: Fields, key: str, boxes: Sequence[Sequence[int]]) -> Mapping[int, frozenset[int]]:
    """Of each rank of every box, those of its box that `A>B` names for it."""
    local: dict[int, set[int]] = {}
    for token in fields.text(key, default="").split():
        for a, b in _numbers(read_arcs(_Named(fields, key), "arcs", token, len(boxes[0]), ())):
            local.setdefault(a, set()).add(b)
    return {box[a]: frozenset(box[b] for b in through) for box in boxes for a, through in local.items()}


def _permutations(fields: Fields, boxes: Sequence[Sequence[int]], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    found = []
    for index, entry in enumerate(fields.items("symmetry", default=[])):
        key = f"symmetry[{index}]"
        image = list(range(num_ranks))
        if entry == "boxes":
            for here, there in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
                for a, b in zip(here, there, strict=True):
                    image[a] = b
        elif isinstance(entry, Mapping):
            inner = Fields(entry, fields.file, key)
            within = inner.integer("within", minimum=2, maximum=num_ranks)
            shift = inner.integer("shift", minimum=1, maximum=within - 1)
            inner.done()
            if num_ranks % within:
                inner.fail("within", f"is {within}; expected a divisor of the {num_ranks} ranks")
            image = [rank // within * within + (rank % within + shift) % within for rank in range(num_ranks)]
        elif isinstance(entry, str):
            local = read_cycles(_Named(fields, key), key, entry, len(boxes[0]))
            for box in boxes:
                for a, b in enumerate(local):
                    image[box[a]] = box[b]
        else:
            fields.fail(key, f"is {entry!r}; expected cycles like (0 1)(2 3), boxes, or {{shift: 2, within: 16}}")
        found.append(tuple(image))
    return tuple(image for image in found if image != tuple(range(num_ranks)))


def _peers(fields: Fields, topology: Topology) -> dict[str, str]:
    """The policy of every switch of the topology that a name means: its own, or that of each box's switch."""
    if not fields.has("switches"):
        return {}
    inner = fields.inner("switches")
    found: dict[str, str] = {}
    for name in inner.names():
        meant = [each for each in topology.switch_names if name in (each, each.rpartition(".")[2])]
        if not meant:
            there = ", ".join(sorted({each.rpartition(".")[2] for each in topology.switch_names})) or "none"
            inner.fail(name, f"is no switch of topology {topology.name}; there are {there}")
        policy = inner.text(name, choices=PEERS)
        found |= dict.fromkeys(meant, policy)
    return found


def _require_symmetric(fields: Fields, topology: Topology, sketch: Sketch) -> None:
    """Raise InputError where a permutation moves what may be sent to what may not, or costs something else."""
    if not sketch.permutations:
        return
    costs = _costs(topology, sketch)
    for index, image in enumerate(sketch.permutations):
        for (a, b), cost in costs.items():
            other = costs.get((image[a], image[b]))
            if other != cost:
                why = "which may not send" if other is None else "which costs something else"
                fields.fail("symmetry", f"number {index + 1} moves {a}->{b} to {image[a]}->{image[b]}, {why}")
        for key, through in (("relays", sketch.carriers), ("receivers", sketch.receivers)):
            for rank, ranks in through.items():
                if through.get(image[rank]) != frozenset(image[each] for each in ranks):
                    fields.fail("symmetry", f"number {index + 1} does not keep the {key} of rank {rank}")


def _costs(topology: Topology, sketch: Sketch) -> dict[tuple[int, int], tuple[float, float, float]]:
    """What a message costs between any two ranks that may exchange one."""
    table = hops(topology)
    columns = (table.src, table.dst, table.alpha_s, table.overhead_s, table.beta_s_per_byte)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(a, b): tuple(cost) for a, b, *cost in rows if sketch.allows(a, b)}
