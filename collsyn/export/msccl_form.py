"""What is wrong with an MSCCL program before it runs: places not there, channels and dependencies that hang."""

from collections import defaultdict
from collections.abc import Iterator

from collsyn.check.report import Problem
from collsyn.export.msccl import (
    BUFFERS,
    MAX_COUNT,
    OPS,
    PROTOCOLS,
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES,
    Program,
    Step,
    shard_chunks,
    where,
)

# Scratch beyond this many chunks is a slip.
_MAX_SCRATCH = 1 << 20


def form_problems(program: Program) -> Iterator[Problem]:
    """Ids, operations, protocol and chunk counts that are none."""
    if program.protocol not in PROTOCOLS:
        yield Problem("algo", "proto is not known", " or ".join(PROTOCOLS), program.protocol)
    if not (program.in_place or program.out_of_place):
        yield Problem("algo", "is never used", "inplace or outofplace to be 1", "both 0")
    shards = program.collective in ("allgather", "reducescatter", "alltoall", "gather", "scatter")
    if shards and program.num_chunks % program.num_gpus:
        expected = f"a multiple of ngpus ({program.num_gpus})"
        yield Problem("algo", "nchunksperloop does not divide into shards", expected, str(program.num_chunks))
    true = shard_chunks(program.num_chunks, program.collective, program.num_gpus)
    for g, gpu in enumerate(program.gpus):
        counts = zip(
            "ios", (gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks), (*true, _MAX_SCRATCH), strict=True
        )
        for name, count, most in counts:
            if not 0 <= count <= most:
                what = f"{name}_chunks is more than the buffer has" if count > 0 else f"{name}_chunks is negative"
                yield Problem(where(g, line=gpu.line), what, f"0 to {most}", str(count))
        for b, block in enumerate(gpu.blocks):
            if block.number != b:
                expected = "0, 1, 2, ... without a hole"
                yield Problem(where(g, line=block.line), "ids of thread blocks", expected, str(block.number))
                return
            for s, step in enumerate(block.steps):
                if step.number != s:
                    what = "steps are not in order: the readers go by position"
                    yield Problem(where(g, b, line=step.line), what, f"s {s}", f"s {step.number}")
                if step.op not in OPS:
                    yield Problem(where(g, b, s, step.line), "type", " or ".join(sorted(OPS)), step.op)
                for side, buffer in (("src", step.src_buffer), ("dst", step.dst_buffer)):
                    if buffer not in BUFFERS:
                        yield Problem(where(g, b, s, step.line), f"{side}buf", "i, o or s", buffer)


def peer_problems(program: Program) -> Iterator[Problem]:
    """Peers and channels that are not there, and operations without the peer that they need."""
    for g, gpu in enumerate(program.gpus):
        for b, block in enumerate(gpu.blocks):
            here = where(g, b, line=block.line)
            for key, peer in (("send", block.send), ("recv", block.recv)):
                if peer == g:
                    yield Problem(here, f"{key} is the GPU itself", "another GPU, or -1", str(peer))
                elif not -1 <= peer < program.num_gpus:
                    what = f"{key} is no GPU: readers that do not look crash or hang"
                    yield Problem(here, what, f"-1 to {program.num_gpus - 1}", str(peer))
            talks = any(step.op in SENDS | RECEIVES for step in block.steps)
            if talks and not 0 <= block.channel < program.num_channels:
                what = "chan is not set up: readers that do not look crash or hang"
                yield Problem(here, what, f"0 to {program.num_channels - 1}", str(block.channel))
            for s, step in enumerate(block.steps):
                if (step.op in SENDS and block.send < 0) or (step.op in RECEIVES and block.recv < 0):
                    way = "send" if step.op in SENDS and block.send < 0 else "recv"
                    yield Problem(where(g, b, s, step.line), f"{step.op} without a peer", f"tb with {way}", "-1")


def bound_problems(program: Program) -> Iterator[Problem]:
    """Chunks outside their buffers, the whole range counted, and counts that no reader takes."""
    for g, b, s, step in program.steps():
        here = where(g, b, s, step.line)
        if step.op == "nop":
            continue
        if not 1 <= step.count <= MAX_COUNT:
            what = "cnt 0 moves nothing, and its partner waits" if step.count == 0 else "cnt"
            yield Problem(here, what, f"1 to {MAX_COUNT}", str(step.count))
        for ops, side, buffer, offset in (
            (READS_SOURCE, "src", step.src_buffer, step.src_offset),
            (WRITES, "dst", step.dst_buffer, step.dst_offset),
        ):
            if step.op not in ops:
                continue
            extent = program.gpus[g].extent(buffer)
            if offset < 0 or offset + step.count > extent:
                what = f"{side} leaves the {BUFFERS[buffer]}: it reads or overwrites what is not its own"
                expected = f"chunks of 0 to {extent - 1}" if extent else f"{buffer}_chunks above 0"
                yield Problem(here, what, expected, f"{offset} to {offset + step.count - 1}")


def fifo_problems(program: Program) -> Iterator[Problem]:
    """Channels with two senders or receivers, or whose sends and receives do not match one by one."""
    ends: dict[tuple[int, int, int], list[dict[int, list[tuple[int, Step]]]]] = defaultdict(
        lambda: [defaultdict(list), defaultdict(list)]
    )
    for g, b, s, step in program.steps():
        block = program.gpus[g].blocks[b]
        if step.op in SENDS:
            ends[block.channel, g, block.send][0][b].append((s, step))
        if step.op in RECEIVES:
            ends[block.channel, block.recv, g][1][b].append((s, step))
    for (channel, src, dst), sides in sorted(ends.items()):
        name = f"channel {channel} from gpu {src} to gpu {dst}"
        shared = False
        for verb, gpu, blocks in (("send", src, sides[0]), ("receive", dst, sides[1])):
            if len(blocks) > 1:
                shared = True
                found = f"tb {', '.join(map(str, sorted(blocks)))} of gpu {gpu}"
                yield Problem(name, f"several thread blocks {verb}, and corrupt its counters", "one", found)
        if shared:
            continue
        sends, receives = ([(b, s, step) for b, row in side.items() for s, step in row] for side in sides)
        for (b, s, sent), (c, t, got) in zip(sends, receives, strict=False):
            if sent.count != got.count:
                here = f"{where(src, b, s, sent.line)} and {where(dst, c, t, got.line)}"
                what = "cnt of send and receive differ: wrong data or a hang, depending on the size"
                yield Problem(here, what, f"both {sent.count}", str(got.count))
                break
        if len(sends) != len(receives):
            more, g = (sends, src) if len(sends) > len(receives) else (receives, dst)
            b, s, step = more[min(len(sends), len(receives))]
            what = "is never received: it hangs, or disturbs the next call" if g == src else "waits for ever: it hangs"
            found = f"{len(sends)} sends and {len(receives)} receives"
            yield Problem(f"{where(g, b, s, step.line)} on {name}", what, "equal numbers", found)


def dependency_problems(program: Program) -> Iterator[Problem]:
    """Dependencies on what is not there or tells nobody, and `nop` where no reader takes it."""
    for g, gpu in enumerate(program.gpus):
        publishes = [max((s for s, step in enumerate(b.steps) if step.has_dep), default=-1) for b in gpu.blocks]
        for b, block in enumerate(gpu.blocks):
            for s, step in enumerate(block.steps):
                here = where(g, b, s, step.line)
                if (step.dep_block < 0) != (step.dep_step < 0) or min(step.dep_block, step.dep_step) < -1:
                    yield Problem(
                        here, "depid and deps", "both -1, or both there", f"{step.dep_block}, {step.dep_step}"
                    )
                elif step.dep_block >= len(gpu.blocks):
                    what = "depends on a thread block that is not there: it hangs"
                    yield Problem(here, what, f"depid below {len(gpu.blocks)}", str(step.dep_block))
                elif step.dep_block >= 0 and step.dep_step >= len(gpu.blocks[step.dep_block].steps):
                    what = f"depends on a step of tb {step.dep_block} that is not there: it hangs"
                    expected = f"deps below {len(gpu.blocks[step.dep_block].steps)}"
                    yield Problem(here, what, expected, str(step.dep_step))
                elif step.dep_block >= 0 and publishes[step.dep_block] < step.dep_step:
                    what = f"waits for step {step.dep_step} of tb {step.dep_block}, which tells nobody: it hangs"
                    yield Problem(here, what, "hasdep 1 there", "hasdep 0")
                if step.op == "nop":
                    yield from _nop_problems(here, step, block.steps[s + 1] if s + 1 < len(block.steps) else None)


def _nop_problems(here: str, step: Step, following: Step | None) -> Iterator[Problem]:
    if step.dep_block < 0:
        what = "nop without a dependency is dropped, and the numbers of later steps shift: wrong data or a hang"
        yield Problem(here, what, "a dependency", "none")
    elif following is None or following.dep_block < 0:
        what = "nop must be followed by a step with a dependency: readers refuse the file"
        yield Problem(here, what, "one", "none" if following is None else following.op)
