"""A schedule as text: one line a pair of ranks, time from left to right."""

from collections.abc import Sequence

import numpy as np

from collsyn.model.schedule import Schedule
from collsyn.units import s_to_us

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def timeline(
    schedule: Schedule,
    ranks: Sequence[int] | None = None,
    window_s: tuple[float, float] | None = None,
    width: int = 72,
) -> str:
    """Lines `source->destination |...|` for the messages that leave some ranks (all by default) in a window of time.

    A column stands for window / width seconds. In it stands the chunk that is on its way (its number modulo 36, as a
    digit or letter), `+` for several at once or a batch, and `.` for none; a message fills at least one column. Sends
    that stay at their rank take no line.
    """
    messages = schedule.messages
    begin_s, end_s = window_s if window_s is not None else (0.0, schedule.finish_s)
    span = max(end_s - begin_s, 1e-30)
    shown = (messages.src != messages.dst) & (messages.start_s < end_s) & (messages.arrival_s > begin_s)
    if ranks is not None:
        shown &= np.isin(messages.src, list(ranks))
    lines: dict[tuple[int, int], list[str]] = {}
    columns = [(np.array([messages.start_s, messages.arrival_s]) - begin_s) / span * width][0]
    for m in np.flatnonzero(shown).tolist():
        cells = lines.setdefault((int(messages.src[m]), int(messages.dst[m])), ["."] * width)
        first = min(max(int(columns[0, m] + 1e-6), 0), width - 1)
        last = min(max(int(np.ceil(columns[1, m] - 1e-6)), first + 1), width)
        rows = messages.rows[m]
        mark = _DIGITS[int(schedule.chunk[rows[0]]) % len(_DIGITS)] if len(rows) == 1 else "+"
        for place in range(first, last):
            cells[place] = mark if cells[place] == "." else "+"
    labels = {pair: f"{pair[0]}->{pair[1]}" for pair in lines}
    margin = max((len(label) for label in labels.values()), default=0)
    left, right = f"{s_to_us(begin_s):.4g} us", f"{s_to_us(end_s):.4g} us"
    head = f"{'':{margin}} |{left}{right:>{max(width - len(left), 0)}}|"
    return "\n".join([head, *(f"{labels[pair]:>{margin}} |{''.join(lines[pair])}|" for pair in sorted(lines))])
