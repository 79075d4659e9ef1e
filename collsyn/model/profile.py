"""A profile: what was measured on a machine, link by link, with confidence and residuals; it yields a topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.files import write_atomic
from collsyn.model.arrays import F64
from collsyn.model.fields import Fields, finite_number, load_document
from collsyn.model.profile_ports import by_working_set
from collsyn.model.profile_tree import tree_edges, way_latencies
from collsyn.model.size_rates import SizeRates, from_times
from collsyn.model.topology import Topology
from collsyn.model.topology_file import flow
from collsyn.units import beta_to_gb_s, gb_s_to_beta, rounded, s_to_us, tidy_beta, us_to_s

SCHEMA = "collsyn-profile/1"
# Costs closer than this factor are equal for every purpose.
SAME = 1.1
# Latencies of ways and bandwidths in a tree may change by so much where equal links are made equal.
_LEVELLING = 0.03
# What points of a file may hold.
_MOST_BYTES = 1 << 60
_LEAST_US, _MOST_US = 1e-6, 1e12


@dataclass(frozen=True)
class Estimate:
    """A fitted value with the 95% interval around it, in SI units."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LinkFit:
    """Costs of one ordered pair: time = alpha + bytes * beta, overhead what each message of a stream pays of alpha.

    `residual` is the root mean square of relative errors of the line at the measured sizes, `linear` says whether it
    fits, and `points` are the measured (bytes, median seconds). `shares`: the pair has no link of its own, but goes
    over links that it shares (`Profile.shared`); `via`: it has none, for its messages pass through that rank.
    Of all `repeats` at all sizes `outliers` took longer than half as long again as the median of their size; the first
    at a size took longer than the median by the part `warm_up` (the median over sizes).
    """

    src: int
    dst: int
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    overhead_s: Estimate
    residual: float
    linear: bool
    points: tuple[tuple[int, float], ...]
    shares: bool = False
    via: int | None = None
    repeats: int = 0
    outliers: int = 0
    warm_up: float = 0.0


@dataclass(frozen=True)
class PortFit:
    """What a rank's messages cost in addition while all ranks send to all others at once.

    `beta_s_per_byte` is how slowly the rank sends, and receives, then; `alpha_s` what every message takes longer than
    on an idle machine. Cores, memory or network cards that links share show here. `residual` and `linear` are as in
    LinkFit; `points` are (bytes through the port, median seconds) of an exchange of all with all, own parts included.
    """

    alpha_s: Estimate
    beta_s_per_byte: Estimate
    residual: float = 0.0
    linear: bool = True
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SharedFit:
    """A link that several pairs share: all that share and lead from `ranks` to others (`out`) or from others to them.

    `full` is in how many joint runs it was the limit; 0: it never was, and its bandwidth is the most that was seen.
    """

    ranks: tuple[int, ...]
    out: bool
    beta_s_per_byte: Estimate
    full: int = 0


@dataclass(frozen=True)
class Profile:
    """Measured costs of all ordered pairs of ranks of one machine, each pair measured alone.

    `ports` has an entry a rank, or none where that was not measured; `reduce_points` are (bytes that all ranks reduce
    at once in an exchange, seconds that these take beyond what moving as many does), for `reduce_s_per_byte` where one
    rate does not do. `method` holds how it was measured (sizes,
    repeats, seed, backend's transport), `facts` what is known of the machine (counts and kinds only; never a name of a
    host or user).
    """

    name: str
    backend: str
    num_ranks: int
    links: tuple[LinkFit, ...]
    ports: tuple[PortFit, ...] = ()
    reduce_s_per_byte: float = 0.0
    method: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[SharedFit, ...] = ()
    reduce_points: tuple[tuple[int, float], ...] = ()

    def topology(self) -> Topology:
        """The measured machine as a topology: one link an ordered pair, or the tree of links that pairs share.

        Costs that cannot be told apart become equal (see `levelled`), so that noise does not look like structure. Pairs
        that share go through a switch for each set of ranks that has a shared link, pairs that are relayed have no
        link. Where nothing is shared and ports were measured, rank r reaches its links through a switch `send r` and is
        reached through a switch `receive r`, whose links to the rank have the port's bandwidth; its latency is on the
        way to `send r`.
        """
        return _with_tree(self) if self.shared else _with_ports(self)


def _with_ports(profile: Profile) -> Topology:
    n, own = profile.num_ranks, [link for link in profile.links if link.via is None]
    ranks = list(range(n)) if profile.ports else []
    send, receive = (n, 2 * n) if profile.ports else (0, 0)
    port_beta = levelled([port.beta_s_per_byte for port in profile.ports])
    port_alpha_s = np.concatenate([levelled([port.alpha_s for port in profile.ports]), np.zeros(len(ranks))])
    rows = _Columns(own, send, receive)
    rows.add(ranks, [rank + send for rank in ranks], port_alpha_s[: len(ranks)], port_beta)
    rows.add([rank + receive for rank in ranks], ranks, np.zeros(len(ranks)), port_beta)
    names = tuple(f"{way} {rank}" for way in ("send", "receive") for rank in ranks)
    machine = rows.topology(profile, names)
    if not ranks:
        return machine
    # What measured a port was a core that copies for its rank; it also makes the copies within the rank.
    return replace(machine, copies_take_port=True, **by_working_set(profile, machine))


def _with_tree(profile: Profile) -> Topology:
    edges = tree_edges(profile.links, [*profile.shared])
    rows = _Columns([link for link in profile.links if link.via is None and not link.shares], 0, 0)
    sets = list(dict.fromkeys(edge.parent for edge in edges))
    vertex = {ranks: profile.num_ranks + number for number, ranks in enumerate(sets)}
    inner = [vertex[edge.ranks] if edge.ranks in vertex else edge.ranks[0] for edge in edges]
    outer = [vertex[edge.parent] for edge in edges]
    ends = [(a, b) if edge.out else (b, a) for a, b, edge in zip(inner, outer, edges, strict=True)]
    alpha_s, beta = (
        np.array([getattr(edge, name) for edge in edges], dtype=np.float64) for name in ("alpha_s", "beta_s_per_byte")
    )
    alike_s, alike_beta = (
        levelled([Estimate(value, value, value) for value in values.tolist()]) for values in (alpha_s, beta)
    )
    if _close(way_latencies(profile.links, edges, alike_s), way_latencies(profile.links, edges, alpha_s)):
        alpha_s = alike_s
    if _close(alike_beta, beta):
        beta = alike_beta
    # A message pays the largest overhead of its way, once: it stands where the way begins.
    mine = {
        rank: np.median([link.overhead_s.value for link in profile.links if link.shares and link.src == rank])
        for rank in {link.src for link in profile.links if link.shares}
    }
    overhead_s = [mine.get(edge.ranks[0], 0.0) if edge.out and len(edge.ranks) == 1 else 0.0 for edge in edges]
    rows.add([a for a, _ in ends], [b for _, b in ends], alpha_s, beta, np.minimum(overhead_s, alpha_s))
    return rows.topology(profile, tuple(f"switch of {ranks_text(ranks)}" for ranks in sets))


def _close(values: F64, others: F64) -> bool:
    return bool((np.abs(values - others) <= _LEVELLING * others).all())


class _Columns:
    """Columns of links, those of pairs with a link of their own first."""

    def __init__(self, own: Sequence[LinkFit], send: int, receive: int) -> None:
        alpha_s = levelled([link.alpha_s for link in own])
        overhead_s = np.minimum(levelled([link.overhead_s for link in own]), alpha_s)
        beta = levelled([link.beta_s_per_byte for link in own])
        self._size_rates = _bend(own, alpha_s, beta)
        overhead_s = np.minimum(overhead_s, alpha_s)
        ends = [[link.src + send for link in own], [link.dst + receive for link in own]]
        self._columns: list[list[Any]] = [*ends, alpha_s.tolist(), beta.tolist(), overhead_s.tolist()]

    def add(
        self, src: Sequence[int], dst: Sequence[int], alpha_s: F64, beta: F64, overhead_s: F64 | None = None
    ) -> None:
        """More links."""
        more = (src, dst, alpha_s, beta, np.zeros(len(src)) if overhead_s is None else overhead_s)
        for column, values in zip(self._columns, more, strict=True):
            column += np.asarray(values).tolist()

    def topology(self, profile: Profile, switch_names: tuple[str, ...]) -> Topology:
        """All of them as a topology."""
        src, dst, alpha_s, beta, overhead_s = self._columns
        straight: list[SizeRates] = [()] * (len(src) - len(self._size_rates))
        return Topology(
            name=profile.name,
            num_ranks=profile.num_ranks,
            src=np.array(src, dtype=np.int32),
            dst=np.array(dst, dtype=np.int32),
            alpha_s=np.array(alpha_s),
            beta_s_per_byte=np.array(beta),
            overhead_s=np.array(overhead_s),
            count=np.ones(len(src), dtype=np.int32),
            switch_names=switch_names,
            size_rates=(*self._size_rates, *straight) if any(self._size_rates) else (),
            reduce_s_per_byte=np.full(profile.num_ranks, profile.reduce_s_per_byte),
            provenance={"source": "profile", "backend": profile.backend},
        )


def _bend(own: Sequence[LinkFit], alpha_s: F64, beta: F64) -> list[SizeRates]:
    """Rates by size of the links that no line describes, whose alpha and beta are changed to what fits them.

    Links that are alike (equal alpha and beta) stay so: they are all bent if most of them are, by the medians of their
    times; the bandwidth is then the highest rate at any size.
    """
    rates: list[SizeRates] = [()] * len(own)
    alike: dict[tuple[float, float], list[int]] = {}
    for number, costs in enumerate(zip(alpha_s.tolist(), beta.tolist(), strict=True)):
        alike.setdefault(costs, []).append(number)
    for members in alike.values():
        bent = [own[number].points for number in members if not own[number].linear and len(own[number].points) > 1]
        if 2 * len(bent) <= len(members):
            continue
        sizes = [size for size, _ in bent[0] if all(size in dict(points) for points in bent)]
        times = [(size, float(np.median([dict(points)[size] for points in bent]))) for size in sizes]
        if not times:
            continue
        latency_s, by_size = from_times(times, float(alpha_s[members[0]]))
        for number in members:
            highest = tidy_beta(1.0 / max(rate for _, rate in by_size))
            rates[number], alpha_s[number], beta[number] = by_size, latency_s, highest
    return rates


def ranks_text(ranks: Sequence[int]) -> str:
    """Ascending ranks in few words: `0-3, 6`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def levelled(estimates: Sequence[Estimate]) -> F64:
    """Their values, those that cannot be told apart replaced by the median of their class.

    In ascending order of values, one joins the class before it if its interval reaches down to the highest upper end
    there, or if it is within SAME of the value before. O(n log n).
    """
    values = np.array([one.value for one in estimates], dtype=np.float64)
    order = np.argsort(values, kind="stable").tolist()
    classes: list[list[int]] = []
    reach = 0.0
    for i in order:
        known = classes and (estimates[i].low <= reach or values[i] <= values[classes[-1][-1]] * SAME)
        if known:
            classes[-1].append(i)
            reach = max(reach, estimates[i].high)
        else:
            classes.append([i])
            reach = estimates[i].high
    for members in classes:
        values[members] = np.median(values[members])
    return values


def read_profile(path: str | Path) -> Profile:
    """The profile in a YAML file; raises InputError that names file and key."""
    return profile_from_fields(load_document(path))


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as YAML; reading and writing it again gives the same bytes."""
    write_atomic(path, profile_text(profile))


def profile_text(profile: Profile) -> str:
    """The YAML text of a profile, one link a line."""
    lines = []
    for key, value in profile_document(profile).items():
        listed = key in ("ports", "shared", "links")
        lines += [f"{key}:", *(f"  - {flow(entry)}" for entry in value)] if listed else [f"{key}: {flow(value)}"]
    return "\n".join(lines) + "\n"


def profile_document(profile: Profile) -> dict[str, Any]:
    """The profile as plain values, in the units of files."""
    ports = [_port_document(port) for port in profile.ports]
    return {
        "schema": SCHEMA,
        "name": profile.name,
        "backend": profile.backend,
        "ranks": profile.num_ranks,
        "reduce_gb_s": rounded(beta_to_gb_s(profile.reduce_s_per_byte)) if profile.reduce_s_per_byte else 0,
        **({"reduce_points": _points_document(profile.reduce_points)} if profile.reduce_points else {}),
        "method": dict(profile.method),
        "facts": dict(profile.facts),
        **({"ports": ports} if ports else {}),
        **({"shared": [_shared_document(one) for one in profile.shared]} if profile.shared else {}),
        "links": [_link_document(link) for link in profile.links],
    }


def profile_from_fields(fields: Fields) -> Profile:
    """The profile of a document; raises InputError."""
    fields.text("schema", choices=[SCHEMA])
    num_ranks = fields.integer("ranks", minimum=1)
    reduce_gb_s = fields.number("reduce_gb_s", default=0, minimum=0)
    ports = tuple(_read_port(entry) for entry in fields.each("ports", default=[]))
    if len(ports) not in (0, num_ranks):
        fields.fail("ports", f"has {len(ports)} entries; expected one for each of the {num_ranks} ranks, or none")
    profile = Profile(
        name=fields.text("name", default=Path(fields.file).stem),
        backend=fields.text("backend", choices=["host", "cuda"]),
        num_ranks=num_ranks,
        links=tuple(_read_link(entry, num_ranks) for entry in fields.each("links")),
        ports=ports,
        shared=_read_all_shared(fields, num_ranks),
        reduce_s_per_byte=gb_s_to_beta(reduce_gb_s) if reduce_gb_s else 0.0,
        reduce_points=_read_points(fields, "reduce_points") if num_ranks > 1 else (),
        method=fields.mapping("method", default={}),
        facts=fields.mapping("facts", default={}),
    )
    fields.done()
    return profile


def _link_document(link: LinkFit) -> dict[str, Any]:
    return {
        "from": link.src,
        "to": link.dst,
        **_us_document("alpha", link.alpha_s),
        **_bandwidth_document(link.beta_s_per_byte),
        **_us_document("overhead", link.overhead_s),
        "residual": rounded(link.residual),
        "linear": link.linear,
        "points": _points_document(link.points),
        **({"repeats": link.repeats, "outliers": link.outliers} if link.repeats else {}),
        **({"warm_up": rounded(link.warm_up)} if link.warm_up else {}),
        **({"shares": True} if link.shares else {}),
        **({"via": link.via} if link.via is not None else {}),
    }


def _shared_document(shared: SharedFit) -> dict[str, Any]:
    return {
        "ranks": list(shared.ranks),
        "way": "out" if shared.out else "in",
        **_bandwidth_document(shared.beta_s_per_byte),
        "full": shared.full,
    }


def _port_document(port: PortFit) -> dict[str, Any]:
    return {
        **_us_document("alpha", port.alpha_s),
        **_bandwidth_document(port.beta_s_per_byte),
        "residual": rounded(port.residual),
        **({} if port.linear else {"linear": False}),
        **({"points": _points_document(port.points)} if port.points else {}),
    }


def _points_document(points: Sequence[tuple[int, float]]) -> list[list[Any]]:
    return [[size, rounded(s_to_us(seconds))] for size, seconds in points]


def _us_document(name: str, value: Estimate) -> dict[str, Any]:
    return {
        f"{name}_us": rounded(s_to_us(value.value)),
        f"{name}_ci_us": [rounded(s_to_us(value.low)), rounded(s_to_us(value.high))],
    }


def _bandwidth_document(beta: Estimate) -> dict[str, Any]:
    return {
        "bandwidth_gb_s": rounded(beta_to_gb_s(beta.value)),
        "bandwidth_ci_gb_s": [rounded(beta_to_gb_s(beta.high)), rounded(beta_to_gb_s(beta.low))],
    }


def _read_all_shared(fields: Fields, num_ranks: int) -> tuple[SharedFit, ...]:
    found = tuple(_read_shared(entry, num_ranks) for entry in fields.each("shared", default=[]))
    for i, one in enumerate(found):
        for other in found[:i]:
            common = set(one.ranks) & set(other.ranks)
            if common and common not in (set(one.ranks), set(other.ranks)):
                fields.fail(
                    f"shared[{i}].ranks", f"crosses those of shared[{found.index(other)}]; expected nested sets"
                )
    return found


def _read_shared(entry: Fields, num_ranks: int) -> SharedFit:
    ranks = entry.items("ranks")
    known = all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < num_ranks for rank in ranks)
    if not known or not ranks or sorted(set(ranks)) != ranks:
        entry.fail("ranks", f"expected ascending numbers of ranks, 0 .. {num_ranks - 1}")
    out = entry.text("way", choices=["out", "in"]) == "out"
    shared = SharedFit(tuple(ranks), out, _bandwidth(entry), entry.integer("full", default=0, minimum=0))
    entry.done()
    return shared


def _read_port(entry: Fields) -> PortFit:
    residual = entry.number("residual", default=0, minimum=0)
    linear, points = entry.flag("linear", default=True), _read_points(entry, "points")
    if not linear and len(points) < 2:
        entry.fail("points", "has fewer than two; a port that is no straight line needs them")
    port = PortFit(_estimate_us(entry, "alpha"), _bandwidth(entry), residual, linear, points)
    entry.done()
    return port


def _bandwidth(entry: Fields) -> Estimate:
    bandwidth = entry.number("bandwidth_gb_s", above=0)
    low, high = _interval(entry, "bandwidth_ci_gb_s", bandwidth)
    if low <= 0:
        entry.fail("bandwidth_ci_gb_s", f"begins at {low:g}; expected numbers above 0")
    return Estimate(gb_s_to_beta(bandwidth), gb_s_to_beta(high), gb_s_to_beta(low))


def _read_link(entry: Fields, num_ranks: int) -> LinkFit:
    src, dst = (entry.integer(key, minimum=0, maximum=num_ranks - 1) for key in ("from", "to"))
    if src == dst:
        entry.fail("to", "is the rank that the link comes from; expected another one")
    beta = _bandwidth(entry)
    fit = LinkFit(
        src=src,
        dst=dst,
        alpha_s=_estimate_us(entry, "alpha"),
        beta_s_per_byte=beta,
        overhead_s=_estimate_us(entry, "overhead"),
        residual=entry.number("residual", default=0, minimum=0),
        linear=entry.flag("linear", default=True),
        points=_read_points(entry, "points"),
        repeats=entry.integer("repeats", default=0, minimum=0),
        outliers=entry.integer("outliers", default=0, minimum=0),
        warm_up=entry.number("warm_up", default=0),
        shares=entry.flag("shares", default=False),
        via=entry.integer("via", minimum=0, maximum=num_ranks - 1) if entry.has("via") else None,
    )
    entry.done()
    return fit


def _read_points(entry: Fields, key: str) -> tuple[tuple[int, float], ...]:
    points: list[tuple[int, float]] = []
    for index, pair in enumerate(entry.items(key, default=[])):
        place = f"{key}[{index}]"
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            entry.fail(place, f"is {pair!r}; expected a pair [bytes, microseconds]")
        size, us = pair[0], finite_number(pair[1])
        if not 0 < size <= _MOST_BYTES:
            entry.fail(place, f"has {size} bytes; expected 1 .. {_MOST_BYTES}")
        if points and size <= points[-1][0]:
            entry.fail(place, f"has {size} bytes, the point before it {points[-1][0]}; expected ascending sizes")
        if us is None or not _LEAST_US <= us <= _MOST_US:
            entry.fail(place, f"has {pair[1]!r} microseconds; expected {_LEAST_US:g} .. {_MOST_US:g}")
        points.append((size, us_to_s(us)))
    return tuple(points)


def _estimate_us(entry: Fields, name: str) -> Estimate:
    value = entry.number(f"{name}_us", default=0, minimum=0)
    low, high = _interval(entry, f"{name}_ci_us", value)
    return Estimate(us_to_s(value), us_to_s(low), us_to_s(high))


def _interval(entry: Fields, key: str, value: float) -> tuple[float, float]:
    numbers = entry.numbers(key, default=[value, value])
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        entry.fail(key, "expected two numbers, the lower one first")
    return float(numbers[0]), float(numbers[1])
