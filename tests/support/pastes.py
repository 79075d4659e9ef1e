"""Outputs of other programs made from what they are to say, in the many forms in which people paste them."""

from dataclasses import dataclass, field

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@dataclass
class Matrix:
    """What `nvidia-smi topo -m` is to say: words of pairs of devices (GPUs first), and the socket of each GPU."""

    gpus: int
    words: dict[tuple[int, int], str]
    cards: tuple[str, ...] = ()
    sockets: tuple[int, ...] = ()
    cores: int = 16
    other: str = "SYS"
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [*(f"GPU{number}" for number in range(self.gpus)), *self.cards]
        self.sockets = self.sockets or (0,) * self.gpus

    def word(self, a: int, b: int) -> str:
        """The cell of a pair."""
        return "X" if a == b else self.words.get((min(a, b), max(a, b)), self.other)

    def table(self) -> list[list[str]]:
        """Header and rows as lists of cells; what is empty is an empty text."""
        rows = [["", *self.names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
        for a, name in enumerate(self.names):
            cells = [self.word(a, b) for b in range(len(self.names))]
            tail = ["", "", ""]
            if a < self.gpus:
                first = self.sockets[a] * self.cores
                tail = [f"{first}-{first + self.cores - 1}", str(self.sockets[a]), "N/A"]
            rows.append([name, *cells, *tail])
        return rows

    def lanes(self) -> dict[tuple[int, int], int]:
        """NVLinks of pairs of GPUs."""
        return {pair: int(word[2:]) for pair, word in self.words.items() if word.startswith("NV")}


def tabs(matrix: Matrix) -> str:
    """As the tool prints it."""
    return "\n".join("\t".join(f" {c} " if c == "X" else c for c in row) for row in matrix.table()) + "\n" + LEGEND


def spaces(matrix: Matrix) -> str:
    """As a terminal shows it: columns of eight."""
    lines = ["".join(f"{c:<8}" for c in row).rstrip() for row in matrix.table()]
    return "$ nvidia-smi topo -m\n" + "\n".join(lines) + "\n"


def escapes(matrix: Matrix) -> str:
    """With an underlined header, double tabs before the last column, and logs around."""
    head, *rows = tabs(matrix).replace("\tN/A", "\t\tN/A").split("\n")
    shown = "\t\x1b[4m" + head.lstrip("\t") + "\x1b[0m"
    return "--- topology\n" + "\n".join([shown, *rows]) + "\n--- kernel log\nAug 1 12:00:00 node kernel: GPU0 is fine\n"


def windows(matrix: Matrix) -> str:
    """With CRLF and a byte order mark, and without the cells that are empty."""
    return "\ufeff" + "\r\n".join("   ".join(c for c in row if c) for row in matrix.table()) + "\r\n"


def markdown(matrix: Matrix) -> str:
    """As a table of Markdown whose affinities come first."""
    rows = [[*row[-3:-1], *row[:-3]] for row in matrix.table()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def boxed(matrix: Matrix) -> str:
    """As another vendor's tool draws it, with `Device 0` for GPU0."""
    rows = [[c.replace("GPU", "Device ") if not c.endswith("ID") else c for c in row] for row in matrix.table()]
    width = max(len(c) for row in rows for c in row)
    line = "+" + "+".join("-" * (width + 2) for _ in rows[0]) + "+"
    return "\n".join([line, *("| " + " | ".join(f"{c:<{width}}" for c in row) + " |" for row in rows), line]) + "\n"


def quoted(matrix: Matrix) -> str:
    """As a reply quotes it, and indented."""
    return "\n".join("> " + line if line else ">" for line in spaces(matrix).split("\n")) + "\n"


def wrapped(matrix: Matrix, width: int = 40) -> str:
    """As a narrow window breaks it."""
    lines = []
    for row in matrix.table():
        line = ""
        for cell in (" ".join(row)).split():
            if len(line) + len(cell) + 1 > width:
                lines.append(line)
                line = ""
            line += (" " if line else "") + cell
        lines.append(line)
    return "\n".join(lines) + "\n"


STYLES = {f.__name__: f for f in (tabs, spaces, escapes, windows, markdown, boxed, quoted, wrapped)}


def cube_mesh() -> Matrix:
    """Eight GPUs of six links each in two squares, four cards beside two GPUs each."""
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    words = dict.fromkeys(double, "NV2") | dict.fromkeys(single, "NV1")
    for card in range(4):
        side = 4 * (card // 2)
        words |= {(gpu, 8 + card): "PIX" if gpu // 2 == card else "PHB" for gpu in range(side, side + 4)}
        words |= {(8 + card, 8 + other): "PHB" for other in range(card + 1, 2 * (card // 2) + 2)}
    return Matrix(8, words, tuple(f"mlx5_{k}" for k in range(4)), (0,) * 4 + (1,) * 4)


def switched(gpus: int = 8, lanes: int = 12, cards: int = 0) -> Matrix:
    """GPUs on a switch; card k is under a bridge with GPU k."""
    words = {(a, b): f"NV{lanes}" for a in range(gpus) for b in range(a + 1, gpus)}
    sockets = tuple(2 * gpu // gpus for gpu in range(gpus))
    for card in range(cards):
        for gpu in range(gpus):
            if sockets[gpu] == sockets[card]:
                words[gpu, gpus + card] = "PXB" if gpu == card else "NODE"
        words |= {(gpus + card, gpus + k): "NODE" for k in range(card + 1, cards) if sockets[k] == sockets[card]}
    return Matrix(gpus, words, tuple(f"NIC{k}" for k in range(cards)), sockets)


def bridged() -> Matrix:
    """Four GPUs in two pairs, each pair with a bridge, on two host bridges of one socket."""
    words = {(0, 2): "NV4", (1, 3): "NV4", (0, 1): "PHB", (2, 3): "PHB"}
    return Matrix(4, words, sockets=(0,) * 4, other="NODE")


def plain(word: str, gpus: int = 4) -> Matrix:
    """GPUs without NVLink, all pairs of which are alike."""
    return Matrix(gpus, {}, other=word)


def old() -> Matrix:
    """Two boards of two GPUs as an old driver names them, with a card."""
    words = {(0, 1): "PIX", (2, 3): "PIX", **{(gpu, 4): "PHB" for gpu in (0, 1)}, **{(gpu, 4): "SOC" for gpu in (2, 3)}}
    return Matrix(4, words, ("mlx4_0",), (0, 0, 1, 1), other="SOC")


def topology_xml(
    gpus: int = 4,
    link: str = "nvlink",
    pairs: dict[tuple[int, int], int] | None = None,
    switch: int = 0,
    kind: str = 'sm="80"',
    speed: str = "16.0 GT/s PCIe",
    mbit_s: int = 200000,
    elements: bool = True,
) -> str:
    """A topology file: a GPU and a card under a bridge each, half of them on each socket.

    `pairs` are links between GPUs, `switch` the links of each GPU to two chips that are not in the file; without
    `elements` it is classes only, as clouds ship it.
    """

    def bus(gpu: int) -> str:
        return f"0000:{16 * (gpu + 1):02x}:00.0"

    lines = ['<system version="1">']
    for socket in (0, 1):
        lines.append(f'  <cpu numaid="{socket}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">')
        for gpu in (gpu for gpu in range(gpus) if 2 * gpu // gpus == socket):
            size = f'link_speed="{speed}" link_width="16"'
            lines.append(f'    <pci busid="0000:{16 * (gpu + 1) + 8:02x}:00.0" class="0x060400" {size}>')
            head = f'      <pci busid="{bus(gpu)}" class="0x030200" {size}'
            joined = [
                (bus(b if a == gpu else a), count, "0x030200")
                for (a, b), count in (pairs or {}).items()
                if gpu in (a, b)
            ]
            if switch:
                joined += [(f"0000:c{chip}:00.0", switch // 2, "0x068000") for chip in (0, 1)]
            if elements:
                lines += [f"{head}>", f'        <gpu dev="{gpu}" {kind} rank="{gpu}" gdr="1">']
                lines += [f'          <{link} target="{t}" count="{c}" tclass="{k}"/>' for t, c, k in joined]
                lines += ["        </gpu>", "      </pci>"]
                net = f'<net name="mlx5_{gpu}" dev="{gpu}" speed="{mbit_s}" port="1"/>'
                lines.append(f'      <pci busid="0000:{16 * (gpu + 1) + 4:02x}:00.0" class="0x020700" {size}>')
                lines += [f"        <nic>{net}</nic>", "      </pci>"]
            else:
                lines.append(f"{head}/>")
                lines.append(f'      <pci busid="0000:{16 * (gpu + 1) + 4:02x}:00.0" class="0x020700" {size}/>')
            lines.append("    </pci>")
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def rocm(types: list[list[str]], hops: list[list[str]] | None = None, nodes: list[int] | None = None) -> str:
    """`rocm-smi --showtopo` with these words between GPUs."""
    n = len(types)
    text = "==== ROCm System Management Interface ====\n"
    for title, table in (("Hops", hops), ("Link Type", types)):
        if table is not None:
            text += f"==== {title} between two GPUs ====\n       " + "".join(f"GPU{i:<10}" for i in range(n)) + "\n"
            for i, row in enumerate(table):
                text += f"GPU{i:<4}" + "".join(f"{'0' if i == j else word:<13}" for j, word in enumerate(row)) + "\n"
            text += "\n"
    for gpu, node in enumerate(nodes or []):
        text += f"GPU[{gpu}]\t\t: (Topology) Numa Node: {node}\n"
    return text + "==== End of ROCm SMI Log ====\n"


def p2p(
    gb_s: list[list[float]], latency_us: float | None = None, title: str = "P2P=Enabled Bandwidth (P2P Writes)"
) -> str:
    """`p2pBandwidthLatencyTest` with these bandwidths."""
    n = len(gb_s)
    columns = "".join(f"{i:7d}" for i in range(n))
    text = f"[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nUnidirectional {title} Matrix (GB/s)\n   D\\D{columns}\n"
    for i, row in enumerate(gb_s):
        text += f"{i:6d} " + " ".join(f"{rate:6.2f}" for rate in row) + "\n"
    if latency_us is not None:
        for title, corner in (("P2P=Disabled Latency", "GPU"), ("P2P=Enabled Latency (P2P Writes)", "GPU")):
            text += f"{title} Matrix (us)\n   {corner}{columns}\n"
            factor = 5 if "Disabled" in title else 1
            for i in range(n):
                text += f"{i:6d} " + " ".join(f"{1.5 if i == j else latency_us * factor:6.2f}" for j in range(n)) + "\n"
            text += "\n   CPU" + columns + "\n"
    return text


def nccl_log(
    rows: list[tuple[int, float]],
    ranks: int,
    factor: float,
    test: str = "all_reduce",
    redop: str = "sum",
    prefix: str = "",
    say_ranks: bool = False,
) -> str:
    """A log of nccl-tests: sizes and microseconds, busbw `factor` times algbw."""
    lines = [f"# Collective test starting: {test}_perf" if test else "# nThread 1 nGpus 1 minBytes 8"]
    if say_ranks:
        lines += [f"#  Rank {r:2d} Group  0 Pid {100 + r} on node device {r % 8:2d} [0x01] GPU" for r in range(ranks)]
    lines += [
        "#                                            out-of-place                       in-place",
        "#       size     count  type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong",
        "#        (B)  (elements)                    (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)",
    ]
    for size, us in rows:
        algbw = size / us / 1e3
        half = f"{us:8.2f} {algbw:6.2f} {algbw * factor:6.2f}      0"
        lines.append(f"{size:12d} {size // 4:9d} float {redop:>6} {-1:5d} {half} {half}")
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0"]
    return "".join(f"{prefix}{line}\n" for line in lines)
