"""Runs MSCCL++ JSON in one process, independently of the product: thread blocks in turns, one operation at a time.

It knows the plain meaning of every operation, and no rules: what goes wrong shows as a hang, a crash or a wrong result
in some order.
"""

import random
from math import lcm

import numpy as np

_REMOTE = "buffer_id"


class Crash(Exception):
    """What the executor refuses, or memory that is not there."""


class Run:
    """One call: memory, counters, and where every thread block stands."""

    def __init__(self, document, seed):
        self.random = random.Random(seed)
        self.gpus = document["gpus"]
        self.n = len(self.gpus)
        shares = [
            o.get("tbg_info", {}).get("tbg_size", 1) for g in self.gpus for tb in g["threadblocks"] for o in tb["ops"]
        ]
        self.grain = lcm(*shares)
        data = np.random.default_rng(7)
        self.inputs = [data.integers(1, 1 << 40, g["input_chunks"] * self.grain) for g in self.gpus]
        self.memory, self.ready = [], []
        for r, g in enumerate(self.gpus):
            sizes = {
                t: g[f"{name}_chunks"] * self.grain for t, name in (("i", "input"), ("o", "output"), ("s", "scratch"))
            }
            parts = {t: np.full(size, -(1 << 50)) for t, size in sizes.items()}
            if document["inplace"]:
                whole = parts["i"] if sizes["i"] >= sizes["o"] else parts["o"]
                for t in "io":
                    begin = r * sizes[t] if sizes[t] < len(whole) else 0
                    parts[t] = whole[begin : begin + sizes[t]]
            parts["i"][...] = self.inputs[r]
            self.memory.append(parts)
            self.ready.append(np.zeros(sizes["s"], dtype=bool))
        self.level, self.arrived = {}, {}
        for r, g in enumerate(self.gpus):
            for k, semaphore in enumerate(g["semaphores"]):
                self.level[r, "semaphore", k] = semaphore["init_value"]
        self.blocks = [(r, tb) for r, g in enumerate(self.gpus) for tb in g["threadblocks"]]
        self.at = [0] * len(self.blocks)
        self.done_channels = [0] * len(self.blocks)

    def finish(self):
        """Whether all thread blocks come to their end."""
        while True:
            order = list(range(len(self.blocks)))
            self.random.shuffle(order)
            moved = False
            for b in order:
                burst = self.random.choice((1, 1, 3, 99))
                while burst and self.at[b] < len(self.blocks[b][1]["ops"]) and self.step(b):
                    moved, burst = True, burst - 1
            if not moved:
                return all(at == len(tb["ops"]) for at, (_, tb) in zip(self.at, self.blocks, strict=True))

    def step(self, b):
        """Do the next operation of a thread block if it can be done."""
        rank, tb = self.blocks[b]
        o = tb["ops"][self.at[b]]
        if self.can(rank, tb, b, o):
            self.at[b] += 1
            return True
        return False

    def counter(self, rank, tb, o, channel, outgoing):
        kind = o["channel_type"]
        number = self.listed(tb["channels"], "channel_type", kind, "channel_ids")[channel]
        peers = self.listed(self.gpus[rank]["channels"], "channel_type", kind, "connected_to")
        peer = peers[number]
        if not 0 <= peer < self.n or peer == rank:
            raise Crash
        pair = peers[:number].count(peer)
        return (peer, kind, rank, pair) if outgoing else (rank, kind, peer, pair)

    @staticmethod
    def listed(entries, key, kind, what):
        return [number for entry in entries if entry[key] == kind for number in entry[what]]

    def spans(self, rank, tb, o, target):
        """Memory of a reference: (rank, buffer, slice)."""
        first, last = target["index"] * self.grain, (target["index"] + target["size"]) * self.grain
        share = o.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        length = last - first
        first, last = (first + length * (share["tb_id"] + k) // share["tbg_size"] for k in (0, 1))
        if "switch_channel_id" in target:
            entries = [entry for entry in self.gpus[rank]["channels"] if entry["channel_type"] == "switch"]
            places = [(r, entries[0]["buffer_type"]) for r in entries[0]["rank_groups"][0]["ranks"]]
        elif _REMOTE in target:
            ids = self.listed(
                tb["remote_buffer_refs"], "access_channel_type", o.get("channel_type", "memory"), "remote_buffer_ids"
            )
            remote = self.gpus[rank]["remote_buffers"][ids[target[_REMOTE]]]
            if remote["rank"] == rank:
                raise Crash
            places = [(remote["rank"], remote["type"])]
        else:
            places = [(rank, target["type"])]
        if share["tb_id"] >= share["tbg_size"] or any(not 0 <= r < self.n for r, _ in places):
            raise Crash
        if any(last > len(self.memory[r][t]) or last <= first for r, t in places):
            raise Crash
        return [(r, t, slice(first, last)) for r, t in places]

    def can(self, rank, tb, b, o):
        name = o["name"]
        if name in ("nop", "flush"):
            return True
        if name == "barrier":
            key = (rank, o["barrier_id"])
            who = self.arrived.setdefault(key, [set(), 0])
            if b not in who[0]:
                who[0].add(b)
            return len(who[0]) >= o["num_threadblocks"]
        if name in ("signal", "rlxsignal", "sem_release"):
            for key in self.keys(rank, tb, o, True):
                self.level[key] = self.level.get(key, 0) + 1
            return True
        if name in ("wait", "rlxwait", "sem_acquire"):
            keys = self.keys(rank, tb, o, False)
            if any(self.level.get(key, 0) < 1 for key in keys):
                return False
            for key in keys:
                self.level[key] -= 1
            return True
        return self.move(rank, tb, o)

    def keys(self, rank, tb, o, outgoing):
        if "semaphore_ids" in o:
            return [(rank, "semaphore", k) for k in o["semaphore_ids"]]
        if "channel_ids" not in o:
            raise Crash
        return [self.counter(rank, tb, o, channel, outgoing) for channel in o["channel_ids"]]

    def move(self, rank, tb, o):
        name = o["name"]
        sources = [self.spans(rank, tb, o, each) for each in o["src_buff"]]
        targets = [self.spans(rank, tb, o, each) for each in o["dst_buff"]]
        lengths = {part[2].stop - part[2].start for spans in (*sources, *targets) for part in spans}
        if len(lengths) > 1 and name not in ("copy", "put", "pws", "pwsf"):
            raise Crash
        read_from = {"upkt": 0, "rppkt": 0, "repkt": 1, "respkt": 1, "recpkt": 1, "recspkt": 1}.get(name, 99)
        write_from = {"cpkt": 0, "ppkt": 0, "rppkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1}.get(name, 99)
        for spans in sources[read_from:]:
            for r, t, part in spans:
                if t != "s":
                    raise Crash
                if not self.ready[r][part].all():
                    return False
        if name == "glres":
            total = sum(self.memory[r][t][part] for r, t, part in sources[0])
            for r, t, part in targets[0]:
                self.memory[r][t][part] = total
            return True
        values = [self.memory[r][t][part].copy() for [(r, t, part)] in sources]
        if name in ("copy", "cpkt", "upkt", "put", "pws", "pwsf", "ppkt", "rppkt"):
            pairs = list(zip(values, targets, strict=True))
        elif name in ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"):
            pairs = [(sum(values), spans) for spans in targets]
        else:
            raise Crash
        for k, (value, spans) in enumerate(pairs):
            for r, t, part in spans:
                if len(value) != part.stop - part.start:
                    raise Crash
                self.memory[r][t][part] = value
                if k >= write_from:
                    if t != "s":
                        raise Crash
                    self.ready[r][part] = True
        if name in ("pws", "pwsf"):
            for key in self.keys(rank, tb, o, True):
                self.level[key] = self.level.get(key, 0) + 1
        return True

    def wanted(self, collective):
        """Outputs that are right."""
        n, chunk = self.n, self.grain
        if collective == "allreduce":
            return [sum(self.inputs)] * n
        if collective == "allgather":
            return [np.concatenate(self.inputs)] * n
        per = len(self.inputs[0]) // n
        if collective == "reducescatter":
            return [sum(self.inputs)[r * per : (r + 1) * per] for r in range(n)]
        assert collective == "alltoall"
        assert per % chunk == 0
        return [np.concatenate([self.inputs[s][r * per : (r + 1) * per] for s in range(n)]) for r in range(n)]


def harm(document, seeds=range(24)):
    """What goes wrong in some order, or None."""
    for seed in seeds:
        try:
            run = Run(document, seed)
            if not run.finish():
                return f"hang in order {seed}"
        except (Crash, IndexError, KeyError, ValueError, StopIteration) as error:
            return f"crash in order {seed}: {error!r}"
        for rank, want in enumerate(run.wanted(document["collective"])):
            got = run.memory[rank]["o"]
            if len(got) != len(want) or (got != want).any():
                return f"wrong data of rank {rank} in order {seed}"
        if any(level for key, level in run.level.items() if key[1] != "semaphore"):
            return "signals are left for the next call"
    return None
