"""Runs kept in files: the document of one run, or JSON lines to which every run is appended with its commit."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collsyn.bench.document import VERSION, document
from collsyn.bench.result import BenchResult, Row
from collsyn.bench.table import NCCL_NAMES
from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model.arrays import F64
from collsyn.model.fields import Fields, parse_document
from collsyn.units import us_to_s

# A machine changes; older runs than these say little of what is usual now.
MAX_RUNS = 30


@dataclass(frozen=True)
class Key:
    """What makes rows of different runs the same measurement; schedules may differ, they are what is compared."""

    benchmark: str
    collective: str
    size_bytes: int
    dtype: str
    op: str
    root: int
    num_ranks: int
    emulated: bool

    @classmethod
    def of(cls, row: Row) -> "Key":
        """The key of a row."""
        dtype = NCCL_NAMES.get(row.dtype, row.dtype)
        emulated = row.emulation_factor is not None
        where = (row.op or "none", row.root, row.group_size, emulated)
        return cls(row.benchmark or row.collective, row.collective, row.size_bytes, dtype, *where)


@dataclass(frozen=True, eq=False)
class Sample:
    """Seconds of a call, [launches, blocks], and of the plain exchange timed beside them (None: there are none)."""

    blocks_s: F64
    yardstick_s: F64 | None = None

    @classmethod
    def of(cls, row: Row) -> "Sample":
        """The sample of a row that has a time."""
        blocks_s = np.array(row.out_of_place.blocks_s).reshape(row.launches, -1)
        yardstick_s = np.array(row.yardstick_s).reshape(row.launches, -1) if row.yardstick_s else None
        return cls(blocks_s, yardstick_s)


@dataclass(frozen=True, eq=False)
class PastRun:
    """One run of a baseline: the commit, what machine it ran on, and its samples."""

    commit: str | None
    machine: Mapping[str, Any]
    samples: Mapping[Key, Sample]


def read_runs(path: str | Path) -> list[PastRun]:
    """Runs of a baseline, oldest first, at most the last MAX_RUNS that found no regression.

    The file is what `bench --output` (one run) or `--append` (a run a line) wrote. Raises InputError that names file,
    line and key.
    """
    content = read_bytes(path)
    lines = [line for line in content.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].strip() != b"{":
        documents = [parse_document(line, f"{path}:line {number}") for number, line in enumerate(lines, 1)]
    else:
        documents = [parse_document(content, str(path))]
    runs = [_run(fields) for fields in documents if not fields.peek("regressions")]
    if not runs:
        raise InputError(f"{path}: holds no run without a regression; expected what bench --output or --append wrote")
    return runs[-MAX_RUNS:]


def _run(fields: Fields) -> PastRun:
    if fields.raw("version", default=None) != VERSION:
        fields.fail("version", f"is not {VERSION}; expected what bench --output or --append wrote")
    provenance = fields.inner("provenance", default={})
    samples: dict[Key, Sample] = {}
    for row in fields.each("results"):
        samples_us = _table(row, "samples_us")
        if samples_us is not None:
            samples[_key(row)] = Sample(samples_us, _table(row, "yardstick_us", samples_us.shape))
    commit = fields.raw("commit", default=None)
    return PastRun(None if commit is None else str(commit), provenance.mapping("machine", default={}), samples)


def _key(row: Fields) -> Key:
    collective = row.text("collective")
    return Key(
        benchmark=row.text("benchmark", default="") or collective,
        collective=collective,
        size_bytes=row.integer("size"),
        dtype=row.text("type"),
        op=row.text("redop"),
        root=row.integer("root"),
        num_ranks=row.integer("group_size"),
        emulated=row.raw("emulation_factor", default=None) is not None,
    )


def _table(row: Fields, key: str, shape: tuple[int, ...] | None = None) -> F64 | None:
    """Seconds from lists of microseconds, all equally long; None without any."""
    lists = row.items(key, default=[])
    numbers = [Fields({key: one}, row.file, row.key).numbers(key) for one in lists]
    if not any(len(one) for one in numbers):
        return None
    if len({len(one) for one in numbers}) > 1 or (shape is not None and (len(numbers), len(numbers[0])) != shape):
        row.fail(key, "expected a list of microseconds for each launch, all equally long")
    table: F64 = us_to_s(1.0) * np.stack(numbers)
    if (table <= 0).any():
        row.fail(key, "expected numbers above 0")
    return table


def append_run(path: str | Path, result: BenchResult, regressions: Sequence[str], commit: str | None) -> None:
    """Add the run as one line of JSON; raises InputError where the file cannot be written."""
    line = json.dumps({"commit": commit, "regressions": list(regressions), **document(result)}) + "\n"
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # One write, so that runs that end at the same time do not mix.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None


def current_commit() -> str | None:
    """The commit to be named: COLLSYN_COMMIT, else that of the working directory (with + where files differ)."""
    given = os.environ.get("COLLSYN_COMMIT")
    if given:
        return given
    head = _git("rev-parse", "HEAD")
    return head and head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    """What git says, or None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
