"""The numbers that commands print of a schedule or plan, under the names that scripts rely on (docs/checking.md)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from collsyn.model.bound import Bound
from collsyn.model.collective import Collective
from collsyn.model.large_file import LargeSchedule
from collsyn.model.metrics import algbw_gb_s, busbw_gb_s
from collsyn.model.plan import Plan
from collsyn.model.schedule import RouteCosts, Schedule
from collsyn.model.topology import Topology
from collsyn.units import s_to_us

SCHEMA = "collsyn-summary/1"


def summary(
    schedule: Schedule | LargeSchedule,
    plan_s: float | None = None,
    synthesis_s: float | None = None,
    verify_s: float | None = None,
    file: str | None = None,
) -> dict[str, Any]:
    """All keys of `synthesize --json` and `simulate --json` for a schedule.

    Bounds are those of the schedule, or computed where it has none; `plan_s` is the simulated time of its plan. Gaps
    are time / bound - 1. Unknown values are None.
    """
    collective, topology, size_bytes = schedule.collective, schedule.topology, schedule.size_bytes
    fluid, chunk = _bounds(schedule)
    tree = next((bound for bound in schedule.bounds if bound.kind == "dual"), None)
    return {
        **_head(collective, topology, size_bytes, schedule.provenance),
        "finish_us": s_to_us(schedule.finish_s),
        "plan_us": _us(plan_s),
        **_fluid(fluid, schedule.finish_s, plan_s),
        "chunk_bound_us": s_to_us(chunk.time_s),
        "chunk_gap": _gap(schedule.finish_s, chunk),
        "tree_bound_us": _us(tree.time_s) if tree is not None and collective.kind == "allreduce" else None,
        **_bandwidths(collective, size_bytes, schedule.finish_s),
        "num_chunks": collective.num_chunks,
        "chunks_per_rank": collective.chunks_per_rank,
        "num_sends": schedule.num_sends,
        "steps": steps(schedule),
        "synthesis_s": synthesis_s,
        "verify_s": verify_s,
        "model": topology.overhead_model,
        "certificate": dict(fluid.certificate),
        "file": file,
    }


def plan_summary(
    plan: Plan,
    topology: Topology,
    size_bytes: int,
    plan_s: float,
    verify_s: float | None = None,
    file: str | None = None,
) -> dict[str, Any]:
    """The same keys for a plan alone, which has no schedule to time: its bandwidths are those of the simulated plan."""
    from collsyn.bounds import fluid_bound

    collective = plan.collective
    fluid = fluid_bound(collective, topology, size_bytes)
    nothing = dict.fromkeys(("chunk_bound_us", "chunk_gap", "tree_bound_us"))
    return {
        **_head(collective, topology, size_bytes, plan.provenance),
        "finish_us": None,
        "plan_us": s_to_us(plan_s),
        **_fluid(fluid, None, plan_s),
        **nothing,
        **_bandwidths(collective, size_bytes, plan_s),
        "num_chunks": collective.num_chunks,
        "chunks_per_rank": collective.chunks_per_rank,
        "num_sends": None,
        "steps": None,
        "synthesis_s": None,
        "verify_s": verify_s,
        "model": topology.overhead_model,
        "certificate": dict(fluid.certificate),
        "file": file,
    }


def steps(schedule: Schedule | LargeSchedule) -> float | None:
    """The finish in units of (alpha + beta x chunk), or None where links, routes or chunks are unequal."""
    topology, units = schedule.topology, schedule.collective.units
    equal = all(np.ptp(values) == 0 for values in (topology.alpha_s, topology.beta_s_per_byte, units) if len(values))
    if not equal or not schedule.num_sends:
        return None
    if isinstance(schedule, Schedule):
        used = np.unique(schedule.route[schedule.src != schedule.dst])
        alpha_s = RouteCosts.of(topology, schedule.routes).alpha_s[used]
    else:
        alpha_s = topology.alpha_s
    if not len(alpha_s):
        return None
    if np.ptp(alpha_s) > 0:
        return None
    chunk_bytes = float(schedule.collective.chunk_bytes(schedule.size_bytes)[0])
    step_s = float(alpha_s[0] + topology.beta_s_per_byte[0] * chunk_bytes)
    return schedule.finish_s / step_s


def _bounds(schedule: Schedule | LargeSchedule) -> tuple[Bound, Bound]:
    """The largest fluid bound and chunk bound that the schedule carries, computed where it carries none."""
    from collsyn.bounds import avoids_overhead, chunk_bound, fluid_bound
    from collsyn.bounds.large import large_bounds

    problem = (schedule.collective, schedule.topology, schedule.size_bytes)
    known = {scope: [b for b in schedule.bounds if b.scope == scope] for scope in ("fluid", "chunk")}
    if isinstance(schedule, Schedule):
        fluid = known["fluid"] or [fluid_bound(*problem)]
        chunk = known["chunk"] or [chunk_bound(*problem, batched=avoids_overhead(schedule))]
    else:
        fluid, chunk = known["fluid"], known["chunk"]
        if not fluid or not chunk:
            fluid, chunk = ([bound] for bound in large_bounds(*problem))
    return max(fluid, key=lambda bound: bound.time_s), max(chunk, key=lambda bound: bound.time_s)


def _head(collective: Collective, topology: Topology, size_bytes: int, provenance: Mapping[str, Any]) -> dict[str, Any]:
    options = provenance.get("options")  # of any shape: provenance is the writer's own
    return {
        "schema": SCHEMA,
        "collective": collective.kind,
        "topology": topology.name,
        "num_ranks": collective.num_ranks,
        "size_bytes": size_bytes,
        "method": provenance.get("method"),
        "seed": provenance.get("seed"),
        "options": dict(options) if isinstance(options, Mapping) else {},
    }


def _fluid(bound: Bound, finish_s: float | None, plan_s: float | None) -> dict[str, Any]:
    return {
        "bound_us": s_to_us(bound.time_s),
        "bound_kind": bound.kind,
        "gap": _gap(finish_s, bound),
        "plan_gap": _gap(plan_s, bound),
    }


def _bandwidths(collective: Collective, size_bytes: int, time_s: float) -> dict[str, float]:
    num_ranks = max(len(group) for group in collective.groups)
    return {
        "algbw_gb_s": algbw_gb_s(size_bytes, time_s),
        "busbw_gb_s": busbw_gb_s(collective.kind, num_ranks, size_bytes, time_s),
    }


def _gap(time_s: float | None, bound: Bound) -> float | None:
    return time_s / bound.time_s - 1 if time_s is not None and bound.time_s > 0 else None


def _us(time_s: float | None) -> float | None:
    return None if time_s is None else s_to_us(time_s)
