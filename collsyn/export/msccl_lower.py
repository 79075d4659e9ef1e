"""Makes an MSCCL program of a plan: thread blocks, fused steps, dependencies (docs/formats/msccl-xml.md)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from collsyn.export.msccl import Block, Gpu, Step
from collsyn.export.msccl_flow import At, Flow, Key, Line, Node
from collsyn.model.plan import Buffer

_SCRATCH = int(Buffer.SCRATCH)
_NAMES: dict[int, str] = {Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}
# Where a `nop` is said to read and write.
_NOWHERE, _NOWHERE_ELSE = (Buffer.INPUT, -1), (Buffer.OUTPUT, -1)


def make_gpus(flow: Flow, fused: bool = True, paired: bool = True, patience_s: float = float("inf")) -> tuple[Gpu, ...]:
    """The thread blocks of all GPUs. O(nodes log nodes + nodes x thread blocks of a GPU).

    Every channel between two GPUs has a thread block at either end; if `paired`, two ends of a GPU of which one mostly
    hands on what comes in at the other become one thread block. If `fused`, its steps receive and send at once, and
    reductions take what they add from the channel. Steps are in the order of the flow, fused ones where their last
    part was. A receive that would wait for other things longer than `patience_s` after its first byte was sent, and
    keep the channel full and its sender waiting, is not fused: other thread blocks, which have no channel, do what
    comes after all receives that are not.
    """
    chains = _chains(flow, patience_s) if fused else {}
    blocks = _Blocks(flow, chains, paired, apart=patience_s < float("inf"))
    merged = _merge(flow, chains)
    return _Writer(flow, blocks, merged).gpus()


def _chains(flow: Flow, patience_s: float) -> dict[Node, list[Node]]:
    """Per receive, the steps that it may become one with: a reduction of what it brings, and a send of the result."""

    def soon(node: Node) -> bool:
        return _others_end_s(node, chain) <= chain[0].begin_s + patience_s

    found = {}
    for node in flow.nodes:
        if node.op not in ("r", "rrc"):
            continue
        chain, last = [node], node
        if node.op == "r":
            joined = _next(node)
            if joined is not None and joined.op == "red" and _brings(node, joined) and soon(joined):
                chain.append(joined)
                last = joined
        sent = _next(last)
        if sent is not None and sent.op == "s" and (sent.src, sent.count) == (last.dst, last.count) and soon(sent):
            chain.append(sent)
        if len(chain) > 1:
            found[node] = chain
    return found


def _next(node: Node) -> Node | None:
    """The first later step that touches what a node writes."""
    return min(node.users, key=lambda user: user.key, default=None)


def _others_end_s(node: Node, chain: Sequence[Node]) -> float:
    """When all that a node needs is done, but for a chain that it may join."""
    return max((max(other.end_s, other.key[0]) for other in node.needs if other not in chain), default=0.0)


def _brings(node: Node, joined: Node) -> bool:
    """Whether a reduction is all that ever reads what a receive brings, so that nobody has to store it."""
    assert node.dst is not None
    passing = node.dst[0] == Buffer.SCRATCH or node.dst == joined.dst
    return passing and joined.count == node.count and node.dst in joined.reads() and node.readers == [joined]


class _Blocks:
    """Thread blocks of all GPUs: which channels they serve, and which nodes are theirs."""

    def __init__(self, flow: Flow, chains: dict[Node, list[Node]], paired: bool, apart: bool) -> None:
        self.lines = flow.lines
        # Per GPU and thread block the channel that comes in and the one that goes out.
        self.ends: list[list[tuple[Line | None, Line | None]]] = [[] for _ in range(flow.plan.num_ranks)]
        partner = self._partners(chains if paired else {})
        of_end: dict[tuple[bool, Line], int] = {}
        for line in sorted(self.lines, key=lambda line: (line[0], line[1], line[2])):
            for sends, rank in ((True, line[1]), (False, line[2])):
                if (sends, line) in of_end:
                    continue
                other = partner.get((sends, line))
                of_end[sends, line] = len(self.ends[rank])
                if other is not None:
                    of_end[not sends, other] = len(self.ends[rank])
                self.ends[rank].append((other, line) if sends else (line, other))
        fused = {part for chain in chains.values() for part in chain}
        self._deal_out(flow, of_end, fused if apart else None)
        self.channel = self._channels(partner)

    def _partners(self, chains: dict[Node, list[Node]]) -> dict[tuple[bool, Line], Line]:
        """Channels whose ends at a GPU are one thread block: those that hand on at least half of what they carry.

        Channels that are joined so get one number, and there is only one of a number between two GPUs.
        """
        votes: Counter[tuple[Line, Line]] = Counter()
        for node, chain in chains.items():
            if chain[-1].op == "s" and node.line is not None and chain[-1].line is not None:
                votes[node.line, chain[-1].line] += 1
        partner: dict[tuple[bool, Line], Line] = {}
        joined = {line: {line} for line in self.lines}
        for (into, out), count in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
            enough = 2 * count >= max(len(self.lines[into][1]), len(self.lines[out][0]))
            if not enough or (False, into) in partner or (True, out) in partner:
                continue
            one, other = joined[into], joined[out]
            if one is not other and {line[1:] for line in one} & {line[1:] for line in other}:
                continue
            partner[False, into], partner[True, out] = out, into
            for line in other - one:
                one.add(line)
                joined[line] = one
        return partner

    def _deal_out(self, flow: Flow, of_end: dict[tuple[bool, Line], int], fused: set[Node] | None) -> None:
        """Give every node its thread block: a local one that which received its data (or, if `fused` are given and it
        is none of them, one beside that), else the shortest of the GPU."""
        beside: dict[tuple[int, int], int] = {}
        sizes: list[Counter[int]] = [Counter(range(len(ends))) for ends in self.ends]
        for node in flow.nodes:
            if node.line is not None:
                node.block = of_end[node.op == "s", node.line]
                sizes[node.rank][node.block] += 1
        for node in flow.nodes:
            if node.line is not None:
                continue
            made = [earlier for earlier in node.needs if node in earlier.readers and earlier.block >= 0]
            if made:
                node.block = max(made, key=lambda earlier: (earlier.op == "r", earlier.key)).block
                if fused is not None and node not in fused:
                    node.block = self._beside(node, beside)
            else:
                if not self.ends[node.rank]:
                    self.ends[node.rank].append((None, None))
                node.block = min(range(len(self.ends[node.rank])), key=lambda b, n=node: (sizes[n.rank][b], b))  # type: ignore[misc]
            sizes[node.rank][node.block] += 1

    def _beside(self, node: Node, known: dict[tuple[int, int], int]) -> int:
        """The thread block without a channel beside that of a node, which is that itself if it has none."""
        ends, home = self.ends[node.rank], (node.rank, node.block)
        if ends[node.block] == (None, None):
            return node.block
        if home not in known:
            known[home] = len(ends)
            ends.append((None, None))
        return known[home]

    def _channels(self, partner: dict[tuple[bool, Line], Line]) -> dict[Line, int]:
        """Numbers of channels: equal where a thread block has both, different between the same two GPUs."""
        found: dict[Line, int] = {}
        taken: dict[tuple[int, int], set[int]] = defaultdict(set)
        for line in sorted(self.lines):
            if line in found:
                continue
            together, waiting = {line}, [line]
            while waiting:
                one = waiting.pop()
                for other in (partner.get((True, one)), partner.get((False, one))):
                    if other is not None and other not in together:
                        together.add(other)
                        waiting.append(other)
            used = set().union(*(taken[one[1], one[2]] for one in together))
            number = next(number for number in range(len(used) + 1) if number not in used)
            for one in together:
                found[one] = number
                taken[one[1], one[2]].add(number)
        return found


def _merge(flow: Flow, chains: dict[Node, list[Node]]) -> dict[Node, list[Node]]:
    """The chains that become one step, by their last node: all of one thread block, and receives stay in order."""
    merged: dict[Node, list[Node]] = {}
    for _, receives in flow.lines.values():
        behind: Key = (float("inf"), 0)
        for node in reversed(receives):
            chain = chains.get(node, [node])
            while len(chain) > 1 and not (
                chain[-1].key < behind and all(part.block == node.block for part in chain) and _is_step(chain)
            ):
                chain = chain[:-1]
            behind = chain[-1].key
            merged[chain[-1]] = chain
    for node in flow.nodes:
        if node.line is None or node.op == "s":
            merged.setdefault(node, [node])
    inside = {part for last, chain in merged.items() for part in chain if part is not last}
    return {last: chain for last, chain in merged.items() if last not in inside}


def _is_step(chain: Sequence[Node]) -> bool:
    return [node.op for node in chain] in (["r", "s"], ["r", "red"], ["rrc", "s"], ["r", "red", "s"])


@dataclass(slots=True, eq=False)
class _Draft:
    """A step in the making: `knows` are the last steps of other thread blocks that are done when it is."""

    op: str
    src: At
    dst: At
    count: int
    knows: dict[int, int]
    dep_block: int = -1
    dep_step: int = -1
    has_dep: bool = False

    def step(self, number: int, scratch: dict[int, int]) -> Step:
        """The step, with its number, and scratch packed."""
        (src_buffer, src), (dst_buffer, dst) = self.src, self.dst
        return Step(
            self.op,
            _NAMES[src_buffer],
            scratch[src] if src_buffer == _SCRATCH else src,
            _NAMES[dst_buffer],
            scratch[dst] if dst_buffer == _SCRATCH else dst,
            self.count,
            self.dep_block,
            self.dep_step,
            self.has_dep,
            number,
        )


class _Writer:
    """Steps of all thread blocks, in order."""

    def __init__(self, flow: Flow, blocks: _Blocks, merged: dict[Node, list[Node]]) -> None:
        self._flow, self._blocks, self._merged = flow, blocks, merged
        self._drafts: list[list[list[_Draft]]] = [[[] for _ in ends] for ends in blocks.ends]
        # What thread blocks know; replaced, never changed: drafts keep them.
        self._known: list[list[dict[int, int]]] = [[{} for _ in ends] for ends in blocks.ends]

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs."""
        for last in sorted(self._merged, key=attrgetter("key")):
            self._emit(self._merged[last])
        collective, unit = self._flow.plan.collective, self._flow.chunk_units
        extents = self._flow.plan.buffer_units() // unit
        gpus = []
        for rank in range(collective.num_ranks):
            scratch = self._pack_scratch(rank)
            blocks = []
            for b, (into, out) in enumerate(self._blocks.ends[rank]):
                line = into or out
                blocks.append(
                    Block(
                        send=-1 if out is None else out[2],
                        recv=-1 if into is None else into[1],
                        channel=0 if line is None else self._blocks.channel[line],
                        steps=tuple(draft.step(s, scratch) for s, draft in enumerate(self._drafts[rank][b])),
                        number=b,
                    )
                )
            inputs, outputs = (int(extents[rank, buffer]) for buffer in (Buffer.INPUT, Buffer.OUTPUT))
            gpus.append(Gpu(inputs, outputs, len(scratch), tuple(blocks), rank))
        return tuple(gpus)

    def _emit(self, chain: Sequence[Node]) -> None:
        """The steps of one chain: its waits, then itself."""
        rank, block = chain[0].rank, chain[0].block
        drafts = self._drafts[rank][block]
        waits = self._waits(chain)
        known = self._known[rank][block]
        for b, s in waits[:-1]:
            drafts.append(_Draft("nop", _NOWHERE, _NOWHERE_ELSE, 0, known, b, s))
        begin = len(drafts)
        drafts += [_Draft(*step, known) for step in _steps_of(chain)]
        if waits:
            drafts[begin].dep_block, drafts[begin].dep_step = waits[-1]
        for node in chain:
            node.step = len(drafts) - 1

    def _waits(self, chain: Sequence[Node]) -> list[tuple[int, int]]:
        """Steps of other thread blocks to wait for, what others imply left out; they will tell that they are done."""
        rank, block = chain[0].rank, chain[0].block
        needs = {earlier for node in chain for earlier in node.needs if earlier.block != block}
        if not needs:
            return []
        known = self._known[rank][block]
        waits: list[tuple[int, int]] = []
        for earlier in sorted(needs, key=attrgetter("key"), reverse=True):
            other, at = earlier.block, earlier.step
            if known.get(other, -1) >= at:
                continue
            if not waits:
                known = self._known[rank][block] = dict(known)
            waits.append((other, at))
            known[other] = at
            draft = self._drafts[rank][other][at]
            draft.has_dep = True
            for b, s in draft.knows.items():
                if known.get(b, -1) < s:
                    known[b] = s
        return waits

    def _pack_scratch(self, rank: int) -> dict[int, int]:
        """New places of the chunks of scratch that steps still use."""
        used: set[int] = set()
        for drafts in self._drafts[rank]:
            for draft in drafts:
                for buffer, at in (draft.src, draft.dst):
                    if buffer == _SCRATCH:
                        used.update(range(at, at + draft.count))
        return {chunk: number for number, chunk in enumerate(sorted(used))}


def _steps_of(chain: Sequence[Node]) -> Iterable[tuple[str, At, At, int]]:
    """Operation, source, destination and chunks: one step for a fused chain, two for a reduction into a third place."""
    first, count = chain[0], chain[0].count
    joins = next((node for node in chain if node.op in ("rrc", "red")), None)
    sends = chain[-1].op == "s" and len(chain) > 1
    if joins is not None and first.op in ("r", "rrc"):
        assert joins.dst is not None
        other = joins.src2
        if first.op == "r" and other == first.dst:
            other = joins.src
        assert other is not None
        if sends and _passes(joins, chain[-1]):
            yield "rrs", other, other, count
        else:
            yield ("rrcs" if sends else "rrc"), other, joins.dst, count
    elif first.op == "r":
        assert first.dst is not None
        yield ("rcs" if sends else "r"), first.dst, first.dst, count
    elif first.op == "s":
        assert first.src is not None
        yield "s", first.src, first.src, count
    else:
        assert first.dst is not None and first.src is not None
        if first.op == "cpy":
            yield "cpy", first.src, first.dst, count
            return
        assert first.src2 is not None
        src, other = (first.src, first.src2) if first.dst != first.src else (first.src2, first.src)
        if first.dst != other:
            yield "cpy", other, first.dst, count
        yield "re", src, first.dst, count


def _passes(joined: Node, sent: Node) -> bool:
    """Whether nobody but a send needs a sum where it would be stored."""
    assert joined.dst is not None
    overwritten = any(user.dst == joined.dst and user.count == joined.count for user in joined.users)
    return joined.readers == [sent] and (joined.dst[0] == Buffer.SCRATCH or overwritten)
