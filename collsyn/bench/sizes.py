"""Which sizes a sweep visits, and how nccl-tests rounds them for a collective, its ranks and a data type."""

from collsyn.errors import InputError
from collsyn.model.collective import Collective

# A typing slip such as a step of one byte up to 1 GB must be answered, not worked through.
MAX_ROWS = 100_000

_SHARDED = frozenset({"allgather", "reducescatter", "gather", "scatter", "alltoall"})


def sweep(min_bytes: int, max_bytes: int, factor: int | None = None, step_bytes: int | None = None) -> tuple[int, ...]:
    """Sizes from `min_bytes` to at most `max_bytes`, times `factor`, else plus `step_bytes` each; raises InputError."""
    if min_bytes > max_bytes:
        raise InputError(f"sizes: the smallest, {min_bytes}, is larger than the largest, {max_bytes}")
    if factor is not None and factor < 2:
        raise InputError(f"stepfactor: is {factor}; expected at least 2")
    if factor is None and (step_bytes is None or step_bytes < 1):
        raise InputError(f"stepbytes: is {step_bytes}; expected at least 1 byte")
    sizes = [min_bytes]
    while (following := sizes[-1] * factor if factor else sizes[-1] + (step_bytes or 0)) <= max_bytes:
        if len(sizes) == MAX_ROWS:
            raise InputError(f"sizes: more than {MAX_ROWS} of them; choose a larger step or factor")
        sizes.append(following)
    return tuple(sizes)


def group_size(collective: Collective) -> int:
    """Ranks that work together: those of the largest process group."""
    return max(len(group) for group in collective.groups)


def shards(collective: Collective) -> int:
    """Into how many equal parts, one a rank, the collective's size must divide; 1 where it is not sharded evenly."""
    even = collective.kind in _SHARDED and len({len(group) for group in collective.groups}) == 1
    return group_size(collective) if even and "counts" not in collective.spec else 1


def num_elements(collective: Collective, size_bytes: int, element_bytes: int) -> int:
    """Elements of the size that is run: `size_bytes` rounded down to whole elements for every rank; 0 if none is left.

    So do nccl-tests: a gather of 1000 bytes of float32 over 3 ranks moves 83 elements a rank, 996 bytes.
    """
    parts = shards(collective)
    return size_bytes // element_bytes // parts * parts


def count_column(collective: Collective, elements: int) -> int:
    """What nccl-tests shows as count: elements of one rank's shard where the buffer is sharded, else all of them."""
    return elements // shards(collective)
