"""Measures a machine through its host ranks, and turns the times into a profile."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from collsyn import __version__
from collsyn.model.profile import Estimate, LinkFit, PortFit, Profile, SharedFit
from collsyn.model.profile_tree import tree_edges, way_latencies
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document
from collsyn.profiling.design import near_sets
from collsyn.profiling.fit import estimate, fit_line, fit_overhead, resampled_medians, stragglers
from collsyn.profiling.measure import LOAD, MESSAGE, REDUCE, STREAM
from collsyn.profiling.sharing import Run, Shared, Sharing, find_shared, most_across
from collsyn.runtime.emulation import Emulation
from collsyn.runtime.facts import machine_facts
from collsyn.runtime.launch import launch
from collsyn.runtime.native_loader import native_library
from collsyn.topology.hops import hops

# With more pairs each is measured less often, so that the whole takes minutes at most.
_MOST_STEPS = 20_000
_FEWEST_REPEATS = 5
LIMIT_S = 600.0
# Latencies that a tree misses by more (root mean square) call for more switches, if these bring it down to that part.
_MISFIT, _GAIN = 0.02, 0.8
# A port whose line is further off its points has a rate for each.
_STRAIGHT = 0.1
# Reductions take this part of what moving their bytes takes at least.
_LEAST = 0.01
# Memory of an exchange of all ranks at once.
_EXCHANGE_BYTES = 512 << 20


@dataclass(frozen=True)
class Effort:
    """What is timed, how often: bytes of messages of pairs, of those that all ranks send at once, of reductions.

    Ranks are started `launches` times, with so many `repeats` each: which pages they get, and so how well caches work,
    is decided once a launch.
    """

    sizes: tuple[int, ...]
    load_sizes: tuple[int, ...]
    reduce_sizes: tuple[int, ...]
    repeats: int
    runs_per_rank: int = 12
    launches: int = 1


# What all ranks do at once, up to where no cache helps any more.
_LOADS = (1, 4 << 10, *(1 << power for power in range(16, 26)))
THOROUGH = Effort(
    sizes=(1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20),
    load_sizes=_LOADS,
    reduce_sizes=_LOADS[2:],
    repeats=9,
    launches=3,
)
QUICK = Effort(
    sizes=(1, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20),
    load_sizes=_LOADS[:-2],
    reduce_sizes=_LOADS[2:-2],
    repeats=11,
    runs_per_rank=8,
)
# What an emulated machine takes is known to be a line, and everything on it takes long. What all ranks do at once is
# seen there from pairs measured together.
EMULATED = Effort(sizes=(1, 256 << 10), load_sizes=(), reduce_sizes=(64 << 10, 1 << 20), repeats=3, runs_per_rank=9)
EMULATED_QUICK = replace(EMULATED, repeats=1, runs_per_rank=6)
_EMULATED_LIMIT_S = 3600.0
# Real time of the shortest latency and of the largest message over the widest hop, on an emulated machine.
_LATENCY_S, _MESSAGE_S = 1.5e-3, 12e-3


def profile_host(
    num_ranks: int,
    effort: Effort = THOROUGH,
    launcher: str = "auto",
    seed: int = 0,
    name: str = "host",
    on_progress: Callable[[float], None] | None = None,
    emulate: Topology | None = None,
) -> Profile:
    """Start `num_ranks` ranks on this machine and measure every ordered pair of them.

    With `emulate` they run at the pace of that machine, and the profile is one of it. `on_progress` is called with the
    share that is done, 0 .. 1. Raises DeviceError where ranks cannot run, and VerificationError where bytes arrive
    changed. Takes some seconds for 4 ranks, growing with the square of the ranks; minutes where a machine is emulated.
    """
    steps = num_ranks * (num_ranks - 1) * (len(effort.sizes) + 1)
    repeats = max(min(_FEWEST_REPEATS, effort.repeats), min(effort.repeats, _MOST_STEPS // max(steps, 1)))
    arguments = {
        "sizes": list(effort.sizes),
        "load_sizes": _fitting(effort.load_sizes, num_ranks),
        "reduce_sizes": _fitting(effort.reduce_sizes, num_ranks),
        "repeats": repeats,
        "runs_per_rank": effort.runs_per_rank,
        "seed": seed,
    }
    number = 0

    def hear(rank: int, share: Any) -> None:
        if on_progress is not None:
            on_progress((number + float(share)) / effort.launches)

    emulation = None if emulate is None else Emulation(emulate, _factor(emulate, effort))
    limit_s = LIMIT_S if emulation is None else _EMULATED_LIMIT_S
    asked = {**arguments, "emulate": None if emulation is None else _document(emulation)}
    found: list[Any] = []
    for number in range(effort.launches):
        once = {**asked, "seed": seed + number, **({"runs_per_rank": 0} if number else {})}
        found.append(launch("collsyn.profiling.measure:measure", once, num_ranks, launcher, limit_s, hear))
    method = {
        "tool": f"collsyn {__version__}",
        "timed": "put and flag, answered by a flag",
        "executor": "compiled" if native_library() is not None else "numpy",
        **arguments,
        **({"launches": effort.launches} if effort.launches > 1 else {}),
        **({} if emulation is None else {"emulated": str(emulation)}),
    }
    times = [_joined([one["times"] for one in of_rank]) for of_rank in zip(*found, strict=True)]
    profile = fit_profile(times, num_ranks, name, seed, method, machine_facts())
    together = found[0][0]["together"]
    return profile if together is None else with_sharing(profile, together)


def _fitting(sizes: Sequence[int], num_ranks: int) -> list[int]:
    """Those at which an exchange of all with all needs no more memory than it may; the first two in any case."""
    return [size for i, size in enumerate(sizes) if i < 2 or size * num_ranks * (num_ranks + 1) <= _EXCHANGE_BYTES]


def _joined(launches: Sequence[Sequence[Sequence[Any]]]) -> list[Sequence[Any]]:
    """What a rank returned in several launches as if it had been one with more repeats."""
    times: dict[tuple[Any, ...], list[float]] = {}
    for one in launches:
        for *what, seconds in one:
            times.setdefault(tuple(what), []).extend(seconds)
    return [[*what, seconds] for what, seconds in times.items()]


def _factor(topology: Topology, effort: Effort) -> float:
    """How much slower a machine is to be emulated, so that noise of this one is small against the shortest message."""
    ways = hops(topology)
    largest_s = max(effort.sizes) * ways.beta_s_per_byte.min(initial=np.inf)
    latencies = ways.alpha_s[ways.alpha_s > 0]
    return float(max(_MESSAGE_S / largest_s, _LATENCY_S / latencies.min() if len(latencies) else 0.0))


def _document(emulation: Emulation) -> dict[str, Any]:
    return {"topology": topology_document(emulation.topology), "factor": emulation.factor}


def fit_profile(
    found: Sequence[Sequence[Sequence[Any]]],
    num_ranks: int,
    name: str,
    seed: int,
    method: Mapping[str, Any],
    facts: Mapping[str, Any],
    backend: str = "host",
) -> Profile:
    """The profile of what `measure` returned on every rank."""
    times = {(kind, src, dst, size): seconds for one in found for kind, src, dst, size, seconds in one if src >= 0}
    pairs = sorted({(src, dst) for kind, src, dst, _ in times if kind == MESSAGE})
    links = tuple(_fit_link(times, src, dst, seed) for src, dst in pairs)
    load, reduced = _of_slowest(found, LOAD), _of_slowest(found, REDUCE)
    beyond = _reduce_points(load, reduced, num_ranks) if load else ()
    ports = (_fit_port(load, links, num_ranks, seed),) * num_ranks if load else ()
    if beyond:
        reduce_s = median(seconds / size for size, seconds in beyond)
    elif ports:
        moved = ports[0].beta_s_per_byte.value
        through = {size * (num_ranks - 1): seconds for size, seconds in reduced.items()}
        reduce_s = max(fit_line(through, seed).beta_s_per_byte.value - moved, _LEAST * moved)
    else:
        reduce_s = fit_line(reduced, seed).beta_s_per_byte.value
    return Profile(
        name=name,
        backend=backend,
        num_ranks=num_ranks,
        links=links,
        ports=ports,
        reduce_s_per_byte=reduce_s,
        reduce_points=beyond,
        method=method,
        facts=facts,
    )


def with_sharing(profile: Profile, together: Mapping[str, Any]) -> Profile:
    """The profile with what joint runs showed, as `measure` returned them: the links that pairs share, and relays."""
    relays = {(src, dst): via for src, dst, via in together["relays"]}
    runs = [
        Run(
            {(src, dst): rate for src, dst, rate, _ in run},
            frozenset((src, dst) for src, dst, _, slowed in run if slowed),
        )
        for run in together["runs"]
    ]
    alpha_s = {(link.src, link.dst): link.alpha_s.value for link in profile.links}
    found = find_shared(profile.num_ranks, runs, near_sets(alpha_s))
    links = [
        replace(link, shares=(link.src, link.dst) in found.pairs, via=relays.get((link.src, link.dst)))
        for link in profile.links
    ]
    ports: set[tuple[int, ...]] = {(rank,) for pair in found.pairs for rank in pair}
    sets = sorted({*ports, *(one.ranks for one in found.links)}, key=lambda ranks: (len(ranks), ranks))
    near = near_sets({pair: alpha_s[pair] for pair in found.pairs})
    shared = _shared_fits(_with_near(sets, near, found, runs, links), found, runs, links)
    method = {**profile.method, "joint_runs": len(runs), "unexplained": found.unexplained}
    return replace(profile, links=tuple(links), shared=tuple(shared), method=method)


def _shared_fits(
    sets: Sequence[tuple[int, ...]], found: Sharing, runs: Sequence[Run], links: Sequence[LinkFit]
) -> list[SharedFit]:
    """Both borders of every set: what they let through, or where they were no limit the most that was seen to pass."""
    known = {(one.ranks, one.out): one for one in found.links}
    fits = []
    for ranks, out in [(ranks, out) for ranks in sets for out in (True, False)]:
        if (ranks, out) in known:
            one = known[ranks, out]
            fits.append(SharedFit(ranks, out, Estimate(1 / one.bandwidth, 1 / one.high, 1 / one.low), one.times))
            continue
        border = Shared(ranks, out, 0.0, 0.0, 0.0, 0)
        alone = [1 / x.beta_s_per_byte.value for x in links if x.shares and border.carries((x.src, x.dst))]
        if alone:
            most = max(most_across(ranks, out, found.pairs, runs), *alone)
            fits.append(SharedFit(ranks, out, Estimate(1 / most, 1 / most, 1 / most)))
    return fits


def _with_near(
    sets: list[tuple[int, ...]],
    near: Sequence[tuple[int, ...]],
    found: Sharing,
    runs: Sequence[Run],
    links: Sequence[LinkFit],
) -> list[tuple[int, ...]]:
    """The sets, and as many more as latencies need to add up along a tree: switches whose links never are the limit."""

    def misfit(tried: Sequence[tuple[int, ...]]) -> float:
        edges = tree_edges(links, _shared_fits(tried, found, runs, links))
        measured = np.array([link.alpha_s.value for link in links if link.shares])
        fitted = way_latencies(links, edges, np.array([edge.alpha_s for edge in edges]))
        return float(np.sqrt(np.mean((fitted / np.maximum(measured, 1e-12) - 1) ** 2)))

    rest = [one for one in near if one not in sets]
    while rest and found.pairs and (now := misfit(sets)) > _MISFIT:
        nested = [one for one in rest if all({*one} & {*other} in ({*one}, {*other}, set()) for other in sets)]
        best = min(nested, key=lambda one: misfit([*sets, one]), default=None)
        if best is None or misfit([*sets, best]) > _GAIN * now:
            break
        sets = sorted([*sets, best], key=lambda ranks: (len(ranks), ranks))
        rest.remove(best)
    return sets


def _of_slowest(found: Sequence[Sequence[Sequence[Any]]], wanted: str) -> dict[int, list[float]]:
    """By size, the times of what all ranks did at once: in each repeat those of the rank that was last."""
    by_size: dict[int, list[Sequence[float]]] = defaultdict(list)
    for one in found:
        for kind, _, _, size, seconds in one:
            if kind == wanted:
                by_size[size].append(seconds)
    return {size: np.max(ranks, axis=0).tolist() for size, ranks in by_size.items()}


def _fit_port(times: Mapping[int, Sequence[float]], links: Sequence[LinkFit], num_ranks: int, seed: int) -> PortFit:
    """What a round of messages to all others costs beyond what the pairs alone say: N messages through one port, one
    of them to the rank itself, take alpha, N - 2 overheads, and their bytes."""
    through = {size * num_ranks: seconds for size, seconds in times.items()}
    line = fit_line(through, seed)
    straight = line.linear and line.residual <= _STRAIGHT
    idle_s = median([link.alpha_s.value for link in links])
    idle_s += (num_ranks - 2) * median([link.overhead_s.value for link in links])

    def beyond(alpha_s: float) -> float:
        return max(alpha_s - idle_s, 0.0)

    shortest = np.array([line.points[0][1]])
    alpha = (
        line.alpha_s
        if straight
        else estimate(float(shortest[0]), resampled_medians(through[min(through)], np.random.default_rng(seed)))
    )
    extra = Estimate(beyond(alpha.value), beyond(alpha.low), beyond(alpha.high))
    return PortFit(extra, line.beta_s_per_byte, line.residual, straight, line.points)


def _reduce_points(
    load: Mapping[int, Sequence[float]], reduced: Mapping[int, Sequence[float]], num_ranks: int
) -> tuple[tuple[int, float], ...]:
    """Per number of bytes that a rank reduced of all others at once, the seconds beyond those of moving as many.

    Where none were measured, because reading and adding take no longer than copying, it is a small part of these.
    """
    latency_s = float(np.median(load[min(load)]))
    found = []
    for size in sorted(set(load) & set(reduced)):
        moved_s = max(float(np.median(load[size])) - latency_s, 0.0) * (num_ranks - 1) / num_ranks
        beyond_s = float(np.median(reduced[size])) - latency_s - moved_s
        found.append((size * (num_ranks - 1), max(beyond_s, _LEAST * moved_s, _LEAST * latency_s)))
    return tuple(found)


def _fit_link(times: Mapping[tuple[str, int, int, int], Sequence[float]], src: int, dst: int, seed: int) -> LinkFit:
    of_pair = {(kind, size): seconds for (kind, s, d, size), seconds in times.items() if (s, d) == (src, dst)}
    messages = {size: seconds for (kind, size), seconds in of_pair.items() if kind == MESSAGE}
    line = fit_line(messages, seed)
    outliers, warm_up = stragglers(messages)
    ((size, stream),) = ((size, seconds) for (kind, size), seconds in of_pair.items() if kind == STREAM)
    return LinkFit(
        src=src,
        dst=dst,
        alpha_s=line.alpha_s,
        beta_s_per_byte=line.beta_s_per_byte,
        overhead_s=fit_overhead(stream, size, line, seed),
        residual=line.residual,
        linear=line.linear,
        points=line.points,
        repeats=sum(map(len, messages.values())),
        outliers=outliers,
        warm_up=warm_up,
    )
