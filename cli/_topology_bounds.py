"""The lower bounds that `topology show` prints: every collective at one large size."""

from typing import TYPE_CHECKING, Any

from collsyn.model.kinds import KINDS, ROOTED

from ._output import Cell

if TYPE_CHECKING:
    from collsyn.model.topology import Topology

SIZE_BYTES = 1 << 30
# Beyond this many ranks they take more than a moment; `collsyn bound` has no such limit.
MAX_RANKS = 256
COLUMNS = ("collective", "us", "algbw GB/s", "busbw GB/s")
_WITHOUT_SIZE = ("alltoallv", "sendrecv", "custom")


def bounds(topology: "Topology") -> list[dict[str, Any]]:
    """The fluid bound of every collective; none where there are too many ranks, or some cannot reach others."""
    from collsyn.bounds import fluid_bound
    from collsyn.errors import Infeasible
    from collsyn.model.collective import make_collective
    from collsyn.model.metrics import algbw_gb_s, busbw_gb_s
    from collsyn.units import s_to_us

    n = topology.num_ranks
    if not 2 <= n <= MAX_RANKS:
        return []
    found = []
    for kind in (kind for kind in KINDS if kind not in _WITHOUT_SIZE):
        try:
            problem = make_collective(kind, n, root=0 if kind in ROOTED else None)
            time_s = fluid_bound(problem, topology, SIZE_BYTES).time_s
        except Infeasible:
            return []
        found.append(
            {
                "collective": kind,
                "size_bytes": SIZE_BYTES,
                "bound_us": s_to_us(time_s),
                "algbw_gb_s": algbw_gb_s(SIZE_BYTES, time_s),
                "busbw_gb_s": busbw_gb_s(kind, n, SIZE_BYTES, time_s),
            }
        )
    return found


def rows(found: list[dict[str, Any]]) -> list[tuple[Cell, ...]]:
    """The bounds as the table has them."""
    return [(row["collective"], row["bound_us"], row["algbw_gb_s"], row["busbw_gb_s"]) for row in found]
