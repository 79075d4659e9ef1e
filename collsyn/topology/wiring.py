"""What joins what, before any cost: presets build a Wiring, and costs a dimension turn it into a Topology."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collsyn.errors import InputError
from collsyn.model.arrays import I64
from collsyn.model.topology import Cut, Topology
from collsyn.units import gb_s_to_beta, us_to_s

# What fits into memory with room to work; a slip such as full:100000 must be answered, not built.
MAX_RANKS = 1 << 20
MAX_LINKS = 1 << 22


@dataclass(frozen=True)
class Costs:
    """Costs of the links of one dimension: GB/s of one link, microseconds, and what a message occupies (0 .. alpha)."""

    bandwidth_gb_s: float = 50.0
    alpha_us: float = 0.5
    overhead_us: float = 0.0


@dataclass(frozen=True, eq=False)
class Wiring:
    """Directed links `src[i]` -> `dst[i]` in dimension `dimension[i]`; ranks first, then switches.

    `share[d]` links of a rank split the bandwidth of dimension d evenly (1: each link has all of it).
    """

    num_ranks: int
    src: I64
    dst: I64
    dimension: I64
    share: tuple[int, ...] = (1,)
    switch_names: tuple[str, ...] = ()
    symmetries: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[Cut, ...] = ()

    def topology(self, name: str, costs: Sequence[Costs]) -> Topology:
        """The topology of that name, with `costs[d]` on every link of dimension d."""

        def spread(values: Iterable[float]) -> npt.NDArray[np.float64]:
            return np.array(list(values))[self.dimension]

        parts = list(zip(costs, self.share, strict=True))
        return Topology(
            name=name,
            num_ranks=self.num_ranks,
            src=self.src.astype(np.int32),
            dst=self.dst.astype(np.int32),
            alpha_s=spread(us_to_s(cost.alpha_us) for cost, _ in parts),
            beta_s_per_byte=spread(gb_s_to_beta(cost.bandwidth_gb_s / share) for cost, share in parts),
            overhead_s=spread(us_to_s(cost.overhead_us) for cost, _ in parts),
            count=np.ones(len(self.src), dtype=np.int32),
            switch_names=self.switch_names,
            symmetries=self.symmetries,
            cuts=self.cuts,
            provenance={"source": "preset"},
        )


def from_edges(num_ranks: int, ends: npt.ArrayLike, dimension: npt.ArrayLike | None = None, **rest: Any) -> Wiring:
    """A wiring from undirected edges (shape [edges, 2]): each becomes a link and, right after it, its mirror image."""
    pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    numbers = np.zeros(len(pairs), dtype=np.int64) if dimension is None else np.asarray(dimension, dtype=np.int64)
    both = np.stack([pairs, pairs[:, ::-1]], axis=1).reshape(-1, 2)
    return Wiring(num_ranks, both[:, 0], both[:, 1], np.repeat(numbers, 2), **rest)


def permutation(image: npt.ArrayLike) -> tuple[int, ...]:
    """A vertex permutation (the image of vertex 0, 1, ...) as topologies hold it."""
    return tuple(np.asarray(image, dtype=np.int64).tolist())


def check_size(num_ranks: int, num_links: int) -> None:
    """Raise InputError for a topology of fewer than 2 ranks or too large to build."""
    if num_ranks < 2:
        raise InputError("has fewer than 2 ranks; expected at least 2")
    if num_ranks > MAX_RANKS or num_links > MAX_LINKS:
        raise InputError(
            f"has {num_ranks} ranks and {num_links} links; expected at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        )
