"""Output of nccl-tests and rccl-tests, as logs hold it: prefixes, tags, noise between rows, old and new headers."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collsyn.model.kinds import REDUCING
from collsyn.model.metrics import busbw_factor
from collsyn.topology.imports.baseline import Baseline, Measured, merged
from collsyn.topology.imports.text import Paste
from collsyn.units import MAX_SIZE_BYTES, us_to_s

KIND = "nccl-tests log"
MAX_RANKS = 1 << 20

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\]\s*<std(?:out|err)>:|\[?\d+\]?:)\s?")
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d*)?(?:e[-+]?\d+)?", re.IGNORECASE | re.ASCII)
_OPS = ("sum", "prod", "min", "max", "avg")


@dataclass
class _Row:
    """A line of a table: what it says, and the number of the line."""

    line: int
    size_bytes: int
    dtype: str
    op: str
    root: int
    time_us: float
    time_error_us: float
    algbw: float
    busbw: float
    in_place_us: float | None


@dataclass
class _Table:
    """A header with the rows below it, and the name of the test above it (`all_reduce`), if there is one."""

    line: int
    test: str
    rows: list[_Row] = field(default_factory=list)


def matches(paste: Paste) -> bool:
    """Whether there is a table of nccl-tests, or what is left of one."""
    return any(_header(line) for line in paste.lines) or re.search(r"Avg bus bandwidth|busbw", paste.text) is not None


def read(paste: Paste, num_ranks: int | None = None, collective: str | None = None) -> Baseline:
    """All rows of a log; raises InputError where there is none or it cannot be told what was measured.

    `num_ranks` and `collective` say what the log does not.
    """
    warnings: list[str] = []
    tables = [table for table in _tables(paste, warnings) if table.rows]
    if not tables:
        paste.fail("has no row of a table with size, time, algbw and busbw; expected the output of nccl-tests")
    declared = num_ranks or _declared(paste.text)
    rows: list[Measured] = []
    for table in tables:
        kind = COLLECTIVES.get(table.test) or collective or _told_by_rows(table.rows)
        if kind is None:
            paste.fail(
                "does not say which collective was measured; expected a line with all_reduce_perf or the like, or "
                "--collective C",
                table.line,
            )
        ranks = _ranks(paste, table, kind, declared, num_ranks is not None, warnings)
        rows += [
            Measured(
                kind,
                ranks,
                row.size_bytes,
                row.dtype,
                _op(kind, row),
                row.root,
                (us_to_s(row.time_us),),
                _s(row.in_place_us),
            )
            for row in table.rows
        ]
    library = "rccl" if re.search(r"rccl", paste.text, re.IGNORECASE) else "nccl"
    return Baseline(KIND, library, paste.hash, merged(rows), tuple(dict.fromkeys(warnings)))


def _op(kind: str, row: "_Row") -> str:
    """The operation; a table without a column for it is of the default one."""
    return row.op or ("sum" if kind in REDUCING else "")


def _s(us: float | None) -> float | None:
    return None if us is None else us_to_s(us)


def _header(line: str) -> list[str] | None:
    """The names of columns if a line is a header."""
    words = _TAG.sub("", line).replace("#wrong", "wrong").replace("#", " ").split()
    return words if words[:1] == ["size"] and {"time", "algbw", "busbw"} <= set(words[: _half(words)]) else None


def _half(columns: Sequence[str]) -> int:
    """Where the columns of the second way of calling (in place) begin."""
    halves = [index for index, name in enumerate(columns) if name == "time"]
    return halves[1] if len(halves) > 1 else len(columns)


def _tables(paste: Paste, warnings: list[str]) -> Iterator[_Table]:
    test, table, columns = "", None, []
    skipped: dict[str, int] = {}
    for number, line in enumerate(paste.lines):
        named = re.findall(r"\b(\w+)_perf\b", line)
        if named and named[-1] in COLLECTIVES:
            test = named[-1]
        header = _header(line)
        if header is not None:
            if table is not None:
                yield table
            table, columns = _Table(number, test), header
            continue
        words = _TAG.sub("", line).split()
        if table is None or len(words) < 4 or re.fullmatch(r"\d[\d_]*", words[0], re.ASCII) is None:
            continue
        last = paste.cut and number == len(paste.lines) - 1
        row = _row(words, columns, number, last)
        if isinstance(row, str):
            skipped[row] = skipped.get(row, 0) + 1
        else:
            table.rows.append(row)
    if table is not None:
        yield table
    texts = {
        "short": "{} rows are not whole and are left out",
        "wrong": "{} rows had wrong results and are left out",
        "odd": "{} rows have a time that does not fit to size and bandwidth, and are left out",
    }
    warnings += [text.format(skipped[key]) for key, text in texts.items() if key in skipped]


def _row(words: Sequence[str], columns: Sequence[str], line: int, cut: bool) -> _Row | str:
    """The row, or why it is none: empty (of no bytes), short, wrong or odd."""
    second = _half(columns)
    # The last word of a file without an end may be half of one.
    usable = len(words) - cut
    if int(words[0].replace("_", "")[:30]) == 0:
        return "empty"
    if usable < second:
        return "short"
    first = dict(zip(columns[:second], words[:second], strict=True))
    numbers = [_number(first[name]) for name in ("size", "time", "algbw", "busbw")]
    if any(value is None for value in numbers):
        return "odd"
    size, time_us, algbw, busbw = (value or 0.0 for value in numbers)
    # The log may go on right behind the last number: 0node:1:2 [3] NCCL INFO.
    if _is_wrong(first):
        return "wrong"
    op = first.get("redop", "none").lower()
    known = _number(first.get("root", "-1").lstrip("-"))
    if time_us <= 0 or known is None or ("redop" in first and op not in (*_OPS, "none")):
        return "odd"
    if abs(size / time_us / 1e3 - algbw) > 0.02 + 0.01 * algbw:
        return "odd"
    behind = dict(zip(columns[second:], words[second:], strict=False))
    in_place = _number(behind.get("time", "")) if usable >= len(columns) else None
    if in_place is not None and _is_wrong(behind):
        return "wrong"
    root = -1 if first.get("root", "-1").startswith("-") else int(known)
    return _Row(
        line,
        int(size),
        first.get("type", "float"),
        "" if op == "none" else op,
        root,
        time_us,
        0.51 * 10.0 ** -len(first["time"].partition(".")[2]),
        algbw,
        busbw,
        in_place,
    )


def _is_wrong(half: Mapping[str, str]) -> bool:
    """Whether one way of calling had wrong elements; what was not checked had none."""
    count = re.match(r"\d+", half.get("wrong", "0"))
    return count is not None and count.group().strip("0") != ""


def _number(word: str) -> float | None:
    value = float(word.replace("_", "")) if _NUMBER.fullmatch(word) else math.inf
    return value if value <= MAX_SIZE_BYTES else None


def _told_by_rows(rows: Sequence[_Row]) -> str | None:
    """The collective where the ratio of its bandwidths and the operation leave only one."""
    low, _ = _factor(rows)
    if low > 1.01:
        return "allreduce"
    if rows[0].op:
        high = _factor(rows)[1]
        return "reducescatter" if high < 0.999 else None
    return None


def _factor(rows: Sequence[_Row]) -> tuple[float, float]:
    """Least and most busbw / algbw that all rows allow, given their two decimals."""
    low, high = 0.0, math.inf
    for row in rows:
        # The time is more exact than the algorithm bandwidth beside it.
        low = max(low, (row.busbw - 0.0051) * (row.time_us - row.time_error_us) * 1e3 / row.size_bytes)
        high = min(high, (row.busbw + 0.0051) * (row.time_us + row.time_error_us) * 1e3 / row.size_bytes)
    return low, high


def _ranks(paste: Paste, table: _Table, kind: str, declared: int | None, by_user: bool, warnings: list[str]) -> int:
    """The number of ranks: what is said, unless the bandwidths rule it out, else what they allow alone."""
    low, high = _factor(table.rows)
    if declared is not None:
        factor = busbw_factor(kind, declared)
        if by_user or low - 1e-3 <= factor <= high + 1e-3:
            return declared
    # (n-1)/n grows finer than the decimals with more ranks; then only what is said helps.
    scale = 2.0 if kind == "allreduce" else 1.0
    told = None
    if busbw_factor(kind, 2) < busbw_factor(kind, 3) and low < scale and low <= high:
        least = max(2, math.ceil(1 / (1 - low / scale) - 1e-9))
        most = math.floor(1 / (1 - high / scale) + 1e-9) if high < scale else MAX_RANKS
        told = least if least == most else None
    if told is None:
        said = f" ({declared} are said, but busbw / algbw is {low:.4g} .. {high:.4g})" if declared else ""
        paste.fail(f"does not tell the number of ranks{said}; add --num-ranks N", table.line)
    if declared is not None:
        warnings.append(f"{declared} ranks are said, but busbw / algbw is that of {told}, which is taken")
    return told


def _declared(text: str) -> int | None:
    """The number of ranks that a log lists or names."""
    ranks = [int(number) for number in re.findall(r"#\s+Rank\s+(\d{1,7})\s+(?:Group|Pid)", text)]
    if ranks:
        return max(ranks) + 1
    named = re.findall(r"\bnranks (\d{1,7})\b", text) or re.findall(r"\bSLURM_NTASKS=(\d{1,7})\b", text)
    return int(named[0]) if named and int(named[0]) > 1 else None
