"""Verifies schedules stored by their symmetry: the sends of a few chunks, and that the others are these moved."""

from dataclasses import replace

import numpy as np

from collsyn.check.bound_check import bound_problems
from collsyn.check.loads import Occupancy, Sweep
from collsyn.check.replay import replay, time_tolerance
from collsyn.check.report import SHOWN, Findings, Problem, Report
from collsyn.check.steps import roots
from collsyn.check.structure import RELATIVE, field_problems, rate_problems, route_problems
from collsyn.check.words import us
from collsyn.model.orbit import OrbitSchedule, part
from collsyn.topology.symmetry import is_symmetry

ORBIT_CHECKS = ("symmetry", "fields", "routes", "rates", "loads", "held", "reductions", "result", "bounds")


def verify_orbit(schedule: OrbitSchedule) -> Report:
    """Check that the generators are symmetries, replay the stored sends, and recheck bounds; trusts nobody.

    Each generator must map every link to one of equal costs, all must commute, and no product but the identity may keep
    a vertex. Then each chunk is exactly one stored chunk moved, whose sends are right if the stored ones are; and of
    the moved copies of a stored send exactly one is on each link of that link's orbit, so that a link carries what the
    stored sends on its orbit load together. O(generators^2 x vertices + links log links + replay of the stored sends).
    """
    findings = Findings("schedule")
    if not findings.add("symmetry", _symmetry_problems(schedule), f"{len(schedule.generators)} generators"):
        findings.skip(ORBIT_CHECKS[1:], "the schedule is not what its symmetries make of it")
        return findings.report()
    base = schedule.base
    if not findings.add("fields", field_problems(base), f"{base.num_sends} sends stored, {schedule.num_sends} in all"):
        findings.skip(ORBIT_CHECKS[2:], "values are out of range")
        return findings.report()
    wrong, count = route_problems(base)
    if not findings.add("routes", wrong, f"{base.topology.num_links} links", count):
        findings.skip(ORBIT_CHECKS[3:], "routes are wrong, so there are no times")
        return findings.report()
    tolerance_s = time_tolerance(base)
    wrong, count = rate_problems(base)
    findings.add("rates", wrong, "none above the slowest link", count)
    wrong, count = _load_problems(schedule, tolerance_s)
    findings.add("loads", wrong, "no orbit of links loaded beyond its bandwidth", count)
    flow = replay(base, tolerance_s)
    findings.add("held", flow.held[0], "every sender holds what it sends", flow.held[1])
    findings.add("reductions", flow.reductions[0], "no contribution twice", flow.reductions[1])
    findings.add("result", flow.result[0], "every receiver ends with the result", flow.result[1])
    findings.add("bounds", bound_problems(schedule), f"{len(schedule.bounds)} rechecked")
    return findings.report()


def _symmetry_problems(schedule: OrbitSchedule) -> list[Problem]:
    collective, topology, group = schedule.collective, schedule.topology, schedule.group
    bad = [i for i, image in enumerate(schedule.generators) if not is_symmetry(topology, image)]
    if bad:
        return [
            Problem(f"generator {i}", "is no symmetry", "equal links to equal links", "others") for i in bad[:SHOWN]
        ]
    if group is None:
        return [Problem("generators", "make no group of translations", "commuting, no vertex kept", "others")]
    keys = topology.src.astype(np.int64) * topology.num_vertices + topology.dst
    if len(np.unique(keys)) < len(keys):
        return [Problem(f"topology {topology.name}", "has links side by side", "one link a pair and direction", "more")]
    owner, each = roots(collective), collective.chunks_per_rank
    regular = owner is not None and np.array_equal(owner, np.arange(collective.num_chunks) // each)
    if not regular or np.ptp(collective.units):
        return [Problem("collective", "does not move along", "equal chunks of all ranks in turn", collective.kind)]
    held, number = np.divmod(schedule.representatives, each)
    if len(np.unique(group.orbit[held] * each + number)) * group.size != collective.num_chunks:
        return [Problem("representatives", "do not stand for all chunks once", "one an orbit", f"{len(held)}")]
    stored, own = schedule.base.collective, part(collective, schedule.representatives)
    names = ("units", "in_offset", "out_offset", "pre", "post")
    if not all(np.array_equal(getattr(stored, name), getattr(own, name)) for name in names):
        return [Problem("base", "is of other chunks", "those of the representatives", "others")]
    return []


def _load_problems(schedule: OrbitSchedule, tolerance_s: float) -> tuple[list[Problem], int]:
    """Orbits of links that carry more than their bandwidth, and how many there are."""
    topology, group = schedule.topology, schedule.group
    assert group is not None
    orbit = group.link_orbits(topology.src, topology.dst)
    occupancy = Occupancy.of(schedule.base)
    occupancy = replace(occupancy, link=orbit[occupancy.link].astype(np.int32))
    sweep = Sweep.of(occupancy, tolerance_s)
    over = np.flatnonzero(sweep.load > 1 + RELATIVE)
    orbits, first = np.unique(sweep.link[over], return_index=True)
    problems = []
    for number, event in zip(orbits[:SHOWN].tolist(), over[first].tolist(), strict=False):
        link = int(np.flatnonzero(orbit == number)[0])
        where = f"link {topology.link_name(link)} and its images at {us(float(sweep.when_s[event]))}"
        times = f"{float(sweep.load[event]):.9g} times"
        problems.append(Problem(where, "carry more than their bandwidth", "at most once the bandwidth", times))
    return problems, len(orbits)
