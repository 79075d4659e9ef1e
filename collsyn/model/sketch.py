"""A sketch: what a user lays down about the schedules of one topology before a method looks for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PEERS = ("few", "many")


@dataclass(frozen=True, eq=False)
class Sketch:
    """Rules and hints in ranks of one topology; the idea is TACCL's (Shah et al., NSDI 2023, section 3).

    Rules hold for what any method makes: `pairs` (source, destination) may exchange messages, None meaning all;
    `carriers[r]` are the ranks of r's box that may send rank r's data to other boxes (r missing: all), `receivers[r]`
    those that may hear partial sums for r from them; data travels at most `extra_hops` hops beyond the fewest that
    `pairs` leave it (None: any). Hints are for the solver: schedules stay the same under `permutations` of the ranks,
    `peers` says of a switch, by name, whether ranks send to few or many others through it, `chunks` is the number a
    rank, `message_chunks` the most that share a message, and `own_first` lets a rank's own data leave first.
    `size_bytes` is the size that the sketch was drawn for.
    """

    name: str
    num_ranks: int
    pairs: frozenset[tuple[int, int]] | None = None
    carriers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    receivers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    extra_hops: int | None = None
    permutations: tuple[tuple[int, ...], ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    chunks: int | None = None
    message_chunks: int | None = None
    own_first: bool = False
    size_bytes: int | None = None

    def allows(self, source: int, destination: int) -> bool:
        """Whether one rank may send to the other."""
        return self.pairs is None or (source, destination) in self.pairs

    def reversed(self) -> "Sketch":
        """The sketch for time running backwards: pairs turned round, those who send and those who hear swapped."""
        turned = None if self.pairs is None else frozenset((b, a) for a, b in self.pairs)
        return replace(self, pairs=turned, carriers=self.receivers, receivers=self.carriers)
