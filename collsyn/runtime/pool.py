"""Segments that prepared plans run in: each is used again once its plan is closed and a later one fits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from collsyn.errors import DeviceError
from collsyn.runtime.arena import Elsewhere, OwnSegment, Segment, attach


@dataclass(eq=False)
class Slot:
    """One segment on every rank, of at least `sizes[r]` bytes on rank r. Numbers count up and agree between ranks.

    `segments` are those of all ranks, empty until `meet`.
    """

    number: int
    sizes: list[int]
    own: OwnSegment
    segments: list[Segment | Elsewhere] = field(default_factory=list)
    in_use: bool = True

    def meet(self, rank: int, near: Collection[int], pids: Sequence[int], fds: Sequence[int]) -> None:
        """Map the segments of the ranks that are near, which their owners hold open under these numbers."""
        if not self.segments:
            for peer, where in enumerate(zip(pids, fds, self.sizes, strict=True)):
                found = self.own if peer == rank else attach(*where) if peer in near else Elsewhere()
                self.segments.append(found)


class Pool:
    """The slots of a rank.

    Every rank takes and gives back slots in the same order and chooses by sizes that all of them know, so that they
    choose alike without asking.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._slots: list[Slot] = []
        self._made = 0

    def take(self, sizes: list[int]) -> Slot:
        """The smallest free slot that fits on all ranks, else a new one in place of the largest free slot."""
        free = sorted(
            (slot for slot in self._slots if not slot.in_use), key=lambda slot: (sum(slot.sizes), slot.number)
        )
        for slot in free:
            if all(have >= need for have, need in zip(slot.sizes, sizes, strict=True)):
                slot.in_use = True
                return slot
        if free:
            self._drop(free[-1])
        own = OwnSegment(sizes[self._rank])
        self._made += 1
        slot = Slot(self._made, sizes, own)
        self._slots.append(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Let a later plan use the slot."""
        slot.in_use = False

    def close(self) -> None:
        """Give up all slots; memory that an array still looks into lives as long as the array."""
        for slot in list(self._slots):
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        slot.own.seal()
        slot.segments.clear()
        self._slots.remove(slot)


def same_answer(answers: Sequence[object], what: str) -> None:
    """Raise DeviceError unless all ranks gave the same answer."""
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            raise DeviceError(f"ranks 0 and {rank} disagree about {what}: {answers[0]} and {answer}")
