"""What each reader of MSCCL XML refuses, crashes on or overlooks: limits of its tables and attributes that it wants."""

from collections import Counter
from collections.abc import Iterator, Sequence

from collsyn.check.report import Problem
from collsyn.export.msccl import (
    DIALECTS,
    MAX_NODES,
    MAX_REDUCES_IN_A_ROW,
    RECEIVES,
    SENDS,
    Block,
    Dialect,
    Gpu,
    Program,
    shard_chunks,
    where,
)

# Thread blocks of a GPU with a send, and with a receive, on one channel.
_MAX_PEERS = 32


def limit_problems(program: Program, dialect: Dialect) -> list[Problem]:
    """Why a reader does not take a program, or takes it and fails; nothing if it runs it. O(steps)."""
    return [
        *_of_file(program, dialect),
        *(problem for g, gpu in enumerate(program.gpus) for problem in _of_gpu(program, g, gpu, dialect)),
    ]


def readers(program: Program) -> dict[str, list[Problem]]:
    """Per dialect the problems that its reader has with a program."""
    return {name: limit_problems(program, dialect) for name, dialect in DIALECTS.items()}


def dealt_problem(dealt: Sequence[tuple[int, int, int, int]], num_gpus: int, dialect: Dialect) -> Problem | None:
    """Why a reader takes no program at all whose messages are dealt out like that, as far as counting tells.

    Each of `dealt` is (source, destination, channels, messages of the longest channel): every channel has a number of
    its own between its GPUs, and a thread block at either end, with a step for each message.
    """
    between: Counter[tuple[int, int]] = Counter()
    ends: list[Counter[int]] = [Counter(), Counter()]
    messages: list[Counter[int]] = [Counter(), Counter()]
    longest: Counter[int] = Counter()
    for source, target, channels, most in dealt:
        between[source, target] += channels
        for side, gpu in enumerate((source, target)):
            ends[side][gpu] += channels
            messages[side][gpu] += (channels - 1) * (most - 1) + most
            longest[gpu] = max(longest[gpu], most)
    channels = max(between.values(), default=0)
    if channels > dialect.max_channels:
        return _limit("algo", "channels", dialect, dialect.max_channels, channels, "fewer channels")
    for gpu in range(num_gpus):
        blocks, steps = (max(side[gpu] for side in sides) for sides in (ends, messages))
        if blocks > dialect.max_blocks:
            return _too_many_blocks(where(gpu), dialect, blocks)
        if 1 + num_gpus + blocks + steps > MAX_NODES:
            return _too_many_elements(where(gpu), dialect, 1 + num_gpus + blocks + steps)
        if longest[gpu] > dialect.max_steps:
            return _too_many_steps(where(gpu), dialect, longest[gpu])
    return None


def _of_file(program: Program, dialect: Dialect) -> Iterator[Problem]:
    for line, what in program.quirks:
        yield Problem(f"line {line}", what, "plain elements", "this")
    missing = sorted(dialect.required - program.given) if program.given else []
    if missing:
        what = f"{dialect.name} refuses the file, and with it the communicator"
        yield Problem("algo", what, f"the attributes {', '.join(missing)}", "none")
    known = dialect.collectives.get(program.collective)
    if known != program.coll:
        expected = f"coll {known}" if known else f"one of {', '.join(dialect.collectives.values())}"
        yield Problem("algo", f"{dialect.name} ignores the file", expected, f"coll {program.coll}")
    if program.num_channels > dialect.max_channels:
        yield _limit("algo", "channels", dialect, dialect.max_channels, program.num_channels, "fewer channels")


def _of_gpu(program: Program, g: int, gpu: Gpu, dialect: Dialect) -> Iterator[Problem]:
    here = where(g, line=gpu.line)
    if len(gpu.blocks) > dialect.max_blocks:
        yield _too_many_blocks(here, dialect, len(gpu.blocks))
    nodes = 1 + program.num_gpus + len(gpu.blocks) + sum(len(block.steps) for block in gpu.blocks)
    if nodes > MAX_NODES:
        yield _too_many_elements(here, dialect, nodes)
    if dialect.name == "msccl":
        wanted = shard_chunks(program.num_chunks, program.collective, program.num_gpus)
        for name, count, right in zip("io", (gpu.input_chunks, gpu.output_chunks), wanted, strict=True):
            if count not in (0, right):
                yield Problem(here, f"msccl refuses {name}_chunks", f"{right} (or 0, unused)", str(count))
    for verb, ops in (("send", SENDS), ("receive", RECEIVES)):
        users = Counter(block.channel for block in gpu.blocks if any(step.op in ops for step in block.steps))
        for channel, count in users.items():
            if count > _MAX_PEERS:
                what = f"thread blocks that {verb} on channel {channel}"
                yield _limit(here, what, dialect, _MAX_PEERS, count, "more channels")
    for b, block in enumerate(gpu.blocks):
        yield from _of_block(g, b, block, dialect)


def _of_block(g: int, b: int, block: Block, dialect: Dialect) -> Iterator[Problem]:
    here = where(g, b, line=block.line)
    if block.channel >= dialect.max_channels:
        yield _limit(here, "channels", dialect, dialect.max_channels, block.channel + 1, "fewer channels")
    if len(block.steps) > dialect.max_steps:
        yield _too_many_steps(here, dialect, len(block.steps))
    beyond = [step for step in block.steps if step.dep_block > dialect.max_dep_block]
    if beyond:
        found = beyond[0].dep_block + 1
        way_out = "fewer channels or instances"
        yield _limit(here, "thread blocks to depend on", dialect, dialect.max_dep_block + 1, found, way_out)
    row = longest = 0
    for step in block.steps:
        row = row + 1 if step.op == "re" else 0
        longest = max(longest, row)
    if longest > MAX_REDUCES_IN_A_ROW:
        yield _limit(here, "re in a row", dialect, MAX_REDUCES_IN_A_ROW, longest, "a nop between")


def _too_many_blocks(here: str, dialect: Dialect, found: int) -> Problem:
    return _limit(here, "thread blocks", dialect, dialect.max_blocks, found, "fewer channels or instances")


def _too_many_elements(here: str, dialect: Dialect, found: int) -> Problem:
    return _limit(here, "elements for a rank", dialect, MAX_NODES, found, "fewer chunks or instances")


def _too_many_steps(here: str, dialect: Dialect, found: int) -> Problem:
    return _limit(here, "steps", dialect, dialect.max_steps, found, "fewer chunks or pieces, or more channels")


def _limit(here: str, what: str, dialect: Dialect, limit: int, found: int, way_out: str) -> Problem:
    return Problem(here, f"too many {what} for {dialect.name}", f"at most {limit} ({way_out})", str(found))
