"""`rocm-smi --showtopo` and `amd-smi topology`: tables of link types, hops and bandwidths between AMD GPUs."""

import re
from collections.abc import Sequence

from collsyn.topology.imports.described import Described, Gpu, Place, names
from collsyn.topology.imports.grids import Grid, grids
from collsyn.topology.imports.links import generation_of_text
from collsyn.topology.imports.text import Paste

ROCM, AMD = "rocm-smi --showtopo", "amd-smi topology"
_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_TITLE = {
    ROCM: re.compile(r"(weight|hops|link type|link accessibility|access) between two gpus", re.IGNORECASE),
    AMD: re.compile(r"^\W*(access|weight|hops|link type|numa bw) table", re.IGNORECASE),
}
_SELF = ("0", "SELF", "N/A", "X")
_NAME = {ROCM: r"GPU\d{1,4}", AMD: rf"{_BDF}|GPU\d{{1,4}}"}


def rocm_matches(paste: Paste) -> bool:
    """Whether there is a table of rocm-smi."""
    return any(map(_TITLE[ROCM].search, paste.squeezed))


def amd_matches(paste: Paste) -> bool:
    """Whether there is a table of amd-smi."""
    return any(map(_TITLE[AMD].search, paste.squeezed))


def read_rocm(paste: Paste) -> Described:
    """The box of rocm-smi's tables; raises InputError."""
    return _read(paste, ROCM)


def read_amd(paste: Paste) -> Described:
    """The box of amd-smi's tables; raises InputError."""
    return _read(paste, AMD)


def _read(paste: Paste, kind: str) -> Described:
    def title_of(line: str) -> str | None:
        match = _TITLE[kind].search(line)
        return None if match is None else match[1].lower()

    tables: dict[str, Grid] = {}
    warnings: list[str] = []
    for grid in grids(paste, title_of, _NAME[kind]):
        if grid.title in tables:
            warnings.append(f"line {grid.line + 1} begins another table of the same kind, which is not used")
        else:
            tables[grid.title] = grid
    advice = f"run {kind} > topology.txt and import that file"
    types = tables.get("link type")
    if types is None:
        paste.fail(f"lacks the table of link types ({kind}), perhaps cut off; {advice}")
    gpus = _gpus(paste, [*tables.values()], types, kind, advice)
    for (left, right), word in types.cells.items():
        if (word in _SELF) != (left == right) or (left != right and word not in ("XGMI", "PCIE")):
            expected = "0 or SELF" if left == right else "XGMI or PCIE"
            paste.fail(f"row {left}, column {right} is {word!r}; expected {expected}, {advice}", types.line)
    for grid in tables.values():
        if grid.lost:
            warnings.append(
                f"rows of {names(grid.lost)} in the table of {grid.title} at line {grid.line + 1} are not whole"
            )
    lanes, rates, relayed = {}, {}, 0
    for a, left in enumerate(gpus):
        for b, right in enumerate(gpus[a + 1 :], a + 1):
            words = set(types.both(left, right))
            if len(words) != 1:
                what = "nothing says how" if not words else f"{' and '.join(sorted(words))} are said of how"
                paste.fail(f"{what} {left} and {right} are joined; expected one type, {advice}", types.line)
            if words != {"XGMI"}:
                continue
            if "hops" in tables and set(tables["hops"].both(left, right)) - {"1"}:
                relayed += 1
                continue
            lanes[a, b] = 1
            rate = _rate(tables.get("numa bw"), left, right)
            if rate is not None:
                rates[a, b] = rate
    if relayed:
        warnings.append(f"{relayed} pairs reach each other over more than one hop and have no link of their own")
    places, at = _sockets(paste, gpus, types)
    same = set(rates.values()) if len(rates) == len(lanes) else set()
    if "numa bw" in tables and len(rates) != len(lanes):
        warnings.append(f"the table of bandwidths tells only {len(rates)} of {len(lanes)} links and is not used")
    own = {pair: rates[pair] for pair in lanes} if len(same) > 1 else {}
    most = max((sum(gpu in pair for pair in lanes) for gpu in range(len(gpus))), default=0)
    generation, why = _generation(most, paste.text) if lanes else (None, "")
    if lanes:
        warnings.append("the table does not tell how many lanes join two GPUs; one is assumed")
    return Described(
        kind=kind,
        gpus=tuple(Gpu(name, at[number]) for number, name in enumerate(gpus)),
        places=places,
        lanes={} if own else lanes,
        directed_gb_s={way: rate for (a, b), rate in own.items() for way in ((a, b), (b, a))},
        family="xgmi" if lanes else "",
        generation=generation,
        why=why,
        lane_gb_s=same.pop() if len(same) == 1 else None,
        warnings=tuple(warnings),
    )


def _gpus(paste: Paste, tables: Sequence[Grid], types: Grid, kind: str, advice: str) -> list[str]:
    """All GPUs that any table names, which must be numbered without a gap, or be those of all tables."""
    gpus = list(dict.fromkeys(name for grid in (types, *tables) for name in grid.names))
    if all(name.startswith("GPU") for name in gpus):
        gpus.sort(key=lambda name: int(name[3:]))
        for number, name in enumerate(gpus):
            if name != f"GPU{number}":
                paste.fail(f"names {names(gpus)} but not GPU{number}; expected all GPUs, {advice}", types.line)
    for grid in tables:
        if set(grid.names) != set(gpus):
            other = next(name for name in gpus if name not in grid.names)
            paste.fail(f"the table of {grid.title} lacks {other}, which another names; {advice}", grid.line)
    return gpus


def _rate(grid: Grid | None, left: str, right: str) -> float | None:
    """GB/s of a pair in the table of bandwidths, whose cells are least-most in MB/s."""
    found = [] if grid is None else [re.fullmatch(r"(\d{1,9})-(\d{1,9})", cell) for cell in grid.both(left, right)]
    most = {int(match[2]) for match in found if match}
    return most.pop() / 1000 if len(most) == 1 and max(most) > 0 else None


def _sockets(paste: Paste, gpus: Sequence[str], types: Grid) -> tuple[tuple[Place, ...], list[int]]:
    """A socket for each NUMA node of rocm-smi's last part; one for all where there is none."""
    said = re.findall(r"GPU\s*\[?(\d+)\]?\s*:\s*\(Topology\) Numa Node:\s*(\d+)", paste.text)
    nodes = {f"GPU{gpu}": node for gpu, node in said}
    order = sorted({nodes.get(name, "") for name in gpus}, key=lambda node: (len(node), node))
    places = tuple(Place(f"socket{number}", None) for number in range(len(order)))
    return places, [order.index(nodes.get(name, "")) for name in gpus]


def _generation(most: int, text: str) -> tuple[str, str]:
    model = generation_of_text(text)
    if model is not None and model[0].startswith("gfx"):
        return model[0], f"the text names {model[1]}"
    if most >= 6:
        return "gfx942", f"told by {most} links a GPU"
    return ("gfx908" if most == 3 else "gfx90a"), f"a guess from {most} links a GPU"
