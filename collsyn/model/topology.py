"""The machine: a directed multigraph of ranks and switches whose links have latency, inverse bandwidth and overhead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.files import digest
from collsyn.model.arrays import F64, I32, Bools, Rows, column
from collsyn.model.size_rates import SizeRates
from collsyn.units import exact_gb_s

# Costs beyond these are slips of the keyboard, and sums and inverses of them would leave what floats can hold:
# 1e-12 .. 1e15 GB/s, and eleven days.
MIN_BETA_S_PER_BYTE, MAX_BETA_S_PER_BYTE, MAX_ALPHA_S = 1e-24, 1e3, 1e6


@dataclass(frozen=True)
class Cut:
    """A named set of vertices whose crossing capacity is worth looking at (a preset's own bottleneck)."""

    name: str
    vertices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Topology:
    """A directed multigraph: vertices 0 .. num_ranks-1 are ranks, the others switches; links are columns.

    A message of n bytes sent at t over a route (a tuple of links from rank to rank through switches only) loads each
    link of the route during [t + A, t + A + overhead + n * beta), A being the alphas before that link, and arrives at
    t + (sum of alphas) + n * beta; beta is that of the slowest link unless the message asks for a lower rate, and the
    largest overhead on the route counts for all its links.

    Shapes: link columns have one entry a link, `multicast` and `reduction` one a vertex, `reduce_s_per_byte` one a
    rank. `count` is how many equal lanes a link bundles; its beta is that of the whole trunk. `symmetries` are
    permutations of the vertices that map links to equal links (generators of a group); `boxes` are disjoint vertex sets
    of one enclosure each. Copies within a rank are free, or (`copies_take_port`) load the only link by which the rank
    sends, as where a processor makes all its copies. `size_rates` has an entry a link, or none at all: the rate that a
    message has there at most by its length (`size_rates.py`), where that is below the bandwidth. `working_set_rates`
    has an entry a link, or none: the bandwidth by the bytes that a rank works on in a call, and
    `reduce_working_set_rates` the bytes per second of reductions, which `working_set.at_size` puts in their place.
    `allowed_pairs` are the ranks (from, to) that may exchange messages, where a sketch leaves only some (None: all that
    links join); files do not hold them.
    """

    name: str
    num_ranks: int
    src: I32
    dst: I32
    alpha_s: F64
    beta_s_per_byte: F64
    overhead_s: F64
    count: I32
    switch_names: tuple[str, ...] = ()
    multicast: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    reduction: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    reduce_s_per_byte: F64 = field(default_factory=lambda: np.zeros(0))
    boxes: tuple[tuple[int, ...], ...] = ()
    symmetries: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[Cut, ...] = ()
    min_piece_bytes: int = 1
    copies_take_port: bool = False
    size_rates: tuple[SizeRates, ...] = ()
    working_set_rates: tuple[SizeRates, ...] = ()
    reduce_working_set_rates: SizeRates = ()
    allowed_pairs: frozenset[tuple[int, int]] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integers = {"src": np.int32, "dst": np.int32, "count": np.int32}
        floats = ("alpha_s", "beta_s_per_byte", "overhead_s")
        for name, dtype in {**integers, **dict.fromkeys(floats, np.float64)}.items():
            self._set(name, column(getattr(self, name), dtype))
        for name in ("multicast", "reduction"):
            given = np.asarray(getattr(self, name), dtype=np.bool_)
            self._set(name, column(given if given.size else np.zeros(self.num_vertices), np.bool_))
        given = np.asarray(self.reduce_s_per_byte, dtype=np.float64)
        self._set("reduce_s_per_byte", column(given if given.size else np.zeros(self.num_ranks), np.float64))
        self._validate()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _validate(self) -> None:
        if self.num_ranks < 1:
            raise InputError(f"topology {self.name}: has {self.num_ranks} ranks; expected at least 1")
        lengths = {
            len(getattr(self, name)) for name in ("src", "dst", "alpha_s", "beta_s_per_byte", "overhead_s", "count")
        }
        assert len(lengths) == 1, "link columns differ in length"
        for rates in (self.size_rates, self.working_set_rates):
            assert len(rates) in (0, self.num_links), "link columns differ in length"
        if self.num_links == 0:
            return
        ends = np.concatenate([self.src, self.dst])
        if ends.min() < 0 or ends.max() >= self.num_vertices:
            raise InputError(
                f"topology {self.name}: a link ends at vertex {int(ends.max())}; there are {self.num_vertices}"
            )
        self._reject(self.src == self.dst, "joins a vertex to itself")
        beta, most = self.beta_s_per_byte, 1 + 1e-9
        self._reject(~(beta > 0) | ~np.isfinite(beta), "needs a bandwidth above 0")
        self._reject(beta < MIN_BETA_S_PER_BYTE / most, "needs a bandwidth of at most 1e15 GB/s")
        self._reject(beta > MAX_BETA_S_PER_BYTE * most, "needs a bandwidth of at least 1e-12 GB/s")
        self._reject(~(self.alpha_s >= 0), "needs an alpha of at least 0")
        self._reject(self.alpha_s > MAX_ALPHA_S * most, "needs an alpha of at most 1e12 us")
        over = (self.overhead_s < 0) | (self.overhead_s > self.alpha_s * (1 + 1e-12))
        self._reject(over, "has an overhead outside 0 .. alpha")
        self._reject(self.count < 1, "needs a count of at least 1")

    def _reject(self, bad: npt.NDArray[np.bool_], what: str) -> None:
        if bad.any():
            raise InputError(f"topology {self.name}: link {self.link_name(int(np.flatnonzero(bad)[0]))} {what}")

    @property
    def num_vertices(self) -> int:
        """Ranks and switches together."""
        return self.num_ranks + len(self.switch_names)

    @property
    def num_links(self) -> int:
        """Directed links; a trunk counts once."""
        return len(self.src)

    @cached_property
    def out_links(self) -> Rows:
        """Row v: the links that leave vertex v."""
        return Rows.grouped(self.src, self.num_vertices)

    @cached_property
    def in_links(self) -> Rows:
        """Row v: the links that enter vertex v."""
        return Rows.grouped(self.dst, self.num_vertices)

    def is_switch(self, vertex: int) -> bool:
        """Whether a vertex is a switch (messages pass through it, nothing starts or ends there)."""
        return vertex >= self.num_ranks

    def vertex_name(self, vertex: int) -> str:
        """A rank's number or a switch's name."""
        return str(vertex) if vertex < self.num_ranks else self.switch_names[vertex - self.num_ranks]

    def link_name(self, link: int) -> str:
        """`source->destination` of a link."""
        return f"{self.vertex_name(int(self.src[link]))}->{self.vertex_name(int(self.dst[link]))}"

    def route_name(self, route: Sequence[int] | I32) -> str:
        """`0->switch->3` of a route."""
        vertices = [int(self.src[route[0]]), *(int(self.dst[link]) for link in route)] if len(route) else []
        return "->".join(self.vertex_name(vertex) for vertex in vertices)

    @cached_property
    def bandwidth(self) -> F64:
        """Bytes per second of every link."""
        return 1.0 / self.beta_s_per_byte

    @cached_property
    def exact_bandwidth_gb_s(self) -> tuple[Fraction, ...]:
        """GB/s of every link as a fraction, for exact bounds."""
        known: dict[float, Fraction] = {}
        return tuple(known.setdefault(beta, exact_gb_s(beta)) for beta in self.beta_s_per_byte.tolist())

    @cached_property
    def overhead_model(self) -> str:
        """What a message occupies besides its bytes: `none`, `alpha`, `0.3us` (one value) or `mixed`."""
        if not self.overhead_s.any():
            return "none"
        if np.allclose(self.overhead_s, self.alpha_s, rtol=1e-9, atol=0):
            return "alpha"
        most = self.overhead_s.max()
        capped = np.allclose(self.overhead_s, np.minimum(most, self.alpha_s), rtol=1e-9, atol=0)
        return f"{most * 1e6:.6g}us" if capped else "mixed"

    @cached_property
    def rank_boxes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each box; all in one where the topology names no boxes."""
        named = (tuple(vertex for vertex in box if vertex < self.num_ranks) for box in self.boxes)
        return tuple(box for box in named if box) or (tuple(range(self.num_ranks)),)

    def reversed(self) -> "Topology":
        """The same machine with every link turned round (link numbers are kept)."""
        turned = None if self.allowed_pairs is None else frozenset((b, a) for a, b in self.allowed_pairs)
        return replace(self, src=self.dst, dst=self.src, allowed_pairs=turned, name=f"{self.name}^R")

    def subset(self, ranks: Sequence[int]) -> "Topology":
        """The sub-allocation of some ranks, renumbered 0, 1, ... in the order given; switches and their links stay.

        Links of other ranks go, so nothing is relayed through them; so do symmetries that do not survive.
        Raises InputError for a rank that is not there or is given twice.
        """
        chosen = list(ranks)
        bad = next((rank for rank in chosen if not 0 <= rank < self.num_ranks), None)
        if bad is not None:
            raise InputError(f"subset: rank {bad} is not in topology {self.name}; expected 0 .. {self.num_ranks - 1}")
        if len(set(chosen)) != len(chosen) or not chosen:
            raise InputError("subset: names a rank twice" if chosen else "subset: names no rank")
        return self.induced(
            [*chosen, *range(self.num_ranks, self.num_vertices)], f"{self.name}[{','.join(map(str, chosen))}]"
        )

    def induced(self, vertices: Sequence[int], name: str) -> "Topology":
        """The sub-graph of some vertices, renumbered in the order given (ranks first)."""
        kept = np.asarray(vertices, dtype=np.int64)
        new_id = np.full(self.num_vertices, -1, dtype=np.int64)
        new_id[kept] = np.arange(len(kept))
        links = np.flatnonzero((new_id[self.src] >= 0) & (new_id[self.dst] >= 0))
        kept_set, ranks = set(kept.tolist()), [v for v in kept.tolist() if v < self.num_ranks]

        def renumber(members: Sequence[int]) -> tuple[int, ...]:
            return tuple(sorted(int(new_id[v]) for v in members if new_id[v] >= 0))

        symmetries = [
            tuple(int(new_id[perm[v]]) for v in kept.tolist())
            for perm in self.symmetries
            if all(perm[v] in kept_set for v in kept.tolist())
        ]
        return replace(
            self,
            name=name,
            num_ranks=len(ranks),
            **self.link_columns(links, new_id),
            switch_names=tuple(self.vertex_name(v) for v in kept.tolist() if v >= self.num_ranks),
            multicast=self.multicast[kept],
            reduction=self.reduction[kept],
            reduce_s_per_byte=self.reduce_s_per_byte[ranks],
            boxes=tuple(box for box in map(renumber, self.boxes) if box),
            symmetries=tuple(perm for perm in symmetries if perm != tuple(range(len(kept)))),
            cuts=tuple(Cut(cut.name, inner) for cut in self.cuts if (inner := renumber(cut.vertices))),
            allowed_pairs=self._renumbered_pairs(new_id),
        )

    def _renumbered_pairs(self, new_id: npt.NDArray[np.integer]) -> frozenset[tuple[int, int]] | None:
        if self.allowed_pairs is None:
            return None
        pairs = ((int(new_id[a]), int(new_id[b])) for a, b in self.allowed_pairs)
        return frozenset(pair for pair in pairs if min(pair) >= 0)

    def link_columns(self, links: npt.NDArray[np.integer], new_id: npt.NDArray[np.integer]) -> dict[str, Any]:
        """The columns of some links with their ends renumbered, as keyword arguments."""
        costs = ("alpha_s", "beta_s_per_byte", "overhead_s", "count")
        columns: dict[str, Any] = {name: getattr(self, name)[links] for name in costs}
        for name in ("size_rates", "working_set_rates"):
            rates = getattr(self, name)
            columns[name] = tuple(rates[link] for link in links) if rates else ()
        return {"src": new_id[self.src[links]], "dst": new_id[self.dst[links]], **columns}

    @cached_property
    def wiring(self) -> str:
        """Digest of what is joined to what, whatever it costs: schedules move between topologies of equal wiring."""
        head = np.array([self.num_ranks, self.num_vertices], dtype=np.int64)
        return digest(head.tobytes() + self.src.tobytes() + self.dst.tobytes())
