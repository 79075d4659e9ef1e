"""Tables of links between devices in pastes: which lines are headers and rows, and which words are cells."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from collsyn.topology.imports.text import Paste

_LINK = r"X|NV[1-9]\d{0,2}|PIX|PXB|PHB|NODE|SYS|SOC"
# Most lines of a long log can be passed over at once.
_MAYBE = re.compile(r"(?:GPU|Device|NPU|DCU|XPU) ?\d|\b(?:NV\d|PIX|PXB|PHB|NODE|SYS|SOC|X|OK|CNS|GNS|TNS|NS)")
_CELLS = re.compile(rf"(?:{_LINK})+")
_CELL = re.compile(_LINK)
_RUN_ON = re.compile("((?:" + _LINK + r")*)(" + _LINK + r")([\d,-]*|N/A)")
_STATUS = re.compile(r"OK|CNS|GNS|TNS|NS|U|DR|NOK")
_GPU = re.compile(r"GPU\d{1,5}(?!\d)")
_GPUS = re.compile(r"(?:GPU\d{1,5}(?!\d))+")
_CARD = re.compile(r"(?=[\w.:-]*\d)[A-Za-z][\w.:-]*")
_AFFINITY = re.compile(r"[\d,-]+|N/A", re.IGNORECASE)
_TITLES = ("CPU_AFFINITY", "NUMA_AFFINITY", "GPU_NUMA_ID")
_BOXES = re.compile(r"[|\u2500-\u257f]|^\s*[+>]")


def is_gpu(name: str) -> bool:
    """Whether a name is that of a GPU: GPU0, GPU1, ..."""
    return _GPU.fullmatch(name) is not None


@dataclass
class Row:
    """A row as it stands: cells in order (None: unreadable), what follows or precedes them, and the number of its line.

    `open_end`: its last word may be half of one.
    """

    label: str
    line: int
    cells: list[str | None]
    affinity: list[str]
    open_end: bool = False


@dataclass
class Block:
    """One matrix of a paste: names of its columns (empty if the header is lost) and its rows by label."""

    header: list[str] = field(default_factory=list)
    line: int | None = None
    titles: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def is_status(self) -> bool:
        """Whether it is a matrix of peer access (nvidia-smi topo -p2p)."""
        cells = [cell for row in self.rows.values() for cell in row.cells if cell not in (None, "X")]
        return bool(cells) and all(_STATUS.fullmatch(cell or "") for cell in cells)


def blocks(paste: Paste) -> list[Block]:
    """All matrices of a paste, of links and of peer access."""
    found: list[Block] = []
    last: Row | None = None
    head = -1
    for number, line in enumerate(paste.lines):
        if not _MAYBE.search(line) and (last is None or number != last.line + 1) and "Affinity" not in line:
            last = None
            continue
        tokens = _tokens(line)
        header = _header(tokens)
        row = _row(tokens, number) if header is None else None
        if header is not None:
            if found and not found[-1].rows and found[-1].header and number == head + 1:
                found[-1].header += header[0]  # a header wrapped by a terminal
                found[-1].titles += header[1]
            else:
                found.append(Block(header[0], number, header[1]))
            last, head = None, number
        elif row is not None:
            row.open_end = paste.cut and number == len(paste.lines) - 1
            if not found or row.label in found[-1].rows:
                found.append(Block())
            found[-1].rows[row.label] = row
            last = row
        elif tokens and all(token in _TITLES for token in tokens) and found and not found[-1].rows:
            found[-1].titles += tokens
        elif last is not None and number == last.line + 1 and _is_continuation(tokens):
            more = _cells(tokens)
            last.cells += more[0]
            last.affinity += more[1]
            last.line = number
        else:
            last = None
    return [block for block in found if block.rows]


def _tokens(line: str) -> list[str]:
    """Words of a line; titles of several words are one, boxes are spaces, `Device 3` is GPU3."""
    line = _BOXES.sub(" ", line)
    for pattern, title in zip((r"CPU\s*Affinity", r"NUMA\s*Affinity", r"GPU\s*NUMA\s*ID"), _TITLES, strict=True):
        line = re.sub(pattern, f" {title} ", line, flags=re.IGNORECASE)
    line = re.sub(r"\b(?:Device|NPU|DCU|XPU|GPU)\s+(\d+)(?=\s|$|Device|GPU)", r"GPU\1 ", line)
    return [token.strip("`*\"'") or token for token in line.split()]


def _header(tokens: list[str]) -> tuple[list[str], list[str]] | None:
    """Columns and titles of affinities if a line is a header."""
    first = next((i for i, token in enumerate(tokens) if _GPUS.match(token)), None)
    titled = any(token in _TITLES for token in tokens)
    if first is None:
        return None
    columns: list[str] = []
    for position, token in enumerate(tokens[first:], first):
        if token in _TITLES or token in ("...", "…"):
            continue
        gpus = _GPUS.match(token)
        rest = token[gpus.end() :] if gpus else token
        if gpus:
            columns += _GPU.findall(gpus.group())
        if not rest:
            continue
        if _CELLS.fullmatch(rest) or _STATUS.fullmatch(rest):
            return None
        if not gpus and _CARD.fullmatch(rest):
            columns.append(rest)
        elif position != len(tokens) - 1 and not titled:
            return None  # a sentence about GPUs; half a word at the end is a cut header
    gpus_named = sum(is_gpu(column) for column in columns)
    # Anything like a card before the first GPU, such as a prompt, is no column; only rows tell of one.
    return (
        (columns, [token for token in tokens if token in _TITLES])
        if gpus_named > 1 or titled or len(tokens) == 1
        else None
    )


def _row(tokens: list[str], line: int) -> Row | None:
    """A row: a device followed by at least one cell."""
    for i, token in enumerate(tokens[:-1]):
        label = is_gpu(token) or _CARD.fullmatch(token)
        following = tokens[i + 1]
        cell = _CELLS.fullmatch(following) or _RUN_ON.fullmatch(following) or _STATUS.fullmatch(following)
        if label and cell and not _CELLS.fullmatch(token) and token not in _TITLES:
            cells, affinity = _cells(tokens[i + 1 :])
            before = [word for word in tokens[:i] if _AFFINITY.fullmatch(word)]
            return Row(token, line, cells, before + affinity)
    return None


def _is_continuation(tokens: list[str]) -> bool:
    return bool(tokens) and all(_CELLS.fullmatch(token) or _AFFINITY.fullmatch(token) for token in tokens)


def _cells(tokens: Iterable[str]) -> tuple[list[str | None], list[str]]:
    """Cells and affinities of the words behind a label; a word between cells that is none is an unreadable cell."""
    cells: list[str | None] = []
    affinity: list[str] = []
    waiting = 0
    for token in tokens:
        run_on = _RUN_ON.fullmatch(token)
        if _CELLS.fullmatch(token):
            cells += [None] * waiting + _CELL.findall(token)
            waiting = 0
        elif _STATUS.fullmatch(token):
            cells.append(token)
        elif run_on and run_on[3]:
            cells += [None] * waiting + _CELL.findall(run_on[1])
            # NV120-31 is NV12 and 0-31, or NV1 and 20-31; which one the other cells tell.
            cells.append(run_on[2] + ("?" + run_on[3] if run_on[2].startswith("NV") else ""))
            affinity.append(run_on[3])
            waiting = 0
        elif _AFFINITY.fullmatch(token):
            affinity.append(token)
        elif token == "=" or token.startswith("="):
            return [], []
        else:
            waiting += 1
    return cells, affinity
