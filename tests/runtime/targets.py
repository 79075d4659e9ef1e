"""Functions that run on every rank of a job that a test launches."""

import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from collsyn.check.reference import make_inputs, reference
from collsyn.errors import DeviceError, InputError, VerificationError
from collsyn.model.bind import bind
from collsyn.model.dtypes import DTYPES, OPS, dtype_of, first_difference, random_data
from collsyn.model.plan import Op, Plan
from collsyn.model.plan_file import read_plan
from collsyn.runtime.host import HostContext
from collsyn.runtime.worker import report
from tests.runtime import plans

BUILDERS = {"put_allgather": plans.put_allgather, "ring_allreduce": plans.ring_allreduce}


def who_am_i(bootstrap, **arguments):
    """What a rank sees of itself and of the others."""
    gathered = bootstrap.allgather(bytes([bootstrap.rank]) * (bootstrap.rank * 100_000))
    bootstrap.barrier()
    lengths = [len(part) for part in gathered]
    same = all(set(part) <= {rank} for rank, part in enumerate(gathered))
    return {"rank": bootstrap.rank, "size": bootstrap.size, "lengths": lengths, "same": same, "arguments": arguments}


def check_plan(bootstrap, builder, elements, dtypes=tuple(DTYPES), ops=OPS, in_place=False, repeats=2):
    """Run a plan on random data of all types and reductions; a list of what is wrong."""
    wrong = []
    plan = BUILDERS[builder](bootstrap.size)
    with HostContext(bootstrap) as context:
        for num_elements in elements:
            for dtype in dtypes:
                bound = bind(plan, num_elements, dtype_of(dtype).num_bytes, in_place)
                for op in ops:
                    prepared = context.prepare(bound, dtype, op, in_place)
                    for turn in range(repeats):
                        difference = _run_once(context, prepared, bound, dtype, op, turn)
                        if difference is not None:
                            wrong.append(f"{num_elements} {dtype} {op} call {turn}: element {difference}")
                    prepared.close()
    return wrong


def _run_once(context, prepared, bound, dtype, op, turn):
    width = dtype_of(dtype).num_bytes
    inputs = [
        random_data(dtype, op, int(bound.buffer_bytes[rank, 0]) // width, np.random.default_rng([turn, rank]))
        for rank in range(context.size)
    ]
    # In place, a peer that is behind still reads its part of the last result.
    context.barrier(20)
    prepared.input[...] = inputs[context.rank]
    prepared.run(20)
    want = reference(bound.plan.collective, dtype, op, inputs, bound.num_elements)[context.rank]
    return first_difference(dtype, prepared.output, want)


def alternate(bootstrap, turns):
    """Two plans of unequal size prepared at once and called by turns, without a barrier between; what is wrong."""
    wrong = []
    with HostContext(bootstrap) as context:
        gather = context.prepare(bind(plans.put_allgather(bootstrap.size), 8 * bootstrap.size, 4), "int32")
        reduce = context.prepare(bind(plans.ring_allreduce(bootstrap.size), 5, 8), "int64", "max")
        for turn in range(turns):
            gather.input[...] = turn * 100 + bootstrap.rank
            reduce.input[...] = turn * 10 - bootstrap.rank
            gather.run(20)
            reduce.run(20)
            if gather.output.tolist() != [turn * 100 + rank for rank in range(bootstrap.size) for _ in range(8)]:
                wrong.append(f"allgather {turn}")
            if set(reduce.output.tolist()) != {turn * 10}:
                wrong.append(f"allreduce {turn}")
    return wrong


def in_a_row(bootstrap, file, turns, elements=1000):
    """Calls one behind the other with ever new data, each rank being late by turns; the calls whose result is wrong."""
    plan, wrong, rank = read_plan(file), [], bootstrap.rank
    lates = np.random.default_rng(rank)
    with HostContext(bootstrap) as context:
        prepared = context.prepare(bind(plan, elements, 4), "int32")
        for turn in range(turns):
            inputs = make_inputs(plan.collective, "int32", "sum", elements, seed=turn)
            if lates.random() < 0.3:
                time.sleep(lates.random() * 2e-3)
            prepared.input[...] = inputs[rank]
            prepared.run(20)
            want = reference(plan.collective, "int32", "sum", inputs, elements)[rank]
            if first_difference("int32", prepared.output, want) is not None:
                wrong.append(turn)
    return wrong


def sweep_sizes(bootstrap, sizes):
    """Prepare and close plans of several sizes: in how many places inputs were, and whether results were right."""
    plan, right, slots = plans.put_allgather(bootstrap.size), True, set()
    with HostContext(bootstrap) as context:
        for size in sizes:
            prepared = context.prepare(bind(plan, size * bootstrap.size, 4), "int32")
            slots.add(prepared.input.ctypes.data)
            prepared.input[...] = bootstrap.rank + 1
            prepared.run(20)
            right &= prepared.output.tolist() == [rank + 1 for rank in range(bootstrap.size) for _ in range(size)]
            prepared.close()
    return [len(slots), right]


def prepare_many(bootstrap, number):
    """Many plans at once, with few descriptors; whether all of them run, and what a closed one says."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with HostContext(bootstrap) as context:
        bound = bind(plans.put_allgather(bootstrap.size), bootstrap.size, 1)
        prepared = [context.prepare(bound, "uint8") for _ in range(number)]
        for index, plan in enumerate(prepared):
            plan.input[...] = index % 7 + bootstrap.rank
            plan.run(20)
        right = all(
            plan.output.tolist() == [index % 7 + rank for rank in range(bootstrap.size)]
            for index, plan in enumerate(prepared)
        )
        for plan in prepared:
            plan.close()
        try:
            prepared[0].run(20)
        except DeviceError as error:
            return [right, str(error)]


def be_stuck(bootstrap, limit_s):
    """A plan in which rank 1's second channel waits for what nobody signals."""
    collective = plans.put_allgather(bootstrap.size).collective
    channels = [(rank, [{"op": Op.NOP}]) for rank in range(bootstrap.size)]
    channels.append((1, [{"op": Op.NOP}, {"op": Op.NOP}, plans.wait(0, 3, 7)]))
    # All others wait for rank 1.
    channels += [(rank, [plans.wait(1, 0)]) for rank in range(bootstrap.size) if rank != 1]
    plan = Plan.build(collective, channels, [[]] * bootstrap.size, [4] * bootstrap.size)
    with HostContext(bootstrap) as context:
        context.prepare(bind(plan, bootstrap.size, 4)).run(limit_s if bootstrap.rank == 1 else 60)


def loop_until_one_dies(bootstrap, victim, how):
    """Run for ever; the victim is killed, or raises, or leaves without a word, after a few calls."""
    report({"files": shared_memory_files(), "pid": os.getpid()})
    with HostContext(bootstrap) as context:
        prepared = context.prepare(bind(plans.put_allgather(bootstrap.size), bootstrap.size * 1000, 4))
        for turn in range(10**9):
            if bootstrap.rank == victim and turn == 50:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "exit":
                    os._exit(0)
                if how == "raise":
                    raise ValueError("boom\nwith a second line")
            prepared.run(60)


def shared_memory_files():
    """Files of /dev/shm that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line and "(deleted)" not in line]


def fail(bootstrap, rank, kind):
    """One rank fails outside of any plan while the others wait for it."""
    if bootstrap.rank == rank:
        raise {"verification": VerificationError("chunk 3 is wrong"), "value": ValueError("boom")}[kind]
    bootstrap.barrier()


def disagree(bootstrap, what):
    """Rank 1 prepares another plan than the rest."""
    elements = 8 if what == "size" and bootstrap.rank == 1 else 4
    op = "max" if what == "op" and bootstrap.rank == 1 else "sum"
    with HostContext(bootstrap) as context:
        context.prepare(bind(plans.ring_allreduce(bootstrap.size), elements, 4), "float32", op)


def misuse(bootstrap, how):
    """Requests that no rank can fulfil."""
    with HostContext(bootstrap) as context:
        bound = bind(plans.ring_allreduce(bootstrap.size + (how == "ranks")), 8, 4)
        context.prepare(bound, "float64" if how == "dtype" else "float32", "sum", True if how == "place" else None)


def sleep(bootstrap, seconds):
    """Be busy with something else."""
    report("asleep")
    time.sleep(seconds)


def miss_an_exchange(bootstrap, limit_s):
    """Rank 1 never joins the exchange."""
    bootstrap.limit_s = limit_s
    if bootstrap.rank != 1:
        bootstrap.barrier()
    else:
        time.sleep(60)


def print_something(bootstrap):
    """Print on both streams."""
    for name in ("out", "err"):
        # In one piece: print writes the line's end by itself.
        getattr(sys, f"std{name}").write(f"{name} of rank {bootstrap.rank}\n")


def outputs(bootstrap, builder, num_elements, dtype, op):
    """Bytes of the output, on data that do round."""
    with HostContext(bootstrap) as context:
        prepared = context.prepare(
            bind(BUILDERS[builder](bootstrap.size), num_elements, dtype_of(dtype).num_bytes), dtype, op
        )
        rng = np.random.default_rng(bootstrap.rank)
        prepared.input[...] = random_data(dtype, op, len(prepared.input), rng, general=True)
        prepared.run(20)
        return prepared.output.tobytes().hex()


def check_files(bootstrap, files, elements, kinds):
    """Run plan files at several sizes, in place and out of place, twice; what is wrong, and how many runs there were.

    `kinds` are pairs of type and reduction, the last of which is for plans that reduce nothing.
    """
    wrong, runs = [], 0
    with HostContext(bootstrap) as context:
        for file in files:
            plan = read_plan(file)
            places = (False, True) if plan.collective.has_in_place else (False,)
            cases = itertools.product(elements, places, kinds if plan.collective.reduces else kinds[-1:])
            for num_elements, in_place, (dtype, op) in cases:
                try:
                    bound = bind(plan, num_elements, dtype_of(dtype).num_bytes, in_place)
                except InputError:
                    # Chunks that overlap do not serve every size.
                    continue
                prepared = context.prepare(bound, dtype, op)
                for turn in range(2):
                    runs += 1
                    if _run_once(context, prepared, bound, dtype, op, turn) is not None:
                        wrong.append(f"{Path(file).stem}: {num_elements} {dtype} {op} {in_place=} call {turn}")
                prepared.close()
    return [wrong, runs]
