"""Segments that prepared plans run in: each is used again once its plan is closed and a later one fits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from collsyn.errors import DeviceError
from collsyn.runtime.arena import OwnSegment, Segment, attach


@dataclass(eq=False)
class Slot:
    """One segment on every rank; `sizes[r]` bytes on rank r. Numbers count up and agree between ranks."""

    number: int
    sizes: list[int]
    own: OwnSegment
    mapped: dict[int, Segment]
    fds: list[int] = field(default_factory=list)
    in_use: bool = True

    def map_peers(self, peers: Sequence[int], pids: Sequence[int]) -> None:
        """Map those segments of peers that are not mapped yet."""
        for peer in peers:
            if peer not in self.mapped:
                self.mapped[peer] = attach(pids[peer], self.fds[peer], self.sizes[peer])


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
        slot = Slot(self._made, sizes, own, {self._rank: own})
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
        slot.mapped.clear()
        self._slots.remove(slot)


def same_answer(answers: Sequence[object], what: str) -> None:
    """Raise DeviceError unless all ranks gave the same answer."""
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            raise DeviceError(f"ranks 0 and {rank} disagree about {what}: {answers[0]} and {answer}")
