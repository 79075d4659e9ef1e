"""`collsyn export --format chakra`: execution traces for ASTRA-sim, one file a rank (docs/formats/chakra.md).

A message is a node that sends at one rank and one that receives at the other; what is reduced is computed behind the
latter. A send depends on all that brought what it sends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import ceil
from pathlib import Path

from collsyn.check.order import data_order
from collsyn.check.replay import time_tolerance
from collsyn.errors import InputError
from collsyn.export import protobuf
from collsyn.export.sets import name_of
from collsyn.export.table import Exported, Options
from collsyn.model.plan import Plan
from collsyn.model.schedule import REDUCE, Schedule
from collsyn.units import s_to_us

VERSION = "0.0.4"


class NodeType(IntEnum):
    """Kinds of nodes, with the numbers of the format."""

    COMPUTE = 4
    SEND = 5
    RECEIVE = 6


@dataclass(frozen=True)
class Node:
    """What a rank does at one time: `peer` and `tag` of a message, the bytes that it touches, and what it waits for."""

    number: int
    kind: NodeType
    name: str
    num_bytes: int
    after: tuple[int, ...] = ()
    peer: int = -1
    tag: int = 0
    duration_us: int = 0


def export(sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]:
    """One file a rank for every schedule; raises InputError for plans, whose order is that of their channels."""
    refused = ("dialect", "protocol", "in_place", "min_bytes", "max_bytes", "size_bytes", "instances", "max_channels")
    options.refuse("chakra", *refused)
    made = []
    for path, source in sources:
        if isinstance(source, Plan):
            raise InputError(f"{path}: is a plan; expected a schedule, which says what each message waits for")
        name = name_of(source, source.size_bytes)
        for rank, nodes in enumerate(rank_nodes(source)):
            facts = {
                "format": "chakra",
                "collective": source.collective.kind,
                "num_ranks": source.collective.num_ranks,
                "size_bytes": source.size_bytes,
                "rank": rank,
                "nodes": len(nodes),
                "finish_us": s_to_us(source.finish_s),
            }
            made.append(Exported(f"{name}.{rank}.et", trace_bytes(rank, nodes), facts))
    return made


def rank_nodes(schedule: Schedule) -> list[list[Node]]:
    """The nodes of every rank in the order of the schedule, so that ready ones are issued in that order. O(n log n)."""
    messages = schedule.messages
    order = data_order(schedule, time_tolerance(schedule))
    needs: list[set[int]] = [set() for _ in range(len(messages))]
    reads = order.waits_for_done.astype(bool) & ~order.done_waits.astype(bool)
    for before, after in zip(order.before[reads].tolist(), order.after[reads].tolist(), strict=True):
        needs[after].add(before)
    ranks: list[list[Node]] = [[] for _ in range(schedule.topology.num_ranks)]
    # The node behind which the data of a message is there.
    done: dict[int, int] = {}
    arrives = {m: float(messages.start_s[m]) for m in range(len(messages))}
    for m in sorted(arrives, key=lambda m: (arrives[m], messages.src[m] != messages.dst[m], m)):
        src, dst, num_bytes = int(messages.src[m]), int(messages.dst[m]), max(1, ceil(messages.num_bytes[m]))
        chunks = schedule.chunk[messages.rows[m]].tolist()
        title = f"chunk {','.join(map(str, chunks[:4]))}{'...' if len(chunks) > 4 else ''}"
        after = tuple(sorted(done[before] for before in needs[m] if before in done))
        reduces = bool((schedule.op[messages.rows[m]] == REDUCE).any())
        reduce_us = round(s_to_us(float(messages.done_s[m] - messages.arrival_s[m])))
        if src == dst:
            done[m] = _add(ranks[src], NodeType.COMPUTE, f"merge {title}", num_bytes, after, duration_us=reduce_us)
            continue
        _add(ranks[src], NodeType.SEND, f"send {title} to {dst}", num_bytes, after, dst, m)
        done[m] = _add(ranks[dst], NodeType.RECEIVE, f"receive {title} from {src}", num_bytes, (), src, m)
        if reduces:
            behind = (done[m],)
            done[m] = _add(ranks[dst], NodeType.COMPUTE, f"reduce {title}", num_bytes, behind, duration_us=reduce_us)
    for nodes in ranks:
        if not nodes:
            # A rank without any node would never be done.
            _add(nodes, NodeType.COMPUTE, "nothing", 0, ())
    return ranks


def _add(
    nodes: list[Node],
    kind: NodeType,
    name: str,
    num_bytes: int,
    after: tuple[int, ...],
    peer: int = -1,
    tag: int = 0,
    duration_us: int = 0,
) -> int:
    nodes.append(Node(len(nodes), kind, name, num_bytes, after, peer, tag, duration_us))
    return len(nodes) - 1


def trace_bytes(rank: int, nodes: Sequence[Node]) -> bytes:
    """The file of a rank: the metadata, then every node, each behind its length."""
    parts = [protobuf.delimited(protobuf.data(1, VERSION))]
    for node in nodes:
        message = protobuf.number(1, node.number) + protobuf.data(2, node.name) + protobuf.number(3, node.kind)
        message += protobuf.packed(5, list(node.after))
        if node.kind == NodeType.COMPUTE:
            message += protobuf.number(7, node.duration_us)
            attributes = [_attribute("num_ops", node.num_bytes, 9), _attribute("tensor_size", node.num_bytes, 13)]
        else:
            ends = (rank, node.peer) if node.kind == NodeType.SEND else (node.peer, rank)
            attributes = [_attribute("comm_size", node.num_bytes, 9)]
            attributes += [_attribute(f"comm_{end}", value, 7) for end, value in zip(("src", "dst"), ends, strict=True)]
            attributes.append(_attribute("comm_tag", node.tag, 7))
        attributes.append(_attribute("is_cpu_op", 0, 27))
        message += b"".join(protobuf.data(10, attribute) for attribute in attributes)
        parts.append(protobuf.delimited(message))
    return b"".join(parts)


def _attribute(name: str, value: int, field: int) -> bytes:
    """A named value; `field` is the number of its type: 7 int32, 9 int64, 13 uint64, 27 boolean."""
    return protobuf.data(1, name) + protobuf.number(field, value)
