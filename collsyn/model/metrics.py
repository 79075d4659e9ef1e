"""Bandwidths that people compare collectives by, as nccl-tests defines them."""

_ALL_TO_ALL_LIKE = frozenset({"allgather", "reducescatter", "alltoall", "alltoallv", "gather", "scatter"})


def algbw_gb_s(size_bytes: int, time_s: float) -> float:
    """Algorithm bandwidth: the size that users give over the time, GB/s (10^9 bytes); infinite for no time at all."""
    return size_bytes / time_s / 1e9 if time_s > 0 else float("inf")


def busbw_factor(kind: str, num_ranks: int) -> float:
    """What turns algorithm into bus bandwidth, which a perfect machine reaches at any number of ranks.

    `num_ranks` is that of one process group: 2 (n-1)/n for allreduce, (n-1)/n where every rank keeps a shard of its
    own, 1 where each byte enters a rank once (broadcast, reduce, sendrecv) and for custom collectives. Source:
    nccl-tests, doc/PERFORMANCE.md.
    """
    if kind == "allreduce":
        return 2 * (num_ranks - 1) / num_ranks
    return (num_ranks - 1) / num_ranks if kind in _ALL_TO_ALL_LIKE else 1.0


def busbw_gb_s(kind: str, num_ranks: int, size_bytes: int, time_s: float) -> float:
    """Bus bandwidth in GB/s."""
    algbw = algbw_gb_s(size_bytes, time_s)
    factor = busbw_factor(kind, num_ranks)
    return algbw * factor if factor else 0.0
