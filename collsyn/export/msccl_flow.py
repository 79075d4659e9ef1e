"""A plan's moves as sends, receives and local steps of MSCCL, with what each must wait for on its own GPU.

Whatever a rank of a plan puts into or gets from another's memory becomes a send there and a receive here: only a GPU's
own thread blocks touch its memory, so the flags between ranks go, and what they protected becomes dependencies between
thread blocks of one GPU.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from operator import attrgetter

import numpy as np

from collsyn.check.interleave import interleaving, owners
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.export.msccl import MAX_COUNT
from collsyn.model.collective import Collective
from collsyn.model.plan import MOVES, Buffer, Op, Plan

# (channel of the plan and its part, source, destination)
Line = tuple[tuple[int, int], int, int]
# (buffer, first chunk)
At = tuple[int, int]
Key = tuple[float, int]


@dataclass(slots=True, eq=False)
class Node:
    """One step to be: `s`, `r`, `rrc` (dst = what comes + src2), `red` (dst = src + src2) or `cpy`, of `count` chunks.

    `key` puts all nodes of all GPUs into one order in which nothing comes before what it must wait for. `needs` are
    earlier nodes of the GPU that touch the same memory, `users` the later ones, `readers` those that read what this one
    writes. `line` is the channel that it sends into or receives from. `begin_s` and `end_s` are when the plan moves it:
    for `s` on the links, for `r` from the first byte sent to the last one there. A `tail` is the end of a message that
    was cut. `block` and `step` will say where it went.
    """

    op: str
    rank: int
    key: Key
    count: int
    dst: At | None = None
    src: At | None = None
    src2: At | None = None
    line: Line | None = None
    begin_s: float = 0.0
    end_s: float = 0.0
    tail: bool = False
    needs: list["Node"] = field(default_factory=list)
    users: list["Node"] = field(default_factory=list)
    readers: list["Node"] = field(default_factory=list)
    block: int = -1
    step: int = -1

    def reads(self) -> list[At]:
        """Places that it reads."""
        return [at for at in (self.src, self.src2) if at is not None]

    @property
    def channel(self) -> tuple[int, int]:
        """The channel of the plan that it is sent through, and its source."""
        assert self.line is not None
        return self.line[0][0], self.line[1]

    def bare(self) -> "Node":
        """The same without others to refer to."""
        return replace(self, needs=[], users=[], readers=[])


@dataclass(frozen=True, eq=False)
class Flow:
    """All nodes by key, and the units of a plan that make up one chunk of the program."""

    plan: Plan
    nodes: list[Node]
    chunk_units: int

    @property
    def num_chunks(self) -> int:
        """Chunks of the larger buffer."""
        return self.plan.total_units // self.chunk_units

    @cached_property
    def lines(self) -> dict[Line, tuple[list[Node], list[Node]]]:
        """Sends and receives of every channel, in order."""
        found: dict[Line, tuple[list[Node], list[Node]]] = {}
        for node in self.nodes:
            if node.line is not None:
                found.setdefault(node.line, ([], []))[node.op != "s"].append(node)
        return found

    def release(self) -> None:
        """Cut the circles in which nodes refer to each other, so that they need no garbage collection."""
        for node in self.nodes:
            for others in (node.needs, node.users, node.readers):
                others.clear()


def data_flow(
    plan: Plan, size_bytes: int | None = None, lanes: int = 1, messages: int | None = None, window: int = 0
) -> Flow:
    """The one flow of a plan; see `Moved`."""
    return Moved.of(plan, size_bytes).flow(lanes, messages, window)


@dataclass(frozen=True, eq=False)
class Moved:
    """The nodes of a plan, with what they need, before their messages are dealt out to channels of a program.

    They come in an order that the flags of the plan allow; `needs[i]` are the numbers of the earlier ones that node i
    must wait for, and whether it reads what they write. `finish_s` is the plan's simulated time (0: not simulated).
    """

    plan: Plan
    chunk_units: int
    finish_s: float
    nodes: list[Node]
    needs: list[dict[int, bool]]

    @classmethod
    def of(
        cls,
        plan: Plan,
        size_bytes: int | None = None,
        longest: int = MAX_COUNT,
        cut: Callable[[list[Node]], Iterable[Node]] | None = None,
    ) -> "Moved":
        """The nodes of a plan in the order in which they are simulated to run at a size, or in any order that its flags
        allow if there is no size (or no topology): then every receive comes directly behind its send, so that no
        channel ever holds more than one message. Moves are of `longest` chunks at most; `cut` may replace nodes by
        others that do the same, with keys to match. O(chunks moved).

        Raises InputError for what programs cannot say, VerificationError for a deadlock.
        """
        units = _chunk_units(plan)
        finish_s, times = _times(plan, size_bytes)
        nodes = list(_nodes(plan, interleaving(plan), units, times, longest))
        if cut is not None:
            nodes = list(cut(nodes))
        return cls(plan, units, finish_s, nodes, _hazards(plan, nodes, units))

    @cached_property
    def messages(self) -> Counter[Line]:
        """Messages from GPU to GPU of every channel of the plan."""
        return Counter(node.line for node in self.nodes if node.op == "s" and node.line is not None)

    @cached_property
    def channels(self) -> set[tuple[int, int]]:
        """Channels of the plan that send, each with its source."""
        return {(channel, source) for (channel, _), source, _ in self.messages}

    def dealt(self, lanes: int, messages: int | None) -> list[tuple[int, int, int, int]]:
        """Per channel of the plan and pair of GPUs that it joins: source, destination, the channels of a program over
        which `flow` deals its messages out, and the messages of the longest of these."""
        found = []
        for (_, source, target), count in self.messages.items():
            number = min(lanes, count) if messages is None else lanes_of(count, messages)
            found.append((source, target, number, -(-count // number)))
        return found

    def flow(self, lanes: int = 1, messages: int | None = None, window: int = 0, strict_until_s: float = 0.0) -> Flow:
        """All nodes with the channels of a program.

        The messages of one channel of the plan from GPU to GPU are dealt out in turns over `lanes` of the program, so
        that more are under way at once; or, if `messages` are given, over as many as take so many each, one after the
        other, which keeps their order on the links. What one channel of the plan sends to several GPUs keeps its order,
        too, if there is a `window`, the messages of it that may be under way at once; of those that the plan sends
        before `strict_until_s`, one. O(nodes log nodes).
        """
        nodes = [each.bare() for each in self.nodes]
        for node, needs in zip(nodes, self.needs, strict=True):
            for number, is_read in needs.items():
                earlier = nodes[number]
                node.needs.append(earlier)
                earlier.users.append(node)
                if is_read:
                    earlier.readers.append(node)
        if lanes > 1 or messages is not None:
            _deal_out(nodes, self.messages, lanes, messages)
        if window:
            _keep_order(nodes, window, strict_until_s)
        last: dict[tuple[bool, Line], Node] = {}
        send: Node | None = None
        for node in nodes:
            begin = max((earlier.key[0] for earlier in node.needs), default=0.0)
            if node.line is not None:
                end = (node.op == "s", node.line)
                if end in last:
                    begin = max(begin, last[end].key[0])
                if node.op == "s":
                    send = node
                elif send is not None:
                    begin = max(begin, send.key[0])
                last[end] = node
            if begin > node.key[0]:
                node.key = (begin, node.key[1])
        return Flow(self.plan, sorted(nodes, key=_by_key), self.chunk_units)


_by_key = attrgetter("key")


def _chunk_units(plan: Plan) -> int:
    """The longest chunk into which all ranges of a plan divide; raises InputError where shards are unequal."""
    collective, factor = plan.collective, plan.units_per_chunk_unit
    _check_shards(collective)
    found = plan.total_units
    if collective.kind not in ("allreduce", "broadcast", "reduce"):
        found //= collective.num_ranks
    moves = np.isin(plan.columns["op"], list(MOVES))
    for key in ("length", "dst_offset", "src_offset"):
        found = gcd(found, int(np.gcd.reduce(plan.columns[key][moves], initial=0)))
    joins = np.isin(plan.columns["op"], [Op.REDUCE, Op.GET_REDUCE])
    found = gcd(found, int(np.gcd.reduce(plan.columns["src2_offset"][joins], initial=0)))
    return gcd(found, int(np.gcd.reduce(collective.units * factor, initial=0)))


def _check_shards(collective: Collective) -> None:
    if len(collective.groups) != 1 or len(collective.groups[0]) != collective.num_ranks:
        raise InputError("groups: a program is for all GPUs of one communicator; export each group's schedule alone")
    if collective.groups[0] != tuple(range(collective.num_ranks)):
        raise InputError("groups: the one group is not in the order of the ranks; a program has GPUs in their order")
    if collective.spec.get("counts") is not None and len(set(collective.spec["counts"])) > 1:
        raise InputError("counts: MSCCL knows no shards of unequal length; export the collective of equal ones")


_Times = tuple[list[float], list[float], list[float]]


def _times(plan: Plan, size_bytes: int | None) -> tuple[float, _Times | None]:
    """When a plan ends, when its instructions begin, when they leave the links, and when what they bring is there."""
    if size_bytes is None or plan.topology is None:
        return 0.0, None
    times = simulate_plan(plan, plan.topology, size_bytes)
    there = np.where(np.isnan(times.arrival_s), times.end_s, times.arrival_s)
    return times.finish_s, (times.start_s.tolist(), times.end_s.tolist(), there.tolist())


def _nodes(plan: Plan, order: Sequence[int], units: int, times: _Times | None, longest: int) -> Iterator[Node]:
    """Nodes in an order that the flags allow, long moves cut into what a step may move; their keys leave room for nodes
    between them."""
    columns = {key: plan.columns[key].tolist() for key in plan.columns}
    owner = owners(plan).tolist()
    channel = np.repeat(np.arange(plan.num_channels), np.diff(plan.channel_ptr)).tolist()
    index = 0
    for i in order:
        op, here, peer = columns["op"][i], owner[i], columns["peer"][i]
        if op not in MOVES or not columns["length"][i]:
            continue
        first_s, last_s, there_s = (0.0, 0.0, 0.0) if times is None else (column[i] for column in times)
        whole = columns["length"][i] // units
        for at in range(0, whole, longest):
            count = min(longest, whole - at)
            begin_s, end_s = (first_s + (last_s - first_s) * part / whole for part in (at, at + count))
            dst, src, src2 = (
                (columns[f"{which}_buffer"][i], columns[f"{which}_offset"][i] // units + at)
                for which in ("dst", "src", "src2")
            )
            index += 4
            key = (begin_s, index)
            if op == Op.REDUCE:
                yield Node("red", here, key, count, dst, src, src2, begin_s=begin_s, end_s=end_s)
            elif op == Op.COPY or peer == here:
                if dst != src:
                    yield Node("cpy", here, key, count, dst, src, begin_s=begin_s, end_s=end_s)
            else:
                source, target = (here, peer) if op == Op.PUT else (peer, here)
                line = ((channel[i], 0), source, target)
                yield Node("s", source, key, count, src=src, line=line, begin_s=begin_s, end_s=end_s)
                joins = op == Op.GET_REDUCE
                second = src2 if joins else None
                kind = "rrc" if joins else "r"
                arrival_s = end_s + (there_s - last_s)
                key = (arrival_s, index + 2)
                yield Node(kind, target, key, count, dst, None, second, line, begin_s=begin_s, end_s=arrival_s)


def _deal_out(nodes: Sequence[Node], total: Counter[Line], lanes: int, messages: int | None) -> None:
    """Give every message one of the lanes of its line; receives follow their sends. If not in turns, a lane begins when
    the one before it is through, so that no more is under way than on one."""
    sent: Counter[Line] = Counter()
    last: dict[Line, tuple[int, Node]] = {}
    lane = 0
    for node in nodes:
        if node.line is None:
            continue
        if node.op == "s":
            number, count = sent[node.line], total[node.line]
            sent[node.line] += 1
            lane = number % lanes if messages is None else number * lanes_of(count, messages) // count
            before = last.get(node.line)
            if messages is not None and before is not None and before[0] != lane:
                _put_behind(before[1], node)
            last[node.line] = lane, node
        (channel, _), source, target = node.line
        node.line = ((channel, lane), source, target)


def lanes_of(count: int, messages: int) -> int:
    """Lanes over which so many messages are dealt out one after the other, of `messages` each at most."""
    return -(-count // messages)


def _put_behind(earlier: Node, node: Node) -> None:
    """Make a node wait for an earlier one."""
    if earlier not in node.needs:
        node.needs.append(earlier)
        earlier.users.append(node)


def _keep_order(nodes: Sequence[Node], window: int, strict_until_s: float) -> None:
    """Make every send wait for those that come `window` and more before it in its channel of the plan, early ones for
    the last one; nobody waits for a tail."""
    sent: dict[tuple[int, int], deque[Node]] = defaultdict(lambda: deque(maxlen=window))
    for node in nodes:
        if node.op == "s":
            before = sent[node.channel]
            back = 1 if node.begin_s < strict_until_s else window
            if len(before) >= back and before[-back].line != node.line:
                _put_behind(before[-back], node)
            if not node.tail:
                before.append(node)


def _hazards(plan: Plan, nodes: Sequence[Node], units: int) -> list[dict[int, bool]]:
    """Per node the numbers of the earlier ones that it needs, out of place and in place at once: those that it reads
    from (True), and those that wrote or read what it overwrites. O(chunks moved)."""
    found: list[dict[int, bool]] = [{} for _ in nodes]
    places = [_out_of_place]
    if plan.collective.has_in_place:
        places.append(_InPlace(plan, units).place)
    for place in places:
        # Last writer, and readers since, of every chunk.
        writer: dict[tuple[int, int, int], int] = {}
        readers: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, node in enumerate(nodes):
            dst = None if node.dst is None else place(node.rank, node.dst)
            if node.op == "cpy" and node.src and place(node.rank, node.src) == dst:
                continue
            needs, rank = found[number], node.rank
            for at in node.reads():
                buffer, first = place(rank, at)
                for chunk in range(first, first + node.count):
                    cell = (rank, buffer, chunk)
                    if cell in writer:
                        needs[writer[cell]] = True
                    readers[cell].append(number)
            if dst is None:
                continue
            buffer, first = dst
            for chunk in range(first, first + node.count):
                cell = (rank, buffer, chunk)
                for reader in readers.pop(cell, ()):
                    if reader != number:
                        needs.setdefault(reader, False)
                if cell in writer:
                    needs.setdefault(writer[cell], False)
                writer[cell] = number
    return found


def _out_of_place(rank: int, at: At) -> At:
    return at


class _InPlace:
    """Where buffers lie in place: in the memory of the larger one."""

    def __init__(self, plan: Plan, units: int) -> None:
        collective = plan.collective
        self._shift: list[tuple[int, int, int] | None] = []
        for rank in range(collective.num_ranks):
            inside, chunk = collective.in_place_chunk(rank)
            if inside == "same":
                self._shift.append((Buffer.INPUT, Buffer.OUTPUT, 0))
            elif inside == "apart" or chunk is None:
                self._shift.append(None)
            else:
                outer = "output" if inside == "input" else "input"
                start = int(collective.units_start(np.array([chunk]), outer)[0])
                inner = Buffer.INPUT if inside == "input" else Buffer.OUTPUT
                larger = Buffer.OUTPUT if inside == "input" else Buffer.INPUT
                self._shift.append((inner, larger, start * plan.units_per_chunk_unit // units))

    def place(self, rank: int, at: At) -> At:
        """The place in the larger buffer."""
        shift = self._shift[rank]
        if shift is None or at[0] != shift[0]:
            return at
        return shift[1], at[1] + shift[2]
