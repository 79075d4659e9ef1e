"""What no wiring beats: steps by counting ranks within reach, bytes by what every rank must receive."""

from fractions import Fraction

from collsyn.errors import InputError

# Directions of the data of a collective: along the links (an allgather), against them (a reduce-scatter).
FORTH, BACK = 1, -1
PHASES: dict[str, tuple[int, ...]] = {"allgather": (FORTH,), "reducescatter": (BACK,), "allreduce": (BACK, FORTH)}
MAX_RANKS, MAX_LINKS = 4096, 1 << 15


def require_askable(num_ranks: int, degree: int, two_way: bool = False) -> None:
    """Raise InputError for numbers of ranks and ports that no wiring has, or that are too large to search."""
    if num_ranks < 2:
        raise InputError(f"num-ranks: is {num_ranks}; expected at least 2")
    if degree < 1:
        raise InputError(f"degree: is {degree}; expected at least 1")
    if degree >= num_ranks:
        raise InputError(
            f"degree: is {degree}, but {num_ranks} ranks have only {num_ranks - 1} others; expected at most that"
        )
    if num_ranks > MAX_RANKS or num_ranks * degree > MAX_LINKS:
        raise InputError(
            f"num-ranks: is {num_ranks} with degree {degree}; expected at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        )
    if two_way and num_ranks * degree % 2:
        raise InputError(
            f"degree: {num_ranks} ranks of degree {degree}, both odd, leave a port without a cable; expected one even"
        )
    if two_way and degree == 1 and num_ranks > 2:
        raise InputError(
            f"degree: is 1, which joins {num_ranks} ranks in pairs only; expected 2 or more for links both ways"
        )


def moore_steps(num_ranks: int, degree: int, two_way: bool = False) -> int:
    """The least steps in which one rank can reach all others: each step multiplies by the degree (less 1 for two-way).

    The Moore bound.
    """
    reached, fresh, steps = 1, 1, 0
    while reached < num_ranks:
        fresh *= degree - 1 if two_way and steps else degree
        if fresh == 0:
            raise InputError(f"degree: is {degree}, from which {num_ranks} ranks cannot be reached")
        reached += fresh
        steps += 1
    return steps


def least_factor(num_ranks: int) -> Fraction:
    """The least bandwidth factor of one phase: a rank receives N - 1 shards of N over all its links."""
    return Fraction(num_ranks - 1, num_ranks)
