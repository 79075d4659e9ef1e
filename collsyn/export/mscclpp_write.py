"""Writes MSCCL++ JSON: the text of a program."""

import json
from typing import Any

from collsyn.export.mscclpp import Block, Gpu, Operation, Program, Ref


def program_text(program: Program) -> str:
    """The file of a program: one operation a line, all keys that the executor reads."""
    head = {
        "name": program.name,
        "collective": program.collective,
        "protocol": program.protocol,
        "inplace": program.in_place,
        "reuse_resources": program.reuse_resources,
        "num_threads_per_block": program.threads,
        "use_double_scratch_buffer": program.double_scratch,
        "buffer_alignment": program.alignment,
        "min_message_size": program.min_bytes,
        "max_message_size": program.max_bytes,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    gpus = ",\n".join(_gpu_text(gpu) for gpu in program.gpus)
    return "\n".join(["{", *lines, '  "gpus": [', gpus, "  ]", "}", ""])


def _gpu_text(gpu: Gpu) -> str:
    channels: list[dict[str, Any]] = [
        {"channel_type": kind, "connected_to": list(peers)} for kind, peers in gpu.channels.items()
    ]
    channels += [
        {
            "channel_type": "switch",
            "buffer_type": switch.buffer,
            "rank_groups": [{"size": len(switch.ranks), "ranks": list(switch.ranks)}],
        }
        for switch in gpu.switches
    ]
    remote = [{"rank": r.rank, "type": r.buffer, "access_channel_types": list(r.access)} for r in gpu.remote]
    rows = [
        f'"id": {gpu.number}',
        f'"input_chunks": {gpu.input_chunks}',
        f'"output_chunks": {gpu.output_chunks}',
        f'"scratch_chunks": {gpu.scratch_chunks}',
        f'"channels": {json.dumps(channels)}',
        f'"remote_buffers": {json.dumps(remote)}',
        f'"semaphores": {json.dumps([{"init_value": value} for value in gpu.semaphores])}',
        '"threadblocks": [\n' + ",\n".join(_block_text(block) for block in gpu.blocks) + "\n      ]",
    ]
    return "    {\n      " + ",\n      ".join(rows) + "\n    }"


def _block_text(block: Block) -> str:
    channels = [{"channel_type": kind, "channel_ids": list(ids)} for kind, ids in block.channels.items()]
    remote = [{"access_channel_type": kind, "remote_buffer_ids": list(ids)} for kind, ids in block.remote.items()]
    ops = ",\n".join(f"          {json.dumps(operation_document(op))}" for op in block.ops)
    return (
        f'        {{"id": {block.number}, "channels": {json.dumps(channels)}, '
        f'"remote_buffer_refs": {json.dumps(remote)}, "ops": [\n{ops}\n        ]}}'
    )


def operation_document(op: Operation) -> dict[str, Any]:
    """An operation with the keys that it needs."""
    document: dict[str, Any] = {"name": op.name}
    if op.sources:
        document["src_buff"] = [_ref(ref) for ref in op.sources]
    if op.destinations:
        document["dst_buff"] = [_ref(ref) for ref in op.destinations]
    if op.channels:
        document["channel_ids"] = list(op.channels)
    if op.channel_type:
        document["channel_type"] = op.channel_type
    if op.semaphores:
        document["semaphore_ids"] = list(op.semaphores)
    if op.barrier >= 0:
        document |= {"barrier_id": op.barrier, "num_threadblocks": op.num_blocks}
    if len(op.sources) > len(op.destinations) or op.name == "glres":
        document["reduce_op"] = op.reduce_op
    if op.share != (0, 1):
        document["tbg_info"] = {"tb_id": op.share[0], "tbg_size": op.share[1]}
    if op.inner:
        document["iter_context"] = {"unit_size": op.unit_bytes, "num_chunks": op.num_chunks}
        document["ops"] = [operation_document(inner) for inner in op.inner]
    return document


def _ref(ref: Ref) -> dict[str, Any]:
    where: dict[str, Any] = {"type": ref.buffer}
    if ref.remote >= 0:
        where = {"buffer_id": ref.remote}
    elif ref.switch >= 0:
        where = {"switch_channel_id": ref.switch}
    return {**where, "index": ref.index, "size": ref.size}
