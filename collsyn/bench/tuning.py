"""Tuning files, `collsyn-tuning/1` (docs/formats/tuning.md): how plans are best launched on a kind of GPU, by size."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

from collsyn.cuda.layout import MAX_THREADS
from collsyn.cuda.prepared import ENGINE, KERNEL, SPECIALISED, TRANSPORTS
from collsyn.files import write_atomic
from collsyn.model.fields import Fields, load_document
from collsyn.model.topology_file import flow
from collsyn.units import rounded

SCHEMA = "collsyn-tuning/1"
# What is tried: threads of a block, blocks of a channel.
THREADS, BLOCKS = (256, 512, 1024), (1, 2, 4, 8)
MOST_BLOCKS = 64
# A size takes what was found at another one up to this factor away.
NEAR = 4.0


@dataclass(frozen=True)
class Launch:
    """How a plan is launched; `transport` is one of `prepared.TRANSPORTS`."""

    threads: int = 512
    blocks_per_channel: int = 1
    transport: str = KERNEL


@dataclass(frozen=True)
class Tuned:
    """The quickest launch that was found for a collective of a size on GPUs of a kind, and its seconds."""

    gpu: str
    collective: str
    num_ranks: int
    loopback: bool
    size_bytes: int
    launch: Launch
    time_s: float

    @property
    def key(self) -> tuple[Any, ...]:
        """What a newer measurement replaces an older one by."""
        return self.gpu, self.collective, self.num_ranks, self.loopback, self.size_bytes


def candidates() -> list[Launch]:
    """Launches to try, the usual one first."""
    kernels = [Launch(threads, blocks) for blocks, threads in product(BLOCKS, THREADS)]
    specialised = [Launch(512, blocks, SPECIALISED) for blocks in BLOCKS]
    return sorted([*kernels, *specialised, Launch(transport=ENGINE)], key=lambda one: one != Launch())


def read_tuning(path: str | Path) -> list[Tuned]:
    """The entries of a file; raises InputError that names file and key."""
    fields = load_document(path)
    fields.text("schema", choices=[SCHEMA])
    found = [tuned_from_fields(entry) for entry in fields.each("tuned")]
    fields.done()
    return found


def write_tuning(path: str | Path, entries: Iterable[Tuned]) -> None:
    """Write entries, of several for the same thing the last, sorted."""
    known = {entry.key: entry for entry in entries}
    lines = [f"schema: {SCHEMA}", "tuned:" if known else "tuned: []"]
    lines += [f"  - {flow(tuned_document(known[key]))}" for key in sorted(known)]
    write_atomic(path, "\n".join(lines) + "\n")


def chosen(entries: Sequence[Tuned], gpu: str, collective: str, num_ranks: int, loopback: bool, size: int) -> Launch:
    """The launch for a call: that of the nearest size, if it is near enough, else the usual one."""
    kind = (gpu, collective, num_ranks, loopback)
    alike = [entry for entry in entries if entry.key[:-1] == kind]
    nearest = min(alike, key=lambda entry: abs(log2(entry.size_bytes / size)), default=None)
    if nearest is None or abs(log2(nearest.size_bytes / size)) > log2(NEAR):
        return Launch()
    return nearest.launch


def tuned_from_fields(entry: Fields) -> Tuned:
    """An entry of a document; raises InputError."""
    found = Tuned(
        gpu=entry.text("gpu"),
        collective=entry.text("collective"),
        num_ranks=entry.integer("ranks", minimum=1),
        loopback=entry.flag("loopback", default=False),
        size_bytes=entry.integer("bytes", minimum=1),
        launch=Launch(
            threads=entry.integer("threads", minimum=32, maximum=MAX_THREADS),
            blocks_per_channel=entry.integer("blocks_per_channel", minimum=1, maximum=MOST_BLOCKS),
            transport=entry.text("transport", choices=TRANSPORTS),
        ),
        time_s=entry.number("time_us", minimum=0) * 1e-6,
    )
    if found.launch.threads % 32:
        entry.fail("threads", f"is {found.launch.threads}; expected a multiple of 32")
    entry.done()
    return found


def tuned_document(entry: Tuned) -> dict[str, Any]:
    """An entry as plain values."""
    return {
        "gpu": entry.gpu,
        "collective": entry.collective,
        "ranks": entry.num_ranks,
        **({"loopback": True} if entry.loopback else {}),
        "bytes": entry.size_bytes,
        **asdict(entry.launch),
        "time_us": rounded(entry.time_s * 1e6),
    }
