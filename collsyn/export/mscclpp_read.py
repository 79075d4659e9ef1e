"""Reads MSCCL++ JSON: any file that its executor would parse; what is wrong beyond that is for the checks to say."""

from typing import Any

from collsyn.errors import InputError
from collsyn.export.mscclpp import (
    BUFFERS,
    MAX_MESSAGE_BYTES,
    Block,
    Gpu,
    Operation,
    Program,
    Ref,
    RemoteBuffer,
    SwitchChannel,
)
from collsyn.model.fields import Fields, parse_document

_MOST = (1 << 31) - 1
MAX_GPUS = 1024
MAX_OPERATIONS = 1 << 20


def read_program(raw: bytes, path: str) -> Program:
    """The program of a file; raises InputError that names file and key. Keys that the executor ignores are ignored."""
    fields = parse_document(raw, path)
    gpus = tuple(_gpu(entry) for entry in fields.each("gpus"))
    if not 1 <= len(gpus) <= MAX_GPUS:
        fields.fail("gpus", f"are {len(gpus)}; expected 1 .. {MAX_GPUS}")
    program = Program(
        name=fields.text("name"),
        collective=fields.text("collective").lower(),
        protocol=fields.text("protocol"),
        in_place=fields.flag("inplace"),
        gpus=gpus,
        reuse_resources=fields.flag("reuse_resources", False),
        double_scratch=fields.flag("use_double_scratch_buffer", False),
        alignment=fields.integer("buffer_alignment", 16, 1, _MOST),
        min_bytes=fields.integer("min_message_size", 0, 0, MAX_MESSAGE_BYTES),
        max_bytes=fields.integer("max_message_size", MAX_MESSAGE_BYTES, 0, MAX_MESSAGE_BYTES),
        threads=fields.integer("num_threads_per_block", 1024, 1, 1024),
    )
    if sum(1 for _ in program.operations()) > MAX_OPERATIONS:
        raise InputError(f"{path}:gpus: have more than {MAX_OPERATIONS} operations; too many to judge")
    return program


def _gpu(fields: Fields) -> Gpu:
    channels: dict[str, tuple[int, ...]] = {}
    switches: list[SwitchChannel] = []
    for entry in fields.each("channels", []):
        kind = entry.text("channel_type", choices=("memory", "port", "switch"))
        if kind == "switch":
            buffer = str(entry.raw("buffer_type", ""))
            for group in entry.each("rank_groups", []):
                switches.append(SwitchChannel(buffer, _numbers(group, "ranks")))
        else:
            channels[kind] = channels.get(kind, ()) + _numbers(entry, "connected_to")
    remote = []
    for entry in fields.each("remote_buffers", []):
        access = tuple(str(kind) for kind in entry.items("access_channel_types", []))
        remote.append(
            RemoteBuffer(entry.integer("rank", ..., 0, _MOST), entry.text("type", choices=(*BUFFERS,)), access)
        )
    return Gpu(
        input_chunks=fields.integer("input_chunks", ..., 0, _MOST),
        output_chunks=fields.integer("output_chunks", ..., 0, _MOST),
        scratch_chunks=fields.integer("scratch_chunks", 0, 0, _MOST),
        blocks=tuple(_block(entry) for entry in fields.each("threadblocks")),
        channels=channels,
        switches=tuple(switches),
        remote=tuple(remote),
        semaphores=tuple(entry.integer("init_value", 0, 0, _MOST) for entry in fields.each("semaphores", [])),
        number=fields.integer("id", ..., 0, _MOST),
    )


def _block(fields: Fields) -> Block:
    channels: dict[str, tuple[int, ...]] = {}
    for entry in fields.each("channels", []):
        kind = entry.text("channel_type", choices=("memory", "port", "switch"))
        channels[kind] = channels.get(kind, ()) + _numbers(entry, "channel_ids")
    remote: dict[str, tuple[int, ...]] = {}
    for entry in fields.each("remote_buffer_refs", []):
        kind = entry.text("access_channel_type", choices=("memory", "port"))
        remote[kind] = remote.get(kind, ()) + _numbers(entry, "remote_buffer_ids")
    ops = tuple(_operation(entry, True) for entry in fields.each("ops"))
    return Block(ops, channels, remote, fields.integer("id", ..., 0, _MOST))


def _operation(fields: Fields, outermost: bool) -> Operation:
    name = fields.text("name")
    share: tuple[int, int] = (0, 1)
    if fields.has("tbg_info"):
        group = fields.inner("tbg_info")
        share = (group.integer("tb_id", ..., 0, 1023), group.integer("tbg_size", ..., 1, 1024))
    values: dict[str, Any] = {}
    if name == "pipeline":
        context = fields.inner("iter_context")
        values = {
            "unit_bytes": context.integer("unit_size", ..., 1, _MOST),
            "num_chunks": context.integer("num_chunks", ..., 1, _MOST),
            "inner": tuple(_operation(entry, False) for entry in fields.each("ops")) if outermost else (),
        }
    return Operation(
        name=name,
        sources=tuple(_ref(entry) for entry in fields.each("src_buff", [])),
        destinations=tuple(_ref(entry) for entry in fields.each("dst_buff", [])),
        channel_type=fields.text("channel_type", ""),
        channels=_numbers(fields, "channel_ids", []),
        semaphores=_numbers(fields, "semaphore_ids", []),
        barrier=fields.integer("barrier_id", -1, -1, _MOST),
        num_blocks=fields.integer("num_threadblocks", 0, 0, _MOST),
        reduce_op=fields.text("reduce_op", "sum"),
        share=share,
        **values,
    )


def _ref(fields: Fields) -> Ref:
    index, size = fields.integer("index", ..., 0, _MOST), fields.integer("size", ..., 0, _MOST)
    if fields.has("switch_channel_id"):
        return Ref(index, size, switch=fields.integer("switch_channel_id", ..., 0, _MOST))
    if fields.has("buffer_id"):
        return Ref(index, size, remote=fields.integer("buffer_id", ..., 0, _MOST))
    return Ref(index, size, buffer=fields.text("type", choices=(*BUFFERS,)))


def _numbers(fields: Fields, key: str, default: object = ...) -> tuple[int, ...]:
    return tuple(int(number) for number in fields.integers(key, default, 0, _MOST))
