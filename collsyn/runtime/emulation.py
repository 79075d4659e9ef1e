"""Host ranks at the pace of another machine, whose links are books that all ranks share (docs/emulation.md)."""

import ctypes
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collsyn.check.interleave import owners
from collsyn.check.simulate_plan import Transfers, local_s, signal_s
from collsyn.errors import DeviceError, InputError
from collsyn.model.arrays import I64
from collsyn.model.bind import BoundPlan
from collsyn.model.plan import MOVES, READS_PEER, Op, Plan
from collsyn.model.schedule import RouteCosts
from collsyn.model.size_rates import SizedRoutes
from collsyn.model.topology import Topology
from collsyn.model.working_set import at_size
from collsyn.runtime.arena import Control, OwnSegment, Segment, attach
from collsyn.runtime.executors import NativeExecutor
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.program import Program

# As in native/emulate.h: a link's book, what an instruction costs, the state of a channel.
BOOK_BYTES = 256
_COST = np.dtype(
    [("route", "i8"), ("reads", "i8"), ("travel_ns", "i8"), ("local_ns", "i8"), ("bytes", "f8"), ("part", "f8")],
    align=True,
)
_CHANNEL_BYTES = 80
_MOMENT_BYTES = 16

# Transfers that meet on a link share it in turns: each books a part of itself at once, within limits of real time.
_PARTS = 8
_PART_S = (0.2e-3, 2e-3)
# How long a run should take: this at least, and longer where bytes are many or instructions are, so that what copies
# and switches between processes cost on a busy machine is small against it.
_RUN_S = 1.0
_COPIED_BYTES_PER_S = 400e6
_INSTRUCTIONS_PER_S = 10e3


@dataclass(frozen=True, eq=False)
class Emulation:
    """A machine to emulate: a second of `topology` takes `factor` seconds here, on every link and for every latency."""

    topology: Topology
    factor: float

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise InputError(f"emulation: factor is {self.factor:g}; expected a number above 0")

    @classmethod
    def of_run(cls, topology: Topology, plan: Plan, size_bytes: int, predicted_s: float) -> "Emulation":
        """Slow enough for a plan that takes `predicted_s` on the topology: a second, or more where it moves much."""
        c = plan.columns
        copied = c["length"][np.isin(c["op"], list(MOVES))].sum() * (size_bytes / plan.total_units)
        run_s = max(_RUN_S, copied / _COPIED_BYTES_PER_S, plan.num_instructions / _INSTRUCTIONS_PER_S)
        return cls(topology, run_s / predicted_s if predicted_s > 0 else 1.0)

    @property
    def book_bytes(self) -> int:
        """Shared memory that the links of the topology need."""
        return max(self.topology.num_links, 1) * BOOK_BYTES

    @cached_property
    def links(self) -> str:
        """Names the links with their costs: plans on equal links share books."""
        t, sums = self.topology, hashlib.sha256()
        for values in (t.src, t.dst, t.alpha_s, t.beta_s_per_byte, t.overhead_s, t.reduce_s_per_byte):
            sums.update(values.tobytes())
        return f"{t.name} with {t.num_links} links (hash {sums.hexdigest()[:12]})"

    def __str__(self) -> str:
        return f"emulating {self.links}, slower by {self.factor:.9g}"


class _Emulation(ctypes.Structure):
    """The `emulation` of native/emulate.h."""

    _pointers = ("job", "costs", "channels", "links", "route_ptr", "route_link", "alpha_ns", "overhead_bytes")
    _fields_ = (*((name, ctypes.c_void_p) for name in (*_pointers, "ns_per_byte")), ("flags_rise", ctypes.c_uint64))


class EmulatedExecutor(NativeExecutor):
    """Runs a rank's program at the pace of an emulated machine; `books` are its links, zeroed, shared by all ranks."""

    def __init__(
        self, program: Program, control: Control, dtype_name: str, op_name: str, costs: "Costs", books: Segment
    ) -> None:
        library = native_library()
        assert library is not None
        super().__init__(library, program, control, dtype_name, op_name, polls=0)
        channels = np.zeros((len(program.end), _CHANNEL_BYTES), dtype=np.uint8)
        columns = {name: np.ascontiguousarray(values) for name, values in vars(costs).items()}
        self._keep_columns = (columns, channels, books)
        self._emulation = _Emulation(
            job=ctypes.addressof(self._job),
            channels=channels.ctypes.data,
            links=books.address,
            flags_rise=program.highest_value,
            **{name: values.ctypes.data for name, values in columns.items()},
        )

    def run(self, base: int, slice_s: float) -> int:
        return int(self._library.collsyn_emulate(ctypes.byref(self._emulation), base, int(slice_s * 1e9)))


@dataclass(frozen=True, eq=False)
class Costs:
    """What a rank's instructions cost on the emulated machine, and the routes of the plan; see native/emulate.h."""

    costs: np.ndarray[tuple[int], np.dtype[np.void]]
    route_ptr: np.ndarray[tuple[int], np.dtype[np.int64]]
    route_link: np.ndarray[tuple[int], np.dtype[np.int64]]
    alpha_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    overhead_bytes: np.ndarray[tuple[int], np.dtype[np.float64]]
    ns_per_byte: np.ndarray[tuple[int], np.dtype[np.float64]]

    @classmethod
    def of(cls, bound: BoundPlan, program: Program, emulation: Emulation) -> "Costs":
        """Costs as `simulate_plan` has them, for the bytes of the bound plan; raises what it raises for routes."""
        plan, topology = bound.plan, emulation.topology
        if plan.num_ranks != topology.num_ranks:
            raise InputError(
                f"topology {topology.name} has {topology.num_ranks} ranks; the plan needs {plan.num_ranks}"
            )
        topology = at_size(topology, plan.collective, bound.num_elements * bound.element_bytes)
        num_bytes = bound.columns["length"].astype(np.float64)
        transfers = Transfers.of(plan, topology, num_bytes)
        sized = SizedRoutes.of(topology, transfers.routes, transfers.route, num_bytes)
        routes = RouteCosts.of(topology, sized.routes)
        ns = emulation.factor * 1e9
        rows = program.rows
        costs = np.zeros(len(rows), dtype=_COST)
        costs["route"] = sized.route[rows]
        costs["reads"] = np.isin(plan.columns["op"][rows], list(READS_PEER))
        costs["travel_ns"] = np.rint(signal_s(plan, topology)[rows] * ns)
        costs["local_ns"] = np.rint(local_s(plan, topology, num_bytes, transfers)[rows] * ns)
        costs["bytes"] = transfers.work_bytes(plan, topology, num_bytes)[rows]
        rate = np.append(sized.rate, 1.0)[sized.route[rows]]
        shortest, longest = (rate * (limit_s / emulation.factor) for limit_s in _PART_S)
        costs["part"] = np.clip((num_bytes / _PARTS)[rows], shortest, longest)
        return cls(
            costs=costs,
            route_ptr=sized.routes.ptr.astype(np.int64),
            route_link=sized.routes.data.astype(np.int64),
            alpha_ns=np.rint(routes.alpha_s * ns).astype(np.int64),
            overhead_bytes=routes.overhead_s * sized.rate,
            ns_per_byte=ns / sized.link_rate,
        )


@dataclass(frozen=True, eq=False)
class Moments:
    """Places in shared memory for the moments at which signals arrive, two for each flag and value of a rank.

    Per instruction: the rank that has the place, and its number there (-1: none). A wait for a value that no signal has
    looks at the next higher one.
    """

    owner: I64
    number: I64
    counts: I64

    @classmethod
    def of(cls, plan: Plan) -> "Moments":
        """Number the places of a plan. O(n log n) for n instructions."""
        op, flag, value = (plan.columns[name].astype(np.int64) for name in ("op", "flag", "value"))
        signals, waits = op == Op.SIGNAL, op == Op.WAIT
        owner = np.where(signals, plan.columns["peer"], owners(plan)).astype(np.int64)
        first_flag = np.cumsum([0, *plan.num_flags[:-1]])
        span = int(value.max(initial=0)) + 1
        key = (first_flag[owner] + flag) * span + value
        places, at = np.unique(key[signals], return_inverse=True)
        of_rank = np.zeros(len(places), dtype=np.int64)
        of_rank[at] = owner[signals]
        counts = np.bincount(of_rank, minlength=plan.num_ranks)
        found = np.searchsorted(places, key)
        clipped = np.minimum(found, max(len(places) - 1, 0))
        fits = (signals | waits) & (found < len(places))
        if len(places):
            fits &= places[clipped] // span == key // span
        number = np.where(fits, clipped - (np.cumsum(counts) - counts)[owner], -1)
        return cls(owner, number, counts)

    def num_bytes(self, rank: int) -> int:
        """Memory that a rank needs for them."""
        return int(self.counts[rank]) * _MOMENT_BYTES

    def addresses(self, begin: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Per instruction the address of its places, 0 for none, where those of rank r begin at `begin[r]`."""
        address = np.asarray(begin, dtype=np.int64)[self.owner] + self.number * _MOMENT_BYTES
        return np.where(self.number >= 0, address, 0).astype(np.uint64)


class Books:
    """The links that a job emulates, as a rank sees them: rank 0 makes the memory for each set, all ranks map it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: dict[str, Segment] = {}
        self._new: OwnSegment | None = None

    def offer(self, emulation: Emulation | None) -> int:
        """Descriptor of new memory, which peers can map until `seal`; -1 where none is needed from this rank.

        Raises DeviceError where the compiled executor, the only one that emulates, is not to be had.
        """
        if emulation is None:
            return -1
        if native_library() is None:
            raise DeviceError("emulation needs the compiled executor: a C compiler, and COLLSYN_NATIVE not 0")
        if self._rank or emulation.links in self._known:
            return -1
        self._new = OwnSegment(emulation.book_bytes)
        return self._new.fd

    def meet(self, emulation: Emulation | None, pid: int, fd: int) -> None:
        """Map the memory that rank 0, process `pid`, offers, where it is not known yet."""
        if emulation is not None and emulation.links not in self._known:
            self._known[emulation.links] = self._new or attach(pid, fd, emulation.book_bytes)

    def seal(self) -> None:
        """Let nobody else map what is new."""
        if self._new is not None:
            self._new.seal()
            self._new = None

    def executor(
        self,
        emulation: Emulation,
        bound: BoundPlan,
        program: Program,
        control: Control,
        dtype_name: str,
        op_name: str,
        moments: Sequence[int],
    ) -> EmulatedExecutor:
        """What runs a program of this rank on the emulated links; `moments` are where each rank has its `Moments`."""
        costs = Costs.of(bound, program, emulation)
        program.records["src2"] += Moments.of(bound.plan).addresses(moments)[program.rows]
        return EmulatedExecutor(program, control, dtype_name, op_name, costs, self._known[emulation.links])
