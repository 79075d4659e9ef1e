"""Output of the OSU micro-benchmarks: osu_bw and osu_latency of a pair become a Profile, collectives a Baseline."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from collsyn.model.profile import Estimate, LinkFit, Profile
from collsyn.topology.imports import links
from collsyn.topology.imports.baseline import Baseline, Measured, merged
from collsyn.topology.imports.text import Paste
from collsyn.units import us_to_s

KIND = "OSU micro-benchmarks"
# Messages that are all latency, and those that are long enough to show bandwidth.
SMALL_BYTES, LARGE_BYTES = 1024, 65536
# A line with a larger mean relative error than this is no line.
MAX_RESIDUAL = 0.25

_TITLE = re.compile(r"# OSU (?:MPI\S*|OpenSHMEM|UPC\S*) (.+?) Test")
_ROW = re.compile(r"\s*(\d{1,13})\s+(\d+(?:\.\d+)?)((?:\s+\S+)*)\s*", re.ASCII)
_COLLECTIVES = {
    "allreduce": ("allreduce", "sum", False),
    "allgather": ("allgather", "", True),
    "all-to-all personalized exchange": ("alltoall", "", True),
    "broadcast": ("broadcast", "", False),
    "reduce": ("reduce", "sum", False),
    "reduce_scatter": ("reducescatter", "sum", False),
    "gather": ("gather", "", True),
    "scatter": ("scatter", "", True),
}
_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float", "MPI_DOUBLE": "double"}


@dataclass
class _Table:
    """One run: the line of its title, what it measures, the command line above it and its rows (bytes, number)."""

    line: int
    what: str
    command: str
    dtype: str = ""
    rows: list[tuple[int, float]] = field(default_factory=list)
    failed: int = 0


def matches(paste: Paste) -> bool:
    """Whether there is output of the benchmarks."""
    return any(map(_TITLE.search, paste.squeezed))


def read(paste: Paste, num_ranks: int | None = None) -> Profile | Baseline:
    """A profile of two ranks, or the rows of collectives; raises InputError where it is neither."""
    tables = _tables(paste)
    warnings = [f"{table.failed} rows failed their validation and are left out" for table in tables if table.failed]
    full = [table for table in tables if table.rows]
    if not full:
        paste.fail("has no row with a size and a number below its title; did the program end early?", tables[0].line)
    kinds = {table.what.removesuffix(" latency") for table in full}
    if kinds & set(_COLLECTIVES):
        return _baseline(paste, full, num_ranks, warnings)
    if not kinds <= {"bandwidth", "latency"}:
        other = next(table for table in full if table.what not in ("bandwidth", "latency"))
        paste.fail(
            f"measures {other.what!r}, which is not read; expected bandwidth, latency or one of "
            f"{', '.join(_COLLECTIVES)}",
            other.line,
        )
    return _profile(paste, full, warnings)


def _tables(paste: Paste) -> list[_Table]:
    found: list[_Table] = []
    command = ""
    for number, line in enumerate(paste.squeezed):
        title = _TITLE.search(line)
        if title:
            found.append(_Table(number, title[1].strip().lower(), command))
            command = ""
            continue
        if re.search(r"osu_\w+", line) or "VISIBLE_DEVICES" in line:
            command += " " + line
        if not found:
            continue
        datatype = re.search(r"# Datatype: (\w+)", line)
        row = _ROW.fullmatch(line)
        if datatype:
            found[-1].dtype = _TYPES.get(datatype[1], "")
        elif row and "Fail" in row[3]:
            found[-1].failed += 1
        elif row and float(row[2]) > 0 and not (paste.cut and number == len(paste.lines) - 1):
            found[-1].rows.append((int(row[1]), float(row[2])))
    return found


def _baseline(paste: Paste, tables: Sequence[_Table], num_ranks: int | None, warnings: list[str]) -> Baseline:
    """Rows of collectives in the sizes of nccl-tests: where a size is a rank's share, it is multiplied."""
    rows = []
    for table in tables:
        what = table.what.removesuffix(" latency")
        if what not in _COLLECTIVES:
            warnings.append(f"line {table.line + 1}: {table.what} is not read")
            continue
        kind, op, shares = _COLLECTIVES[what]
        ranks = num_ranks or _ranks_of_command(table.command)
        if ranks is None:
            paste.fail("does not tell the number of ranks; add --num-ranks N", table.line)
        dtype = table.dtype or ("float" if op else "int8")
        root = 0 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
        for size, us in table.rows:
            total = size * ranks if shares else size
            rows.append(Measured(kind, ranks, total, dtype, op, root, (us_to_s(us),)))
    return Baseline(KIND, "mpi", paste.hash, merged(rows), tuple(warnings))


def _ranks_of_command(command: str) -> int | None:
    """Ranks that mpirun's or srun's options say: -n 8, or 2 nodes with 4 tasks each."""
    total = re.search(r"(?:\s-np?|--ntasks|\s-c)[ =]?\s*(\d{1,6})\b", command)
    per_node = re.search(r"--ntasks-per-node[ =](\d{1,6})\b", command)
    nodes = re.search(r"(?:\s-N|--nodes)[ =]?\s*(\d{1,6})\b", command)
    if total:
        found = int(total[1])
    elif per_node and nodes:
        found = int(per_node[1]) * int(nodes[1])
    else:
        return None
    return found if found > 1 else None


def _profile(paste: Paste, tables: Sequence[_Table], warnings: list[str]) -> Profile:
    """The profile of two ranks: bandwidth of long messages, latency of short ones."""
    named = [re.findall(r"VISIBLE_DEVICES=([\d,]+)", table.command) for table in tables]
    devices = {pair for found in named for pair in found}
    if len(devices) > 1:
        paste.fail(
            f"measures the pairs {'; '.join(sorted(devices))} one by one and not all pairs; expected one pair, or a "
            "matrix (p2pBandwidthLatencyTest, nvbandwidth, collsyn profile)",
            tables[0].line,
        )
    bandwidth = [table for table in tables if table.what == "bandwidth"]
    latency = [table for table in tables if table.what == "latency"]
    for kind, found in (("bandwidth", bandwidth), ("latency", latency)):
        if len(found) > 1:
            warnings.append(f"{len(found)} tables of {kind}; the first is taken")
    assumed = {"overhead": f"{links.OVERHEAD_US} us: ours"}
    points: list[tuple[int, float]] = []
    residual = 0.0
    if latency:
        points = [(size, us_to_s(us)) for size, us in latency[0].rows if size > 0]
    if bandwidth:
        largest, mb_s = max(bandwidth[0].rows)
        if largest < LARGE_BYTES:
            paste.fail(f"ends at {largest} bytes; expected bandwidths up to {LARGE_BYTES} or more", bandwidth[0].line)
        beta = 1e-6 / mb_s
        small = sorted(seconds for size, seconds in points if size <= SMALL_BYTES)
        alpha_s = small[len(small) // 2] if small else us_to_s(links.ALPHA_US["nic"])
        if not small:
            assumed["alpha"] = f"{links.ALPHA_US['nic']} us: {links.COSTS_SOURCE}"
    else:
        if len(points) < 2 or max(points)[0] < LARGE_BYTES:
            paste.fail(
                f"tells latency only, up to {max(points, default=(0, 0.0))[0]} bytes; expected sizes up to "
                f"{LARGE_BYTES} or more, or osu_bw beside it",
                latency[0].line,
            )
        alpha_s, beta = _line(points)
    if points:
        residual = _residual(points, alpha_s, beta)
    linear = residual <= MAX_RESIDUAL
    if not linear:
        warnings.append(
            f"times are not a latency plus bytes over a bandwidth (mean relative error {100 * residual:.0f}%): the "
            "profile is a rough one"
        )
    overhead_s = min(us_to_s(links.OVERHEAD_US), alpha_s)
    costs = (Estimate(alpha_s, alpha_s, alpha_s), Estimate(beta, beta, beta), Estimate(*[overhead_s] * 3))
    device = any(re.search(r"-d (cuda|rocm)| D D\b|CUDA|ROCM|DEVICE", t.command + paste.lines[t.line]) for t in tables)
    return Profile(
        name="osu-2ranks",
        backend="cuda" if device else "host",
        num_ranks=2,
        links=tuple(LinkFit(a, 1 - a, *costs, residual, linear, tuple(points)) for a in (0, 1)),
        method={"source": KIND, "input": paste.hash},
        facts={"assumed": assumed, **({"warnings": warnings} if warnings else {})},
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Alpha and beta that fit best in the sum of squares of relative errors; neither below what times allow."""
    weights = [(1 / seconds, size / seconds) for size, seconds in points]
    aa = sum(a * a for a, _ in weights)
    ab = sum(a * b for a, b in weights)
    bb = sum(b * b for _, b in weights)
    ta, tb = sum(a for a, _ in weights), sum(b for _, b in weights)
    determinant = aa * bb - ab * ab
    alpha_s = (ta * bb - tb * ab) / determinant if determinant > 0 else 0.0
    beta = (tb * aa - ta * ab) / determinant if determinant > 0 else 0.0
    size, seconds = max(points)
    if beta <= 0 or alpha_s < 0:
        alpha_s = min(time_s for _, time_s in points)
        beta = max(seconds - alpha_s, seconds / 100) / size
    return alpha_s, beta


def _residual(points: Sequence[tuple[int, float]], alpha_s: float, beta: float) -> float:
    errors = [(alpha_s + size * beta) / seconds - 1 for size, seconds in points]
    return float((sum(error * error for error in errors) / len(errors)) ** 0.5)
