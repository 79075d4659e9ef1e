"""`nvidia-smi topo -m` as people paste it, and tables of the same form of other vendors' tools.

Cells are matched to columns by their order and by the X of the row's own column, never by tabs: pastes squeeze, wrap,
cut and box the table. What a row lost is taken from the other half of the matrix, which is symmetric; what is in
neither half is either told by an NVSwitch or refused.
"""

import re
from collections import Counter
from collections.abc import Mapping

from collsyn.topology.imports.described import Card, Described, Gpu, names
from collsyn.topology.imports.links import MAX_LANES, generation_of_text
from collsyn.topology.imports.nvidia_table import Block, Row, blocks, is_gpu
from collsyn.topology.imports.pcie import LEVELS, SOCKET, tree
from collsyn.topology.imports.text import Paste

KIND = "nvidia-smi topo -m"
ADVICE = "run nvidia-smi topo -m > matrix.txt and import that file"
MAX_GPUS = 1024


def matches(paste: Paste) -> bool:
    """Whether there is a matrix of links or of peer access."""
    return any(any(is_gpu(label) for label in block.rows) for block in blocks(paste))


def read(paste: Paste) -> Described:
    """The box of the first matrix of links; raises InputError that names line and what is missing."""
    found = blocks(paste)
    links = [block for block in found if not block.is_status and any(is_gpu(label) for label in block.rows)]
    if not found:
        paste.fail(f"has no row of a matrix; {ADVICE}")
    if not links:
        line = found[0].line if found and found[0].line is not None else None
        paste.fail(f"is a matrix of peer access (nvidia-smi topo -p2p), which names no links; {ADVICE}", line)
    warnings = []
    for other in links[1:]:
        first = min(row.line for row in other.rows.values())
        warnings.append(f"line {first + 1} begins another matrix, which is not used")
    matrix = _Matrix(paste, links[0], warnings)
    status = [block for block in found if block.is_status]
    for block in status[:1]:
        bad = sum(cell not in (None, "X", "OK") for row in block.rows.values() for cell in row.cells)
        if bad:
            warnings.append(
                f"the matrix of peer access says other than OK for {bad} pairs: copies may go through memory"
            )
    return matrix.described()


class _Matrix:
    """The cells of one block, put in their columns and compared with their mirror images."""

    def __init__(self, paste: Paste, block: Block, warnings: list[str]) -> None:
        self.paste, self.block, self.warnings = paste, block, warnings
        self.devices = self._devices()
        self.index = {name: number for number, name in enumerate(self.devices)}
        self.gpus = gpus = sorted(filter(is_gpu, self.devices), key=lambda name: int(name[3:]))
        self.cards = [name for name in self.devices if not is_gpu(name)]
        expected = [f"GPU{number}" for number in range(len(gpus))]
        if gpus != expected:
            missing = next((name for name in expected if name not in gpus), expected[-1])
            paste.fail(f"names {names(gpus)} but not {missing}; expected all GPUs from GPU0 on, {ADVICE}", block.line)
        if len(gpus) > MAX_GPUS:
            paste.fail(f"names {len(gpus)} GPUs; expected at most {MAX_GPUS}", block.line)
        self.cell: dict[tuple[str, str], str] = {}
        for row in block.rows.values():
            self._place(row)

    def _devices(self) -> list[str]:
        """Names of all columns in order: those of the header, else told by where the rows have their X."""
        block, paste = self.block, self.paste
        twice = [name for name, number in Counter(block.header).items() if number > 1]
        if twice:
            paste.fail(f"names {twice[0]} twice in its header; {ADVICE}", block.line)
        spots = dict(enumerate(block.header))
        for row in block.rows.values():
            if row.label in block.header:
                continue
            at = row.cells.index("X") if "X" in row.cells else None
            if at is None or at in spots:
                what = f"is not among the columns {names(spots.values())}" if spots else "has no X in its own column"
                paste.fail(f"row {row.label} {what}; {ADVICE}", row.line)
            spots[at] = row.label
        self._name_the_rest(spots)
        if block.header and not block.titles:
            self.warnings.append("the header has no CPU Affinity, so the table may be cut at the right")
        if not block.header:
            gpus = sum(map(is_gpu, spots.values()))
            self.warnings.append(f"the header is missing: the {gpus} GPUs that the rows tell of may not be all")
        return [spots[at] for at in sorted(spots)]

    def _name_the_rest(self, spots: dict[int, str]) -> None:
        """Names of columns that have neither header nor row: GPUs, where one with a higher number follows."""
        width = max([*(at + 1 for at in spots), *(len(row.cells) for row in self.block.rows.values())])
        first = min((at - int(name[3:]) for at, name in spots.items() if is_gpu(name)), default=0)
        last = max((at for at, name in spots.items() if is_gpu(name)), default=-1)
        for at in (at for at in range(width) if at not in spots):
            name = f"GPU{at - first}"
            if not first <= at < last or name in spots.values():
                self.paste.fail(
                    f"has {width} columns, but neither a name nor a row for column {at + 1}; {ADVICE}", self.block.line
                )
            spots[at] = name

    def _place(self, row: Row) -> None:
        """Give the cells of a row to columns, as far as order and the X say which is which."""
        n, at = len(self.devices), self.index[row.label]
        cells: list[str | None] = list(row.cells)
        if row.open_end and len(cells) <= n and not row.affinity:
            cells = cells[:-1] if len(cells) < n or cells[-1] != "X" else cells
        x = cells.index("X") if "X" in cells else None
        if "X" in cells and cells.count("X") > 1:
            self.paste.fail(f"row {row.label} has more than one X; {ADVICE}", row.line)
        if len(cells) == n and x == at:
            placed = dict(enumerate(cells))
        elif x == at:
            placed = dict(enumerate(cells[: at + 1]))
            if row is [*self.block.rows.values()][-1] or self._all_short(row):
                placed = dict(enumerate(cells))  # cut at the right: what is there is in order
        elif x is not None and len(cells) - x == n - at:
            placed = {at + offset: cell for offset, cell in enumerate(cells[x:])}
        elif x is None and len(cells) <= at:
            placed = dict(enumerate(cells)) if row is [*self.block.rows.values()][-1] or self._all_short(row) else {}
        else:
            placed = {}
        lost = n - sum(cell is not None for cell in placed.values())
        if lost:
            self.warnings.append(f"line {row.line + 1}: {lost} of the {n} cells of row {row.label} are missing")
        for column, cell in placed.items():
            if cell is not None and column < n:
                self.cell[row.label, self.devices[column]] = cell

    def _all_short(self, row: Row) -> bool:
        """Whether all rows end after as many cells: a table cut at the right."""
        return len({len(other.cells) for other in self.block.rows.values()}) == 1 and len(row.cells) < len(self.devices)

    def described(self) -> Described:
        """The box."""
        self._split_run_on()
        self._note_missing_rows()
        pairs = self._gpu_pairs()
        lanes = {pair: int(word[2:]) for pair, word in pairs.items() if word.startswith("NV")}
        for (a, b), count in lanes.items():
            if count > 2 * MAX_LANES:
                self.paste.fail(f"GPU{a} and GPU{b} have NV{count}, more than any GPU has; {ADVICE}", self.block.line)
        direct, hubs = split_hubs(len(self.gpus), lanes, self.paste)
        levels = self._levels(pairs)
        places, at = tree(len(self.gpus) + len(self.cards), levels)
        legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", self.paste.text, re.MULTILINE))
        n = len(self.gpus)
        cards = tuple(Card(legend.get(name, name), at[n + i]) for i, name in enumerate(self.cards))
        generation, why = generation_of_lanes(n, direct, hubs, self.paste.text)
        self._warn_of_hidden(pairs)
        return Described(
            kind=KIND,
            gpus=tuple(Gpu(name, at[i]) for i, name in enumerate(self.gpus)),
            places=places,
            cards=cards,
            lanes=direct,
            hubs=hubs,
            family="nvlink" if lanes else "",
            generation=generation,
            why=why,
            lane_gb_s=_lane_of_status(self.paste.text),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def _split_run_on(self) -> None:
        """Decide cells that ran into the affinity: NV12?0-31 by the mirror image, else by what the table holds."""
        known = Counter(word for word in self.cell.values() if "?" not in word)
        for (a, b), word in list(self.cell.items()):
            if "?" not in word:
                continue
            digits = word.replace("?", "")[2:]
            candidates = []
            for split in range(1, min(4, len(digits))):
                lanes, rest = digits[:split], digits[split:]
                if lanes.isdecimal() and int(lanes) <= MAX_LANES and re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", rest):
                    candidates.append(f"NV{int(lanes)}")
            mirrored = self.cell.get((b, a), "?")
            fits = [found for found in candidates if found == mirrored] or [c for c in candidates if known[c]]
            if len(fits) == 1:
                self.cell[a, b] = fits[0]
            else:
                del self.cell[a, b]
                self.warnings.append(f"the cell of {a} and {b} ran into the affinity and is not used")

    def _note_missing_rows(self) -> None:
        missing = [name for name in self.devices if name not in self.block.rows]
        if missing:
            self.warnings.append(f"rows of {names(missing)} are missing; told by the other rows")

    def _gpu_pairs(self) -> dict[tuple[int, int], str]:
        """The word of every pair of GPUs a < b; raises InputError where halves differ or nothing tells."""
        found: dict[tuple[int, int], str] = {}
        unknown = []
        for a, left in enumerate(self.gpus):
            for b, right in enumerate(self.gpus[a + 1 :], a + 1):
                words = {self.cell[key] for key in ((left, right), (right, left)) if key in self.cell}
                if len(words) > 1:
                    row = self.block.rows[left]
                    self.paste.fail(
                        f"{left} to {right} is {self.cell[left, right]}, but {right} to {left} is "
                        f"{self.cell[right, left]}; expected the same both ways, {ADVICE}",
                        row.line,
                    )
                if words:
                    found[a, b] = words.pop()
                else:
                    unknown.append((a, b))
        through = self._one_switch(found) if unknown else None
        for a, b in unknown:
            if through is None:
                rows = self.block.rows
                where = next((rows[self.gpus[g]].line for g in (a, b) if self.gpus[g] in rows), self.block.line)
                self.paste.fail(
                    f"cells are missing: nothing says how {self.gpus[a]} and {self.gpus[b]} are joined; {ADVICE}", where
                )
            found[a, b] = through
        if unknown:
            shown = names(f"{self.gpus[a]}-{self.gpus[b]}" for a, b in unknown)
            self.warnings.append(f"not in the paste, but on the same NVSwitch as all others: {shown}")
        return found

    def _one_switch(self, found: Mapping[tuple[int, int], str]) -> str | None:
        """What any two GPUs have that are on one switch for sure: one of them has more lanes to all than a GPU has."""
        for gpu in range(len(self.gpus)):
            words = {found.get((min(gpu, g), max(gpu, g)), "") for g in range(len(self.gpus)) if g != gpu}
            word = words.pop() if len(words) == 1 else ""
            if word.startswith("NV") and (len(self.gpus) - 1) * int(word[2:]) > MAX_LANES:
                return word
        return None

    def _levels(self, pairs: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], int]:
        """Level of every pair of devices, GPUs first, then cards; pairs with NVLink are as near as their affinity."""
        n = len(self.gpus)
        ordered = [*self.gpus, *self.cards]
        sockets = self._sockets()
        known = {key for key in sockets.values() if key}
        levels: dict[tuple[int, int], int] = {}
        unsure = []
        for a, left in enumerate(ordered):
            for b, right in enumerate(ordered[a + 1 :], a + 1):
                word = pairs.get((a, b)) if b < n else self._card_word(left, right)
                one_socket = sockets.get(left, "") == sockets.get(right, "")
                if word is None:
                    unsure += [f"{left}-{right}"] if a < n else []
                elif word.startswith("NV"):
                    if one_socket:
                        levels[a, b] = SOCKET
                else:
                    levels[a, b] = LEVELS.index("SYS" if word == "SOC" else word)
                # One affinity for all says nothing: a virtual machine's view.
                if one_socket and len(known) > 1 and sockets.get(left) and b < n:
                    levels[a, b] = min(levels.get((a, b), SOCKET), SOCKET)
        if unsure:
            self.warnings.append(f"how {names(unsure)} are joined is not in the paste; taken as SYS")
        return levels

    def _card_word(self, left: str, right: str) -> str | None:
        words = [self.cell[key] for key in ((left, right), (right, left)) if key in self.cell]
        if len(set(words)) > 1:
            self.warnings.append(f"{left} to {right} is {' one way and '.join(words)} the other; {words[0]} is taken")
        word = words[0] if words else None
        return word if word in LEVELS or word == "SOC" else None

    def _sockets(self) -> dict[str, str]:
        """What tells the socket of each GPU: the NUMA node if there is one, else the affinity."""
        numa = "NUMA_AFFINITY" in self.block.titles
        found = {}
        for name in self.gpus:
            row = self.block.rows.get(name)
            entries = [] if row is None else row.affinity
            numbered = entries[1] if numa and len(entries) > 1 and re.fullmatch(r"[\d,-]+", entries[1]) else None
            found[name] = numbered or (entries[0] if entries and entries[0].upper() != "N/A" else "")
        return found

    def _warn_of_hidden(self, pairs: Mapping[tuple[int, int], str]) -> None:
        words = set(pairs.values())
        few = 2 if words == {"SYS"} else 4
        if len(words) == 1 and not any(word.startswith("NV") for word in words) and len(self.gpus) >= few:
            self.warnings.append(
                f"all pairs of GPUs are {words.pop()} and none has NVLink: in a virtual machine NVLink may be hidden; "
                "measured bandwidths (collsyn profile, p2pBandwidthLatencyTest) would tell"
            )


def split_hubs(
    num_gpus: int, lanes: Mapping[tuple[int, int], int], paste: Paste
) -> tuple[dict[tuple[int, int], int], tuple[dict[int, int], ...]]:
    """Direct links and switches that counts of lanes between pairs mean.

    A GPU whose lanes to all others add up to more than a GPU has reaches them through a switch, with as many lanes as
    its widest pair. Raises InputError where the pairs on a switch do not fit to such lanes.
    """
    totals = [sum(count for pair, count in lanes.items() if gpu in pair) for gpu in range(num_gpus)]
    if max(totals, default=0) <= MAX_LANES:
        return dict(lanes), ()
    from collsyn.topology.imports.described import groups

    direct, hubs = {}, []
    for island in groups(num_gpus, lanes):
        inside = {pair: count for pair, count in lanes.items() if pair[0] in island}
        if max(totals[gpu] for gpu in island) <= MAX_LANES:
            direct.update(inside)
            continue
        ports = {gpu: max(count for pair, count in inside.items() if gpu in pair) for gpu in island}
        for a in island:
            for b in (other for other in island if other > a):
                count = inside.get((a, b), 0)
                if count != min(ports[a], ports[b]):
                    paste.fail(
                        f"GPU{a} and GPU{b} have {count} lanes, but {ports[a]} and {ports[b]} to others, more than "
                        f"{MAX_LANES} in all; expected a switch that all reach alike. {ADVICE}"
                    )
        hubs.append(ports)
    return direct, tuple(hubs)


def generation_of_lanes(
    num_gpus: int, direct: Mapping[tuple[int, int], int], hubs: tuple[Mapping[int, int], ...], text: str
) -> tuple[str | None, str]:
    """The generation that names of GPUs in the paste tell, else the most lanes of a GPU; and why."""
    if not direct and not hubs:
        return None, ""
    model = generation_of_text(text)
    if model is not None and not model[0].startswith("gfx"):
        return model[0], f"the text names {model[1]}"
    most = max(
        sum(count for pair, count in direct.items() if gpu in pair) + sum(hub.get(gpu, 0) for hub in hubs)
        for gpu in range(num_gpus)
    )
    why = f"told by {most} links a GPU"
    if most > 12:
        return "nvlink4", f"{why}; NVLink 5 has as many, of 50 GB/s"
    if most > 6:
        return "nvlink3", why
    bridged = all(sum(gpu in pair for pair in direct) <= 1 for gpu in range(num_gpus))
    if most == 4 and bridged and 4 in direct.values():
        return "bridge3", "told by bridges of 4 links"
    if most == 4 and set(direct.values()) == {1}:
        return "nvlink1", "told by 4 single links a GPU"
    return "nvlink2", why


def _lane_of_status(text: str) -> float | None:
    """GB/s of a link where the paste also has `nvidia-smi nvlink -s`, all links alike."""
    found = {float(rate) for rate in re.findall(r"^\s*Link \d+:\s*(\d+(?:\.\d+)?) GB/s", text, re.MULTILINE)}
    return found.pop() if len(found) == 1 and 0 < max(found) < 1000 else None
