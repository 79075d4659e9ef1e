"""Programs of MSCCL: thread blocks that send and receive through first-in-first-out channels; three readers' limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a runtime moves data: pieces that a channel between two GPUs holds, bytes of data in a piece at most, and
    what goes over a link for a byte of data."""

    depth: int
    slice_bytes: int
    bytes_on_links: float


# Channels have 8 steps. A piece takes 4 with Simple, which is half of the 4 MiB of its buffer, and one with the others,
# whose buffers are smaller; LL sends 4 bytes of flag behind every 4 of data, LL128 8 behind every 120.
PROTOCOLS = {
    "Simple": Protocol(2, 2 << 20, 1.0),
    "LL": Protocol(8, 32 << 10, 2.0),
    "LL128": Protocol(8, 512 << 10, 128 / 120),
}
# Where a file names no end of its sizes, the one reader that allows this ends here.
DEFAULT_MAX_BYTES = 128 << 20
MAX_COUNT = 71
MAX_NODES = 4096
MAX_CHILDREN = 1024
MAX_ATTRIBUTES = 16
MAX_TEXT = 255
MAX_REDUCES_IN_A_ROW = 16

SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
READS_SOURCE = frozenset({"s", "rrs", "rrc", "rrcs", "cpy", "re"})
WRITES = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})
OPS = SENDS | RECEIVES | {"cpy", "re", "nop"}
BUFFERS = {"i": "input", "o": "output", "s": "scratch"}


@dataclass(frozen=True, slots=True)
class Step:
    """What a thread block does at once; buffers are `i`, `o`, `s`, offsets and `count` are in chunks.

    `dep_block` and `dep_step` (-1: none) name the step of another thread block of the GPU that must be done before;
    only steps with `has_dep` tell others that they are done. `number` is what the file calls it.
    """

    op: str
    src_buffer: str
    src_offset: int
    dst_buffer: str
    dst_offset: int
    count: int
    dep_block: int = -1
    dep_step: int = -1
    has_dep: bool = False
    number: int = 0
    line: int = field(default=0, compare=False)

    def divided(self, parts: int) -> "Step":
        """The same step on chunks that are shorter by a factor; a `nop` names none."""
        if self.op == "nop":
            return self
        src, dst, count = self.src_offset * parts, self.dst_offset * parts, self.count * parts
        return replace(self, src_offset=src, dst_offset=dst, count=count)


@dataclass(frozen=True, slots=True)
class Block:
    """A thread block: one peer that it sends to, one that it receives from (-1: none), over one channel."""

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]
    number: int = 0
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Chunks of the buffers that a GPU uses, and its thread blocks."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[Block, ...]
    number: int = 0
    line: int = field(default=0, compare=False)

    def divided(self, parts: int) -> "Gpu":
        """The same steps on chunks that are shorter by a factor."""
        blocks = (replace(block, steps=tuple(step.divided(parts) for step in block.steps)) for block in self.blocks)
        chunks = (self.input_chunks * parts, self.output_chunks * parts, self.scratch_chunks * parts)
        return Gpu(*chunks, tuple(blocks), self.number, self.line)

    def extent(self, buffer: str) -> int:
        """Chunks of a buffer `i`, `o` or `s`."""
        return {"i": self.input_chunks, "o": self.output_chunks, "s": self.scratch_chunks}[buffer]


@dataclass(frozen=True)
class Program:
    """One algorithm file: `collective` is our name of it, `coll` the file's; `num_chunks` make up the larger buffer.

    Sizes in bytes from `min_bytes` to `max_bytes` (0: no end) use it. `given` are the attributes that its element has,
    `quirks` lines that runtimes stumble over and why.
    """

    name: str
    coll: str
    collective: str
    protocol: str
    num_channels: int
    num_chunks: int
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int
    gpus: tuple[Gpu, ...]
    given: frozenset[str] = field(default=frozenset(), compare=False)
    quirks: tuple[tuple[int, str], ...] = field(default=(), compare=False)
    line: int = field(default=0, compare=False)

    @property
    def num_gpus(self) -> int:
        """Ranks."""
        return len(self.gpus)

    def divided(self, parts: int) -> "Program":
        """The same program of chunks that are shorter by a factor."""
        return replace(self, num_chunks=self.num_chunks * parts, gpus=tuple(gpu.divided(parts) for gpu in self.gpus))

    def longest_piece(self, size_bytes: int) -> int:
        """Chunks that travel as one piece at most when the user's size is that."""
        return max(1, min(MAX_COUNT, PROTOCOLS[self.protocol].slice_bytes * self.num_chunks // max(size_bytes, 1)))

    def shortest_piece(self) -> int:
        """The same at the largest size that uses the program: channels are fullest there."""
        if self.given and "maxBytes" not in self.given:
            return self.longest_piece(DEFAULT_MAX_BYTES)
        return self.longest_piece(self.max_bytes) if self.max_bytes else 1

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """All steps with the positions of their GPU and thread block, and their own."""
        for g, gpu in enumerate(self.gpus):
            for b, block in enumerate(gpu.blocks):
                for s, step in enumerate(block.steps):
                    yield g, b, s, step


def where(gpu: int, block: int | None = None, step: int | None = None, line: int = 0) -> str:
    """How messages name a place of a program."""
    text = f"gpu {gpu}"
    if block is not None:
        text += f" tb {block}"
    if step is not None:
        text += f" step {step}"
    return f"{text} (line {line})" if line else text


@dataclass(frozen=True)
class Dialect:
    """A reader: what it calls collectives, what it requires, and where its tables end."""

    name: str
    reader: str
    max_steps: int
    max_blocks: int
    max_channels: int
    required: frozenset[str]
    collectives: Mapping[str, str]
    both_places: bool
    unlimited: int
    max_dep_block: int
    protocols: tuple[str, str, str]


_KINDS = ("allreduce", "allgather", "reduce", "broadcast", "reducescatter", "alltoall")
_AZURE = Dialect(
    name="azure",
    reader="Azure/msccl-executor-nccl (NCCL 2.23)",
    max_steps=64,
    max_blocks=1024,
    max_channels=32,
    required=frozenset({"ngpus", "nchannels", "nchunksperloop", "proto", "coll", "inplace"})
    | {"outofplace", "minBytes", "maxBytes"},
    collectives={kind: kind for kind in (*_KINDS, "gather", "scatter")},
    both_places=True,
    unlimited=0,
    max_dep_block=127,
    protocols=("LL", "LL128", "Simple"),
)
_RCCL = replace(
    _AZURE,
    name="rccl",
    reader="ROCm/rccl before 2.28.3, the release that deprecated MSCCL",
    max_blocks=64,
    max_channels=128,
    max_dep_block=63,
    protocols=("LL", "Simple", "Simple"),
)
_MSCCL = replace(
    _AZURE,
    name="msccl",
    reader="microsoft/msccl (NCCL 2.12)",
    max_steps=256,
    max_blocks=216,
    required=_AZURE.required - {"outofplace", "minBytes", "maxBytes"} | {"name"},
    collectives={**{kind: kind for kind in _KINDS}, "reducescatter": "reduce_scatter"},
    both_places=False,
    unlimited=1 << 40,
    max_dep_block=215,
)
DIALECTS = {dialect.name: dialect for dialect in (_MSCCL, _AZURE, _RCCL)}
# Names of files -> ours.
COLLECTIVES = {name: kind for dialect in DIALECTS.values() for kind, name in dialect.collectives.items()}


def shard_chunks(program_chunks: int, collective: str, num_gpus: int) -> tuple[int, int]:
    """Chunks of the input and of the output of a GPU that has both; shards are a GPU's part of the larger buffer."""
    shard = program_chunks // num_gpus
    if collective in ("allgather", "gather"):
        return shard, program_chunks
    if collective in ("reducescatter", "scatter"):
        return program_chunks, shard
    return program_chunks, program_chunks
