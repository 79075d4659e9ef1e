"""Large schedules: mutants are rejected wherever a replay that shares nothing finds them wrong; timed anew and cut."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from collsyn.check.large import listed, retime_large, verify_large
from collsyn.errors import InputError, VerificationError
from collsyn.model.bound import Bound
from collsyn.model.collective import make_collective
from collsyn.model.steps import StepTable, neighbours, never
from collsyn.synth.lockstep import LOCKSTEP
from collsyn.synth.problem import Options, Problem
from collsyn.synth.symmetric import SYMMETRIC
from collsyn.topology.presets import preset_topology
from tests.support.bruteforce import why_invalid

KINDS = ("allgather", "reducescatter", "allreduce")
METHODS = {"steps": LOCKSTEP, "orbit": SYMMETRIC}


def made(form, kind, text="torus:3x4", chunks=1):
    return METHODS[form].large(Problem(kind, preset_topology(text), 1 << 20, chunks), Options())


def edited_table(table, steps=None, ports=None, **rest):
    return replace(
        table, steps=table.steps if steps is None else steps, ports=ports if ports is not None else table.ports, **rest
    )


def table_mutant(table, rng):
    """A table with one thing wrong, or right by chance; its entries still name neighbours and steps."""
    steps, ports = table.steps.copy(), table.ports.copy()
    moved = np.argwhere(steps != never(steps))
    rank, chunk = moved[rng.integers(len(moved))]
    kind = rng.choice(["earlier", "later", "port", "swap", "dropped", "twice", "lag", "short"])
    if kind == "earlier":
        steps[rank, chunk] = rng.integers(0, max(steps[rank, chunk], 1))
    elif kind == "later":
        steps[rank, chunk] = min(steps[rank, chunk] + rng.integers(1, 4), table.num_steps - 1)
    elif kind == "port":
        ports[rank, chunk] = rng.integers(neighbours(table.topology, table.phases[-1]).lengths()[rank])
    elif kind == "swap":
        other = moved[rng.integers(len(moved))]
        steps[rank, chunk], steps[tuple(other)] = steps[tuple(other)], steps[rank, chunk]
    elif kind == "dropped":
        steps[rank, chunk] = never(steps)
    elif kind == "twice":
        root = np.argwhere(steps == never(steps))[0]
        steps[tuple(root)] = rng.integers(table.num_steps)
    return kind, edited_table(
        table,
        steps,
        ports,
        lag=max(1, table.lag - (kind == "lag")),
        num_steps=table.num_steps - (kind == "short"),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["torus:3x4", "mesh:4x3"])
def test_mutants_of_tables(kind, text):
    table, wrong = made("steps", kind, text), Counter()
    assert verify_large(table).ok
    rng = np.random.default_rng(0)
    for _ in range(60):
        name, mutant = table_mutant(table, rng)
        report = verify_large(mutant)
        # What leaves earlier than at 0 cannot be listed; it is beyond the end of the table.
        beyond = name == "short" and any(check.name == "held" and not check.ok for check in report.checks)
        reason = "beyond the end" if beyond else why_invalid(mutant.expand())
        # A chunk that comes back to its root does no harm, but is none of a tree.
        assert report.ok == (reason is None) or name == "twice", f"{name}: brute force: {reason}, checker: {report}"
        assert reason is None or not report.ok
        assert bool(report.problems) != report.ok
        wrong[name] += reason is not None
    assert all(wrong[name] for name in ("earlier", "port", "swap", "dropped", "short"))


def orbit_mutant(schedule, rng):
    """An orbit schedule with one thing wrong, or right by chance."""
    base = schedule.base
    columns = {name: values.copy() for name, values in base.columns().items()}
    row = rng.integers(base.num_sends)
    kind = rng.choice(["earlier", "dropped", "link", "chunk", "twice"])
    if kind == "earlier":
        columns["start_s"][row] *= rng.random()
    elif kind == "dropped":
        columns = {name: np.delete(values, row) for name, values in columns.items()}
    elif kind == "link":
        link = rng.integers(base.topology.num_links)
        columns["route"][row], columns["src"][row] = link, base.topology.src[link]
        columns["dst"][row] = base.topology.dst[link]
    elif kind == "chunk":
        columns["start_s"][row] = columns["start_s"][rng.integers(base.num_sends)]
    else:
        columns = {name: np.append(values, values[row]) for name, values in columns.items()}
    built = type(base).build(base.collective, base.topology, base.size_bytes, base.routes, None, **columns)
    return kind, replace(schedule, base=built)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["torus:3x4", "mesh:4x2", "hypercube:3"])
def test_mutants_of_orbits(kind, text):
    schedule, wrong = made("orbit", kind, text), Counter()
    assert verify_large(schedule).ok
    rng = np.random.default_rng(1)
    for _ in range(40):
        name, mutant = orbit_mutant(schedule, rng)
        report, reason = verify_large(mutant), why_invalid(mutant.excerpt())
        assert report.ok == (reason is None), f"{name}: brute force says {reason}, checker says {report}"
        wrong[name] += reason is not None
    assert all(wrong[name] for name in ("earlier", "dropped", "link", "twice"))


def changed(image, a, b):
    swapped = list(image)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return tuple(swapped)


def test_generators_that_are_no_symmetries():
    schedule = made("orbit", "allgather")
    first, second = schedule.generators
    for generators, what in (
        ((changed(first, 0, 1), second), "is no symmetry"),
        ((first, first), "make no group"),
        ((second, changed(tuple(range(12)), 0, 1)), "is no symmetry"),
        ((first,), "do not stand for all chunks"),
    ):
        report = verify_large(replace(schedule, generators=generators))
        assert not report.ok
        assert what in report.problems[0].what


def test_representatives_of_one_orbit():
    schedule = made("orbit", "allgather", "mesh:2x4")
    twice = np.repeat(schedule.representatives[:1], len(schedule.representatives))
    assert not verify_large(replace(schedule, representatives=twice)).ok


def test_other_collectives_are_not_believed():
    table, orbit = made("steps", "allgather"), made("orbit", "allgather")
    grouped = make_collective("allgather", 12, groups=[range(6), range(6, 12)])
    counted = make_collective("allgather", 12, counts=[1] * 11 + [2])
    assert not verify_large(replace(table, collective=grouped)).ok
    assert not verify_large(replace(orbit, collective=grouped)).ok
    assert not verify_large(replace(orbit, collective=counted)).ok
    # Unequal chunks only make steps longer.
    assert verify_large(replace(table, collective=counted)).ok
    assert why_invalid(replace(table, collective=counted).expand()) is None


@pytest.mark.parametrize("form", METHODS)
def test_bounds_are_rechecked(form):
    schedule = made(form, "allgather")
    beaten = Bound(1.0, "distance", "fluid", {"kind": "path", "from": 0, "to": 1, "distance_s": 1.0})
    report = verify_large(schedule.with_notes([beaten]))
    assert [check.name for check in report.checks if not check.ok] == ["bounds"]


def test_entries_that_would_index_beyond_the_arrays():
    table = made("steps", "allreduce")
    steps, ports = table.steps.copy(), table.ports.copy()
    place = tuple(np.argwhere(steps != never(steps))[0])
    ports[place] = 200
    assert "port that the rank has not" in verify_large(edited_table(table, ports=ports)).problems[0].what
    steps[place] = table.num_steps + 1
    problems = verify_large(edited_table(table, steps=steps)).problems
    assert any("beyond the end" in problem.what for problem in problems)
    assert not verify_large(edited_table(table, steps=steps[1:])).ok
    assert not verify_large(replace(table, lag=0)).ok


@pytest.mark.parametrize("form", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_other_sizes_and_costs(form, kind):
    schedule = made(form, kind)
    slower = preset_topology("torus:3x4@bandwidth_gb_s=10,alpha_us=2,overhead=alpha")
    for size_bytes, topology in ((100, None), (1 << 30, None), (1 << 20, slower)):
        again = retime_large(schedule, size_bytes, topology)
        assert verify_large(again).ok
        assert why_invalid(again.excerpt()) is None
    same = retime_large(schedule, schedule.size_bytes)
    assert same.finish_s <= schedule.finish_s * (1 + 1e-12)
    with pytest.raises(InputError, match="wired differently"):
        retime_large(schedule, 100, preset_topology("torus:4x3"))


def test_costs_that_break_the_symmetry():
    topology = preset_topology("torus:3x4")
    beta = topology.beta_s_per_byte.copy()
    beta[0] *= 2
    uneven = replace(topology, beta_s_per_byte=beta)
    with pytest.raises(InputError, match="not as symmetric"):
        retime_large(made("orbit", "allgather"), 1 << 20, uneven)
    assert why_invalid(retime_large(made("steps", "allgather"), 1 << 20, uneven).expand()) is None


@pytest.mark.parametrize("form", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_excerpts_are_parts_of_the_whole(form, kind):
    schedule = made(form, kind)
    whole = schedule.excerpt()
    window = (0.2 * schedule.finish_s, 0.6 * schedule.finish_s)
    part = schedule.excerpt([1, 5], window)
    arrival = whole.messages.arrival_s[np.argsort(whole.messages.rows.data)]
    kept = np.isin(whole.src, [1, 5]) & (whole.start_s < window[1]) & (arrival > window[0])
    rows = [
        set(zip(s.chunk.tolist(), s.src.tolist(), s.dst.tolist(), s.start_s.tolist(), strict=True))
        for s in (whole, part)
    ]
    chosen = zip(*(getattr(whole, name)[kept].tolist() for name in ("chunk", "src", "dst", "start_s")), strict=True)
    assert rows[1] == set(chosen)
    assert 0 < len(rows[1]) < len(rows[0])


def test_listing(monkeypatch):
    table = made("steps", "allgather")
    assert listed(table, "x").num_sends == table.num_sends
    broken = table.steps.copy()
    broken[0, 1] = never(broken)
    with pytest.raises(VerificationError, match="x: schedule is wrong"):
        listed(edited_table(table, steps=broken), "x")
    monkeypatch.setattr("collsyn.check.large.LISTED", 10)
    with pytest.raises(InputError, match="x: has 132 sends; only verify and simulate take more than 10"):
        listed(table, "x")


def test_a_table_of_wide_numbers():
    table = made("steps", "allgather")
    wide = table.steps.astype(np.uint32)
    wide[table.steps == never(table.steps)] = never(wide)
    again = StepTable(table.collective, table.topology, table.size_bytes, table.lag, table.num_steps, wide, table.ports)
    assert verify_large(again).ok
    assert again.finish_s == table.finish_s
