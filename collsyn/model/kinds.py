"""Names of the collectives and what sets them apart; plain text, so that the command line loads nothing for it."""

KINDS = (
    "allgather",
    "reducescatter",
    "allreduce",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "sendrecv",
    "custom",
)
REDUCING = frozenset({"reducescatter", "allreduce", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
PAIRWISE = frozenset({"alltoall", "alltoallv"})
ALIASES = {"reduce-scatter": "reducescatter", "reduce_scatter": "reducescatter", "all-gather": "allgather"}
