"""Runs MSCCL XML step by step, in any order that its runtime allows; knows nothing of the code under test.

Thread blocks are generators that yield between memory accesses and at every wait. A seed draws which of those that can
go on goes on: mostly the one of the highest priority, priorities being random and changing now and then.
"""

import random
import xml.etree.ElementTree as ET
from collections import defaultdict, deque

DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}
MODULUS = 1 << 64


class Hang(Exception):
    """Nothing can go on."""


class Crash(Exception):
    """A place that is not there."""


class Run:
    """One execution; `memory[gpu][buffer]` are lists of numbers, in place `i` and `o` being parts of one list."""

    def __init__(self, text, in_place, seed, longest=1, root=0):
        self.algo = ET.fromstring(text)
        self.kind = self.algo.get("coll").replace("_", "")
        self.gpus = self.algo.findall("gpu")
        self.n, self.chunks = len(self.gpus), int(self.algo.get("nchunksperloop"))
        self.depth, self.longest, self.root = DEPTH[self.algo.get("proto")], longest, root
        self.random = random.Random(seed)
        self.fifo = defaultdict(deque)
        self.done = defaultdict(lambda: -1)
        self.memory = [self._memory(g, gpu, in_place) for g, gpu in enumerate(self.gpus)]

    def _sizes(self):
        shard = self.chunks // self.n
        small_input = self.kind in ("allgather", "gather")
        small_output = self.kind in ("reducescatter", "scatter")
        return shard if small_input else self.chunks, shard if small_output else self.chunks

    def _memory(self, g, gpu, in_place):
        inputs, outputs = self._sizes()
        shared = [self.random.getrandbits(64) for _ in range(max(inputs, outputs))]
        at = {"i": g * inputs if inputs < outputs else 0, "o": g * outputs if outputs < inputs else 0, "s": 0}
        own = [value_of(g, chunk) for chunk in range(inputs)]
        lists = {"i": own, "o": shared, "s": [self.random.getrandbits(64) for _ in range(int(gpu.get("s_chunks")))]}
        if in_place:
            shared[at["i"] : at["i"] + inputs] = own
            lists["i"] = shared
        else:
            at["i"] = at["o"] = 0
        return {name: (lists[name], at[name], {"i": inputs, "o": outputs}.get(name)) for name in "ios"}

    def load(self, g, buffer, chunk):
        values, at, size = self.memory[g][buffer]
        if not 0 <= chunk < (len(values) if size is None else size):
            raise Crash
        return values[at + chunk]

    def store(self, g, buffer, chunk, value):
        values, at, size = self.memory[g][buffer]
        if not 0 <= chunk < (len(values) if size is None else size):
            raise Crash
        values[at + chunk] = value

    def block(self, g, tb):
        """A thread block: yields None between accesses, and a condition where it waits."""
        send, recv, channel, number = (int(tb.get(key)) for key in ("send", "recv", "chan", "id"))
        into, out = self.fifo[channel, recv, g], self.fifo[channel, g, send]
        dropped = 0
        for position, step in enumerate(tb.findall("step")):
            kind, count = step.get("type"), int(step.get("cnt"))
            block, wanted = int(step.get("depid")), int(step.get("deps"))
            if kind == "nop" and block < 0:
                dropped += 1
                continue
            if block >= 0:
                yield lambda block=block, wanted=wanted: self.done[g, block] >= wanted
            src, dst = ((step.get(f"{side}buf"), int(step.get(f"{side}off"))) for side in ("src", "dst"))
            for first in range(0, count if kind != "nop" else 0, self.longest):
                piece = range(first, min(count, first + self.longest))
                brought = None
                if kind in ("r", "rcs", "rrc", "rrs", "rrcs"):
                    yield lambda: len(into) > 0
                    brought = into[0]
                    if len(brought) != len(piece):
                        raise Crash
                if kind in ("s", "rcs", "rrs", "rrcs"):
                    yield lambda: len(out) < self.depth
                values = []
                for k in piece:
                    value = 0 if brought is None else brought[k - first]
                    if kind in ("s", "cpy", "re", "rrs", "rrc", "rrcs"):
                        value += self.load(g, src[0], src[1] + k)
                    if kind == "re":
                        yield None
                        value += self.load(g, dst[0], dst[1] + k)
                    values.append(value % MODULUS)
                    yield None
                if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
                    for k, value in zip(piece, values, strict=True):
                        self.store(g, dst[0], dst[1] + k, value)
                        yield None
                if brought is not None:
                    if not into or into[0] is not brought:
                        raise Crash
                    into.popleft()
                if kind in ("s", "rcs", "rrs", "rrcs"):
                    out.append(values)
            if step.get("hasdep") == "1":
                self.done[g, number] = max(self.done[g, number], position - dropped)

    def go(self):
        """Run to the end; raises Hang or Crash."""
        blocks = [self.block(g, tb) for g, gpu in enumerate(self.gpus) for tb in gpu.findall("tb")]
        waits = [None] * len(blocks)
        priority = [self.random.random() for _ in blocks]
        running = set(range(len(blocks)))
        while running:
            ready = [b for b in running if waits[b] is None or waits[b]()]
            if not ready:
                raise Hang
            if self.random.random() < 0.02:
                priority[self.random.randrange(len(blocks))] = self.random.random()
            chosen = max(ready, key=priority.__getitem__) if self.random.random() < 0.9 else self.random.choice(ready)
            try:
                # A slow thread block is slow for long: it goes some way before another is drawn.
                for _ in range(self.random.choice((1, 1, 4, 16))):
                    waits[chosen] = next(blocks[chosen])
                    if waits[chosen] is not None and not waits[chosen]():
                        break
            except StopIteration:
                running.discard(chosen)
        if any(self.fifo.values()):
            raise Hang

    def wrong(self):
        """Whether the output is not what the collective means, or an input of its own was changed."""
        inputs, outputs = self._sizes()
        shard = self.chunks // self.n
        everyone = range(self.n)
        for g in everyone:
            for chunk in range(outputs):
                if self.kind in ("reduce", "gather") and g != self.root:
                    continue
                if self.kind in ("allreduce", "reduce"):
                    want = sum(value_of(r, chunk) for r in everyone)
                elif self.kind == "reducescatter":
                    want = sum(value_of(r, g * shard + chunk) for r in everyone)
                elif self.kind in ("allgather", "gather"):
                    want = value_of(chunk // shard, chunk % shard)
                elif self.kind == "alltoall":
                    want = value_of(chunk // shard, g * shard + chunk % shard)
                elif self.kind == "scatter":
                    want = value_of(self.root, g * shard + chunk)
                else:
                    want = value_of(self.root, chunk)
                if self.load(g, "o", chunk) != want % MODULUS:
                    return True
            apart = self.memory[g]["i"][0] is not self.memory[g]["o"][0]
            if apart and any(self.load(g, "i", chunk) != value_of(g, chunk) for chunk in range(inputs)):
                return True
        return False


def value_of(gpu, chunk):
    """What a GPU's input chunk holds."""
    return random.Random(gpu << 32 | chunk).getrandbits(64)


def harm(text, seeds=range(12), longest=(1, 71), root=0):
    """What can go wrong with a file: `hang`, `crash` or `wrong` of the first run that shows it, or None."""
    algo = ET.fromstring(text)
    modes = [in_place for in_place, key in ((False, "outofplace"), (True, "inplace")) if algo.get(key) == "1"]
    for in_place in modes:
        for seed in seeds:
            run = Run(text, in_place, seed, longest[seed % len(longest)], root)
            try:
                run.go()
            except Hang:
                return "hang"
            except (Crash, KeyError, IndexError):
                return "crash"
            if run.wrong():
                return "wrong"
    return None
