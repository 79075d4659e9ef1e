"""Breadth-first broadcast where it loses bandwidth: a part of the data takes longer ways, as much as the size asks for.

With a fixed number of steps, a linear program over timed trees (`bfb_timed.py`) makes the steps together as short as
can be; more steps than the diameter let more data go round the busy links. Their number is chosen by the time at the
size: steps * alpha + bytes. docs/bfb.md has the program.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

import numpy as np

from collsyn.bounds.tightest import tightest_rate
from collsyn.model.arrays import I64, Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.baseline import MAX_ROWS
from collsyn.synth.bfb import allgather, known_cost, most_chunks, obstacle
from collsyn.synth.bfb_timed import WORK, Ground, Mix, mixes
from collsyn.synth.problem import Options, Problem, provenance
from collsyn.synth.timing import in_order
from collsyn.synth.transform import by_composition, by_reversal

# Machines of more links are left to the other methods: the program has a row for every link and step.
MAX_LINKS = 512
# Chunks a rank that the parts are rounded to; of choices this close to the best the one with fewest chunks is taken.
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ALIKE = 1.005
# A schedule without repair that takes so many times what the bytes need is good enough.
NOTHING_TO_GAIN = 1.002
# Trees without a part that whole chunks may take instead, and what links beside the busiest count
# while chunks are moved.
OTHERS, NEAR = 1600, (0.2, 0.05, 0.01, 1e-5)


@dataclass(frozen=True)
class Effort:
    """How to search: the seed, moves of annealings, and whether it is time to end."""

    seed: int
    work: float
    late: Callable[[], bool]


class RepairedMethod:
    """Serves allgather, reduce-scatter and allreduce, with more steps than the diameter where that pays."""

    name = "bfb-repaired"

    def accepts(self, problem: Problem) -> str | None:
        """None if it serves the problem, else why not."""
        if problem.kind not in ("allgather", "reducescatter", "allreduce"):
            return f"makes no {problem.kind}"
        reason = obstacle(problem)
        if reason is None and problem.topology.num_links > MAX_LINKS:
            return f"serves machines of at most {MAX_LINKS} links"
        return reason

    def synthesize(self, problem: Problem, options: Options) -> Schedule:
        """The schedule, never slower than that of `bfb`; raises Infeasible where a rank cannot be reached."""
        end_s = inf if (limit := options.time_limit_s) is None else time.monotonic() + limit
        effort = Effort(options.seed, WORK if limit is None else inf, lambda: time.monotonic() > end_s)
        schedule = self._solve(problem, effort)
        notes = schedule.provenance.get("options", {})
        return replace(schedule, provenance=provenance(problem, options, self.name, **notes))

    def _solve(self, problem: Problem, effort: Effort) -> Schedule:
        if problem.kind == "allreduce":
            return by_composition(problem, lambda phase: self._solve(phase, effort))
        if problem.kind == "reducescatter":
            return by_reversal(problem, lambda forward: repaired(forward, effort))
        return repaired(problem, effort)


@dataclass(frozen=True, eq=False)
class Rounded:
    """How many of the chunks of its source each tree of a mix carries; `load` as that of Mix."""

    mix: Mix
    chunks: int
    counts: I64
    load: float


def repaired(problem: Problem, effort: Effort) -> Schedule:
    """The better allgather of breadth-first broadcast and of timed trees; what it says of itself has both times."""
    plain, cost = allgather(problem), known_cost(problem.topology)
    best, steps, factor = plain, cost.steps, float(cost.factor)
    if problem.topology.num_ranks > 2:
        ground = Ground(problem.topology)
        scale = ground.arcs.into_most / problem.topology.num_ranks
        for rounded in _choices(problem, ground, float(cost.factor) / scale, plain.finish_s, effort):
            for whole in (True, False):
                found = _schedule(problem, ground, rounded, whole)
                if found.finish_s < best.finish_s * (1 - 1e-9):
                    best, steps, factor = found, rounded.mix.steps, rounded.load * scale
    said = {"chunks_per_rank": best.collective.chunks_per_rank, "steps": steps, "bandwidth_factor": round(factor, 9)}
    of_plain = {"bfb_steps": cost.steps, "bfb_factor": str(cost.factor), "bfb_us": round(plain.finish_s * 1e6, 6)}
    return best.with_notes(options={**said, **of_plain})


def _choices(problem: Problem, ground: Ground, plain: float, plain_s: float, effort: Effort) -> Iterator[Rounded]:
    """For every number of steps that may pay the mix in whole chunks; `plain` is the load without repair."""
    step_s, unit_s = _costs(problem, ground)
    least = _least_load(problem, ground)
    if plain <= least * (1 + 1e-9) or plain_s <= least * unit_s * NOTHING_TO_GAIN:
        return
    best_s, before_s = int(ground.hops_from.max()) * step_s + plain * unit_s, inf

    def pays(steps: int, load: float) -> bool:
        return steps * step_s + load * unit_s < best_s

    for mix in mixes(ground, least, pays, effort.seed, effort.late, effort.work):
        mix_s = mix.steps * step_s + mix.load * unit_s
        if mix_s > before_s:
            return
        if pays(mix.steps, mix.load):
            rounded = _rounded(problem, ground, mix)
            best_s = min(best_s, mix.steps * step_s + rounded.load * unit_s)
            yield rounded
        if not pays(mix.steps + 1, least):
            return
        before_s = mix_s


def _costs(problem: Problem, ground: Ground) -> tuple[float, float]:
    """Seconds of a step without bytes, and of a load of one shard over a unit of capacity."""
    t, arcs = problem.topology, ground.arcs
    unit = float((t.bandwidth[arcs.link] / arcs.capacity).max())
    return float(t.alpha_s.max()), problem.size_bytes / (t.num_ranks * unit)


def _least_load(problem: Problem, ground: Ground) -> float:
    """The load that the tightest cut needs, however many steps there are: shards over units of capacity."""
    t, arcs = problem.topology, ground.arcs
    rate = tightest_rate(problem.collective(1), t)
    assert rate is not None
    unit = t.exact_bandwidth_gb_s[int(arcs.link[0])] / Fraction(int(arcs.capacity[0]))
    return float(t.num_ranks * unit / rate)


def _rounded(problem: Problem, ground: Ground, mix: Mix) -> Rounded:
    """Whole chunks for every tree: few of them where more would hardly be better."""
    from collsyn.synth import bfb_repair_kernels as kernels

    kept = mix.known[len(mix.trees) :][:OTHERS]
    trees, parts = [*mix.trees, *kept], np.concatenate([mix.parts, np.zeros(len(kept))])
    order = sorted(range(len(trees)), key=lambda i: trees[i].source)
    trees, parts = [trees[i] for i in order], parts[order]
    first = np.searchsorted([tree.source for tree in trees], np.arange(len(ground.sources) + 1)).astype(np.int64)
    loads = np.array([tree.load for tree in trees])
    found: list[Rounded] = []
    for chunks in _ladder(problem):
        counts = np.floor(parts * chunks + 1e-7).astype(np.int64)
        load = float(kernels.whole_parts(loads / chunks, first, counts, chunks, np.array(NEAR)))
        used = np.flatnonzero(counts)
        found.append(Rounded(replace(mix, trees=[trees[i] for i in used]), chunks, counts[used], load))
        if load <= mix.load * ALIKE:
            break
    step_s, unit_s = _costs(problem, ground)
    seconds = [mix.steps * step_s + each.load * unit_s for each in found]
    return next(each for each, time_s in zip(found, seconds, strict=True) if time_s <= min(seconds) * ALIKE)


def _ladder(problem: Problem) -> list[int]:
    """Chunks a rank that are tried."""
    if problem.chunks_per_rank is not None:
        return [problem.chunks_per_rank]
    n, longest = problem.topology.num_ranks, most_chunks(problem)
    return [c for c in CHUNKS if c == 1 or (c * n * (n - 1) <= MAX_ROWS and c <= longest)]


def _schedule(problem: Problem, ground: Ground, rounded: Rounded, whole: bool) -> Schedule:
    """Messages of what a link carries in one step, or of single chunks, each as soon as it can leave."""
    t, arcs, group = problem.topology, ground.arcs, ground.group
    columns: dict[str, list[I64]] = {name: [] for name in ("chunk", "src", "dst", "route", "step")}
    given = np.zeros(len(ground.sources), dtype=np.int64)
    for tree, count in zip(rounded.mix.trees, rounded.counts.tolist(), strict=True):
        reached = np.flatnonzero(tree.arc >= 0)
        links, root = arcs.link[tree.arc[reached]], int(ground.sources[tree.source])
        part = np.arange(given[tree.source], given[tree.source] + count)
        given[tree.source] += count
        for vertices, images in zip(group.vertices, group.links, strict=True):
            image = images[links]
            columns["chunk"].append(np.tile(int(vertices[root]) * rounded.chunks + part, len(reached)))
            for name, values in (("src", t.src[image]), ("dst", t.dst[image]), ("route", image)):
                columns[name].append(np.repeat(values, count))
            columns["step"].append(np.repeat(tree.when[reached], count))
    named = {name: np.concatenate(values) for name, values in columns.items()}
    order = np.lexsort((named["chunk"], named["route"], named["step"]))
    named = {name: values[order] for name, values in named.items()}
    step = named.pop("step")
    if whole:
        named["batch"] = np.unique(step * t.num_links + named["route"], return_inverse=True)[1]
    routes = Rows(np.arange(t.num_links + 1), np.arange(t.num_links))
    return in_order(problem.collective(rounded.chunks), t, problem.size_bytes, routes, named)


REPAIRED = RepairedMethod()
