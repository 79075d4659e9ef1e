"""NCCL's graph files (NCCL_GRAPH_DUMP_FILE): the rings or trees that NCCL chose, with their bandwidth."""

import re
from collections import defaultdict

from collsyn.topology.imports.described import Described, Gpu
from collsyn.topology.imports.text import Paste
from collsyn.topology.imports.xml_tree import Element, root

KIND = "NCCL graph XML"
RING = 4


def matches(paste: Paste) -> bool:
    """Whether there is a graph file."""
    return re.search(r"<graphs[\s>]", paste.text) is not None


def read(paste: Paste) -> Described:
    """The links that NCCL's rings (else its trees) use, each as wide as the channels on it; raises InputError."""
    top = root(paste, "graphs")
    graphs = [graph for graph in top.all("graph") if graph.all("channel")]
    if not graphs:
        paste.fail("has no graph with channels; take the file that NCCL writes with NCCL_GRAPH_DUMP_FILE", top.line)
    graph = next((one for one in graphs if one.integer("pattern") == RING), graphs[0])
    ring = graph.integer("pattern") == RING
    speed = graph.number("speedintra") or graph.number("bwintra")
    if not speed:
        paste.fail("speedintra is missing; expected GB/s of a channel", graph.line)
    orders = [_order(paste, channel) for channel in graph.all("channel")]
    gpus = sorted(set(orders[0]))
    if gpus != list(range(len(gpus))):
        paste.fail(f"the first channel has GPUs {gpus}; expected 0 .. {len(gpus) - 1}", graph.line)
    rates: dict[tuple[int, int], float] = defaultdict(float)
    for channel, order in zip(graph.all("channel"), orders, strict=True):
        if sorted(order) != gpus:
            paste.fail(f"a channel has GPUs {order}; expected each of {len(gpus)} once", channel.line)
        closed = ring and not channel.all("net") and len(order) > 1
        for a, b in zip(order, [*order[1:], *order[:1]] if closed else order[1:], strict=closed):
            rates[a, b] += speed
            if not ring:
                rates[b, a] += speed
    # What is sent one way around by these channels is sent the other way around by their mirror images.
    both = {key: max(rate, rates.get((key[1], key[0]), 0.0)) for key, rate in rates.items()}
    both |= {(b, a): rate for (a, b), rate in both.items()}
    return Described(
        kind=KIND,
        gpus=tuple(Gpu(str(number)) for number in gpus),
        directed_gb_s=both,
        family="nvlink",
        warnings=(
            f"these are the links that NCCL's {'rings' if ring else 'trees'} use, as wide as the channels on them; "
            "the machine may have others",
        ),
    )


def _order(paste: Paste, channel: Element) -> list[int]:
    """Numbers of a channel's GPUs, by rank if they have one, else by device."""
    found = []
    for gpu in channel.all("gpu"):
        number = gpu.integer("rank")
        number = gpu.integer("dev") if number is None else number
        if number is None:
            paste.fail("a gpu has neither rank nor dev", gpu.line)
        found.append(number)
    return found
