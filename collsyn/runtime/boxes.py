"""Which ranks share a box, that is memory: those of one machine, or fewer where `COLLSYN_BOX_SIZE` says so."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from collsyn.errors import DeviceError, InputError
from collsyn.model.plan import Plan

BOX_SIZE = "COLLSYN_BOX_SIZE"


@dataclass(frozen=True)
class Boxes:
    """Box of every rank; boxes are numbered by their first ranks."""

    of_rank: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> "Boxes":
        """Ranks with one name (see `box_name`) share a box. O(ranks)."""
        numbers: dict[str, int] = {}
        return cls(tuple(numbers.setdefault(name, len(numbers)) for name in names))

    @property
    def count(self) -> int:
        """Number of boxes."""
        return max(self.of_rank) + 1

    def near(self, rank: int) -> frozenset[int]:
        """Ranks in the box of a rank, itself included."""
        return frozenset(other for other, box in enumerate(self.of_rank) if box == self.of_rank[rank])

    def words(self, rank: int) -> str:
        """A rank as messages name it: with its box, where there are several."""
        return f"rank {rank} (box {self.of_rank[rank]})" if self.count > 1 else f"rank {rank}"

    def awaited(self, rank: int) -> str:
        """What messages add about a rank that is waited for (-1: none): its box, where there are several."""
        return f", of {self.words(rank)}," if self.count > 1 and rank >= 0 else ""

    def check_equal(self) -> None:
        """Raise DeviceError unless every box has as many ranks as the others."""
        sizes = Counter(self.of_rank)
        if len(set(sizes.values())) > 1:
            first = next(box for box in range(1, self.count) if sizes[box] != sizes[0])
            raise DeviceError(
                f"boxes have unequal numbers of ranks: box 0 has {sizes[0]}, box {first} has {sizes[first]}; start as "
                "many in each (mpirun -ppn N, --map-by ppr:N:node or srun --ntasks-per-node=N)"
            )

    def check_against(self, plan: Plan) -> None:
        """Raise DeviceError where ranks that a plan takes to share a box do not.

        Several of the planned boxes in one are fine: what crosses less is no slower.
        """
        for number, members in enumerate(plan.topology.boxes if plan.topology and self.count > 1 else ()):
            # Its switches are listed, too.
            ranks = [member for member in members if member < len(self.of_rank)]
            split = [rank for rank in ranks if self.of_rank[rank] != self.of_rank[ranks[0]]]
            if split:
                raise DeviceError(
                    f"plan {plan.name}: has ranks {ranks[0]} and {split[0]} in its box {number}, but they run as "
                    f"{self.words(ranks[0])} and {self.words(split[0])}; start {len(ranks)} ranks in each box, in order"
                )

    def neighbours(self, rank: int) -> tuple[int, int]:
        """Ranks of the next and the previous box that hear, and are heard by, a rank to see who lives; -1: nobody."""
        members = [[r for r, box in enumerate(self.of_rank) if box == number] for number in range(self.count)]
        own = self.of_rank[rank]
        place = members[own].index(rank)
        after, before = members[(own + 1) % self.count], members[own - 1]
        hears, is_heard = (other[place] if place < len(other) else -1 for other in (after, before))
        return hears, is_heard


def box_name(rank: int, machine: str) -> str:
    """Equal for two ranks of a job exactly if they share a box: those of one machine, or so many of these in a row as
    the environment says; raises InputError where that is no number above 0."""
    text = os.environ.get(BOX_SIZE, "")
    if not text:
        return machine
    if not text.isdecimal() or int(text) == 0:
        raise InputError(f"{BOX_SIZE}: is {text!r}; expected a number of ranks, at least 1")
    return f"{machine}/{rank // int(text)}"
