"""NCCL's and RCCL's topology files (`<system>`, versions 1 and 2), as they dump and as clouds ship them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collsyn.topology.imports import links
from collsyn.topology.imports.described import Card, Described, Gpu, Place, groups, names
from collsyn.topology.imports.text import Paste
from collsyn.topology.imports.xml_tree import Element, root

KIND = "NCCL topology XML"
ADVICE = "take the whole file that NCCL writes with NCCL_TOPO_DUMP_FILE=topo.xml"
_GPU_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")
_NIC_CLASSES = ("0x0200", "0x0207")
_SWITCH_CLASS, _PROCESSOR_CLASS = "0x068000", "0x068001"
# Ports of less than a fourth of the fastest one's speed are for management; Mbit/s beyond the limits are no speeds.
MANAGEMENT = 4
# 10 Gb/s and less is no network for GPUs.
SLOW_GB_S = 1.25
MIN_MBIT_S, MAX_MBIT_S = 100, 3_200_000
MAX_GPUS = 1024


@dataclass(eq=False)
class _Found:
    """What one walk over the file collects: places, and pci elements with the place they hang on."""

    places: list[Place] = field(default_factory=list)
    sockets: dict[tuple[str, str], int] = field(default_factory=dict)
    gpus: list[tuple[Element, Element | None, int]] = field(default_factory=list)
    cards: list[tuple[str, list[Element], Element | None, int]] = field(default_factory=list)
    processors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    pcis: int = 0
    classes: int = 0


def matches(paste: Paste) -> bool:
    """Whether there is a topology file."""
    return re.search(r"<system[\s>]", paste.text) is not None


def read(paste: Paste) -> Described:
    """The box of a topology file; raises InputError that names the line."""
    system = root(paste, "system")
    version = system.attributes.get("version", "")
    if version not in ("1", "2", ""):
        paste.fail(f"is of version {version}; expected 1 or 2", system.line)
    found = _Found()
    for cpu in system.all("cpu"):
        _socket(cpu, found)
    if len(found.hosts) > 1:
        paste.fail(f"holds {len(found.hosts)} hosts; expected the file of one", system.line)
    warnings: list[str] = []
    gpus = _gpus(paste, system, found, warnings)
    at = {pci.attributes.get("busid", "").lower(): number for number, (pci, _, _) in enumerate(gpus)}
    direct, hubs, family = _links(paste, gpus, at, warnings)
    generation, why = _generation(gpus)
    slow = {
        pci.attributes["link_speed"].split()[0]
        for pci in _all_pci(system)
        if pci.attributes.get("link_speed", "").startswith(("2.5 ", "5 ", "5.0 ")) and pci.all("pci")
    }
    if slow:
        warnings.append(
            f"some PCIe switches have links of {' and '.join(sorted(slow))} GT/s: perhaps asleep when the file was "
            "written; --bandwidth pcie=GB/s overrides"
        )
    cards = _cards(found, warnings)
    return Described(
        kind=KIND,
        gpus=tuple(
            Gpu(gpu.attributes.get("dev", str(number)) if gpu else str(number), place, _link_gb_s(pci))
            for number, (pci, gpu, place) in enumerate(gpus)
        ),
        places=tuple(found.places),
        cards=cards,
        lanes=direct,
        hubs=hubs,
        family=family,
        generation=generation,
        why=why,
        processor=found.processors[0] if found.processors else None,
        warnings=tuple(warnings),
    )


def _all_pci(element: Element) -> Iterator[Element]:
    for child in element.children:
        if child.tag == "pci":
            yield child
        yield from _all_pci(child)


def _socket(cpu: Element, found: _Found) -> None:
    host, node = cpu.attributes.get("host_hash", ""), cpu.attributes.get("numaid", "")
    if host:
        found.hosts.add(host)
    place = found.sockets.get((host, node))
    if place is None:
        place = found.sockets[host, node] = len(found.places)
        found.places.append(Place(f"socket{len(found.sockets) - 1}", None))
    found.processors.append(
        links.processor_of(
            cpu.attributes.get("arch", ""),
            cpu.attributes.get("vendor", ""),
            cpu.integer("familyid") or 0,
            cpu.integer("modelid") or 0,
        )
    )
    _walk(cpu, place, found)


def _walk(above: Element, place: int, found: _Found) -> None:
    for child in above.children:
        if child.tag == "nic":
            _add_card(child.all("net"), None, place, found)
        elif child.tag == "pci":
            _pci(child, place, found)


def _pci(pci: Element, place: int, found: _Found) -> None:
    """One device: a GPU, a card or a switch with more below it."""
    kind = pci.attributes.get("class", "")[:6].lower()
    found.pcis += 1
    found.classes += bool(kind)
    gpu = next(iter(pci.all("gpu")), None)
    below = pci.all("pci")
    if gpu is not None or (kind in _GPU_CLASSES and not below):
        found.gpus.append((pci, gpu, place))
    nets = [net for nic in pci.all("nic") for net in nic.all("net")]
    if nets or (kind in _NIC_CLASSES and not pci.all("nic") and not below):
        _add_card(nets, pci, place, found)
    if below:
        number = sum(known.parent is not None for known in found.places)
        found.places.append(Place(f"pcie{number}", place, _link_gb_s(pci)))
        _walk_pci(pci, len(found.places) - 1, found)


def _walk_pci(above: Element, place: int, found: _Found) -> None:
    for child in above.all("pci"):
        _pci(child, place, found)


def _add_card(nets: list[Element], pci: Element | None, place: int, found: _Found) -> None:
    name = next((net.attributes.get("name", "") for net in nets), "") or f"nic{len(found.cards)}"
    if nets or pci is not None:
        found.cards.append((name, nets, pci, place))


def _link_gb_s(pci: Element) -> float | None:
    """GB/s of the link above a device; None for an empty, unknown or impossible speed or width."""
    rate = re.match(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s", pci.attributes.get("link_speed", ""))
    width = pci.integer("link_width")
    return None if rate is None or width is None else links.pcie_gb_s(float(rate[1]), width)


def _gpus(
    paste: Paste, system: Element, found: _Found, warnings: list[str]
) -> list[tuple[Element, Element | None, int]]:
    """GPUs in the order of ranks; raises InputError where there is none or the file cannot tell."""
    if not found.gpus and found.pcis and not found.classes:
        paste.fail(
            f"has {found.pcis} devices without a class, so GPUs and cards cannot be told apart: NCCL adds what this "
            f"part lacks; {ADVICE}",
            system.line,
        )
    named = [entry for entry in found.gpus if entry[1] is not None]
    if named and len(named) < len(found.gpus):
        warnings.append(f"{len(found.gpus) - len(named)} devices of a GPU's class have no <gpu> and are left out")
    gpus = named or found.gpus
    if not gpus:
        paste.fail(f"has no GPU: no <gpu> and no device of a GPU's class; {ADVICE}", system.line)
    if len(gpus) > MAX_GPUS:
        paste.fail(f"has {len(gpus)} GPUs; expected at most {MAX_GPUS}", system.line)
    ids = [pci.attributes.get("busid", "").lower() for pci, _, _ in gpus]
    twice = next((index for index, name in enumerate(ids) if name in ids[:index]), None)
    if twice is not None:
        paste.fail(f"a second GPU has bus id {ids[twice]!r}; expected another one", gpus[twice][0].line)
    _reject_doubles(paste, gpus)
    for key in ("rank", "dev"):
        order = [gpu.integer(key) if gpu is not None else None for _, gpu, _ in gpus]
        known = [number for number in order if number is not None]
        if len(set(known)) == len(gpus):
            if set(known) != set(range(len(gpus))):
                missing = min(set(range(max(known) + 1)) - set(known), default=None)
                warnings.append(
                    f"GPUs have {key} {names(map(str, sorted(known)))}"
                    + (f", not {missing}" if missing is not None else "")
                    + ": the file may be a part of the machine; ranks are counted from 0"
                )
            return [entry for _, entry in sorted(zip(known, gpus, strict=True), key=lambda pair: pair[0])]
    if not named:
        warnings.append(
            f"names {len(gpus)} GPUs, by their PCI class only: ranks are in the order of bus ids, NVLink is not in the "
            "file, and the file may be a part of the machine"
        )
    return sorted(gpus, key=lambda entry: entry[0].attributes.get("busid", "").lower())


def _reject_doubles(paste: Paste, gpus: list[tuple[Element, Element | None, int]]) -> None:
    """Raise InputError where two GPUs have both rank and device number alike, as if one of them was pasted twice."""
    seen: set[tuple[int, int]] = set()
    for _, gpu, _ in gpus:
        if gpu is None:
            continue
        rank, device = gpu.integer("rank"), gpu.integer("dev")
        if rank is None or device is None or rank < 0:
            continue
        if (rank, device) in seen:
            paste.fail(f"a second GPU has rank {rank} and dev {device}; expected each once", gpu.line)
        seen.add((rank, device))


def _links(
    paste: Paste, gpus: list[tuple[Element, Element | None, int]], at: Mapping[str, int], warnings: list[str]
) -> tuple[dict[tuple[int, int], int], tuple[dict[int, int], ...], str]:
    """Direct lanes, switches, and nvlink or xgmi."""
    ways: dict[tuple[int, int], int] = {}
    chips: dict[str, dict[int, int]] = {}
    own, absent, processors, family = 0, 0, 0, ""
    for number, (pci, gpu, _) in enumerate(gpus):
        for link in [] if gpu is None else gpu.all("nvlink", "xgmi"):
            family = link.tag
            target = link.attributes.get("target", "").lower()
            count = link.integer("count")
            count = 1 if count is None and "count" not in link.attributes else count
            if count is None or not 1 <= count <= 64:
                paste.fail(f"count is {link.attributes['count']!r}; expected 1 .. 64 lanes", link.line)
            if target == pci.attributes.get("busid", "").lower():
                own += 1
            elif target in at:
                ways[number, at[target]] = ways.get((number, at[target]), 0) + count
            elif link.attributes.get("tclass", "").lower() == _SWITCH_CLASS:
                chip = chips.setdefault(target, {})
                chip[number] = chip.get(number, 0) + count
            elif link.attributes.get("tclass", "").lower() == _PROCESSOR_CLASS:
                processors += 1
            else:
                absent += 1
    if own:
        warnings.append(
            f"{own} links lead from a GPU to itself and are left out; which GPUs they should join is unknown"
        )
    if processors:
        warnings.append(f"{processors} links lead to processors and are left out")
    if absent:
        warnings.append(f"{absent} links lead to devices that are not in the file and are left out")
    direct: dict[tuple[int, int], int] = {}
    uneven = []
    for (a, b), count in ways.items():
        back = ways.get((b, a))
        direct[min(a, b), max(a, b)] = count if back is None else min(count, back)
        if back != count and (a < b or back is None):
            uneven.append(f"{a}-{b}")
    if uneven:
        warnings.append(f"links of GPUs {names(uneven)} are not the same both ways; the smaller number is taken")
    return direct, _hubs(len(gpus), chips), family


def _hubs(num_gpus: int, chips: Mapping[str, Mapping[int, int]]) -> tuple[dict[int, int], ...]:
    """Chips that share a GPU are one switch; lanes of a GPU are all its lanes to them."""
    found = []
    for island in groups(num_gpus, [(min(chip), gpu) for chip in chips.values() for gpu in chip]):
        ports = {gpu: sum(chip.get(gpu, 0) for chip in chips.values()) for gpu in island}
        if any(ports.values()):
            found.append(ports)
    return tuple(found)


def _cards(found: _Found, warnings: list[str]) -> tuple[Card, ...]:
    """Cards with the speeds of their ports added up, without those for management."""
    cards, odd = [], 0
    seen: set[str] = set()
    for name, nets, pci, place in found.cards:
        bus = "" if pci is None else pci.attributes.get("busid", "").lower()
        if bus and bus in seen:
            warnings.append(f"a second card has bus id {bus!r} and is left out")
            continue
        seen.add(bus)
        speeds = [net.number("speed") for net in nets]
        known = [speed / 8000 for speed in speeds if speed is not None and MIN_MBIT_S <= speed <= MAX_MBIT_S]
        gb_s = sum(known) if known and len(known) == len(speeds) else None
        odd += nets != [] and gb_s is None
        cards.append(Card(name, place, gb_s, None if pci is None else _link_gb_s(pci)))
    if odd:
        warnings.append(f"{odd} cards have a speed outside {MIN_MBIT_S} .. {MAX_MBIT_S} Mbit/s, which is not used")
    fastest = max((card.gb_s for card in cards if card.gb_s is not None), default=0.0)
    if 0 < fastest <= SLOW_GB_S and all(card.gb_s is not None for card in cards):
        warnings.append(f"the fastest card has {fastest:g} GB/s: perhaps those for messages are not in the file")
    kept = [card for card in cards if card.gb_s is None or card.gb_s * MANAGEMENT >= fastest]
    if len(kept) < len(cards):
        warnings.append(f"{len(cards) - len(kept)} slow cards are left out, as for management")
    return tuple(kept)


def _generation(gpus: list[tuple[Element, Element | None, int]]) -> tuple[str | None, str]:
    """What the first GPU's gcn or sm tells."""
    for _, gpu, _ in gpus:
        if gpu is None:
            continue
        gcn = gpu.attributes.get("gcn", "")
        if gcn:
            return links.generation_of_gcn(gcn), f"the file says gcn {gcn}"
        sm = gpu.integer("sm")
        if sm is not None:
            return links.generation_of_sm(sm), f"the file says sm {sm}"
    return None, ""
