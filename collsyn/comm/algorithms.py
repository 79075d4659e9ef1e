"""Which algorithm serves which collective at which size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt
from pathlib import Path

from collsyn.check.verify import verify_schedule, verify_set
from collsyn.errors import InputError
from collsyn.model.kinds import ALIASES, KINDS, ROOTED
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import read_schedule
from collsyn.model.set_file import SUFFIX as SET_SUFFIX
from collsyn.model.set_file import is_set, read_set
from collsyn.synth.table import METHODS

_SUFFIXES = (".json", ".npz", SET_SUFFIX)
# Measured with four ranks on two cores (docs/communicator.md).
_ONE_SHOT_BYTES, _RING_BYTES = 64 * 1024 + 1, 8 * 1024 * 1024
_LENT_BYTES = 256 * 1024
# What serves where nothing else does.
LAST_RESORT = "direct"
# Not a method but a plan as such, which works on users' arrays where they are.
LENT = "lent"


@dataclass(frozen=True, eq=False)
class Rule:
    """From `min_bytes` up to, but not including, `max_bytes`, a collective is done by a schedule or a method.

    Sizes are those of nccl-tests: the largest buffer of a rank. A schedule serves communicators of its number of ranks
    and calls with its root; methods (`auto` too) are asked when a call first needs them.
    """

    kind: str
    min_bytes: float
    max_bytes: float
    algorithm: Schedule | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ALIASES.get(self.kind, self.kind))
        if self.kind not in KINDS:
            raise InputError(f"kind: {self.kind!r} is not known; expected one of {', '.join(KINDS)}")
        if not 0 <= self.min_bytes < self.max_bytes:
            raise InputError(f"rule of {self.kind}: {self.min_bytes:g} .. {self.max_bytes:g} bytes is empty")
        if isinstance(self.algorithm, Schedule):
            if self.algorithm.collective.kind != self.kind:
                raise InputError(f"rule of {self.kind}: the schedule is of {self.algorithm.collective.kind}")
        elif self.algorithm not in ("auto", LENT) and self.algorithm.partition(":")[0] not in METHODS:
            raise InputError(f"method {self.algorithm!r} is not known; expected auto or one of {', '.join(METHODS)}")

    def serves(self, kind: str, num_ranks: int, root: int | None, size_bytes: int, has_counts: bool) -> bool:
        """Whether the rule is for such a call."""
        if self.kind != kind or not self.min_bytes <= size_bytes < self.max_bytes:
            return False
        if isinstance(self.algorithm, str):
            return True
        collective = self.algorithm.collective
        return (
            not has_counts
            and "counts" not in collective.spec
            and collective.num_ranks == num_ranks
            and collective.groups == (tuple(range(num_ranks)),)
            and (kind not in ROOTED or collective.root == root)
        )


@dataclass(frozen=True, eq=False)
class AlgorithmSet:
    """Rules, of which the first one that serves a call counts; where none does, or its method refuses, the default.

    `defaults` stand before those that were measured. Where `is_closed`, only rules count.
    """

    rules: tuple[Rule, ...] = ()
    defaults: tuple[Rule, ...] = ()
    is_closed: bool = False

    def is_asked_for(self, kind: str, num_ranks: int, root: int | None, size_bytes: int) -> bool:
        """Whether a rule, not a default, serves a call without counts."""
        return any(rule.serves(kind, num_ranks, root, size_bytes, False) for rule in self.rules)

    @classmethod
    def of(cls, rows: Sequence[tuple[str, float, float, Schedule | str]]) -> "AlgorithmSet":
        """Rules from rows (collective, min_bytes, max_bytes, schedule or method name); raises InputError."""
        return cls(tuple(Rule(*row) for row in rows))

    @classmethod
    def from_folder(cls, folder: str | Path) -> "AlgorithmSet":
        """All schedules and algorithm sets in a folder, verified.

        Sets come first, with their own ranges of sizes. Of several schedules of one collective, number of ranks and
        root, each serves the sizes that are nearest to its own, on a scale of ratios. Raises InputError for a folder or
        file that cannot be used, VerificationError for a schedule that is wrong.
        """
        path = Path(folder)
        if not path.is_dir():
            raise InputError(f"{path}: is not a folder; expected one with schedule files")
        rules: list[Rule] = []
        alike: dict[tuple[object, ...], dict[int, Schedule]] = {}
        for file in sorted(path.iterdir()):
            if file.suffix not in _SUFFIXES:
                continue
            if is_set(file):
                rules += cls.from_file(file).rules
                continue
            schedule = read_schedule(file)
            verify_schedule(schedule).raise_if_bad(str(file))
            collective = schedule.collective
            key = (collective.kind, collective.num_ranks, collective.root, collective.groups)
            alike.setdefault(key, {})[schedule.size_bytes] = schedule
        if not alike and not rules:
            raise InputError(f"{path}: holds no schedule; make one with `collsyn synthesize`")
        return cls((*rules, *(rule for schedules in alike.values() for rule in _by_size(schedules))))

    @classmethod
    def from_file(cls, file: str | Path) -> "AlgorithmSet":
        """The set that `collsyn synthesize --sizes` made, verified; raises InputError, VerificationError."""
        schedules = read_set(file)
        verify_set(schedules).raise_if_bad(str(file))
        limits = pairwise((*map(float, schedules.from_bytes), inf))
        kind = schedules.schedules[0].collective.kind
        return cls(tuple(Rule(kind, *range_, one) for range_, one in zip(limits, schedules.schedules, strict=True)))

    def choices(
        self, kind: str, num_ranks: int, root: int | None, size_bytes: int, has_counts: bool = False
    ) -> list[Schedule | str]:
        """What to try for a call, the best first; the last one serves every call.

        Raises InputError where a closed set has nothing.
        """
        fitting = [rule for rule in self.rules if rule.serves(kind, num_ranks, root, size_bytes, has_counts)]
        if self.is_closed:
            if not fitting:
                raise InputError(f"no schedule of {kind} for {num_ranks} ranks and {size_bytes} bytes is given")
            return [rule.algorithm for rule in fitting]
        standing = (*self.defaults, *_DEFAULTS)
        defaults = [rule for rule in standing if rule.serves(kind, num_ranks, root, size_bytes, has_counts)]
        return [*(rule.algorithm for rule in [*fitting, *defaults]), LAST_RESORT]


def _by_size(schedules: dict[int, Schedule]) -> Iterator[Rule]:
    sizes = sorted(schedules)
    borders = [0.0, *(sqrt(small) * sqrt(large) for small, large in pairwise(sizes)), inf]
    for size, (least, most) in zip(sizes, pairwise(borders), strict=True):
        yield Rule(schedules[size].collective.kind, least, most, schedules[size])


_DEFAULTS = (
    *(Rule(kind, _LENT_BYTES, inf, LENT) for kind in ("allreduce", "allgather", "reducescatter", "alltoall")),
    Rule("allreduce", 0, _ONE_SHOT_BYTES, "one-shot"),
    Rule("allreduce", _ONE_SHOT_BYTES, inf, "recursive"),
    Rule("allreduce", _RING_BYTES, inf, "ring"),
)
