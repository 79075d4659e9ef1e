"""A kernel made for one plan: its instructions as calls with constants, so that none are fetched when it runs."""

from collsyn.cuda.layout import DeviceProgram
from collsyn.errors import InputError
from collsyn.runtime.crossing import AWAIT, FETCH, RAISE, SEND
from collsyn.runtime.native_loader import DTYPE_CODES, OP_CODES
from collsyn.runtime.program import MOVE, REDUCE, SIGNAL, WAIT

# Each becomes a call that is compiled; beyond this many, compiling takes longer than anybody would wait.
MAX_INSTRUCTIONS = 512


def specialised_source(program: DeviceProgram) -> str:
    """The source of a kernel with the entries and argument of the interpreter, for this program alone.

    The memory it works on comes with the launch, as it does there, so one kernel serves all buffers. Raises InputError
    where the program has more than MAX_INSTRUCTIONS.
    """
    if len(program.instructions) > MAX_INSTRUCTIONS:
        raise InputError(
            f"plan {program.bound.plan.name}: has {len(program.instructions)} instructions here; "
            f"a kernel of its own is made of up to {MAX_INSTRUCTIONS}"
        )
    bodies = [_body(program, number) for number in range(len(program.channels))]
    cases = "".join(f"    case {number}: return channel_{number}(r);\n" for number in range(len(bodies)))
    return (
        f"#define COLLSYN_DTYPE {DTYPE_CODES[program.dtype_name]}\n"
        f"#define COLLSYN_OP {OP_CODES[program.op_name]}\n"
        '#include "divide.cuh"\n'
        '#include "executor.cuh"\n\n'
        "using namespace collsyn;\n\n"
        + "\n".join(bodies)
        + "\nCOLLSYN_FN void specialised(runner &r) {\n    switch (r.number) {\n"
        + cases
        + "    default: return;\n    }\n}\n\n"
        "COLLSYN_FN void collsyn_execute_threads(thread &t, const launch &l) {\n"
        "    run_launch(t, l, [](runner &r) { specialised(r); });\n}\n\n"
        "COLLSYN_ENTRY(collsyn_execute, collsyn::launch)\nCOLLSYN_ENTRY(collsyn_divide, collsyn::launch)\n"
    )


def _body(program: DeviceProgram, number: int) -> str:
    """The channel as a function."""
    begin, end = int(program.channels[number]["begin"]), int(program.channels[number]["end"])
    lines = [line for at in range(begin, end) for line in _calls(program, at)]
    return f"COLLSYN_FN void channel_{number}(runner &r) {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def _calls(program: DeviceProgram, at: int) -> list[str]:
    """What the interpreter would call for an instruction."""
    one = {name: int(program.instructions[at][name]) for name in program.instructions.dtype.names or ()}
    lines = [f"if (!step_barrier(r, {one['row']})) return;"] if one["barrier"] else []
    to, source = f"{one['dst_slot']}, {one['dst']}ull", f"{one['src_slot']}, {one['src']}ull"
    counts = f"{one['count']}ull, {one['value']}ull"
    peer = f"{one['row']}, {one['src2_slot']}"
    if one["kind"] == MOVE:
        lines.append(f"step_move(r, {to}, {source}, {one['count']}ull);")
    elif one["kind"] == REDUCE:
        lines.append(f"step_reduce(r, {to}, {source}, {one['src2_slot']}, {one['src2']}ull, {one['count']}ull);")
    elif one["kind"] == SIGNAL:
        lines.append(f"step_signal(r, {at}, {to}, {one['value']}ull);")
    elif one["kind"] == WAIT:
        lines.append(f"if (!step_wait(r, {one['row']}, {to}, {one['value']}ull)) return;")
    elif one["kind"] == SEND:
        lines.append(f"if (!step_send(r, {peer}, {one['dst']}ull, {source}, {counts})) return;")
    elif one["kind"] == RAISE:
        lines.append(f"if (!step_raise(r, {peer}, {one['dst']}ull, {one['value']}ull)) return;")
    elif one["kind"] == FETCH:
        lines.append(f"if (!step_fetch(r, {peer}, {to}, {one['src']}ull, {counts})) return;")
    elif one["kind"] == AWAIT:
        lines.append(f"if (!step_await(r, {one['row']}, {one['value']}ull)) return;")
    return lines
