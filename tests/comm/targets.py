"""Functions that run on every rank of a job that a test launches."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from collsyn.comm.algorithms import AlgorithmSet
from collsyn.comm.communicator import Communicator
from collsyn.comm.plans import Call, Plans, Searching
from collsyn.comm.store import StoreBootstrap
from collsyn.errors import DeviceError, InputError
from tests.comm.oracle import borders, expected

LIMIT_S = 60
KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "scatter", "broadcast", "all_to_all")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "gather", "scatter", "broadcast")


class Given:
    """One call with the inputs of all ranks, which every rank can make up for itself."""

    def __init__(self, kind, size, elements, dtype, op, root, seed):
        self.kind, self.size, self.op, self.root = kind, size, op, root
        if kind in ("scatter", "all_to_all"):
            elements = elements // size * size
        rng = np.random.default_rng(seed)
        self.inputs = [rng.integers(-5, 6, elements).astype(dtype) for _ in range(size)]

    def issue(self, comm, out=None, **options):
        """Make this rank's call; inputs are copies, so that nothing done in place changes what is expected."""
        mine = self.inputs[comm.rank].copy()
        if self.kind in REDUCING:
            options["op"] = self.op
        if self.kind in ROOTED:
            options["root"] = self.root
        if out == "in place":
            options["out"] = mine
        if self.kind == "scatter" and comm.rank != self.root:
            options["out"] = np.empty(mine.size // self.size, mine.dtype)
            mine = None
        return getattr(comm, self.kind)(mine, **options)

    def is_right(self, comm, result):
        """Whether the result of this rank is what NumPy says."""
        want = expected(self.kind, self.inputs, comm.rank, self.op, self.root)
        if want is None or result is None:
            return want is None and result is None
        return result.dtype == want.dtype and np.array_equal(result.reshape(-1), want)


def check_all(bootstrap, elements, dtypes, ops=("sum",)):
    """Every collective with several sizes, types and reductions, out of place and in place; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        for kind in KINDS:
            places = (None, "in place") if kind in ("all_reduce", "reduce", "all_to_all") else (None,)
            for number in elements:
                for dtype in dtypes:
                    for turn, op in enumerate(ops if kind in REDUCING else ("sum",)):
                        for out in places:
                            given = Given(kind, comm.size, number, dtype, op, (turn + 1) % comm.size, [number, turn])
                            if not given.is_right(comm, given.issue(comm, out)):
                                wrong.append([kind, number, dtype, op, out])
    return wrong


def mix(bootstrap, calls, seed):
    """Random asynchronous calls over two overlapping groups, in an order that the ranks of a group share."""
    size, rng = bootstrap.size, np.random.default_rng(seed)
    members = [list(range(size * 5 // 8)), list(range(size - 1, size * 3 // 8 - 1, -1))]
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        groups = [comm.group(ranks) if comm.rank in ranks else None for ranks in members]
        issued = []
        for number in range(calls):
            which = int(rng.integers(2))
            kind, dtype = rng.choice(KINDS), rng.choice(["float32", "int64", "uint8", "float64"])
            elements, op = int(rng.choice([0, 1, 7, 100, 4001])), rng.choice(["sum", "min", "max", "avg"])
            root, pause_s = int(rng.integers(len(members[which]))), rng.random() * 1e-4
            group = groups[which]
            if group is None:
                continue
            if op == "avg" and dtype == "uint8":
                op = "max"
            given = Given(str(kind), group.size, elements, str(dtype), str(op), root, [seed, number])
            issued.append((number, group, given, given.issue(group, async_op=True)))
            if number % 10 == comm.rank:
                time.sleep(pause_s)
        return [
            len(issued),
            [number for number, group, given, work in issued if not given.is_right(group, work.result(LIMIT_S))],
        ]


def lose_one(bootstrap, victim, marks):
    """A rank kills itself amid calls of two groups; what the others met, and after how many seconds."""
    size = bootstrap.size
    comm = Communicator(bootstrap, timeout_s=LIMIT_S)
    groups = [comm.group(ranks) for ranks in (range(size - 1), range(1, size)) if comm.rank in ranks]
    data = np.full(1000, comm.rank, np.int32)
    comm.barrier()
    mark = Path(marks) / "killed"
    works = []
    for number in range(2000):
        try:
            works += [group.all_reduce(data, async_op=True) for group in groups]
        except DeviceError:
            break
        if comm.rank == victim and number == 50:
            works[40].wait()
            mark.write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    error = next(filter(None, (work.exception(LIMIT_S) for work in works)))
    seconds = time.time() - float(mark.read_text())
    begin = time.monotonic()
    again = []
    for other in (comm, *groups):
        try:
            other.barrier()
        except DeviceError as later:
            again.append(str(later))
    at_once = time.monotonic() - begin < 1
    comm.close()
    result = {"error": str(error), "kind": type(error).__name__, "seconds": seconds, "again": again, "at_once": at_once}
    (Path(marks) / f"rank-{bootstrap.rank}").write_text(repr(result))
    # The launcher would end all others as soon as the first one returns.
    time.sleep(2)
    return result


def come_late(bootstrap, limit_s):
    """Rank 1 does not come to a call."""
    with Communicator(bootstrap, timeout_s=limit_s) as comm:
        comm.all_reduce(np.ones(3, np.float32))
        if comm.rank != 1:
            comm.all_reduce(np.ones(3, np.float32))
        else:
            with contextlib.suppress(DeviceError):
                while True:
                    comm._world.check()
                    time.sleep(0.01)
            comm.barrier()


def disagree(bootstrap):
    """Ranks call the same collective with different lengths."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        comm.all_reduce(np.ones(7 if comm.rank == 1 else 8, np.float32))


def _different_roots(comm):
    comm.broadcast(np.ones(4, np.float32), root=min(comm.rank, 1))


def _different_calls(comm):
    array = np.arange(2 * comm.size, dtype=np.int32)
    comm.broadcast(array) if comm.rank == 1 else comm.all_to_all(array)


def _one_is_prepared(comm):
    comm.all_reduce(np.ones(4, np.float32))
    comm.all_reduce(np.ones(1 << 20 if comm.rank == 1 else 8, np.float32))


def disagree_about_calls(bootstrap, case):
    """Ranks do not call the same thing."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        {"roots": _different_roots, "calls": _different_calls, "plans": _one_is_prepared}[case](comm)


def fail_in_block(bootstrap):
    """Rank 1 leaves the block with an error of its own while the others wait for it."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        comm.barrier()
        if comm.rank == 1:
            raise RuntimeError("no more ideas")
        comm.all_reduce(np.ones(3, np.float32))


def use_store(bootstrap, folder):
    """The same ranks, found through files."""
    store = FolderStore(Path(folder))
    with Communicator.from_store(store, bootstrap.rank, bootstrap.size, "test", timeout_s=LIMIT_S) as comm:
        total = comm.all_reduce(np.array([comm.rank], np.int64))
    return int(total[0])


def use_mpi(bootstrap):
    """The same ranks, found through MPI."""
    with Communicator.from_mpi(timeout_s=LIMIT_S) as comm:
        odd = comm.group(range(1, comm.size, 2)) if comm.rank % 2 else None
        works = [each.all_gather(np.array([comm.rank]), async_op=True) for each in (comm, odd) if each is not None]
        return [work.result(LIMIT_S).tolist() for work in works]


def lack_a_key(bootstrap, folder):
    """A store whose other ranks never come."""
    try:
        StoreBootstrap(FolderStore(Path(folder), limit_s=0.05), 0, 2, "x").allgather(b"here")
    except DeviceError as error:
        return str(error)
    return None


class FolderStore:
    """A key-value store in files of a folder."""

    def __init__(self, folder, limit_s=LIMIT_S):
        self.folder, self.limit_s = folder, limit_s

    def set(self, key, value):
        """Write a value under a name that appears with all of it."""
        path = self.folder / key.replace("/", "-")
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(value)
        part.rename(path)

    def get(self, key):
        """Wait for the file of a key."""
        path, end = self.folder / key.replace("/", "-"), time.monotonic() + self.limit_s
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {key}")
            time.sleep(1e-3)
        return path.read_bytes()


def exchange(bootstrap, tables):
    """all_to_all_v with several tables of counts, types and layouts; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        size, rank = comm.size, comm.rank
        for number, table in enumerate(tables):
            for dtype in ("uint8", "float64", "complex128"):
                parts = [
                    [np.arange(count) * (s + 1) % 100 + d for d, count in enumerate(row)] for s, row in enumerate(table)
                ]
                send = np.concatenate(parts[rank]).astype(dtype)
                want = np.concatenate([parts[s][rank] for s in range(size)]).astype(dtype)
                got = comm.all_to_all_v(send, table[rank])
                out = np.zeros((want.size, 2), dtype)[:, 1]
                comm.all_to_all_v(send, table[rank], out, async_op=True).wait()
                if not (np.array_equal(got, want) and np.array_equal(out, want)):
                    wrong.append([number, dtype])
        # Everyone hears of a wrong length anywhere, and can go on.
        room = np.empty(size + (rank == 1), np.int8)
        try:
            comm.all_to_all_v(np.ones(size, np.int8), [1] * size, room)
        except InputError as error:
            wrong.append(str(error))
        comm.barrier()
    return wrong


def shards_of_any_length(bootstrap):
    """Sizes that do not divide, and counts; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        size, rank = comm.size, comm.rank
        for dtype in ("int32", "complex128"):
            for total in (1, size + 1, 5 * size - 1):
                whole, at = np.arange(total).astype(dtype), borders(total, size)
                shard, out = whole[at[rank] : at[rank + 1]].copy(), np.zeros(total, dtype)
                comm.all_gather(shard, out)
                wrong += [] if np.array_equal(out, whole) else [["all_gather", dtype, total]]
                out[:] = 0
                out[at[rank] : at[rank + 1]] = shard
                comm.all_gather(out[at[rank] : at[rank + 1]], out)
                wrong += [] if np.array_equal(out, whole) else [["all_gather in place", dtype, total]]
            counts = [3 * other for other in range(size)]
            at = np.cumsum([0, *counts])
            whole = np.arange(at[-1]).astype(dtype)
            shard = whole[at[rank] : at[rank + 1]]
            wrong += [] if np.array_equal(comm.all_gather(shard, counts=counts), whole) else [["counts", dtype]]
            gathered = comm.gather(shard, 1, counts=counts)
            wrong += [] if (gathered is None) == (rank != 1) else [["gather on", rank]]
            wrong += [] if gathered is None or np.array_equal(gathered, whole) else [["gather", dtype]]
            mine = comm.scatter(whole if rank == 1 else None, 1, np.empty_like(shard), counts)
            wrong += [] if np.array_equal(mine, shard) else [["scatter", dtype]]
        mine = comm.reduce_scatter(np.arange(at[-1], dtype=np.int32), counts=counts)
        wrong += [] if np.array_equal(mine, np.arange(at[-1])[at[rank] : at[rank + 1]] * size) else [["reduce_scatter"]]
    return wrong


def layouts(bootstrap):
    """Shapes, strides and types beyond plain rows; what is wrong."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        size, rank = comm.size, comm.rank
        checks = {}
        grid = np.arange(24, dtype=np.float64).reshape(4, 6)
        checks["transposed"] = np.array_equal(comm.all_reduce(grid.T), grid.T * size)
        strided = np.zeros((4, 12))
        comm.all_reduce(grid, out=strided[:, ::2])
        checks["strided out"] = np.array_equal(strided[:, ::2], grid * size) and not strided[:, 1::2].any()
        checks["scalar"] = comm.all_reduce(np.float32(2.0) + np.zeros((), np.float32)).item() == 2 * size
        checks["joined"] = comm.all_gather(grid[:1]).shape == (size, 6)
        checks["split"] = comm.reduce_scatter(np.ones((2 * size, 3))).shape == (2, 3)
        truth = comm.broadcast(np.full(3, rank == 1), root=1)
        checks["bool"] = truth.dtype == bool and truth.all()
        half = np.full(5, 0x3F80, np.uint16)
        checks["bfloat16"] = np.array_equal(
            comm.all_reduce(half, dtype="bfloat16").astype(np.uint32) << 16, [np.float32(size).view(np.uint32)] * 5
        )
        checks["interface"] = np.array_equal(comm.all_reduce(Exposed(grid)), grid * size)
        checks["dlpack"] = np.array_equal(comm.all_reduce(Dlpack(grid)), grid * size)
        checks["empty"] = comm.all_reduce(np.empty((0, 3), np.int8 if rank < 0 else np.uint8)).shape == (0, 3)
        fixed = np.ones(3)
        fixed.flags.writeable = False
        checks["a root may be read-only"] = rank != 0 or comm.broadcast(fixed) is fixed
        if rank:
            checks["others are filled"] = np.array_equal(comm.broadcast(np.zeros(3)), fixed)
    return [name for name, is_right in checks.items() if not is_right]


class Exposed:
    """Memory by NumPy's protocol."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


class Dlpack:
    """Memory by DLPack's protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def refuse(bootstrap):
    """Messages of calls that cannot be, after which everything works."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        ones, size = np.ones(4, np.float32), comm.size
        wishes = [
            lambda: comm.all_reduce(ones, "median"),
            lambda: comm.all_reduce(np.ones(4, np.int16)),
            lambda: comm.all_reduce(ones, out=np.ones(5, np.float32)),
            lambda: comm.all_reduce(ones, out=np.ones(4)),
            lambda: comm.all_reduce("text"),
            lambda: comm.all_reduce(np.array([None])),
            lambda: comm.broadcast(ones, root=size),
            lambda: comm.all_gather(ones, np.empty(4 * size + size, np.float32)),
            lambda: comm.all_to_all(np.ones(size + 1)),
            lambda: comm.all_to_all_v(ones, [1]),
            lambda: comm.send(ones, comm.rank),
            lambda: comm.group([0, 0]),
            lambda: comm.group([(comm.rank + 1) % size]),
        ]
        said = []
        for wish in wishes:
            try:
                wish()
                said.append(None)
            except InputError as error:
                said.append(str(error))
        return [said, comm.all_reduce(ones).tolist()]


def talk_in_pairs(bootstrap, rounds):
    """All ranks send around a ring and back without thinking about order; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for turn in range(rounds):
            there, back = np.zeros(turn + 1, np.int32), np.zeros(turn + 1)
            works = [
                comm.send(np.full(turn + 1, comm.rank * 100 + turn, np.int32), after, async_op=True),
                comm.send(np.full(turn + 1, comm.rank + turn / 8), before, async_op=True),
                comm.receive(there, before, async_op=True),
                comm.receive(back, after, async_op=True),
            ]
            for work in works:
                work.wait(LIMIT_S)
            if (there != before * 100 + turn).any() or (back != after + turn / 8).any():
                wrong.append(turn)
    return wrong


def leave_early(bootstrap):
    """Asynchronous calls are over when a communicator is closed, and a closed one refuses."""
    comm = Communicator(bootstrap, timeout_s=LIMIT_S)
    group = comm.group(list(range(comm.size))[::-1])
    works = [each.all_reduce(np.ones(3, np.int32), async_op=True) for each in (comm, group) for _ in range(20)]
    comm.close()
    comm.close()
    said = []
    for each in (comm, group):
        try:
            each.barrier()
        except DeviceError as error:
            said.append(str(error))
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("collsyn-watch")]
    return [all(work.test() for work in works), [works[0].result().tolist(), works[-1].exception()], said, names]


def close_one_group(bootstrap):
    """A group that is closed does not disturb others, and the same ranks can make another one."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        results = []
        for _ in range(3):
            with comm.group(range(comm.size)) as group:
                results.append(int(group.all_reduce(np.array([group.rank]))[0]))
        results.append(int(comm.all_reduce(np.array([1]))[0]))
        nested = comm.group([2, 1, 0]).group([1, 0]) if comm.rank in (1, 2) else None
        if nested is not None:
            results.append([nested.rank, list(nested.ranks), nested.all_gather(np.array([comm.rank])).tolist()])
    return results


def evict(bootstrap):
    """Plans are dropped in one order everywhere, and made again."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        comm.barrier()
        plans = Plans(comm._context, None, AlgorithmSet(), max_prepared=3, max_bytes=1_000_000)
        sizes = []
        for elements in (10, 20, 30, 10, 40, 20, 100_000, 10, 500_000, 10):
            prepared = plans.get(Call("allreduce", elements, "int32"))
            prepared.input[...] = comm.rank + elements
            prepared.run(LIMIT_S)
            assert (prepared.output == comm.size * elements + sum(range(comm.size))).all()
            sizes.append(len(plans._prepared))
        return sizes


def prepare(bootstrap):
    """Collectives on shared memory against the oracle, several at once; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        size = comm.size
        handles = {
            kind: comm.prepare(kind, 12 * size, "int32", root=1 % size if kind in ROOTED else None) for kind in KINDS
        }
        for turn in range(3):
            works = []
            for number, (kind, handle) in enumerate(handles.items()):
                elements = 12 if kind in ("all_gather", "gather") else 12 * size
                given = Given(kind, size, elements, "int32", "sum", 1 % size, [turn, number])
                if handle.input.size:
                    handle.input[...] = given.inputs[comm.rank]
                works.append((given, handle.run(async_op=bool(turn % 2))))
            for given, work in works:
                output = work.result(LIMIT_S) if turn % 2 else work
                want = expected(given.kind, given.inputs, comm.rank, "sum", given.root)
                if want is not None and not np.array_equal(output, want):
                    wrong.append([turn, given.kind])
        shared = handles["all_reduce"].input
        wrong += [] if np.shares_memory(shared, handles["all_reduce"].output) else ["apart"]
        for handle in handles.values():
            handle.close()
            handle.close()
        for refused in (handles["gather"].run, lambda: comm.prepare("all_reduce", 0)):
            try:
                refused()
                wrong.append("not refused")
            except InputError as error:
                wrong += [] if "closed" in str(error) or "at least 1" in str(error) else [str(error)]
    return wrong


def follow_folder(bootstrap, folder):
    """Which schedules of a folder serve which calls."""
    with Communicator(bootstrap, f"ring:{bootstrap.size}", folder, timeout_s=LIMIT_S) as comm:
        names = []
        for elements in (4, 100_000):
            assert comm.all_gather(np.full(elements, comm.rank, np.uint8)).sum() == elements * sum(range(comm.size))
            names.append(next(reversed(comm._plans._plans.values())).provenance["method"])
        assert comm.all_reduce(np.ones(3, np.int32)).tolist() == [comm.size] * 3
        return names


def tags(bootstrap):
    """Messages of a pair with different tags, received in another order than sent; what arrives."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        if comm.rank == 0:
            works = [comm.send(np.full(3, tag), 1, tag=tag, async_op=True) for tag in (0, 1, 2)]
            for work in works:
                work.wait()
            return None
        return [comm.receive(np.zeros(3, np.int64), 0, tag=tag).tolist() for tag in (2, 0, 1)]


def expect_parts(bootstrap):
    """An exchange in which rank 1 expects other parts than it is sent: the error of every rank, and what follows it."""
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        arriving = [2, 2] if comm.rank == 0 else [1, 3]
        try:
            comm.all_to_all_v(np.arange(4), [2, 2], arriving=arriving)
        except InputError as error:
            right = comm.all_to_all_v(np.arange(4), [2, 2], arriving=[2, 2]).tolist()
            return [str(error), right]
    return []


def lend(bootstrap):
    """Calls large enough to work on users' arrays, which are apart, in place, with gaps, or overlap; what is wrong."""
    wrong = []
    with Communicator(bootstrap, timeout_s=LIMIT_S) as comm:
        size, rank, part = comm.size, comm.rank, 30_000
        whole = size * part
        inputs = [np.random.default_rng(other).integers(-9, 10, whole) for other in range(size)]
        mine, total = inputs[rank], sum(inputs)
        share = slice(rank * part, (rank + 1) * part)
        gathered = np.concatenate([one[:part] for one in inputs])
        exchanged = np.concatenate([one[share] for one in inputs])

        def check(name, found, want):
            if not np.array_equal(found.reshape(-1), want):
                wrong.append(name)

        check("sum", comm.all_reduce(mine), total)
        check("mean", comm.all_reduce(mine.astype(np.float64), "avg"), total / size)
        place = mine.copy()
        check("sum in place", comm.all_reduce(place, out=place), total)
        gaps = np.zeros((whole, 2), np.int64)
        gaps[:, 1] = mine
        comm.all_reduce(gaps[:, 1], out=gaps[:, 0])
        check("sum with gaps", gaps[:, 0], total)
        check("its input", gaps[:, 1], mine)
        shifted = np.concatenate([mine, np.zeros(7, np.int64)])
        check("sum shifted", comm.all_reduce(shifted[:-7], out=shifted[7:]), total)
        check("shard", comm.reduce_scatter(mine), total[share])
        place = mine.copy()
        check("shard in place", comm.reduce_scatter(place, out=place[share]), total[share])
        place = mine.copy()
        elsewhere = slice(5, 5 + part)
        check("shard in an odd place", comm.reduce_scatter(place, out=place[elsewhere]), total[share])
        check("all", comm.all_gather(mine[:part]), gathered)
        place = np.zeros(whole, np.int64)
        place[share] = mine[:part]
        check("all in place", comm.all_gather(place[share], out=place), gathered)
        place[elsewhere] = mine[:part]
        check("all from an odd place", comm.all_gather(place[elsewhere], out=place), gathered)
        check("parts", comm.all_to_all(mine), exchanged)
        place = mine.copy()
        check("parts in place", comm.all_to_all(place, out=place), exchanged)
        again = [comm.all_reduce(mine, async_op=True) for _ in range(5)]
        for work in again:
            check("sum later", work.result(), total)
    return wrong


def searched(bootstrap, must_wait):
    """Whether results are right, whether the first plan was the one searched for, and whether the last one was."""
    topology = "ring:3@bandwidth_gb_s=1,alpha_us=1"
    with Communicator(bootstrap, topology, timeout_s=LIMIT_S, search=Searching(must_wait, 15.0)) as comm:
        want = sum(np.arange(1000) * (rank + 1) for rank in range(comm.size))
        right, names = True, []
        deadline = time.monotonic() + 60
        while True:
            right &= bool((comm.all_reduce(np.arange(1000) * (comm.rank + 1)) == want).all())
            names.append(bool(comm._plans._searched))
            # All ranks see the same, so that they leave after the same call.
            if names[-1] or comm.all_reduce(np.array([time.monotonic() > deadline]).astype(np.uint8))[0]:
                return [right, names[0], names[-1] and None not in comm._plans._searched.values()]
            time.sleep(0.02)


def emulated(bootstrap, factor, topology="ring:2@bandwidth_gb_s=1,alpha_us=1"):
    """Seconds of an allreduce of 16 KiB."""
    with Communicator(bootstrap, topology, timeout_s=LIMIT_S, emulation_factor=factor) as comm:
        data = np.ones(1 << 12, np.float32)
        comm.all_reduce(data)
        begin = time.monotonic()
        assert (comm.all_reduce(data) == 2).all()
        return time.monotonic() - begin
