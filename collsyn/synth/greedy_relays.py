"""Which ranks pass on a chunk that they do not want themselves."""

import numpy as np
import numpy.typing as npt

from collsyn.model.arrays import F64, Rows
from collsyn.topology.hops import Hops

U8 = npt.NDArray[np.uint8]


def with_relays(table: Hops, chunk_bytes: F64, have: U8, want: U8) -> U8:
    """`want` (ranks x chunks) with the ranks added that have to pass a chunk on so that all receivers can get it.

    Nothing is added where holders reach all receivers through receivers alone. Otherwise receivers are joined one after
    the other, the nearest first, by quickest chains that avoid ranks which relay much already: a Steiner tree heuristic
    (Takahashi and Matsuyama). O(chunks with relays x receivers x hops log).
    """
    every = np.asarray(have | want, dtype=np.bool_)
    relayed = np.array(want)
    busy = np.zeros(len(have))
    patterns: dict[tuple[bytes, bytes], bool] = {}
    for chunk in np.flatnonzero(~every.all(axis=0)).tolist():
        key = (have[:, chunk].tobytes(), want[:, chunk].tobytes())
        if key not in patterns:
            patterns[key] = _reaches_all(table, have[:, chunk], every[:, chunk])
        if not patterns[key]:
            relays = _steiner(table, float(chunk_bytes[chunk]), have[:, chunk], want[:, chunk], busy)
            relayed[relays, chunk] = 1
            busy[relays] += float(table.seconds(float(chunk_bytes[chunk])).mean())
    return relayed


def _reaches_all(table: Hops, have: U8, members: npt.NDArray[np.bool_]) -> bool:
    """Whether the holders reach every member over hops between members."""
    seen = have.astype(np.bool_)
    inside = members[table.src] & members[table.dst]
    while True:
        grown = seen.copy()
        grown[table.dst[inside & seen[table.src]]] = True
        if grown.sum() == seen.sum():
            return bool((seen | ~members).all())
        seen = grown


def _steiner(table: Hops, num_bytes: float, have: U8, want: U8, busy: F64) -> list[int]:
    """Ranks that neither hold nor want the chunk, on chains that join all receivers to the holders.

    Receivers that nothing reaches are left out.
    """
    import heapq

    cost = table.seconds(num_bytes).tolist()
    dst, out_of = table.dst.tolist(), [hops.tolist() for hops in _rows(table.out_of)]
    tree = {int(rank) for rank in np.flatnonzero(have)}
    missing = {int(rank) for rank in np.flatnonzero(want)} - tree
    relays: list[int] = []
    while missing:
        heap = [(0.0, rank, -1) for rank in sorted(tree)]
        heapq.heapify(heap)
        came_from: dict[int, int] = {}
        found = None
        while heap and found is None:
            reached_s, rank, before = heapq.heappop(heap)
            if rank in came_from:
                continue
            came_from[rank] = before
            if rank in missing:
                found = rank
                break
            # A rank that wants the chunk passes it on at no loss to itself; any other pays for what it relays already.
            toll_s = 0.0 if have[rank] or want[rank] else float(busy[rank])
            for hop in out_of[rank]:
                if dst[hop] not in came_from:
                    heapq.heappush(heap, (reached_s + toll_s + cost[hop], dst[hop], rank))
        if found is None:
            break
        missing.discard(found)
        while found not in tree:
            tree.add(found)
            if not want[found]:
                relays.append(found)
            found = came_from[found]
    return relays


def _rows(rows: Rows) -> list[npt.NDArray[np.int32]]:
    return [rows[i] for i in range(len(rows))]
