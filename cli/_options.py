"""Options and parameter types that several subcommands share, under the names users rely on.

Each function here returns a click decorator. The value that a command receives is named in its
docstring. Nothing but click is imported before an option is converted.
"""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import click

from collsyn.errors import InputError
from collsyn.model.kinds import KINDS

DEFAULT_SIZE = "64M"
# A typing slip such as 0-99999999 must be answered, not expanded.
MAX_RANKS = 1_000_000

F = TypeVar("F", bound=Callable[..., Any])


class Decorator(Protocol):
    """Adds options to a command's function."""

    def __call__(self, function: F, /) -> F: ...


class Sizes(NamedTuple):
    """Sizes to work through, in bytes and ascending; `is_sweep` tells `--sizes` from `--size`."""

    size_bytes: tuple[int, ...]
    is_sweep: bool


def size(text: str) -> int:
    """Bytes of a size such as 64M."""
    from collsyn.units import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def size_range(text: str) -> tuple[int, ...]:
    """S1:S2, or S1:S2:FACTOR: the sizes S1, S1 x 2 (or x FACTOR), ... up to S2, in bytes."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and not parts[2].isdecimal()):
        raise click.BadParameter(f"{text!r} is not a range of sizes; expected S1:S2, like 1K:64M")
    first, last = size(parts[0]), size(parts[1])
    factor = int(parts[2]) if len(parts) == 3 else 2
    if factor < 2:
        raise click.BadParameter(f"factor {factor} must be at least 2")
    if first > last:
        raise click.BadParameter(f"{parts[0]} is larger than {parts[1]}")
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def collective_name(text: str) -> str:
    """A collective's name as files write it; case, hyphens and underscores do not matter."""
    name = re.sub("[-_]", "", text).lower()
    if name not in KINDS:
        raise click.BadParameter(f"no collective {text!r}; there are {', '.join(KINDS)}")
    return name


def ranks(text: str) -> tuple[int, ...]:
    """Ranks and ranges of ranks, such as 0,1,4 or 0-3,8, in the order given, each at most once."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,12})(?:-(\d{1,12}))?\s*", part, re.ASCII)
        if match is None:
            raise click.BadParameter(f"{part!r} is not a rank or a range, like 0,1,4 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise click.BadParameter(f"range {part.strip()} ends before it starts")
        if len(found) + last - first >= MAX_RANKS:
            raise click.BadParameter(f"more than {MAX_RANKS} ranks")
        found.extend(range(first, last + 1))
    if len(set(found)) != len(found):
        raise click.BadParameter(f"{text!r} names a rank twice")
    return tuple(found)


def rank_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Process groups separated by /, such as 0-3/4-7, in the order given."""
    return tuple(ranks(group) for group in text.split("/"))


def seconds(text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{text!r} is not a positive number of seconds")
    return value


FILE = click.Path(dir_okay=False, path_type=Path)


def examples(*lines: str) -> str:
    """An epilog that shows worked examples as they are typed; every command has one."""
    heading = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", heading, *(f"  {line}" for line in lines)])


def collective_option(required: bool = True) -> Decorator:
    """`--collective C`; the command gets `collective: str`, or None."""
    names = ", ".join(KINDS)
    return click.option(
        "--collective",
        type=collective_name,
        required=required,
        metavar="C",
        help=f"One of {names}.",
    )


def topology_option(required: bool = True) -> Decorator:
    """`--topology TOPO`; the command gets `topology: str` (a name or a file), or None."""
    return click.option(
        "--topology",
        required=required,
        metavar="TOPO",
        help="Preset such as torus:4x4 or dgx1 (see collsyn topology list), or a file.",
    )


def size_option() -> Decorator:
    """`--size S`; the command gets `size_bytes: int`."""
    return click.option(
        "--size",
        "size_bytes",
        type=size,
        default=DEFAULT_SIZE,
        show_default=True,
        metavar="S",
        help="The size column of nccl-tests: 1K = 1KiB = 1024, 1KB = 1000.",
    )


def sizes_options(default: str | None = DEFAULT_SIZE) -> Decorator:
    """`--size S | --sizes S1:S2`; the command gets `size` and `sizes`, for `chosen_sizes`."""
    shown = f" [default: {default}]" if default else ""

    def decorate(function: F, /) -> F:
        one = click.option(
            "--size",
            type=size,
            metavar="S",
            help=f"The size column of nccl-tests: 1K = 1KiB = 1024, 1KB = 1000.{shown}",
        )
        many = click.option(
            "--sizes",
            type=size_range,
            metavar="S1:S2",
            help="Every size from S1 to S2, doubling (S1:S2:4 for another factor).",
        )
        return one(many(function))

    return decorate


def chosen_sizes(size: int | None, sizes: tuple[int, ...] | None, default: str | None = DEFAULT_SIZE) -> Sizes:
    """What `--size` and `--sizes` say together; no sizes at all if neither nor `default` is."""
    from collsyn.units import parse_size

    if size is not None and sizes is not None:
        raise click.UsageError("--size and --sizes exclude each other")
    if sizes is not None:
        return Sizes(sizes, is_sweep=True)
    if size is None and default is not None:
        size = parse_size(default)
    return Sizes(() if size is None else (size,), is_sweep=False)


def root_option() -> Decorator:
    """`--root R`; the command gets `root: int | None` (None where it was not given)."""
    return click.option(
        "--root",
        type=int,
        metavar="R",
        help="Root of broadcast, reduce, gather and scatter. [default: 0]",
    )


def subset_option() -> Decorator:
    """`--subset 0,1,4`; the command gets `subset: tuple[int, ...] | None`."""
    return click.option("--subset", type=ranks, metavar="RANKS", help="Only these ranks of TOPO, like 0,1,4 or 0-3.")


def groups_option() -> Decorator:
    """`--groups 0-3/4-7`; the command gets `groups: tuple[tuple[int, ...], ...] | None`."""
    return click.option(
        "--groups",
        type=rank_groups,
        metavar="GROUPS",
        help="Process groups that run at once and share the links, like 0-3/4-7.",
    )


def counts_option() -> Decorator:
    """`--counts FILE`; the command gets `counts: Path | None`."""
    return click.option("--counts", type=FILE, metavar="FILE", help="Matrix of bytes from rank to rank (alltoallv).")


def spec_option() -> Decorator:
    """`--spec FILE`; the command gets `spec: Path | None`."""
    return click.option("--spec", type=FILE, metavar="FILE", help="YAML file that defines a custom collective.")


def problem_options(topology_required: bool = True) -> Decorator:
    """What is to be solved: collective, topology, root, subset, groups, counts and spec."""
    parts: list[Decorator] = [
        collective_option(),
        topology_option(topology_required),
        root_option(),
        subset_option(),
        groups_option(),
        counts_option(),
        spec_option(),
    ]

    def decorate(function: F, /) -> F:
        for part in reversed(parts):
            function = part(function)
        return function

    return decorate


def seed_option() -> Decorator:
    """`--seed N`; the command gets `seed: int`."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0, max=2**63 - 1),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of everything random; it is written into the result.",
    )


def write_model_option() -> Decorator:
    """`--write-model DIR`; the command gets `write_model: Path | None`, for `collsyn.solver.export.use_folder`."""
    return click.option(
        "--write-model",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write every linear and integer program that is solved into this folder, as MPS files (docs/solver.md).",
    )


def time_limit_option() -> Decorator:
    """`--time-limit SECONDS`; the command gets `time_limit_s: float | None`."""
    return click.option(
        "--time-limit",
        "time_limit_s",
        type=seconds,
        metavar="SECONDS",
        help="Stop searching after this long and keep the best so far.",
    )


def jobs_option() -> Decorator:
    """`--jobs N`; the command gets `jobs: int` (all cores where it was not given)."""
    return click.option(
        "--jobs",
        type=click.IntRange(1, 1024),
        default=lambda: len(os.sched_getaffinity(0)),
        envvar="COLLSYN_JOBS",
        metavar="N",
        help="Processes that methods are tried in; the result is the same. [default: one a core]",
    )


def json_option() -> Decorator:
    """`--json`; the command gets `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


def output_option(text: str, default: str | None = None) -> Decorator:
    """`-o FILE`; the command gets `output: str | None`."""
    return click.option(
        "-o",
        "--output",
        default=default,
        show_default=default is not None,
        metavar="FILE",
        help=text,
    )


def plot_option(what: str) -> Decorator:
    """`--plot FILE`; the command gets `plot: str | None`, for `collsyn.pictures`."""
    return click.option("--plot", metavar="FILE.svg", help=f"Draw {what}; SVG or PNG. Needs matplotlib.")
