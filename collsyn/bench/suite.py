"""Suites: which collectives are run at which sizes, and what a result must keep to (docs/formats/suite.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from collsyn.bench.job import BenchOptions
from collsyn.bench.result import Row
from collsyn.bench.run import Benchmark
from collsyn.bench.sources import from_file, on_the_spot
from collsyn.data import data_file, data_names
from collsyn.errors import InputError
from collsyn.model.dtypes import DTYPES, OPS
from collsyn.model.fields import Fields, load_document
from collsyn.model.kinds import ALIASES, KINDS
from collsyn.model.topology import Topology
from collsyn.synth.problem import Problem
from collsyn.synth.table import METHODS

SCHEMA = "collsyn-suite/1"
DEFAULT_LAUNCHES = 8
# A call on an emulated machine takes a second.
EMULATED_LAUNCHES = 2
MAX_LAUNCHES = 1000
_NOT_IN_SUITES = ("alltoallv", "custom")


@dataclass(frozen=True)
class Rule:
    """What rows must keep to. A rule is for the benchmarks whose names match, and for sizes within limits.

    `max_slowdown` (0.05: 5%) is against the baseline: of the rules that name one, the first that a row falls under
    counts. `confidence` is that of a whole run, see `regression`. The other limits hold for the row by itself.
    """

    name: str = "default"
    benchmarks: tuple[str, ...] = ("*",)
    min_bytes: int = 0
    max_bytes: int | None = None
    max_slowdown: float | None = None
    confidence: float = 0.99
    min_busbw_gb_s: float | None = None
    max_over_simulated: float | None = None

    def covers(self, row: Row) -> bool:
        """Whether the row falls under the rule."""
        largest = row.asked_bytes if self.max_bytes is None else self.max_bytes
        names = (row.benchmark, row.collective)
        named = any(fnmatchcase(name, pattern) for name in names for pattern in self.benchmarks)
        return named and self.min_bytes <= row.asked_bytes <= largest


# Where no rule of a suite says how much slower a row may become.
DEFAULT_RULE = Rule(max_slowdown=0.05)


@dataclass(frozen=True)
class Entry:
    """One benchmark as the file has it: a schedule's file, or a collective and a method; options None: the suite's."""

    name: str
    sizes: tuple[int, ...]
    collective: str | None = None
    method: str = "auto"
    file: Path | None = None
    root: int | None = None
    dtype: str | None = None
    op: str | None = None
    iterations: int | None = None
    warmup: int | None = None


@dataclass(frozen=True)
class Suite:
    """A suite file; options that are None are left to whoever runs it."""

    name: str
    entries: tuple[Entry, ...]
    rules: tuple[Rule, ...] = ()
    topology: str | None = None
    emulate: str | None = None
    launches: int | None = None
    iterations: int | None = None
    warmup: int | None = None
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False

    @property
    def makes_schedules(self) -> bool:
        """Whether a topology is needed, because a schedule is made on the spot."""
        return any(entry.file is None for entry in self.entries)

    def benchmarks(self, topology: Topology | None, options: BenchOptions) -> list[Benchmark]:
        """What is to be run, with schedules for `topology`; `options` has what the suite leaves open.

        Raises InputError, Infeasible and VerificationError that begin with the benchmark's name.
        """
        return [self._benchmark(entry, topology, options) for entry in self.entries]

    def _benchmark(self, entry: Entry, topology: Topology | None, options: BenchOptions) -> Benchmark:
        if entry.file is not None:
            source = from_file(entry.file)
        else:
            assert entry.collective is not None
            if topology is None:
                raise InputError(f"{self.name}: {entry.name} needs a topology; give --topology")
            problem = Problem(entry.collective, topology, entry.sizes[0], root=entry.root)
            source = on_the_spot(problem, entry.method)
        options = replace(
            options,
            sizes=entry.sizes,
            dtype=entry.dtype or self.dtype,
            op=entry.op or self.op,
            iterations=entry.iterations or self.iterations or options.iterations,
            warmup=next(one for one in (entry.warmup, self.warmup, options.warmup) if one is not None),
            in_place=self.in_place,
        )
        return Benchmark(source, options, entry.name)


def find_suite(text: str) -> Path:
    """The path of a suite: a file, or the name of one that ships; raises InputError."""
    path = Path(text)
    if path.suffix or len(path.parts) > 1 or path.is_file():
        return path
    known = [name.removeprefix("suites/") for name in data_names("configs") if name.startswith("suites/")]
    found = data_file("configs", f"suites/{text}")
    if found is None:
        raise InputError(f"suite {text!r} is neither a file nor one that ships; there are {', '.join(known)}")
    return found


def read_suite(path: str | Path) -> Suite:
    """The suite in a YAML file; raises InputError that names file and key."""
    fields = load_document(path)
    fields.text("schema", choices=[SCHEMA])
    suite = Suite(
        name=fields.text("name", default=Path(path).stem),
        entries=_entries(fields),
        rules=tuple(_rule(entry) for entry in fields.each("rules", default=[])),
        topology=_optional_text(fields, "topology"),
        emulate=_optional_text(fields, "emulate"),
        launches=_optional_integer(fields, "launches", 1, MAX_LAUNCHES),
        iterations=_optional_integer(fields, "iterations", 1),
        warmup=_optional_integer(fields, "warmup", 0),
        dtype=fields.text("datatype", default="float32", choices=sorted(DTYPES)),
        op=fields.text("op", default="sum", choices=OPS),
        in_place=fields.flag("in_place", default=False),
    )
    fields.text("description", default="")
    fields.done()
    _check_rules(fields, suite)
    return suite


def _entries(fields: Fields) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for each in fields.each("benchmarks"):
        entry = _entry(each)
        if entry.name in {known.name for known in entries}:
            each.fail("name", f"{entry.name!r} stands twice; expected a name of its own for each benchmark")
        entries.append(entry)
    if not entries:
        fields.fail("benchmarks", "is empty; expected at least one")
    return tuple(entries)


def _entry(fields: Fields) -> Entry:
    file = _optional_text(fields, "file")
    if file is not None and (fields.has("collective") or fields.has("method") or fields.has("root")):
        fields.fail("file", "excludes collective, method and root; a schedule has its own")
    collective = None if file is not None else _collective(fields)
    method = "auto" if file is not None else fields.text("method", default="auto", choices=["auto", *METHODS])
    entry = Entry(
        name=fields.text("name", default=collective if file is None else Path(file).stem),
        sizes=_sizes(fields),
        collective=collective,
        method=method,
        file=None if file is None else Path(fields.file).parent / file,
        root=_optional_integer(fields, "root", 0),
        dtype=fields.text("datatype", choices=sorted(DTYPES)) if fields.has("datatype") else None,
        op=fields.text("op", choices=OPS) if fields.has("op") else None,
        iterations=_optional_integer(fields, "iterations", 1),
        warmup=_optional_integer(fields, "warmup", 0),
    )
    fields.done()
    return entry


def _collective(fields: Fields) -> str:
    written = fields.text("collective")
    known = [kind for kind in KINDS if kind not in _NOT_IN_SUITES]
    if (kind := ALIASES.get(written, written)) not in known:
        hint = "; make a schedule and name its file" if kind in _NOT_IN_SUITES else ""
        fields.fail("collective", f"is {written!r}; expected one of {', '.join(known)}{hint}")
    return kind


def _sizes(fields: Fields) -> tuple[int, ...]:
    sizes: list[int] = []
    for index, written in enumerate(fields.items("sizes")):
        size = Fields({f"sizes[{index}]": written}, fields.file, fields.key).size_bytes(f"sizes[{index}]")
        if size in sizes:
            fields.fail(f"sizes[{index}]", f"{written} stands twice; expected each size once")
        sizes.append(size)
    if not sizes:
        fields.fail("sizes", "is empty; expected at least one size, like [1M, 16M]")
    return tuple(sizes)


def _rule(fields: Fields) -> Rule:
    names = fields.items("benchmarks", default=["*"])
    if not names or not all(isinstance(name, str) for name in names):
        fields.fail("benchmarks", "expected names of benchmarks or collectives, like [allreduce, 'all*']")
    rule = Rule(
        name=fields.text("name"),
        benchmarks=tuple(names),
        min_bytes=fields.size_bytes("min_size", default=0) if fields.has("min_size") else 0,
        max_bytes=fields.size_bytes("max_size") if fields.has("max_size") else None,
        max_slowdown=_optional_number(fields, "max_slowdown"),
        confidence=fields.number("confidence", default=DEFAULT_RULE.confidence, above=0.5),
        min_busbw_gb_s=_optional_number(fields, "min_busbw_gb_s"),
        max_over_simulated=_optional_number(fields, "max_over_simulated"),
    )
    fields.done()
    if rule.confidence >= 1:
        fields.fail("confidence", f"is {rule.confidence:g}; expected a number below 1")
    if rule.max_bytes is not None and rule.max_bytes < rule.min_bytes:
        fields.fail("max_size", f"is {rule.max_bytes} bytes, less than min_size; expected at least {rule.min_bytes}")
    if rule.max_slowdown is None and rule.min_busbw_gb_s is None and rule.max_over_simulated is None:
        fields.fail("", "limits nothing; expected max_slowdown, min_busbw_gb_s or max_over_simulated")
    return rule


def _check_rules(fields: Fields, suite: Suite) -> None:
    """A misspelt name must not become a rule that nothing falls under."""
    names = {name for entry in suite.entries for name in (entry.name, entry.collective or entry.name)}
    for index, rule in enumerate(suite.rules):
        for pattern in rule.benchmarks:
            if not any(fnmatchcase(name, pattern) for name in names):
                fields.fail(f"rules[{index}].benchmarks", f"{pattern!r} matches none of {', '.join(sorted(names))}")


def slowdown_rule(rules: Sequence[Rule], row: Row) -> Rule:
    """The rule that says how much slower than its baseline a row may be."""
    return next((rule for rule in rules if rule.max_slowdown is not None and rule.covers(row)), DEFAULT_RULE)


def _optional_text(fields: Fields, key: str) -> str | None:
    return fields.text(key) if fields.has(key) else None


def _optional_integer(fields: Fields, key: str, minimum: int, maximum: int | None = None) -> int | None:
    return fields.integer(key, minimum=minimum, maximum=maximum) if fields.has(key) else None


def _optional_number(fields: Fields, key: str) -> float | None:
    return fields.number(key, above=0) if fields.has(key) else None
