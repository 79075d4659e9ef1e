"""The table of nccl-tests, byte for byte in its columns, with columns of our own to the right of them.

Source of the form: the output of nccl-tests 2.18 (`writeBenchmarkLineBody` and its neighbours there).
"""

from collections.abc import Sequence

from collsyn.bench.result import BenchResult, Comparison, Row, Timing
from collsyn.units import s_to_us

# Our names of types, and those that nccl-tests prints (it also accepts them).
NCCL_NAMES = {"float32": "float", "float64": "double", "float16": "half"}

_PREAMBLE = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
_EXTRA = "  {:>7}  {:>7}"
_AGAINST = "  {:>7}  {:>6}  {:>13}"


def float_text(value: float, width: int) -> str:
    """A number of at least 0 as nccl-tests shows it: as many decimals (2, 1, 0) as fit, then with an exponent."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def header(against: Sequence[str] = ()) -> list[str]:
    """The three header lines; `against` names the libraries that the columns at the right end compare with."""
    titles = _PREAMBLE.format("size", "count", "type", "redop", "root")
    units = _PREAMBLE.format("(B)", "(elements)", "", "", "")
    lines = [
        _PREAMBLE.format("", "", "", "", "") + "           out-of-place                       in-place          ",
        titles + _HALF.format("time", "algbw", "busbw", "#wrong") * 2,
        units + _HALF.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
    ]
    blocks: list[tuple[str, tuple[tuple[str, ...], ...]]] = [
        (_EXTRA, (("model", ""), ("time", "bound"), ("(us)", "(us)")))
    ]
    for name in against:
        blocks.append((_AGAINST, ((name, "", ""), ("time", "ratio", "95% interval"), ("(us)", "x ours", ""))))
    for form, cells in blocks:
        lines = [line + form.format(*row) for line, row in zip(lines, cells, strict=True)]
    return [line.rstrip() for line in lines]


def row_text(row: Row) -> str:
    """One line of the table."""
    op = row.op or "none"
    dtype = NCCL_NAMES.get(row.dtype, row.dtype)
    text = f"{row.size_bytes:>12}  {row.count:>12}  {dtype:>8}  {op:>6}  {row.root:>6}"
    text += _half(row, row.out_of_place)
    text += _half(row, row.in_place) if row.in_place else _HALF.format("N/A", "N/A", "N/A", "N/A")
    text += _EXTRA.format(_us(row.simulated_s), _us(row.bound_s))
    return (text + "".join(_comparison(comparison) for comparison in row.against.values())).rstrip()


def footer(result: BenchResult) -> list[str]:
    """The two lines under a table of nccl-tests."""
    wrong = result.wrong
    return [
        f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {result.average_busbw:g} ",
        "#",
    ]


def _half(row: Row, timing: Timing) -> str:
    time, algbw, busbw = timing.time_s, row.algbw(timing), row.busbw(timing)
    cells = ["N/A"] * 3
    if time is not None and algbw is not None and busbw is not None:
        cells = [float_text(s_to_us(time), 7), float_text(algbw, 6), float_text(busbw, 6)]
    return _HALF.format(*cells, "N/A" if timing.wrong is None else f"{timing.wrong:g}")


def _comparison(comparison: Comparison) -> str:
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if ratio is None or low is None or high is None:
        return _AGAINST.format("N/A", "N/A", "")
    return _AGAINST.format(_us(comparison.time_s), f"{ratio:.2f}", f"{low:.2f}..{high:.2f}")


def _us(seconds: float | None) -> str:
    return "N/A" if seconds is None else float_text(s_to_us(seconds), 7)
