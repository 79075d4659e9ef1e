"""Times schedules at other sizes and costs, and tells how busy their links are."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collsyn.check.loads import Occupancy, Sweep
from collsyn.check.order import APART, DataOrder, LinkOrder, data_order, in_order_of_starts, link_order
from collsyn.check.replay import replay, time_tolerance, tolerance_of
from collsyn.check.timeline import timeline
from collsyn.errors import Infeasible, InputError
from collsyn.model.arrays import F64, I64
from collsyn.model.schedule import RouteCosts, Schedule, message_rates
from collsyn.model.size_rates import link_rates
from collsyn.model.topology import Topology
from collsyn.model.working_set import at_size

__all__ = ["retime", "timeline", "utilisation"]

# One pass settles all that follows in the order of starts, and each further one undoes what lies across that order.
MAX_PASSES = 1000


def retime(schedule: Schedule, size_bytes: int, topology: Topology | None = None) -> Schedule:
    """The same sends, as early as they can go at another size or at the costs of another topology of equal wiring.

    Every send waits for the same data as before and messages keep their turns on every link; those that shared a link
    may share it again, each with the same part of its bandwidth. Given a schedule that is right, the result is; at the
    same size and costs it never finishes later. Where no times keep the turns (messages that crossed in flight no
    longer do), links are taken in the order of starts. Raises InputError if the wiring differs, Infeasible if data that
    crossed in flight would meet. Complexity: O(n log n) for n messages on links and waits for data.
    """
    new = at_size(schedule.topology if topology is None else topology, schedule.collective, size_bytes)
    if new.wiring != schedule.topology.wiring:
        raise InputError(
            f"topology {new.name}: is wired differently from {schedule.topology.name}, which the schedule is for; "
            "a schedule can only be timed on the wiring it was made for"
        )
    tolerance_s = time_tolerance(schedule)
    occupancy = Occupancy.of(schedule)
    rate = _rates(schedule, new, size_bytes, occupancy, tolerance_s)
    waiting = replace(schedule, topology=new, size_bytes=size_bytes, rate=rate, bounds=())
    data = data_order(schedule, tolerance_s)
    turns = link_order(occupancy, new.num_links, tolerance_s)
    start_s = _settled(waiting, Occupancy.of(waiting, schedule), data, turns, _in_step(schedule, new))
    unchanged = size_bytes == schedule.size_bytes and _same_costs(schedule.topology, new)
    if start_s is None and unchanged:
        return schedule
    if start_s is None and len(Occupancy.in_step(schedule)[0]):
        raise Infeasible(
            f"schedule of {schedule.size_bytes} bytes on {schedule.topology.name} cannot keep together what switches "
            f"copy and reduce at {size_bytes} bytes on {new.name}; synthesize one for that"
        )
    result = _started(waiting, start_s if start_s is not None else in_order_of_starts(waiting, data))
    if unchanged and result.finish_s >= schedule.finish_s:
        return schedule
    if not replay(result, time_tolerance(result)).ok:
        raise Infeasible(
            f"schedule of {schedule.size_bytes} bytes on {schedule.topology.name} cannot keep its order at "
            f"{size_bytes} bytes on {new.name}: data that crossed in flight would meet; synthesize one for that"
        )
    return result


def utilisation(schedule: Schedule) -> F64:
    """How much of every link's bandwidth is in use on average until the finish, 0 .. 1; overhead counts as use."""
    occupancy = Occupancy.of(schedule)
    used = np.bincount(
        occupancy.link,
        weights=(occupancy.end_s - occupancy.begin_s) * occupancy.share,
        minlength=schedule.topology.num_links,
    )
    return np.asarray(used / schedule.finish_s if schedule.finish_s > 0 else used * 0.0)


def _rates(schedule: Schedule, new: Topology, size_bytes: int, occupancy: Occupancy, tolerance_s: float) -> F64:
    """The rate column at another size and other costs: every message keeps its part of the slowest link of its route.

    Where links have sped up or slowed down differently, what shares a link in this schedule gets at most its part of
    what the link carried at that time, so that the loads fit whatever falls together.
    """
    old, messages = schedule.topology, schedule.messages
    full_old, full_new = (RouteCosts.of(t, schedule.routes).rate[messages.route] for t in (old, new))
    asked = schedule.rate[messages.rows.data[messages.rows.ptr[:-1]]]
    part = np.where(np.isinf(full_old) | (asked == 0), 1.0, asked / np.where(np.isinf(full_old), 1.0, full_old))
    rate = part * full_new
    shared = occupancy.only(occupancy.shared_links(old.num_links, tolerance_s)[occupancy.link])
    share_of_used = shared.share / np.maximum(Sweep.of(shared, tolerance_s).highest(), shared.share)
    num_bytes = messages.num_bytes * (size_bytes / schedule.size_bytes)
    np.minimum.at(rate, shared.message, share_of_used * link_rates(new, shared.link, num_bytes[shared.message]))
    most = message_rates(
        new, schedule.routes, RouteCosts.of(new, schedule.routes), messages.route, np.zeros(len(rate)), num_bytes
    )
    rate[np.isinf(full_new) | ((asked == 0) & (rate >= most * (1 - 1e-12)))] = 0.0
    return _by_row(schedule, np.minimum(rate, full_new))


def _in_step(schedule: Schedule, new: Topology) -> tuple[I64, I64, F64]:
    """What must start together because switches copy or reduce it, both ways: before, after, and how much later."""
    first, other, _ = Occupancy.in_step(schedule)
    costs = RouteCosts.of(new, schedule.routes)
    alphas = costs.alpha_s[schedule.messages.route]
    later_s = np.where(schedule.messages.src[first] == schedule.messages.src[other], 0.0, alphas[first] - alphas[other])
    return np.concatenate([first, other]), np.concatenate([other, first]), np.concatenate([later_s, -later_s])


def _settled(
    waiting: Schedule, occupancy: Occupancy, data: DataOrder, turns: LinkOrder, in_step: tuple[I64, I64, F64]
) -> F64 | None:
    """Earliest start of every message that keeps both orders, or None if none does: longest paths over both."""
    from collsyn.check._retime_kernels import relax

    messages = waiting.messages
    before = np.concatenate([data.before, occupancy.message[turns.before], in_step[0]])
    after = np.concatenate([data.after, occupancy.message[turns.after], in_step[1]])
    by_after = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[by_after], np.arange(len(messages) + 1))
    turn_s = occupancy.ahead_s[turns.before] + messages.busy_s[occupancy.message[turns.before]]
    turn_s = turn_s - occupancy.ahead_s[turns.after]
    start_s, takes_s = np.zeros(len(messages)), messages.done_s - messages.start_s
    # Merges inside a rank first: messages of the same start may carry what they make.
    order = np.lexsort((messages.src != messages.dst, messages.start_s))
    apart_s = 0.0
    for _ in range(2):
        lag_s = np.concatenate([data.lags(messages, apart_s), turn_s, in_step[2]])
        if not relax(order, ptr, before[by_after], lag_s[by_after], start_s, MAX_PASSES):
            return None
        if not data.apart.any():
            break
        # How far apart is known once the finish is; starting from the first solution only raises what must rise.
        apart_s = APART * tolerance_of(messages, float((start_s + takes_s).max(initial=0.0)))
    # What starts together is equal up to rounding; now it is equal.
    half = len(in_step[0]) // 2
    start_s[in_step[1][:half]] = start_s[in_step[0][:half]] + in_step[2][:half]
    return start_s


def _started(waiting: Schedule, start_s: F64) -> Schedule:
    columns = {**waiting.columns(), "start_s": _by_row(waiting, start_s)}
    return Schedule.build(
        waiting.collective, waiting.topology, waiting.size_bytes, waiting.routes, waiting.provenance, **columns
    )


def _by_row(schedule: Schedule, values: F64) -> F64:
    """Values of messages, given to each of their rows."""
    rows = schedule.messages.rows
    result = np.empty(len(rows.data))
    result[rows.data] = np.repeat(values, rows.lengths())
    return result


def _same_costs(a: Topology, b: Topology) -> bool:
    columns = ("alpha_s", "beta_s_per_byte", "overhead_s", "reduce_s_per_byte")
    pairs: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = [
        (getattr(a, name), getattr(b, name)) for name in columns
    ]
    return a is b or (a.size_rates == b.size_rates and all(np.array_equal(x, y) for x, y in pairs))
