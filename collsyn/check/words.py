"""How the checker names sends, times and contributions in its messages."""

from collections.abc import Iterable

from collsyn.model.schedule import Schedule
from collsyn.units import s_to_us


def us(time_s: float) -> str:
    """A time in microseconds, as messages show it."""
    return f"{s_to_us(time_s):.9g} us"


def send(schedule: Schedule, row: int) -> str:
    """Which send a row is: chunk, ranks and start."""
    ends = f"{int(schedule.src[row])}->{int(schedule.dst[row])}"
    return f"chunk {int(schedule.chunk[row])}, {ends} at {us(float(schedule.start_s[row]))}"


def ranks(members: Iterable[int]) -> str:
    """Ranks in ascending order with runs joined, like `ranks 0-3,7`."""
    runs: list[list[int]] = []
    for rank in sorted(members):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"ranks {text}"


def bits(mask: int) -> list[int]:
    """Positions of the bits that are set."""
    return [position for position, bit in enumerate(reversed(bin(mask)[2:])) if bit == "1"]
