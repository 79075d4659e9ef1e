"""Programs of MSCCL++: what its JSON execution plans say, and where the tables of its executor (0.9) end."""

from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_OPS = 64
MAX_CHANNELS = 16
MAX_REMOTE_BUFFERS = 16
MAX_CHANNELS_OF_OP = 8
MAX_REFERENCES = 10
MAX_BARRIERS = 16
MAX_SEMAPHORES_OF_OP = 16
MAX_MESSAGE_BYTES = (1 << 64) - 1
# Offsets have 32 bits.
MAX_BUFFER_BYTES = 1 << 32
# Scratch that plans share where they reuse resources; half of it is dealt out to the chunks.
SHARED_SCRATCH_BYTES = 64 << 20

BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
CHANNEL_TYPES = ("memory", "port")
SIGNALS, WAITS = frozenset({"signal", "rlxsignal"}), frozenset({"wait", "rlxwait"})
PORT_PUTS = frozenset({"put", "pws", "pwsf"})
# Packets that an operation writes and reads: in its destinations behind the first (all of ppkt, rppkt and cpkt), and in
# its sources behind the first (all of upkt and rppkt).
PACKET_WRITES_FROM = {"cpkt": 0, "ppkt": 0, "rppkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1, "gstorepkt": 0}
PACKET_READS_FROM = {"upkt": 0, "rppkt": 0, "repkt": 1, "respkt": 1, "recpkt": 1, "recspkt": 1}
REDUCES = frozenset({"re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"})
PAIRWISE = frozenset({"copy", "put", "pws", "pwsf", "get", "cpkt", "upkt", "ppkt", "rppkt"})
SWITCH = frozenset({"glres", "gstore", "gstorepkt"})
OPS = REDUCES | PAIRWISE | SWITCH | SIGNALS | WAITS
OPS |= {"nop", "barrier", "flush", "sem_acquire", "sem_release", "pipeline"}
REFUSED_OPS = {"glre": "the language writes it, the executor knows none"}


@dataclass(frozen=True, slots=True)
class Ref:
    """Chunks `index` to `index + size` of a buffer: local (`buffer` i, o or s), at the `remote`-th remote buffer of the
    thread block, or of all GPUs of its `switch`-th switch channel."""

    index: int
    size: int
    buffer: str = ""
    remote: int = -1
    switch: int = -1

    @property
    def is_local(self) -> bool:
        """Whether it is memory of the GPU itself."""
        return bool(self.buffer)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `channels` and remote buffers count in the lists of its thread block.

    `share` = (k, n): it works on part k of n of its range. `unit_bytes`, `num_chunks`, `inner` are those of a pipeline.
    """

    name: str
    sources: tuple[Ref, ...] = ()
    destinations: tuple[Ref, ...] = ()
    channel_type: str = ""
    channels: tuple[int, ...] = ()
    semaphores: tuple[int, ...] = ()
    barrier: int = -1
    num_blocks: int = 0
    reduce_op: str = "sum"
    share: tuple[int, int] = (0, 1)
    unit_bytes: int = 0
    num_chunks: int = 0
    inner: tuple["Operation", ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """A buffer of another GPU, and the kinds of channels that reach it."""

    rank: int
    buffer: str
    access: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchChannel:
    """Memory of a group of GPUs that a switch reads and writes at once."""

    buffer: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A thread block: operations, and the channels and remote buffers of the GPU that it uses, by type."""

    ops: tuple[Operation, ...]
    channels: dict[str, tuple[int, ...]] = field(default_factory=dict)
    remote: dict[str, tuple[int, ...]] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True)
class Gpu:
    """Chunks of the buffers, peers of its channels by type, switch channels, remote buffers, semaphores, blocks."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[Block, ...]
    channels: dict[str, tuple[int, ...]] = field(default_factory=dict)
    switches: tuple[SwitchChannel, ...] = ()
    remote: tuple[RemoteBuffer, ...] = ()
    semaphores: tuple[int, ...] = ()
    number: int = 0

    def extent(self, buffer: str) -> int:
        """Chunks of a buffer `i`, `o` or `s`."""
        return {"i": self.input_chunks, "o": self.output_chunks, "s": self.scratch_chunks}.get(buffer, 0)


@dataclass(frozen=True)
class Program:
    """One plan file; sizes in bytes, `collective` is the name that the file gives."""

    name: str
    collective: str
    protocol: str
    in_place: bool
    gpus: tuple[Gpu, ...]
    reuse_resources: bool = False
    double_scratch: bool = False
    alignment: int = 16
    min_bytes: int = 0
    max_bytes: int = MAX_MESSAGE_BYTES
    threads: int = 1024

    @property
    def num_gpus(self) -> int:
        """Ranks."""
        return len(self.gpus)

    @property
    def num_chunks(self) -> int:
        """Chunks that make up the size that users give: those of the larger buffer."""
        return max(self.gpus[0].input_chunks, self.gpus[0].output_chunks)

    def operations(self) -> Iterator[tuple[int, int, str, Operation]]:
        """All operations, those inside pipelines too, with GPU, thread block and number (`3`, inside `3.1`)."""
        for g, gpu in enumerate(self.gpus):
            for b, block in enumerate(gpu.blocks):
                for k, op in enumerate(block.ops):
                    yield g, b, str(k), op
                    for j, inner in enumerate(op.inner):
                        yield g, b, f"{k}.{j}", inner


def where(gpu: int, block: int | None = None, op: str | None = None) -> str:
    """How messages name a place of a program."""
    text = f"gpu {gpu}"
    if block is not None:
        text += f" tb {block}"
    return text if op is None else f"{text} op {op}"


def pair_of(gpu: Gpu, channel_type: str, channel: int) -> tuple[int, int]:
    """Peer of a channel, and which of the channels between the two it is: the k-th of one side is the k-th of the
    other."""
    peers = gpu.channels[channel_type]
    return peers[channel], peers[:channel].count(peers[channel])
