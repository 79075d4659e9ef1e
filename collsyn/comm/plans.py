"""Prepared plans of a communicator, made when a call first needs them and kept for the next one."""

import hashlib
import json
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from collsyn.check.verify import verify_plan
from collsyn.comm.algorithms import LENT, AlgorithmSet
from collsyn.comm.lent import LENDING, lent_plan, may_be_lent
from collsyn.comm.search import Search, Sought
from collsyn.errors import CollsynError, Infeasible, InputError, SolverFailed, VerificationError
from collsyn.lower.lower import lower
from collsyn.model.bind import BoundPlan, bind
from collsyn.model.dtypes import dtype_of
from collsyn.model.fields import parse_document
from collsyn.model.plan import Plan
from collsyn.model.plan_file import plan_from_fields, plan_text
from collsyn.model.schedule import Schedule
from collsyn.model.topology import Topology
from collsyn.portfolio.auto import best_schedule
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.host import HostContext, PreparedPlan
from collsyn.runtime.native_loader import native_library
from collsyn.runtime.pool import same_answer
from collsyn.runtime.program import rank_layout
from collsyn.synth.problem import Options, Problem
from collsyn.synth.table import method
from collsyn.topology.resolve import load_topology

MAX_PREPARED = 128
MAX_BYTES = 1 << 30
_MAX_PLANS = 256
# Longer lists of lengths are told by a hash.
_LONGEST_LIST = 80
# `auto` may take this share of the time that the others wait for it.
_AUTO_SHARE = 1 / 4
# What serves machines where not every pair of ranks has a link.
_WITHOUT_LINKS = ("binomial", "greedy", "auto")
# Costs that ranks on one machine roughly have.
_HOST = "full:{ranks}@bandwidth_gb_s=5,alpha_us=2,overhead=alpha"


@dataclass(frozen=True)
class Searching:
    """How schedules are searched for: whether calls wait for them, and for about how many seconds at most."""

    must_wait: bool
    limit_s: float


_KINDS_OF_ERRORS = {kind.__name__: kind for kind in (InputError, Infeasible, SolverFailed, VerificationError)}


@dataclass(frozen=True)
class Call:
    """What a plan is prepared for; equal on all ranks of a call. `num_elements` is the collective's size."""

    kind: str
    num_elements: int
    dtype_name: str
    op_name: str = "sum"
    root: int | None = None
    counts: tuple[Any, ...] | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.num_elements, self.dtype_name, self.op_name, self.root, self.counts))

    @property
    def size_bytes(self) -> int:
        """The size in bytes."""
        return self.num_elements * dtype_of(self.dtype_name).num_bytes


class Plans:
    """The plans of one communicator.

    All ranks ask for the same calls in the same order, so that what each keeps and drops is the same everywhere. Rank 0
    makes and verifies a plan, and the others get it from there.
    """

    def __init__(
        self,
        context: HostContext,
        topology: Topology | None,
        algorithms: AlgorithmSet,
        max_prepared: int = MAX_PREPARED,
        max_bytes: int = MAX_BYTES,
        emulation: Emulation | None = None,
        search: Searching | None = None,
    ) -> None:
        """At most `max_prepared` plans with `max_bytes` bytes of a rank's memory are kept, and one in any case.

        With `emulation` plans run at the pace of that machine, which is `topology`. With `search`, schedules for it
        are searched for, and take over from what no rule of `algorithms` serves.
        """
        self._emulation, self._searching = emulation, search if topology is not None else None
        self._search: Search | None = None
        self._searched: dict[Sought, Plan | None] = {}
        self._calls: Counter[Sought] = Counter()
        self._context, self._algorithms = context, algorithms
        self._max_prepared, self._max_bytes = max_prepared, max_bytes
        self._topologies = [topology] if topology is not None else []
        if emulation is None:
            self._topologies.append(load_topology(_HOST.format(ranks=context.size)))
        self._plans: OrderedDict[tuple[object, ...], Plan] = OrderedDict()
        self._prepared: OrderedDict[tuple[Call, bool], tuple[PreparedPlan, int]] = OrderedDict()
        self._bytes = 0

    def get(self, call: Call, may_lend: bool = False) -> PreparedPlan:
        """The plan of a call, ready to run; raises what making it raises, on all ranks alike.

        With `may_lend` it may be one that works on memory which the caller lends it.
        """
        key = (call, may_lend)
        if self._searching is not None:
            self._seek(call)
        found = self._prepared.get(key)
        if found is not None:
            self._prepared.move_to_end(key)
            return found[0]
        bound = self._bound(call, may_lend)
        size = max(rank_layout(bound, rank).size for rank in range(bound.plan.num_ranks))
        while self._prepared and (len(self._prepared) >= self._max_prepared or self._bytes + size > self._max_bytes):
            _, (oldest, its_size) = self._prepared.popitem(last=False)
            oldest.close()
            self._bytes -= its_size
        prepared = self._context.prepare(bound, call.dtype_name, call.op_name, emulation=self._emulation)
        self._prepared[key] = (prepared, size)
        self._bytes += size
        return prepared

    def make(self, call: Call) -> PreparedPlan:
        """A plan of a call with memory of its own, which is the caller's to close; ranks make and close alike."""
        bound = self._bound(call, may_lend=False)
        return self._context.prepare(bound, call.dtype_name, call.op_name, emulation=self._emulation)

    def _bound(self, call: Call, may_lend: bool) -> BoundPlan:
        # What a call needs beside its own data has no schedule of the user's.
        algorithms = self._algorithms if may_lend else replace(self._algorithms, is_closed=False)
        # The executor of NumPy cannot change the places that it works on.
        may_lend = may_lend and call.counts is None and self._emulation is None and native_library() is not None
        plan = self._plan(call, algorithms, may_lend)
        if may_lend and call.kind in LENDING and may_be_lent(plan):
            bound = bind(plan, call.num_elements, dtype_of(call.dtype_name).num_bytes)
            return replace(bound, is_lent=True)
        # Users' arrays are copied anyway; in place, the registered memory is smaller and a rank moves less of its own.
        return bind(plan, call.num_elements, dtype_of(call.dtype_name).num_bytes, plan.collective.has_in_place)

    def _plan(self, call: Call, algorithms: AlgorithmSet, may_lend: bool) -> Plan:
        """The plan for calls of about this size, unbound."""
        searched = self._searched.get(_sought(call)) if call.counts is None else None
        if searched is not None:
            return searched
        # A method's choice of pieces changes slowly with the size.
        rounded = 1 << (call.size_bytes - 1).bit_length()
        choices = algorithms.choices(call.kind, self._context.size, call.root, call.size_bytes, call.counts is not None)
        if self._emulation is not None:
            choices += _WITHOUT_LINKS
        if not may_lend:
            choices = [choice for choice in choices if choice != LENT]
        first = id(choices[0]) if isinstance(choices[0], Schedule) else (choices[0], rounded)
        key = (call.kind, call.root, call.counts, first)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._agree(call, choices, rounded)
            while len(self._plans) >= _MAX_PLANS:
                self._plans.popitem(last=False)
            self._plans[key] = plan
        self._plans.move_to_end(key)
        return plan

    def close(self) -> None:
        """End searches."""
        if self._search is not None:
            self._search.close()

    def _seek(self, call: Call) -> None:
        """Have a schedule for such calls searched for, and let it take over once it is there.

        All ranks look at the same calls, ever more seldom, for each look is an exchange.
        """
        sought = _sought(call)
        asked_for = self._algorithms.is_asked_for(call.kind, self._context.size, call.root, call.size_bytes)
        if call.counts is not None or sought in self._searched or asked_for:
            return
        assert self._searching is not None
        count = self._calls[sought] = self._calls[sought] + 1
        if count & (count - 1):
            return
        found = self._found(sought, self._searching.must_wait)
        if found == "later":
            return
        self._searched[sought] = found if isinstance(found, Plan) else None
        if isinstance(found, Plan):
            for key in [key for key in self._prepared if _sought(key[0]) == sought and key[0].counts is None]:
                prepared, size = self._prepared.pop(key)
                prepared.close()
                self._bytes -= size

    def _found(self, sought: Sought, must_wait: bool) -> Plan | str:
        """What rank 0 has found, on all ranks: a plan, "later" or "never"."""
        mine = {"what": f"schedules of {sought.kind}{_rooted(sought.root)} that a search may have found"}
        if self._context.rank == 0:
            assert self._searching is not None
            if self._search is None:
                self._search = Search(self._topologies[0], self._searching.limit_s)
            mine["found"] = self._answer(sought, self._search, must_wait)
        found = self._told(mine)["found"]
        if found in ("later", "never"):
            return found
        return plan_from_fields(parse_document(found.encode(), f"plan of {sought.kind}"))

    def _told(self, mine: dict[str, str]) -> dict[str, str]:
        """What rank 0 tells; raises DeviceError unless all ranks ask about the same thing, which they call `what`."""
        texts = self._context.bootstrap.allgather(json.dumps(mine).encode())
        answers: list[dict[str, str]] = [json.loads(text) for text in texts]
        same_answer([answer.get("what") for answer in answers], "the call")
        return answers[0]

    @staticmethod
    def _answer(sought: Sought, search: Search, must_wait: bool) -> str:
        try:
            found = search.find(sought, must_wait)
            if isinstance(found, str):
                return found
            plan = lower(found)
            verify_plan(plan).raise_if_bad()
            return plan_text(plan)
        except (CollsynError, OSError):
            # The job goes on without.
            return "never"

    def _agree(self, call: Call, choices: list[Schedule | str], size_bytes: int) -> Plan:
        """The plan that rank 0 makes, or its error, on all ranks."""
        mine = {"what": _words(call)}
        if self._context.rank == 0:
            try:
                mine["plan"] = plan_text(self._make(call, choices, size_bytes))
            except tuple(_KINDS_OF_ERRORS.values()) as error:
                mine |= {"kind": type(error).__name__, "error": str(error)}
        answer = self._told(mine)
        if "error" in answer:
            raise _KINDS_OF_ERRORS[answer["kind"]](answer["error"])
        return plan_from_fields(parse_document(answer["plan"].encode(), f"plan of {call.kind}"))

    def _make(self, call: Call, choices: list[Schedule | str], size_bytes: int) -> Plan:
        reason: CollsynError | None = None
        for choice in choices:
            for topology in self._topologies:
                try:
                    plan = self._lowered(choice, call, topology, size_bytes)
                    verify_plan(plan).raise_if_bad()
                    return plan
                except (InputError, Infeasible, SolverFailed) as error:
                    reason = error
        assert reason is not None
        raise reason

    def _lowered(self, choice: Schedule | str, call: Call, topology: Topology, size_bytes: int) -> Plan:
        if choice == LENT:
            return lent_plan(call.kind, self._context.size)
        return lower(choice if isinstance(choice, Schedule) else self._ask(choice, call, topology, size_bytes))

    def _ask(self, name: str, call: Call, topology: Topology, size_bytes: int) -> Schedule:
        problem = Problem(call.kind, topology, size_bytes, root=call.root, counts=call.counts).at_size()
        if name == "auto":
            return best_schedule(problem, Options(time_limit_s=self._context.bootstrap.limit_s * _AUTO_SHARE))
        synthesizer = method(name)
        refusal = synthesizer.accepts(problem)
        if refusal is not None:
            raise InputError(f"method {name}: {refusal}")
        return synthesizer.synthesize(problem, Options())


def _rooted(root: int | None) -> str:
    return "" if root is None else f" with root {root}"


def _words(call: Call) -> str:
    """What a plan depends on, besides sizes, which are compared when it is prepared."""
    lengths = "" if call.counts is None else repr(call.counts)
    if len(lengths) > _LONGEST_LIST:
        lengths = f"hash {hashlib.sha256(lengths.encode()).hexdigest()[:12]}"
    return f"{call.kind}{_rooted(call.root)}" + (f", parts {lengths}" if lengths else "")


def _sought(call: Call) -> Sought:
    return Sought(call.kind, call.root, 1 << (call.size_bytes - 1).bit_length())
