"""How the thread blocks of a MSCCL++ program agree: threads of a block, signals and waits, packets, and deadlocks."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

from collsyn.check.report import Problem
from collsyn.export.mscclpp import Program
from collsyn.export.mscclpp_lanes import Entry, Key, Lanes, place_name
from collsyn.model.plan import Op

# Orders of thread blocks that are tried where several of them take from one counter.
_SEEDS = (0, 1, 2, 3, 4, 5)
_SHOWN = 3
# (rank, buffer, begin, end, whether it writes)
_Access = tuple[int, int, int, int, bool]


def thread_problems(lanes: Lanes) -> Iterator[Problem]:
    """Where the threads of a block go on before all of them are done, since no `nop` holds them.

    Threads share out every range in the same way, so that two operations on one whole range need none in between.
    """
    for lane in lanes.lanes:
        if not lane.is_block:
            continue
        moves: list[Entry] = []
        waits: list[Entry] = []
        for entry in lane.entries:
            if entry.kind == "sync":
                moves, waits = [], []
            elif entry.kind in ("move", "queue"):
                if waits:
                    yield _unheld(waits[-1], entry, "runs before the wait ends")
                met = next((before for before in moves if clash(lane.rank, before, entry)), None)
                if met is not None:
                    yield _unheld(met, entry, f"meets the memory of {place_name(met.origin)}")
                moves.append(entry)
            elif entry.kind == "give":
                if moves and moves[-1].kind == "move":
                    yield _unheld(moves[-1], entry, "tells others before the data is there")
                elif waits and max(entry.threads, waits[-1].threads) > 1 and waits[-1].origin != entry.origin:
                    yield _unheld(waits[-1], entry, "tells others before the wait ends")
            elif entry.kind == "take":
                waits.append(entry)
    yield from _relaxed_problems(lanes)


def _unheld(before: Entry, entry: Entry, what: str) -> Problem:
    return Problem(
        place_name(entry.origin), f"{what}: wrong data at times", f"a nop behind {place_name(before.origin)}", "none"
    )


def clash(rank: int, before: Entry, entry: Entry) -> bool:
    """Whether two operations touch the same memory, one of them writing, through different threads."""
    if before.origin == entry.origin:
        return False
    for a in _accesses(rank, before):
        for b in _accesses(rank, entry):
            if a[:2] != b[:2] or not (a[4] or b[4]) or a[2] >= b[3] or b[2] >= a[3]:
                continue
            if a[2:4] != b[2:4] or before.packets != entry.packets or "queue" in (before.kind, entry.kind):
                return True
    return False


def _accesses(rank: int, entry: Entry) -> Iterator[_Access]:
    length, from_peer = entry.length, entry.op in (Op.GET, Op.GET_REDUCE)
    yield (entry.peer if from_peer else rank, entry.src[0], entry.src[1], entry.src[1] + length, False)
    if entry.kind == "queue":
        return
    if entry.op in (Op.REDUCE, Op.GET_REDUCE):
        yield (rank, entry.src2[0], entry.src2[1], entry.src2[1] + length, False)
    yield (entry.peer if entry.op == Op.PUT else rank, entry.dst[0], entry.dst[1], entry.dst[1] + length, True)


def _relaxed_problems(lanes: Lanes) -> Iterator[Problem]:
    """Data stored at another GPU and announced by relaxed signals alone, which order no memory."""
    switched = ("glres", "gstore", "gstorepkt")
    for lane in lanes.lanes:
        open_writes: dict[int, tuple[Entry, Entry | None]] = {}
        for entry in lane.entries:
            if entry.kind == "move" and entry.op == Op.PUT and not entry.packets:
                if not entry.origin[2].endswith(switched):
                    open_writes[entry.peer] = (entry, None)
            elif entry.kind == "give" and entry.peer in open_writes:
                if entry.relaxed:
                    open_writes[entry.peer] = (open_writes[entry.peer][0], entry)
                else:
                    del open_writes[entry.peer]
        for write, signal in open_writes.values():
            if signal is not None:
                what = f"does not publish {place_name(write.origin)}: wrong data at times"
                yield Problem(place_name(signal.origin), what, "signal", "rlxsignal")


def signal_problems(lanes: Lanes) -> Iterator[Problem]:
    """Signals and waits of every channel and semaphore that do not even out, barriers of other numbers of thread
    blocks, and packets that are written twice."""
    given, taken = (_counted(lanes, kind) for kind in ("give", "take"))
    for key in sorted({*given, *taken}, key=str):
        signals, waits = given.get(key, []), taken.get(key, [])
        if len(signals) == len(waits):
            continue
        if key[1] == "semaphore":
            here, names = f"gpu {key[0]} semaphore {key[2]}", "releases as acquires"
        else:
            here, names = f"gpu {key[2]} -> gpu {key[0]} {key[1]} channel {key[3]}", "signals as waits"
        rest = "a hang" if len(waits) > len(signals) else "the next call starts with what is left"
        yield Problem(here, rest, f"as many {names}", f"{len(signals)} and {len(waits)}")
    yield from _barrier_problems(lanes.program)
    for rank, packets in sorted(lanes.packets.items()):
        ordered = sorted(packets, key=lambda packet: packet[:2])
        for (_, end, _), (begin, _, _) in itertools.pairwise(ordered):
            if begin < end:
                here = f"gpu {rank} scratch chunk {begin // lanes.chunk_units}"
                yield Problem(here, "packets are written twice: wrong data at times", "one write a call", "two")
                break


def _counted(lanes: Lanes, kind: str) -> dict[Key, list[Entry]]:
    found: dict[Key, list[Entry]] = defaultdict(list)
    for lane in lanes.lanes:
        for entry in lane.entries:
            if entry.kind == kind:
                found[entry.key].append(entry)
    return found


def _barrier_problems(program: Program) -> Iterator[Problem]:
    members: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    asked: dict[tuple[int, int], set[int]] = defaultdict(set)
    for g, b, _, op in program.operations():
        if op.name == "barrier":
            members[g, op.barrier][b] += 1
            asked[g, op.barrier].add(op.num_blocks)
    for (g, barrier), blocks in sorted(members.items()):
        here = f"gpu {g} barrier {barrier}"
        if asked[g, barrier] != {len(blocks)}:
            found = ", ".join(map(str, sorted(asked[g, barrier])))
            yield Problem(here, "num_threadblocks: a hang, or no barrier", f"{len(blocks)}, who have it", found)
        elif len(set(blocks.values())) > 1:
            yield Problem(here, "comes more often in some thread blocks: a hang", "equally often", str(dict(blocks)))


def deadlock_problems(lanes: Lanes) -> list[Problem]:
    """Whether thread blocks wait for each other for ever, in one of some orders.

    Where no two lanes take from one counter all orders are alike.
    """
    takers: dict[Key, set[int]] = defaultdict(set)
    for number, lane in enumerate(lanes.lanes):
        for entry in lane.entries:
            if entry.kind == "take":
                takers[entry.key].add(number)
    contended = any(len(those) > 1 for those in takers.values())
    for seed in _SEEDS if contended else _SEEDS[:1]:
        stuck = _stuck(lanes, random.Random(seed))
        if stuck:
            where = place_name(stuck[0].origin)
            others = "; ".join(place_name(entry.origin) for entry in stuck[1:_SHOWN])
            more = f" and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
            found = f"a hang, as do {others}{more}" if others else "a hang"
            return [Problem(where, "waits for ever", "every thread block to end", found)]
    return []


def _stuck(lanes: Lanes, order: random.Random) -> list[Entry]:
    """Where lanes stand when none can go on; proxies and what surrounds a rank come last."""
    level: dict[Key, int] = defaultdict(int)
    for g, gpu in enumerate(lanes.program.gpus):
        for number, value in enumerate(gpu.semaphores):
            level[g, "semaphore", number] = value
    at = [0] * len(lanes.lanes)
    turns = list(range(len(lanes.lanes)))
    moved = True
    while moved:
        moved = False
        order.shuffle(turns)
        for number in turns:
            lane = lanes.lanes[number]
            while at[number] < len(lane.entries) and _passes(lanes, lane.rank, lane.entries[at[number]], level):
                at[number] += 1
                moved = True
                if order.random() < 0.1:
                    break
    left = [(not lane.is_block, i) for i, lane in enumerate(lanes.lanes) if at[i] < len(lane.entries)]
    return [lanes.lanes[i].entries[at[i]] for _, i in sorted(left)]


def _passes(lanes: Lanes, rank: int, entry: Entry, level: dict[Key, int]) -> bool:
    """Whether an entry can be done now; does it to the counters and flags."""
    if entry.kind == "take":
        if level[entry.key] < 1:
            return False
        level[entry.key] -= 1
    elif entry.kind == "give":
        level[entry.key] += 1
    elif entry.kind == "set":
        level[entry.key] = entry.value
    elif entry.kind == "need":
        return level[entry.key] >= entry.value
    elif entry.kind == "fetch":
        begin, end = entry.dst[1], entry.dst[1] + entry.length
        covered = begin
        for a, b, key in sorted(lanes.packets.get(rank, ()), key=lambda packet: packet[:2]):
            if a < end and begin < b:
                if a > covered or not level[key]:
                    return False
                covered = max(covered, b)
        return covered >= end
    return True
