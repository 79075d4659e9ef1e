"""What a MSCCL++ program says at all: numbers that exist, tables of the executor, known defects, and memory ranges."""

from collections import Counter
from collections.abc import Iterator

from collsyn.check.report import Problem
from collsyn.export.mscclpp import (
    CHANNEL_TYPES,
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_CHANNELS_OF_OP,
    MAX_OPS,
    MAX_REFERENCES,
    MAX_REMOTE_BUFFERS,
    MAX_SEMAPHORES_OF_OP,
    OPS,
    PACKET_READS_FROM,
    PACKET_WRITES_FROM,
    PAIRWISE,
    PORT_PUTS,
    REDUCES,
    REFUSED_OPS,
    SIGNALS,
    SWITCH,
    WAITS,
    Block,
    Gpu,
    Operation,
    Program,
    Ref,
    where,
)

COLLECTIVES = ("allgather", "allreduce", "reducescatter", "alltoall")
_HANG, _IGNORED, _WRONG = "a hang", "a file that is not loaded", "wrong data"
_REMOTE_SOURCES = {"get": 0, "rre": 1, "rres": 1}
_REMOTE_DESTINATIONS = {"put": 0, "pws": 0, "pwsf": 0, "ppkt": 0, "rppkt": 0, "res": 1, "rres": 1, "respkt": 1}
_REMOTE_DESTINATIONS |= {"recspkt": 2}


def form_problems(program: Program) -> Iterator[Problem]:
    """Numbers of GPUs, chunks, channels and thread blocks, and operations that the executor knows."""
    if program.collective not in COLLECTIVES:
        yield Problem("collective", f"is {program.collective!r}", f"one of {', '.join(COLLECTIVES)}", "no known result")
        return
    for g, gpu in enumerate(program.gpus):
        if gpu.number != g:
            yield Problem(f"gpu {g}", "is not in the order of ids", f"id {g}", f"id {gpu.number}")
        for name, count in (("input_chunks", gpu.input_chunks), ("output_chunks", gpu.output_chunks)):
            if count == 0:
                yield Problem(where(g), f"{name}: the executor divides by it and crashes", "at least 1", "0")
        mine, first = (gpu.input_chunks, gpu.output_chunks), program.gpus[0]
        if mine != (first.input_chunks, first.output_chunks):
            yield Problem(where(g), "chunks differ from those of gpu 0", "equal chunks", f"{mine[0]} and {mine[1]}")
        elif all(mine):
            yield from _chunk_problems(program, g, gpu)
        yield from _gpu_problems(program, g, gpu)
        for b, block in enumerate(gpu.blocks):
            yield from _block_problems(g, b, gpu, block)


def _chunk_problems(program: Program, g: int, gpu: Gpu) -> Iterator[Problem]:
    n, inputs, outputs = program.num_gpus, gpu.input_chunks, gpu.output_chunks
    fits = {
        "allgather": outputs == inputs * n,
        "reducescatter": inputs == outputs * n,
        "alltoall": inputs == outputs and inputs % n == 0,
        "allreduce": inputs == outputs,
    }
    if not fits[program.collective]:
        found = f"{inputs} input and {outputs} output chunks"
        yield Problem(where(g), "chunks do not fit the collective", f"those of {program.collective} of {n} GPUs", found)


def _gpu_problems(program: Program, g: int, gpu: Gpu) -> Iterator[Problem]:
    others = f"another GPU of 0 .. {program.num_gpus - 1}"
    for kind, peers in gpu.channels.items():
        for c, peer in enumerate(peers):
            if peer == g or peer >= program.num_gpus:
                yield Problem(f"gpu {g} {kind} channel {c}", "leads nowhere", others, f"gpu {peer}")
    for number, remote in enumerate(gpu.remote):
        if remote.rank == g or remote.rank >= program.num_gpus:
            yield Problem(f"gpu {g} remote buffer {number}", "is nowhere", others, f"gpu {remote.rank}")
        for kind in remote.access:
            if kind not in CHANNEL_TYPES:
                yield Problem(f"gpu {g} remote buffer {number}", "has no such access", "memory or port", repr(kind))
    for number, switch in enumerate(gpu.switches):
        here = f"gpu {g} switch channel {number}"
        if switch.buffer not in ("i", "o", "s"):
            yield Problem(
                here, f"buffer_type: {_IGNORED}", "i, o or s", repr(switch.buffer) if switch.buffer else "none"
            )
        if g not in switch.ranks or any(rank >= program.num_gpus for rank in switch.ranks):
            yield Problem(here, "has wrong ranks", f"a group with gpu {g}", str(list(switch.ranks)))
        if len(set(switch.ranks)) != len(switch.ranks):
            yield Problem(here, "names a GPU twice", "a group", str(list(switch.ranks)))


def _block_problems(g: int, b: int, gpu: Gpu, block: Block) -> Iterator[Problem]:
    here = where(g, b)
    if block.number != b:
        yield Problem(here, "is not in the order of ids", f"id {b}", f"id {block.number}")
    known = {**{kind: len(gpu.channels.get(kind, ())) for kind in CHANNEL_TYPES}, "switch": len(gpu.switches)}
    for kind, numbers in block.channels.items():
        for number in numbers:
            if number >= known[kind]:
                yield Problem(here, f"{kind} channel {number} is not there", f"one of {known[kind]}", f"{number}")
        if len(numbers) > MAX_CHANNELS:
            yield Problem(here, f"{kind} channels", f"at most {MAX_CHANNELS} a thread block", f"{len(numbers)}")
    for kind, numbers in block.remote.items():
        for number in numbers:
            if number >= len(gpu.remote):
                yield Problem(here, f"remote buffer {number} is not there", f"one of {len(gpu.remote)}", f"{number}")
            elif kind not in gpu.remote[number].access:
                yield Problem(here, f"remote buffer {number} has no {kind} access", "access by that channel", "none")
        if len(numbers) > MAX_REMOTE_BUFFERS:
            yield Problem(here, "remote buffers", f"at most {MAX_REMOTE_BUFFERS} a thread block", f"{len(numbers)}")
    count = sum(1 + len(op.inner) for op in block.ops)
    if count > MAX_OPS:
        yield Problem(here, "operations", f"at most {MAX_OPS} a thread block", f"{count}")
    for k, op in enumerate(block.ops):
        for name, each in ((f"{k}", op), *((f"{k}.{j}", inner) for j, inner in enumerate(op.inner))):
            yield from _op_problems(g, b, name, gpu, block, each, "." in name)


def _op_problems(g: int, b: int, k: str, gpu: Gpu, block: Block, op: Operation, inside: bool) -> Iterator[Problem]:
    here = f"{where(g, b, k)} {op.name}"
    if op.name not in OPS or (inside and op.name == "pipeline"):
        why = REFUSED_OPS.get(op.name, "pipelines do not nest" if inside and op.name == "pipeline" else "is not known")
        yield Problem(here, f"{why}: {_IGNORED}", "an operation of the executor", op.name)
        return
    if op.share[0] >= op.share[1]:
        yield Problem(here, "tbg_info", f"a tb_id below {op.share[1]}", f"{op.share[0]}")
    for name, count, most in (
        ("sources", len(op.sources), MAX_REFERENCES),
        ("destinations", len(op.destinations), MAX_REFERENCES),
        ("channels", len(op.channels), MAX_CHANNELS_OF_OP),
        ("semaphores", len(op.semaphores), MAX_SEMAPHORES_OF_OP),
    ):
        if count > most:
            yield Problem(here, name, f"at most {most} of an operation", f"{count}")
    if op.name == "barrier" and not 0 <= op.barrier < MAX_BARRIERS:
        yield Problem(here, "barrier_id", f"0 .. {MAX_BARRIERS - 1}", f"{op.barrier}")
    for semaphore in op.semaphores:
        if semaphore >= len(gpu.semaphores):
            yield Problem(here, f"semaphore {semaphore} is not there", f"one of {len(gpu.semaphores)}", f"{semaphore}")
    if op.name in ("sem_acquire", "sem_release") and not op.semaphores:
        yield Problem(here, "names no semaphore", "semaphore_ids", "none")
    yield from _channel_problems(here, block, op)
    yield from _reference_problems(here, gpu, block, op)


def _channel_problems(here: str, block: Block, op: Operation) -> Iterator[Problem]:
    needs = op.name in SIGNALS | WAITS | {"flush"} or (op.name in PORT_PUTS and op.channel_type == "port")
    if (needs or op.name in PORT_PUTS) and op.channel_type not in CHANNEL_TYPES:
        yield Problem(here, "channel_type", "memory or port", repr(op.channel_type))
        return
    if op.name in ("pws", "pwsf", "flush") and op.channel_type != "port":
        yield Problem(here, f"channel_type: {_IGNORED}", "port", op.channel_type)
    if needs and not op.channels:
        yield Problem(here, "names no channel", "channel_ids", "none")
    if op.name in PORT_PUTS and op.channel_type == "port" and len(op.channels) != len(op.destinations):
        yield Problem(here, "channels", f"one for each of {len(op.destinations)} destinations", f"{len(op.channels)}")
    if needs:
        known = len(block.channels.get(op.channel_type, ()))
        for channel in op.channels:
            if channel >= known:
                yield Problem(
                    here, f"{op.channel_type} channel {channel} is not there", f"one of {known}", f"{channel}"
                )
        for channel, often in Counter(op.channels).items():
            if often > 1:
                yield Problem(here, f"names channel {channel} twice", "each once", f"{often} times")
    if op.channel_type == "port" and op.name in ("ppkt", "get", "rre", "rres", "res"):
        why = (
            "omits the base of its own memory"
            if op.name == "ppkt"
            else "needs memory that it can load from or store to"
        )
        yield Problem(here, f"over a port channel {why}: {_WRONG}", "a memory channel", "a port channel")


def _reference_problems(here: str, gpu: Gpu, block: Block, op: Operation) -> Iterator[Problem]:
    """Which operands an operation has, of what kind, and of equal lengths."""
    count = (len(op.sources), len(op.destinations))
    moves = op.name in PAIRWISE | REDUCES | SWITCH
    if moves and (not all(count) or (op.name in PAIRWISE | SWITCH and count[0] != count[1])):
        yield Problem(here, "operands", "as many sources as destinations", f"{count[0]} and {count[1]}")
        return
    if op.name in REDUCES and count[0] < 2:
        yield Problem(here, "sources", "at least 2 to add up", f"{count[0]}")
    if op.reduce_op != "sum" and (op.name in REDUCES or op.name == "glres"):
        yield Problem(here, f"reduce_op: the executor always adds: {_WRONG}", "sum", op.reduce_op)
    lengths = {ref.size for ref in (*op.sources, *op.destinations)} if op.name not in PAIRWISE else set()
    unequal = op.name in PAIRWISE and any(a.size != b.size for a, b in zip(op.sources, op.destinations, strict=True))
    if moves and (unequal or len(lengths) > 1):
        yield Problem(here, "operands have unequal lengths", "equal sizes", "other ones")
    first = _REMOTE_SOURCES.get(op.name, 99)
    behind = _REMOTE_DESTINATIONS.get(op.name, 99)
    packets = PACKET_READS_FROM.get(op.name, 99), PACKET_WRITES_FROM.get(op.name, 99)
    for side, refs, remote_from, packets_from in (
        ("source", op.sources, first, packets[0]),
        ("destination", op.destinations, behind, packets[1]),
    ):
        for number, ref in enumerate(refs):
            is_switch = op.name in SWITCH and (side == "destination" or op.name == "glres")
            wanted = "switch" if is_switch else "remote" if number >= remote_from else "local"
            found = "local" if ref.is_local else "remote" if ref.remote >= 0 else "switch"
            if found != wanted:
                yield Problem(here, f"{side} {number}", f"a {wanted} buffer", f"a {found} one")
            elif ref.remote >= 0 and ref.remote >= len(block.remote.get(op.channel_type or "memory", ())):
                yield Problem(
                    here, f"remote buffer {ref.remote} is not there", "one of the thread block", f"{ref.remote}"
                )
            elif ref.switch >= len(block.channels.get("switch", ())):
                yield Problem(
                    here, f"switch channel {ref.switch} is not there", "one of the thread block", f"{ref.switch}"
                )
            elif number >= packets_from and not is_switch and buffer_of(gpu, block, op, ref) != "s":
                yield Problem(here, f"{side} {number}: packets", "in scratch", f"in {buffer_of(gpu, block, op, ref)}")


def buffer_of(gpu: Gpu, block: Block, op: Operation, ref: Ref) -> str:
    """The buffer `i`, `o` or `s` that a reference names, wherever it is."""
    if ref.is_local:
        return ref.buffer
    if ref.switch >= 0:
        return gpu.switches[block.channels["switch"][ref.switch]].buffer
    return gpu.remote[block.remote[op.channel_type or "memory"][ref.remote]].buffer


def ranks_of(g: int, gpu: Gpu, block: Block, op: Operation, ref: Ref) -> tuple[int, ...]:
    """The GPUs in whose memory a reference is."""
    if ref.is_local:
        return (g,)
    if ref.switch >= 0:
        return gpu.switches[block.channels["switch"][ref.switch]].ranks
    return (gpu.remote[block.remote[op.channel_type or "memory"][ref.remote]].rank,)


def bound_problems(program: Program) -> Iterator[Problem]:
    """References that leave their buffer, and what the executor's `get` does with unequal offsets."""
    for g, b, k, op in program.operations():
        gpu, here = program.gpus[g], f"{where(g, b, k)} {op.name}"
        for side, refs in (("source", op.sources), ("destination", op.destinations)):
            for ref in refs:
                buffer = buffer_of(gpu, gpu.blocks[b], op, ref)
                for rank in ranks_of(g, gpu, gpu.blocks[b], op, ref):
                    extent = program.gpus[rank].extent(buffer)
                    if ref.index + ref.size > extent:
                        found = f"{ref.index}+{ref.size}"
                        yield Problem(
                            here, f"{side} leaves its buffer", f"at most {extent} chunks of gpu {rank}", found
                        )
                    if ref.size == 0:
                        yield Problem(here, f"{side} is empty", "at least 1 chunk", "0")
        if op.name == "get":
            for source, target in zip(op.sources, op.destinations, strict=True):
                if source.index != target.index:
                    rule = f"exchanges the two offsets: {_WRONG}"
                    yield Problem(here, f"the executor {rule}", "equal offsets", f"{source.index} and {target.index}")
