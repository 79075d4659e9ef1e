"""Machine files, `collsyn-machine/1` (docs/formats/machine.md): YAML with boxes, their fabric and variants of costs."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from collsyn.model.fields import Fields, load_document
from collsyn.model.topology_file import read_link_costs
from collsyn.topology.machine import Fabric, Instance, Kind, LinkClass, Machine, Part, Switch, Wires
from collsyn.topology.notation import read_arcs, read_cycles, read_ends
from collsyn.units import us_to_s

SCHEMA = "collsyn-machine/1"
# Of switches and of kinds of boxes.
NAME = r"[a-z][a-z0-9_]*"
MAX_GPUS = MAX_BOXES = 4096


def read_machine(path: str | Path) -> Machine:
    """The machine in a YAML file; raises InputError that names file and key."""
    return machine_from_fields(load_document(path))


def machine_from_fields(fields: Fields) -> Machine:
    """The machine of a document; raises InputError that names file and key."""
    fields.text("schema", choices=[SCHEMA])
    name, summary = fields.text("name", default=Path(fields.file).stem), fields.text("summary", default="")
    itself = _instance(fields, {}, None)
    variants = []
    for entry in fields.each("variants", default=[]):
        options = {key: str(value) for key, value in entry.mapping("options").items()}
        if not options:
            entry.fail("options", "is empty; expected what selects the variant, like {costs: name}")
        variants.append(_instance(entry, options, itself))
        entry.done()
    fields.done()
    return Machine(name, summary, (itself, *variants))


def _instance(fields: Fields, options: dict[str, str], itself: Instance | None) -> Instance:
    """The machine itself (`itself` None), or a variant, which takes over what it does not replace."""
    fields.raw("source", default=None)
    links: Mapping[str, LinkClass]
    if itself is None or fields.has("links"):
        overhead_s = us_to_s(fields.number("overhead_us", default=0, minimum=0))
        links = _link_classes(fields.inner("links"), overhead_s)
    else:
        links = itself.links
    if itself is None or fields.has("box") or fields.has("boxes"):
        kinds = _kinds(fields, links)
        if itself is not None and itself.fabrics and not fields.has("fabric"):
            fields.fail("fabric", "is missing; boxes of a variant's own need a fabric of their own (or none: [])")
    else:
        kinds = itself.kinds
    if itself is None or fields.has("fabric"):
        fabrics = tuple(_fabric(entry, kinds, links) for entry in fields.each("fabric", default=[]))
    else:
        fabrics = itself.fabrics
    parts = [*(kind.box for kind in kinds), *(part for fabric in fabrics for part in fabric.parts)]
    for link in (wires.link for part in parts for wires in part.wires):
        if link not in links:
            fields.fail("links", f"lacks the class {link!r}, which wires of the machine name")
    piece = fields.size_bytes("min_piece", default=1 if itself is None else itself.min_piece_bytes)
    return Instance(options, kinds, links, piece, fabrics)


def _kinds(fields: Fields, links: Mapping[str, LinkClass]) -> tuple[Kind, ...]:
    """The box of a machine of one kind, or the kinds of `boxes` by name."""
    if not fields.has("boxes"):
        return (_kind(fields.inner("box"), "", links),)
    if fields.has("box"):
        fields.fail("boxes", "stands beside box; expected one of them")
    named = fields.inner("boxes")
    names = named.names()
    if not names:
        fields.fail("boxes", "is empty; expected kinds of boxes by name, like {big: {gpus: 8, wires: ...}}")
    for name in names:
        if not re.fullmatch(NAME, name):
            named.fail(name, "is no name of a kind; expected small letters and digits")
    return tuple(_kind(named.inner(name), name, links) for name in names)


def _kind(fields: Fields, name: str, links: Mapping[str, LinkClass]) -> Kind:
    count = fields.integer("count", default=1, minimum=1, maximum=MAX_BOXES) if name else 1
    gpus = fields.integer("gpus", minimum=1, maximum=MAX_GPUS)
    box = _part(fields, gpus, links, "switches")
    fields.done()
    return Kind(name, gpus, box, count)


def _link_classes(fields: Fields, overhead_s: float) -> dict[str, LinkClass]:
    """Classes of links by name; `overhead_s` is that of classes which name none."""
    classes = {}
    for name in fields.names():
        entry = fields.inner(name)
        entry.raw("source", default=None)
        given = entry.has("overhead_us")
        alpha_s, beta, own_s = read_link_costs(entry)
        entry.done()
        # An overhead that is all of alpha stays so when the user changes the alpha.
        own_s = math.inf if own_s == alpha_s else own_s
        classes[name] = LinkClass(alpha_s, beta, own_s if given else overhead_s)
    return classes


def _fabric(fields: Fields, kinds: tuple[Kind, ...], links: Mapping[str, LinkClass]) -> Fabric:
    min_boxes = fields.integer("min_boxes", default=2, minimum=2)
    max_boxes = fields.integer("max_boxes", minimum=min_boxes) if fields.has("max_boxes") else None
    switches = _switches(fields, "switches")
    if not kinds[0].name:
        parts = [_part(fields, kinds[0].gpus, links, "box_switches", kinds[0].box.switches, switches)]
    else:
        named, parts = fields.inner("boxes"), []
        for kind in kinds:
            if not named.has(kind.name):
                named.fail(kind.name, "is missing; expected how boxes of this kind are joined to the others")
            entry = named.inner(kind.name)
            parts.append(_part(entry, kind.gpus, links, "box_switches", kind.box.switches, switches))
            entry.done()
        named.done()
    fields.done()
    return Fabric(tuple(parts), switches, min_boxes, max_boxes)


def _part(
    fields: Fields,
    gpus: int,
    links: Mapping[str, LinkClass],
    key: str,
    boxed: tuple[Switch, ...] = (),
    shared: tuple[Switch, ...] = (),
) -> Part:
    """What a kind of box has; the wires of a fabric may name switches of the box and those that all share, too."""
    switches = _switches(fields, key)
    names = [switch.name for switch in (*boxed, *switches, *shared)]
    if len(set(names)) != len(names):
        fields.fail(key, "names a switch twice")
    wires = []
    for entry in fields.each("wires"):
        link = entry.text("link", choices=list(links))
        lanes = entry.integer("lanes", default=1, minimum=1)
        across = entry.has("across")
        way = "across" if across else "pairs" if entry.has("pairs") else "arcs"
        arcs = [arc for token in entry.text(way).split() for arc in read_arcs(entry, way, token, gpus, names)]
        wires.append(Wires(link, lanes, tuple(arcs), way == "pairs", across))
        entry.done()
    cuts = []
    for entry in fields.each("cuts", default=[]):
        name, tokens = entry.text("name"), entry.text("vertices").split()
        cuts.append((name, tuple(end for token in tokens for end in read_ends(entry, "vertices", token, gpus, names))))
        entry.done()
    cycles = tuple(
        read_cycles(fields, "symmetries", str(text), gpus) for text in fields.items("symmetries", default=[])
    )
    return Part(tuple(wires), switches, cycles, tuple(cuts))


def _switches(fields: Fields, key: str) -> tuple[Switch, ...]:
    switches = []
    for entry in fields.each(key, default=[]):
        name = entry.text("name")
        if not re.fullmatch(NAME, name):
            entry.fail("name", f"is {name!r}; expected small letters and digits")
        switches.append(Switch(name, entry.flag("multicast", default=False), entry.flag("reduction", default=False)))
        entry.done()
    return tuple(switches)
