"""MSCCL++ JSON for tests: written by hand, and broken on purpose."""

import copy


def ref(where, index, size=1):
    """A chunk reference: `i`, `o`, `s`, the number of a remote buffer, or `x0` for switch channel 0."""
    at = {"index": index, "size": size}
    if isinstance(where, int):
        return {"buffer_id": where, **at}
    return {"switch_channel_id": int(where[1:]), **at} if where[0] == "x" else {"type": where, **at}


def op(name, src=(), dst=(), **more):
    """An operation on memory channels unless told otherwise."""
    made = {"name": name}
    if src or dst:
        made |= {"src_buff": [ref(*each) for each in src], "dst_buff": [ref(*each) for each in dst]}
    if name not in ("nop", "barrier", "copy", "sem_acquire", "sem_release", "pipeline", "cpkt", "upkt"):
        made["channel_type"] = "memory"
    return made | more


NOP = op("nop")


def told(name, *channels, **more):
    """A signal or wait with the nop that it needs."""
    one = op(name, channel_ids=list(channels), **more)
    return [NOP, one] if "signal" in name else [one, NOP]


def block(ops, memory=(), remote=(), port=(), port_remote=(), switch=()):
    """A thread block: operations, and numbers of channels and remote buffers of its GPU."""
    kinds = (("memory", memory), ("port", port), ("switch", switch))
    return {
        "ops": ops,
        "channels": [{"channel_type": kind, "channel_ids": list(ids)} for kind, ids in kinds if ids],
        "remote_buffer_refs": [
            {"access_channel_type": kind, "remote_buffer_ids": list(ids)}
            for kind, ids in (("memory", remote), ("port", port_remote))
            if ids
        ],
    }


def gpu(chunks, blocks, memory=(), port=(), remote=(), switches=(), semaphores=()):
    """A GPU: (input, output, scratch) chunks, blocks, peers of channels, (rank, buffer) of remote buffers."""
    channels = [
        {"channel_type": kind, "connected_to": list(peers)}
        for kind, peers in (("memory", memory), ("port", port))
        if peers
    ]
    for buffer, ranks in switches:
        group = [{"size": len(ranks), "ranks": list(ranks)}]
        channels.append({"channel_type": "switch", "buffer_type": buffer, "rank_groups": group})
    return {
        "input_chunks": chunks[0],
        "output_chunks": chunks[1],
        "scratch_chunks": chunks[2],
        "threadblocks": [{"id": b, **made} for b, made in enumerate(blocks)],
        "channels": channels,
        "remote_buffers": [{"rank": r, "type": t, "access_channel_types": ["memory", "port"]} for r, t in remote],
        "semaphores": [{"init_value": value} for value in semaphores],
    }


def program(collective, gpus, in_place=False, protocol="Simple", **more):
    """The document of a plan."""
    return {
        "name": "by hand",
        "collective": collective,
        "protocol": protocol,
        "inplace": in_place,
        "use_double_scratch_buffer": protocol == "LL",
        "gpus": [{"id": g, **made} for g, made in enumerate(gpus)],
        **more,
    }


def exchange(n=3):
    """Allgather: everybody puts its chunk into everybody's output, one thread block a peer."""
    gpus = []
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        blocks = []
        for k in range(n - 1):
            put = op("put", [("i", 0)], [(0, g)])
            blocks.append(
                block(
                    [op("signal", channel_ids=[0]), *told("wait", 0), put, *told("signal", 0), *told("wait", 0)],
                    [k],
                    [k],
                )
            )
        blocks.append(block([op("copy", [("i", 0)], [("o", g)])]))
        gpus.append(gpu((1, n, 0), blocks, memory=peers, remote=[(p, "o") for p in peers]))
    return program("allgather", gpus)


def one_shot(n=3):
    """Allreduce by packets: everybody sends its input to everybody's scratch and adds up what comes."""
    gpus = []
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        ops = [op("ppkt", [("i", 0, n)], [(k, n * g, n)]) for k in range(n - 1)]
        ops.append(op("repkt", [("i", 0, n), *(("s", n * p, n) for p in peers)], [("o", 0, n)], reduce_op="sum"))
        blocks = [block(ops, range(n - 1), range(n - 1))]
        gpus.append(gpu((n, n, n * n), blocks, memory=peers, remote=[(p, "s") for p in peers]))
    return program("allreduce", gpus, protocol="LL")


def pulled(n=3):
    """Reduce-scatter in two shares: everybody reads its chunk from everybody once all have begun."""
    gpus = []
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        ids = list(range(n - 1))
        blocks = []
        for k in range(2):
            share = {"tb_id": k, "tbg_size": 2}
            pull = op("rre", [("i", g), *((j, g) for j in ids)], [("o", 0)], reduce_op="sum", tbg_info=share)
            mine = [k * (n - 1) + j for j in ids]
            blocks.append(
                block(
                    [
                        op("signal", channel_ids=ids),
                        *told("wait", *ids),
                        pull,
                        *told("signal", *ids),
                        *told("wait", *ids),
                    ],
                    mine,
                    ids,
                )
            )
        gpus.append(gpu((n, 1, 0), blocks, memory=peers * 2, remote=[(p, "i") for p in peers]))
    return program("reducescatter", gpus)


def far(n=2):
    """Allreduce in place over port channels: scratch at the peer, a barrier, and the sum by another thread block."""
    gpus = []
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        ids = list(range(n - 1))
        port = {"channel_type": "port"}
        send = [op("signal", channel_ids=ids, **port), *told("wait", *ids, **port)]
        send += [
            op("pwsf", [("i", 0, n)], [(k, n * (g if g < p else g - 1), n)], channel_ids=[k], **port)
            for k, p in enumerate(peers)
        ]
        send += [*told("wait", *ids, **port), op("barrier", barrier_id=0, num_threadblocks=2)]
        send += [op("sem_acquire", semaphore_ids=[0]), NOP, op("copy", [("s", n * (n - 1))], [("i", 0)])]
        add = [op("barrier", barrier_id=0, num_threadblocks=2)]
        add.append(op("re", [("i", 0, n), *(("s", n * k, n) for k in ids)], [("s", n * (n - 1), n)], reduce_op="sum"))
        add += [NOP, op("sem_release", semaphore_ids=[0])]
        add += [op("copy", [("s", n * (n - 1) + 1, n - 1)], [("i", 1, n - 1)])]
        blocks = [block(send, port=ids, port_remote=ids), block(add)]
        gpus.append(gpu((n, n, n * n), blocks, port=peers, remote=[(p, "s") for p in peers], semaphores=[0]))
    return program("allreduce", gpus, in_place=True)


def switched(n=3):
    """Allreduce in place by the switch, each GPU one chunk."""
    gpus = []
    for g in range(n):
        ids = list(range(n - 1))
        ops = [op("rlxsignal", channel_ids=ids), *told("rlxwait", *ids)]
        ops += [op("glres", [("x0", g)], [("x0", g)], channel_type="switch", reduce_op="sum")]
        ops += [*told("rlxsignal", *ids), *told("rlxwait", *ids)]
        peers = [p for p in range(n) if p != g]
        gpus.append(gpu((n, n, 0), [block(ops, ids, switch=[0])], memory=peers, switches=[("i", range(n))]))
    return program("allreduce", gpus, in_place=True)


def exchanged_pairs():
    """Alltoall of 2 by packets that are copied, packed and passed on."""
    gpus = []
    for g in range(2):
        p = 1 - g
        ops = [op("cpkt", [("i", p)], [("s", 0)]), op("rppkt", [("s", 0)], [(0, 1)])]
        ops += [op("upkt", [("s", 1)], [("o", p)]), op("copy", [("i", g)], [("o", g)])]
        gpus.append(gpu((2, 2, 2), [block(ops, [0], [0])], memory=[p], remote=[(p, "s")]))
    return program("alltoall", gpus, protocol="LL")


def pipelined(units=4, init=4):
    """Allreduce of 2 in place, unit by unit through scratch that holds so many units and is used again."""
    gpus = []
    for g in range(2):
        p = 1 - g
        context = {"unit_size": (64 << 20) // 2 // units, "num_chunks": 1}
        fill = [op("sem_acquire", semaphore_ids=[1]), NOP, op("copy", [("i", 0)], [("s", 0)]), *told("signal", 0)]
        fill += [*told("wait", 0), op("sem_release", semaphore_ids=[0])]
        add = [op("sem_acquire", semaphore_ids=[0]), NOP]
        add += [op("rre", [("s", 0), (0, 0)], [("i", 0)], reduce_op="sum"), *told("signal", 0), *told("wait", 0)]
        add += [op("sem_release", semaphore_ids=[1])]
        blocks = [block([op("pipeline", iter_context=context, ops=fill)], [0])]
        blocks.append(block([op("pipeline", iter_context=context, ops=add)], [1], [0]))
        gpus.append(gpu((1, 1, 2), blocks, memory=[p, p], remote=[(p, "s")], semaphores=[0, init]))
    return program("allreduce", gpus, in_place=True, reuse_resources=True)


BY_HAND = {
    "exchange": exchange(),
    "one-shot": one_shot(),
    "pulled": pulled(),
    "far": far(),
    "far of 3": far(3),
    "switched": switched(),
    "pairs": exchanged_pairs(),
}

MUTATIONS = (
    "wait dropped",
    "signal dropped",
    "nop dropped",
    "operation dropped",
    "operations swapped",
    "wrong index",
    "range past the buffer",
    "wrong peer",
    "wrong channel",
    "source dropped",
    "source doubled",
    "share changed",
    "barrier or semaphore changed",
    "wrong buffer",
    "other operation",
)
_OTHER = {"repkt": "respkt", "rre": "rres", "re": "res", "put": "get", "pwsf": "put", "upkt": "copy", "glres": "gstore"}
_OTHER |= {"signal": "wait", "wait": "signal", "copy": "cpkt", "sem_acquire": "sem_release", "ppkt": "put"}


def mutant(document, kind, rng):
    """The program with one thing wrong, or None where it has nothing of that kind."""
    made = copy.deepcopy(document)
    one = rng.choice(made["gpus"])
    blocks = one["threadblocks"]
    places = [(tb["ops"], k) for tb in blocks for k in range(len(tb["ops"]))]

    def pick(fits):
        fitting = [(ops, k) for ops, k in places if fits(ops[k])]
        return rng.choice(fitting) if fitting else (None, None)

    def moves(each):
        return "src_buff" in each

    wanted = {"wait dropped": "wait", "signal dropped": "signal", "nop dropped": "nop"}
    if kind in wanted or kind == "operation dropped":
        ops, k = pick(lambda each: wanted[kind] in each["name"] if kind in wanted else moves(each))
        if ops is None:
            return None
        del ops[k]
    elif kind == "operations swapped":
        ops = rng.choice(blocks)["ops"]
        if len(ops) < 2:
            return None
        k = rng.randrange(len(ops) - 1)
        ops[k], ops[k + 1] = ops[k + 1], ops[k]
    elif kind in ("wrong index", "range past the buffer", "wrong buffer"):
        ops, k = pick(moves)
        if ops is None:
            return None
        target = rng.choice(ops[k][rng.choice(("src_buff", "dst_buff"))])
        if kind == "wrong index":
            target["index"] = max(0, target["index"] + rng.choice((-1, 1)))
        elif kind == "range past the buffer":
            target["size"] += rng.choice((1, 2))
        elif "type" in target:
            target["type"] = rng.choice([name for name in "ios" if name != target["type"]])
        else:
            return None
    elif kind == "wrong peer":
        others = list(range(len(made["gpus"]) + 1))
        if rng.random() < 0.5 and one["remote_buffers"]:
            rng.choice(one["remote_buffers"])["rank"] = rng.choice(others)
        else:
            peers = next((entry["connected_to"] for entry in one["channels"] if "connected_to" in entry), None)
            peers[rng.randrange(len(peers))] = rng.choice(others)
    elif kind == "wrong channel":
        listed = [entry["channel_ids"] for tb in blocks for entry in tb["channels"]]
        if not listed:
            return None
        ids = rng.choice(listed)
        ids[rng.randrange(len(ids))] += rng.choice((-1, 1))
        if min(ids) < 0:
            return None
    elif kind in ("source dropped", "source doubled"):
        ops, k = pick(lambda each: len(each.get("src_buff", ())) > 1)
        if ops is None:
            return None
        sources = ops[k]["src_buff"]
        number = rng.randrange(1, len(sources))
        if kind == "source dropped":
            del sources[number]
        else:
            sources.append(dict(sources[number]))
    elif kind == "share changed":
        ops, k = pick(moves)
        if ops is None:
            return None
        given = ops[k].get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        ops[k]["tbg_info"] = {"tb_id": rng.randrange(2), "tbg_size": given["tbg_size"] + rng.choice((0, 1))}
    elif kind == "barrier or semaphore changed":
        ops, k = pick(lambda each: each["name"] == "barrier" or "semaphore_ids" in each)
        if ops is None:
            return None
        if ops[k]["name"] == "barrier":
            ops[k][rng.choice(("barrier_id", "num_threadblocks"))] += 1
        else:
            one["semaphores"][0]["init_value"] += 1
    elif kind == "other operation":
        ops, k = pick(lambda each: each["name"] in _OTHER)
        if ops is None:
            return None
        ops[k]["name"] = _OTHER[ops[k]["name"]]
    return made
