"""Failures: a topology without some links and ranks, or with slower links, and what nobody reaches any more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collsyn.errors import Infeasible, InputError
from collsyn.model.arrays import Bools
from collsyn.model.topology import Topology
from collsyn.topology.symmetry import is_symmetry

# Names of degraded topologies tell this many failures, and messages this many vertices.
TOLD, LISTED = 3, 8


@dataclass(frozen=True)
class Failures:
    """What fails: links by their ends, as in 3-4 or nic0->leaf, links that become slower by a factor, and ranks."""

    dropped_links: tuple[str, ...] = ()
    slowed_links: tuple[tuple[str, float], ...] = ()
    dropped_ranks: tuple[int, ...] = ()

    def words(self) -> list[str]:
        """Each failure in a few words."""
        return [
            *(f"without {link}" for link in self.dropped_links),
            *(f"{link} at {factor:g}" for link, factor in self.slowed_links),
            *(f"without rank {rank}" for rank in self.dropped_ranks),
        ]


def degrade(topology: Topology, failures: Failures) -> Topology:
    """The topology with failures; ranks that remain are renumbered in their order, and switches keep their names.

    `A-B` are the links both ways between two vertices, `A->B` those one way; all lanes of a trunk are one link. Only
    symmetries that survive are kept. `provenance` tells the failures, the name and ranks before, the old number of each
    rank (`kept_ranks`), and the same of an earlier failure (`earlier`). Raises InputError for what is not there, and
    Infeasible that names the ranks cut off.
    """
    _check_ranks(topology, failures.dropped_ranks)
    dropped = np.zeros(topology.num_links, dtype=np.bool_)
    for link in failures.dropped_links:
        dropped |= _links_named(topology, "--drop-link", link)
    factor = np.ones(topology.num_links)
    for link, share in failures.slowed_links:
        if not 0 < share <= 1:
            raise InputError(f"--slow-link {link}={share:g}: expected a part of the bandwidth above 0 and up to 1")
        found = _links_named(topology, "--slow-link", link)
        if (factor[found] < 1).any():
            raise InputError(f"--slow-link {link}={share:g}: the link is named twice")
        if dropped[found].any():
            raise InputError(f"--slow-link {link}={share:g}: the link is dropped, too")
        factor[found] = share
    words = failures.words()
    told = ", ".join([*words[:TOLD], *([f"{len(words) - TOLD} more failures"] if len(words) > TOLD else [])])
    slowed = replace(topology, beta_s_per_byte=topology.beta_s_per_byte / factor, size_rates=_slowed(topology, factor))
    kept = np.flatnonzero(~dropped)
    columns = slowed.link_columns(kept, np.arange(topology.num_vertices))
    gone = set(failures.dropped_ranks)
    vertices = [vertex for vertex in range(topology.num_vertices) if vertex not in gone]
    name = f"{topology.name} {told}" if told else topology.name
    result = replace(slowed, **columns).induced(vertices, name)
    survives = tuple(perm for perm in result.symmetries if is_symmetry(result, perm))
    said: dict[str, object] = {
        "from": topology.name,
        "num_ranks": topology.num_ranks,
        "failures": words,
        "kept_ranks": [rank for rank in range(topology.num_ranks) if rank not in gone],
    }
    if "degraded" in topology.provenance:
        said["earlier"] = topology.provenance["degraded"]
    origin = dict(topology.provenance) | {"degraded": said}
    _require_connected(topology, result, vertices, told)
    return replace(result, symmetries=survives, provenance=origin)


def kept_ranks(topology: Topology, num_ranks: int) -> list[int] | None:
    """The numbers that the ranks of a degraded topology had when there were `num_ranks`, however many failures ago.

    None where it never had so many, or if what it says cannot be.
    """
    ranks, said = list(range(topology.num_ranks)), topology.provenance.get("degraded")
    count = len(ranks)
    while isinstance(said, Mapping):
        kept, before = said.get("kept_ranks"), said.get("num_ranks")
        if type(before) is not int or not isinstance(kept, list) or len(set(map(str, kept))) != count:
            return None
        if len(kept) != count or not all(type(rank) is int and 0 <= rank < before for rank in kept):
            return None
        ranks, count, said = [kept[rank] for rank in ranks], before, said.get("earlier")
        if count == num_ranks:
            return ranks
    return None


def _check_ranks(topology: Topology, ranks: Sequence[int]) -> None:
    for rank in ranks:
        if not 0 <= rank < topology.num_ranks:
            raise InputError(
                f"--drop-rank {rank}: is not in topology {topology.name}; expected 0 .. {topology.num_ranks - 1}"
            )
    if len(set(ranks)) != len(ranks):
        raise InputError(f"--drop-rank: names rank {next(rank for rank in ranks if ranks.count(rank) > 1)} twice")
    if len(ranks) == topology.num_ranks:
        raise InputError(f"--drop-rank: names all ranks of topology {topology.name}; expected some to remain")


def _links_named(topology: Topology, option: str, text: str) -> Bools:
    """Mask of the links that `A-B` or `A->B` means; raises InputError that says what would be right."""
    numbers = {topology.vertex_name(vertex): vertex for vertex in range(topology.num_vertices)}
    for mark, both in (("->", False), ("-", True)):
        for place in (i for i in range(len(text)) if text.startswith(mark, i)):
            ends = text[:place].strip(), text[place + len(mark) :].strip()
            if ends[0] in numbers and ends[1] in numbers:
                a, b = numbers[ends[0]], numbers[ends[1]]
                found: Bools = (topology.src == a) & (topology.dst == b)
                if both:
                    found |= (topology.src == b) & (topology.dst == a)
                if found.any():
                    return found
                near = np.unique(np.concatenate([topology.dst[topology.src == a], topology.src[topology.dst == a]]))
                raise InputError(
                    f"{option} {text}: no link joins {ends[0]} and {ends[1]} in topology {topology.name}; "
                    f"{ends[0]} is joined to {_listed(topology.vertex_name(int(v)) for v in near)}"
                )
    raise InputError(
        f"{option} {text}: does not name two vertices of topology {topology.name}; expected A-B or A->B with ranks "
        f"0 .. {topology.num_ranks - 1}{' or names of switches' if topology.switch_names else ''}"
    )


def _slowed(topology: Topology, factor: np.ndarray) -> tuple[tuple[tuple[float, float], ...], ...]:
    shares = factor.tolist()
    return tuple(
        tuple((size, rate * share) for size, rate in rates)
        for rates, share in zip(topology.size_rates, shares if topology.size_rates else [], strict=True)
    )


def _require_connected(before: Topology, after: Topology, vertices: Sequence[int], told: str) -> None:
    """Raise Infeasible with the ranks that are cut off from the most others, but were not before."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    def parts(t: Topology) -> np.ndarray:
        ones = np.ones(t.num_links, dtype=np.int8)
        graph = coo_array((ones, (t.src, t.dst)), shape=(t.num_vertices,) * 2)
        return np.asarray(connected_components(graph, directed=True, connection="strong")[1][: t.num_ranks])

    label, old = parts(after), parts(before)[[v for v in vertices if v < before.num_ranks]]
    for part in np.unique(old):
        ranks = np.flatnonzero(old == part)
        largest = int(np.bincount(label[ranks]).argmax())
        lost = ranks[label[ranks] != largest]
        if len(lost):
            names = _listed(str(vertices[rank]) for rank in lost)
            verb = ("rank", "is") if len(lost) == 1 else ("ranks", "are")
            raise Infeasible(
                f"topology {before.name} {told}: {verb[0]} {names} {verb[1]} cut off from the other "
                f"{len(ranks) - len(lost)}; drop them, too, or keep a link to them"
            )


def _listed(names: object) -> str:
    found = list(names)  # type: ignore[call-overload]
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return ", ".join(found[:LISTED]) + more
