"""Cuts the ends off messages, so that a thread block hands over to the next while its last bytes are on the links.

A thread block says that a send is done when all of it has arrived. One that waits for this to send over the same port
leaves the port idle for a latency; one that waits for all but the tail of it does not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from collsyn.export.msccl_flow import At, Node


def cut_tails(nodes: Sequence[Node], piece: int, whole_pieces: bool) -> Iterator[Node]:
    """The nodes with tails cut off sends that another GPU's send of the same channel of the plan follows, off their
    receives, and off the reductions of just what these bring.

    A message travels in pieces of `piece` chunks at most. With `whole_pieces` the tail is the last of several pieces,
    so that there are no more of them; else it lasts as long as the latency that it hides. O(nodes).
    """
    tails = _tails(nodes, piece, whole_pieces)
    # Where the parts of what was cut lie: (rank, place, chunks) -> chunks of its tail.
    made: dict[tuple[int, At | None, int], int] = {}
    tail = 0
    for number, node in enumerate(nodes):
        if node.op == "s":
            tail = tails.get(number, 0)
        elif node.line is None:
            tail = max((made.get((node.rank, at, node.count), 0) for at in node.reads()), default=0)
        place = (node.rank, node.dst, node.count)
        if not tail:
            made.pop(place, None)
            yield node
            continue
        if node.dst is not None:
            made[place] = tail
        yield from _parts(node, node.count - tail)


def _tails(nodes: Sequence[Node], piece: int, whole_pieces: bool) -> dict[int, int]:
    """Chunks of the tails to cut off, by the number of the send; its receive comes directly behind it."""
    found: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    for number, node in enumerate(nodes):
        if node.op != "s":
            continue
        before = last.get(node.channel)
        last[node.channel] = number
        if before is None or nodes[before].line == node.line:
            continue
        sent, took_s = nodes[before], nodes[before].end_s - nodes[before].begin_s
        latency_s = nodes[before + 1].end_s - sent.end_s
        if whole_pieces:
            tail = sent.count % piece or piece
        else:
            tail = ceil(latency_s / took_s * sent.count) if took_s > 0 else 0
        if 0 < tail < sent.count and latency_s > 0:
            found[before] = tail
    return found


def _parts(node: Node, count: int) -> tuple[Node, Node]:
    """The first `count` chunks of a node, and the others."""
    middle_s = node.begin_s + (node.end_s - node.begin_s) * count / node.count
    dst, src, src2 = (None if at is None else (at[0], at[1] + count) for at in (node.dst, node.src, node.src2))
    # A send goes on when its first part is through; what a receive brings counts as there when all of it is.
    key = middle_s if node.op == "s" else node.key[0]
    first = replace(node.bare(), count=count, end_s=middle_s if node.op == "s" else node.end_s)
    others = replace(
        node.bare(), key=(key, node.key[1] + 1), count=node.count - count, dst=dst, src=src, src2=src2, tail=True
    )
    return first, others
