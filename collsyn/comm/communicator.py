"""Communicators: collective calls on users' arrays by synthesized plans, blocking and asynchronous."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from collsyn.comm.algorithms import AlgorithmSet
from collsyn.comm.buffers import Array, Buffer, as_array, drain, fill, run_lent
from collsyn.comm.exchange import exchange_v
from collsyn.comm.plans import Call, Plans, Searching
from collsyn.comm.prepared import Prepared, prepared_call
from collsyn.comm.requests import moving, reducing
from collsyn.comm.shapes import check_length, checked_counts, joined_shape, lengths_of, split_shape
from collsyn.comm.store import Store, StoreBootstrap
from collsyn.comm.work import Lane
from collsyn.comm.world import GroupContext, World
from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.model.topology import Topology
from collsyn.runtime.bootstrap import Bootstrap, MpiBootstrap
from collsyn.runtime.emulation import Emulation
from collsyn.topology.resolve import load_topology

DEFAULT_LIMIT_S = 60.0


class Communicator:
    """One rank's handle of a group of ranks on this machine that call collectives together.

    All members issue the calls of a communicator in the same order; calls of different communicators do not wait for
    each other. Arrays are NumPy's or anything that offers CPU memory by `__array_interface__` or `__dlpack__`, of any
    shape and layout. Results go to `out`, which may be the input or overlap with it; where `out` is left out they go to
    a new array. With `async_op` a call returns a Work at once, and its arrays must not be touched until that is over.

    InputError concerns one call. A DeviceError (a rank was lost, failed, or did not come within `timeout_s` seconds)
    ends the whole job: every rank's pending and later calls raise one that names the rank. In a `with` block, an
    exception that leaves the block ends the job, too.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        topology: Topology | str | None = None,
        schedules: AlgorithmSet | str | Path | None = None,
        timeout_s: float = DEFAULT_LIMIT_S,
        emulation_factor: float | None = None,
        search: Searching | None = None,
    ) -> None:
        """Meet all ranks of a bootstrap, each of which makes one with the same arguments.

        `topology` is what methods make schedules for (by default all ranks of a host alike); `schedules` says which
        algorithm serves which size, a folder meaning the schedules in it. With `emulation_factor` calls run at the
        pace of a machine like `topology` that is so many times slower (groups do not disturb each other there). With
        `search` schedules for `topology` are searched for. Raises DeviceError or InputError.
        """
        machine = load_topology(topology) if isinstance(topology, str) else topology
        if machine is not None and machine.num_ranks != bootstrap.size:
            raise InputError(f"topology {machine.name}: has {machine.num_ranks} ranks; this job has {bootstrap.size}")
        if schedules is None or isinstance(schedules, AlgorithmSet):
            algorithms = schedules or AlgorithmSet()
        else:
            algorithms = AlgorithmSet.from_folder(schedules)
        if emulation_factor is not None and machine is None:
            raise InputError("emulation_factor: needs a topology to emulate")
        self._emulation_factor, self._search = emulation_factor, search
        self._be(World(bootstrap, timeout_s), tuple(range(bootstrap.size)), "world", machine, algorithms)

    @classmethod
    def from_mpi(
        cls,
        topology: Topology | str | None = None,
        schedules: AlgorithmSet | str | Path | None = None,
        timeout_s: float = DEFAULT_LIMIT_S,
    ) -> "Communicator":
        """The communicator of all ranks that mpirun or srun started (needs mpi4py)."""
        return cls(MpiBootstrap(timeout_s), topology, schedules, timeout_s)

    @classmethod
    def from_store(
        cls,
        store: Store,
        rank: int,
        size: int,
        prefix: str = "collsyn",
        topology: Topology | str | None = None,
        schedules: AlgorithmSet | str | Path | None = None,
        timeout_s: float = DEFAULT_LIMIT_S,
    ) -> "Communicator":
        """The communicator of `size` ranks that see one key-value store (`set(key, bytes)`, `get(key)` that waits).

        `prefix` of the keys must be new to the store for every communicator that is made so.
        """
        if not 0 <= rank < size:
            raise InputError(f"rank: is {rank}; expected 0 .. {size - 1}")
        return cls(StoreBootstrap(store, rank, size, prefix, timeout_s), topology, schedules, timeout_s)

    def _be(
        self,
        world: World,
        ranks: tuple[int, ...],
        tag: str,
        topology: Topology | None,
        algorithms: AlgorithmSet,
    ) -> None:
        self._world, self._tag, self._topology, self._algorithms = world, tag, topology, algorithms
        self.ranks = ranks
        self.rank, self.size = ranks.index(world.rank), len(ranks)
        self._lane = Lane(f"collsyn {tag}")
        self._context: GroupContext | None = None
        self._plans: Plans | None = None
        self._channels: dict[tuple[int, int, int], Communicator] = {}
        world.at_close(self._leave)

    def group(self, ranks: Sequence[int]) -> "Communicator":
        """A communicator of some ranks (numbers of this one), which are numbered in it in the order given.

        Every member, and nobody else, calls it; groups of the same ranks are made in the same order. It returns at
        once: members meet in the first call.
        """
        members = tuple(int(rank) for rank in ranks)
        bad = next((rank for rank in members if not 0 <= rank < self.size), None)
        if bad is not None or len(set(members)) != len(members):
            what = "a rank is named twice" if bad is None else f"rank {bad} is not there"
            raise InputError(f"group: {what}; expected different ranks of 0 .. {self.size - 1}")
        if self.rank not in members:
            raise InputError(f"group: rank {self.rank} makes a group that it is not in")
        return self._part(members, "group")

    def all_reduce(
        self,
        array: Buffer,
        op: str = "sum",
        out: Buffer | None = None,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank's elements reduced with those of the others, on all ranks (`dtype`: see `reduce`)."""
        send = as_array(array, "array")
        recv = self._out(out, send, send.shape, send.size)
        return self._start(reducing("allreduce", send.size, send.dtype, dtype, op), send, recv, async_op)

    def reduce(
        self,
        array: Buffer,
        root: int = 0,
        op: str = "sum",
        out: Buffer | None = None,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """All ranks' elements reduced (`sum`, `prod`, `min`, `max`, `avg`) on the root; None on the others.

        `dtype` is needed for bfloat16 only, which NumPy stores as uint16.
        """
        send = as_array(array, "array")
        recv = self._out(out, send, send.shape, send.size) if self._is_root(root) else None
        return self._start(reducing("reduce", send.size, send.dtype, dtype, op, root), send, recv, async_op)

    def reduce_scatter(
        self,
        array: Buffer,
        op: str = "sum",
        out: Buffer | None = None,
        counts: Sequence[int] | None = None,
        *,
        dtype: str | None = None,
        async_op: bool = False,
    ) -> Any:
        """This rank's shard of all ranks' elements reduced.

        Shards have `counts` elements, or differ by at most one: rank r of n gets elements r T // n .. (r + 1) T // n.
        """
        send = as_array(array, "array")
        lengths = lengths_of(send.size, self.size, counts)
        check_length(send, sum(lengths), "array")
        length = lengths[self.rank]
        shape = split_shape(send.shape, self.size, length) if counts is None else (length,)
        recv = self._out(out, send, shape, length)
        return self._start(
            reducing("reducescatter", send.size, send.dtype, dtype, op, None, lengths), send, recv, async_op
        )

    def all_gather(
        self, array: Buffer, out: Buffer | None = None, counts: Sequence[int] | None = None, *, async_op: bool = False
    ) -> Any:
        """The shards of all ranks, one behind the other, on all ranks.

        Shards have `counts` elements; else those of `out` are divided as `reduce_scatter` does; else all are equal.
        """
        send = as_array(array, "array")
        total = send.size * self.size if out is None else as_array(out, "out").size
        lengths = lengths_of(total, self.size, counts)
        check_length(send, lengths[self.rank], "array")
        shape = joined_shape(send.shape, self.size) if counts is None else (sum(lengths),)
        recv = self._out(out, send, shape, sum(lengths))
        return self._start(moving("allgather", sum(lengths), send.dtype, None, lengths), send, recv, async_op)

    def gather(
        self,
        array: Buffer,
        root: int = 0,
        out: Buffer | None = None,
        counts: Sequence[int] | None = None,
        *,
        async_op: bool = False,
    ) -> Any:
        """The shards of all ranks (`counts` elements, else equal) in rank order on the root; None elsewhere."""
        send = as_array(array, "array")
        lengths = lengths_of(send.size * self.size, self.size, counts)
        check_length(send, lengths[self.rank], "array")
        shape = joined_shape(send.shape, self.size) if counts is None else (sum(lengths),)
        recv = self._out(out, send, shape, sum(lengths)) if self._is_root(root) else None
        return self._start(moving("gather", sum(lengths), send.dtype, root, lengths), send, recv, async_op)

    def scatter(
        self,
        array: Buffer | None,
        root: int = 0,
        out: Buffer | None = None,
        counts: Sequence[int] | None = None,
        *,
        async_op: bool = False,
    ) -> Any:
        """This rank's shard (`counts` elements, else equal) of the root's array; other ranks must give `out`."""
        send = self._given(array, root)
        like = as_array(out, "out") if send is None else send
        lengths = lengths_of(like.size if send is not None else like.size * self.size, self.size, counts)
        if send is not None:
            check_length(send, sum(lengths), "array")
            if counts is None and send.size % self.size:
                raise InputError(f"array: {send.size} elements do not divide among {self.size} ranks; give counts")
        length = lengths[self.rank]
        recv = self._out(out, like, split_shape(like.shape, self.size, length) if counts is None else (length,), length)
        return self._start(moving("scatter", sum(lengths), like.dtype, root, lengths), send, recv, async_op)

    def broadcast(self, array: Buffer, root: int = 0, out: Buffer | None = None, *, async_op: bool = False) -> Any:
        """The root's elements on all ranks: in every rank's own `array`, unless `out` is given."""
        like = as_array(array, "array")
        call = moving("broadcast", like.size, like.dtype, root)
        if self._is_root(root):
            recv = None if out is None else self._out(out, like, like.shape, like.size)
            return self._start(call, like, recv, async_op, like if recv is None else recv)
        return self._start(call, None, self._out(array if out is None else out, like, (), like.size), async_op)

    def all_to_all(self, array: Buffer, out: Buffer | None = None, *, async_op: bool = False) -> Any:
        """The parts that all ranks have for this one, in rank order; part d of `array` goes to rank d."""
        send = as_array(array, "array")
        if send.size % self.size:
            raise InputError(f"array: {send.size} elements do not divide among {self.size} ranks; use all_to_all_v")
        recv = self._out(out, send, send.shape, send.size)
        return self._start(moving("alltoall", send.size, send.dtype), send, recv, async_op)

    def all_to_all_v(
        self,
        array: Buffer,
        counts: Sequence[int],
        out: Buffer | None = None,
        *,
        arriving: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Any:
        """As `all_to_all` with `counts[d]` elements for rank d; the result is flat and as long as what arrives.

        With `arriving`, it is an error unless `arriving[s]` elements come from rank s.
        """
        send = as_array(array, "array")
        parts = checked_counts(counts, self.size)
        expected = None if arriving is None else checked_counts(arriving, self.size)
        check_length(send, sum(parts), "array")
        recv = None if out is None else self._out(out, send, (), None)

        def task() -> Array:
            if self.size > 1:
                return exchange_v(
                    self._ready(), self.rank, self.size, send, parts, recv, expected, self._world.timeout_s
                )
            result = np.empty(send.size, dtype=send.dtype) if recv is None else recv
            check_length(result, send.size, "out")
            result[...] = send.reshape(result.shape)
            return result

        return self._issue(task, "all_to_all_v", async_op)

    def send(self, array: Buffer, to: int, *, tag: int = 0, async_op: bool = False) -> Any:
        """Send elements to a rank, which receives as many of them with the same tag.

        Pairs, directions and tags do not wait for each other; within each, messages arrive in order.
        """
        self._check_peer(to)
        data = as_array(array, "array")
        call = moving("broadcast", data.size, data.dtype, 0)
        return self._channel(self.rank, to, tag)._start(call, data, None, async_op)

    def receive(self, out: Buffer, source: int, *, tag: int = 0, async_op: bool = False) -> Any:
        """Receive elements from a rank into an array, in the order in which they were sent with this tag."""
        self._check_peer(source)
        return self._channel(source, self.rank, tag).broadcast(out, 0, async_op=async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Return when all ranks have come here; all that this rank issued before is over then."""

        def task() -> None:
            if self.size > 1:
                self._ready()
                assert self._context is not None
                self._context.barrier(self._world.timeout_s)

        return self._issue(task, "barrier", async_op)

    def prepare(
        self, kind: str, size: int, dtype: str = "float32", op: str = "sum", root: int | None = None
    ) -> Prepared:
        """A collective to be called again and again on memory that ranks share, so that nothing is copied.

        `kind` is the name of a call (`all_reduce`, ...), `size` the elements of its largest buffer. All ranks call it.
        """
        call = prepared_call(kind, size, self.size, dtype, op, root)
        plan = self._issue(lambda: self._ready().make(call), "prepare", False) if self.size > 1 else None
        return Prepared(call, plan, self._issue, self._world.timeout_s)

    def close(self) -> None:
        """Finish what was issued and leave; the communicator of all ranks takes its groups along."""
        if self._tag == "world":
            self._world.close()
        else:
            self._leave()

    def abort(self, message: str) -> None:
        """End the job: every rank's pending and later calls raise DeviceError with the message."""
        self._world.fail(f"rank {self._world.rank} failed: {message}")

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(" ".join(str(error).split()) or type(error).__name__)
        self.close()

    def _leave(self) -> None:
        for channel in self._channels.values():
            channel._leave()
        self._channels.clear()
        self._lane.close(self._world.timeout_s)
        if self._plans is not None:
            self._plans.close()
        context, self._context, self._plans = self._context, None, None
        if context is not None:
            self._world.part(context)

    def _part(self, members: tuple[int, ...], kind: str) -> "Communicator":
        """A communicator of some of the ranks of this one, all of which must know how they come to it."""
        made = object.__new__(Communicator)
        ranks = tuple(self.ranks[rank] for rank in members)
        tag = self._world.tag(f"{self._tag}/{kind} {','.join(map(str, members))}")
        topology = None if self._topology is None else self._topology.subset(members)
        # A message between two ranks has but one way.
        made._emulation_factor, made._search = self._emulation_factor, self._search if kind == "group" else None
        algorithms = self._algorithms if kind == "group" else AlgorithmSet()
        made._be(self._world, ranks, tag, topology, algorithms)
        return made

    def _channel(self, source: int, to: int, tag: int) -> "Communicator":
        key = (source, to, tag)
        if key not in self._channels:
            self._channels[key] = self._part((source, to), f"pair, tag {tag}," if tag else "pair")
        return self._channels[key]

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise InputError(f"rank {peer} is not another one; expected 0 .. {self.size - 1} without {self.rank}")

    def _is_root(self, root: int) -> bool:
        if not 0 <= root < self.size:
            raise InputError(f"root: is {root}; expected 0 .. {self.size - 1}")
        return root == self.rank

    def _given(self, array: Buffer | None, root: int) -> Array | None:
        return as_array(array, "array") if self._is_root(root) else None

    def _out(self, out: Buffer | None, like: Array, shape: tuple[int, ...], length: int | None) -> Array:
        """Where results go: `out`, of so many elements of the type of `like`, or a new array of a shape."""
        if out is None:
            return np.empty(shape, dtype=like.dtype)
        recv = as_array(out, "out", writable=True)
        if recv.dtype != like.dtype:
            raise InputError(f"out: has elements of {recv.dtype.name}; expected {like.dtype.name}")
        if length is not None:
            check_length(recv, length, "out")
        return recv

    def _start(
        self, call: Call, send: Array | None, recv: Array | None, async_op: bool, result: Array | None = None
    ) -> Any:
        """Do a call on arrays; what it returns is `result`, or `recv` if that is None."""
        given = recv if result is None else result

        def task() -> Array | None:
            if self.size == 1:
                if send is not None and recv is not None and recv is not send:
                    recv[...] = send.reshape(recv.shape)
            elif call.num_elements:
                prepared = self._ready().get(call, may_lend=True)
                if prepared.is_lent:
                    assert send is not None and recv is not None
                    run_lent(prepared, send, recv, self.rank, self.size, self._world.timeout_s)
                    return given
                if send is not None:
                    fill(prepared.input, send)
                prepared.run(self._world.timeout_s)
                if recv is not None:
                    drain(recv, prepared.output)
            return given

        return self._issue(task, call.kind, async_op)

    def _ready(self) -> Plans:
        """The plans of this communicator, whose members meet when they are first asked for."""
        if self._plans is None:
            self._context = self._world.meet(self.ranks, self._tag)
            factor, machine = self._emulation_factor, self._topology
            emulation = None if factor is None or machine is None else Emulation(machine, factor)
            self._plans = Plans(self._context, machine, self._algorithms, emulation=emulation, search=self._search)
        return self._plans

    def _issue(self, task: Callable[[], Any], what: str, async_op: bool) -> Any:
        """Do a call in order, now or when its turn comes."""
        self._world.check()

        def guarded() -> Any:
            self._world.check()
            try:
                return task()
            except CollsynError as error:
                if not isinstance(error, DeviceError):
                    # All ranks have the same one.
                    raise
                raise self._world.failed(error, self.ranks) from None
            except BaseException as error:
                self._world.failed(error, self.ranks)
                raise

        return self._lane.submit(guarded, what) if async_op else self._lane.run(guarded, what)
