"""Writes MSCCL XML: the text of a program, and of the list of programs that one of the readers wants."""

from collections.abc import Mapping, Sequence
from typing import Any

from collsyn.export.msccl import Program, Step

_HEAD = '<algo name="{name}" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{gpus}" '
_HEAD += 'coll="{coll}" inplace="{inplace:d}" outofplace="{outofplace:d}" minBytes="{min}" maxBytes="{max}">'


def program_text(program: Program) -> str:
    """The file of a program: one step a line, attributes as all readers want them."""
    lines = [
        _HEAD.format(
            name=program.name,
            proto=program.protocol,
            channels=program.num_channels,
            chunks=program.num_chunks,
            gpus=program.num_gpus,
            coll=program.coll,
            inplace=program.in_place,
            outofplace=program.out_of_place,
            min=program.min_bytes,
            max=program.max_bytes,
        )
    ]
    for g, gpu in enumerate(program.gpus):
        counts = f'i_chunks="{gpu.input_chunks}" o_chunks="{gpu.output_chunks}" s_chunks="{gpu.scratch_chunks}"'
        lines.append(f'  <gpu id="{g}" {counts}>')
        for b, block in enumerate(gpu.blocks):
            lines.append(f'    <tb id="{b}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
            lines += [f"      {_step_text(s, step)}" for s, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step_text(number: int, step: Step) -> str:
    return (
        f'<step s="{number}" type="{step.op}" srcbuf="{step.src_buffer}" srcoff="{step.src_offset}" '
        f'dstbuf="{step.dst_buffer}" dstoff="{step.dst_offset}" cnt="{step.count}" depid="{step.dep_block}" '
        f'deps="{step.dep_step}" hasdep="{step.has_dep:d}"/>'
    )


def config_text(files: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The file that MSCCL_CONFIG names: paths (to be made absolute where they are installed), sizes and protocols."""
    loads = []
    for name, facts in files:
        sizes = f'minbytes="{facts["min_bytes"]}" maxbytes="{facts["max_bytes"]}"'
        loads.append(f'  <load path="{name}" {sizes} proto="{facts["proto"]}"/>')
    return "\n".join(["<msccl_algos>", *loads, "</msccl_algos>", ""])
