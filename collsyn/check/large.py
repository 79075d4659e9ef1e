"""Large schedules of either form: verified, timed anew, and listed send by send where they are small enough."""

from dataclasses import replace
from typing import cast

import numpy as np

from collsyn.check.orbit import verify_orbit
from collsyn.check.report import Report
from collsyn.check.steps import verify_steps
from collsyn.errors import InputError
from collsyn.model.arrays import F64
from collsyn.model.large_file import LargeSchedule
from collsyn.model.orbit import OrbitSchedule
from collsyn.model.schedule import Schedule
from collsyn.model.steps import StepTable
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import is_symmetry

# Sends that are listed at most: an ordinary schedule and its checks take some 500 bytes for each.
LISTED = 4_000_000


def verify_large(schedule: LargeSchedule) -> Report:
    """The report on a schedule in its own form; see `verify_steps` and `verify_orbit`."""
    return verify_steps(schedule) if isinstance(schedule, StepTable) else verify_orbit(schedule)


def listed(schedule: LargeSchedule, file: str) -> Schedule:
    """The ordinary schedule of the same sends; raises VerificationError if wrong, InputError if there are too many."""
    if schedule.num_sends > LISTED:
        what = f"has {schedule.num_sends} sends; only verify and simulate take more than {LISTED}"
        raise InputError(f"{file}: {what}")
    verify_large(schedule).raise_if_bad(file)
    return schedule.excerpt()


def retime_large(schedule: LargeSchedule, size_bytes: int, topology: Topology | None = None) -> LargeSchedule:
    """The same sends in the same order at another size or at the costs of another topology of equal wiring.

    The schedule must be right. A table keeps its steps, an orbit starts each stored send as early as its data and its
    orbit of links allow. Raises InputError for another wiring, or costs that are not symmetric.
    """
    if isinstance(schedule, StepTable):
        return schedule.at(size_bytes, topology)
    new = schedule.topology if topology is None else topology
    if new.wiring != schedule.topology.wiring:
        raise InputError(f"topology {new.name}: is wired differently from {schedule.topology.name}")
    if new.size_rates or not all(is_symmetry(new, image) for image in schedule.generators):
        raise InputError(f"topology {new.name}: its costs are not as symmetric as the schedule")
    base = schedule.base.with_times(schedule.base.start_s, size_bytes)
    moved = replace(base, topology=new)
    rows = {name: values for name, values in moved.columns().items() if name != "start_s"}
    again = Schedule.build(
        moved.collective, new, size_bytes, moved.routes, None, **rows, start_s=_earliest(schedule, moved)
    )
    return replace(schedule, base=again, bounds=())


def _earliest(schedule: OrbitSchedule, base: Schedule) -> F64:
    """Starts of the rows of a base, which stand in the order of their old starts."""
    group = schedule.group
    assert group is not None
    messages, topology = base.messages, base.topology
    row_message = np.empty(base.num_sends, dtype=np.int64)
    row_message[messages.rows.data] = np.arange(len(messages))
    done_s = (messages.done_s - messages.start_s)[row_message].tolist()
    busy_s = messages.busy_s[row_message].tolist()
    orbit = group.link_orbits(topology.src, topology.dst)[base.routes.data[base.routes.ptr[:-1]][base.route]].tolist()
    ranks = topology.num_ranks
    source = (base.chunk.astype(np.int64) * ranks + base.src).tolist()
    target = (base.chunk.astype(np.int64) * ranks + base.dst).tolist()
    there: dict[int, float] = {}
    free: dict[int, float] = {}
    start_s = []
    for row, link in enumerate(orbit):
        begin = max(there.get(source[row], 0.0), free.get(link, 0.0))
        start_s.append(begin)
        free[link] = begin + busy_s[row]
        there[target[row]] = max(there.get(target[row], 0.0), begin + done_s[row])
    return cast(F64, np.array(start_s))
