"""What all pictures share: formats, looks, and files that are the same bytes each time; matplotlib is imported here."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collsyn.errors import InputError
from collsyn.files import require_writable, write_atomic
from collsyn.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
WIDTH_IN = 8.4
INK, FAINT, LINES, PAPER = "#222222", "#666666", "#c8c8c8", "#ffffff"
# Okabe and Ito's colours, which people see apart however they see colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DOTS_PER_INCH = 160
_LONGEST_TITLE = 72
_STYLE: dict[Any, Any] = {
    # Text stays text in an SVG; Verdana has the widths of DejaVu Sans, and one of the two is nearly everywhere.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "svg.fonttype": "none",
    # Names may hold a dollar sign.
    "text.parse_math": False,
    "font.size": 8.0,
    "text.color": INK,
    "axes.edgecolor": LINES,
    "axes.labelcolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINES,
    "xtick.labelcolor": FAINT,
    "ytick.color": LINES,
    "ytick.labelcolor": FAINT,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "collsyn",
}


def require_picture(path: str | Path) -> None:
    """Raise the InputError of drawing now rather than after long work: a wrong suffix or folder, no matplotlib."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: is no picture that can be drawn; expected a name with {' or '.join(FORMATS)}")
    require_writable(path)
    if find_spec("matplotlib") is None:
        raise InputError("pictures need matplotlib, which is not installed; pip install 'collsyn[plot]'")


@contextmanager
def sheet(path: str | Path, height_in: float) -> Iterator["Figure"]:
    """An empty white figure, written to the file when the block has ended well.

    The same drawing gives the same bytes: no date, no random ids, and no settings of the user's. No display is needed.
    """
    require_picture(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH_IN, height_in), facecolor=PAPER)
        yield figure
        write_atomic(path, _rendered(figure, Path(path).suffix.lower().lstrip(".")))


def place(figure: "Figure", left_in: float, bottom_in: float, width_in: float, height_in: float) -> "Axes":
    """New axes at a place in inches from the lower left of the figure."""
    wide, tall = figure.get_size_inches()
    return figure.add_axes((left_in / wide, bottom_in / tall, width_in / wide, height_in / tall))


def heading(figure: "Figure", title: str, line: str) -> None:
    """Title and a line of explanation at the upper left, in the uppermost half inch."""
    height_in = figure.get_figheight()
    left = 0.1 / figure.get_figwidth()
    shown = title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 3]}..."
    figure.text(left, 1 - 0.10 / height_in, shown, fontsize=10, fontweight="bold", va="top")
    figure.text(left, 1 - 0.31 / height_in, line, color=FAINT, va="top")


def unit_of_time(longest_s: float) -> tuple[str, float]:
    """A unit that suits times up to the longest, and how many of it are a second."""
    for name, per_s in (("s", 1.0), ("ms", 1e3)):
        if longest_s * per_s >= 1:
            return name, per_s
    return "µs", 1e6


def time_text(time_s: float) -> str:
    """A time with four digits and the unit that suits it."""
    name, per_s = unit_of_time(time_s)
    return f"{time_s * per_s:.4g} {name}"


def size_text(size_bytes: int) -> str:
    """A size as prose has it: 64 MiB, 1 KB, 100 bytes."""
    text = format_size(size_bytes)
    letters = text.lstrip("0123456789")
    return f"{text.removesuffix(letters)} {letters + 'iB' if len(letters) == 1 else letters or 'bytes'}"


def _rendered(figure: "Figure", kind: str) -> bytes:
    """The figure as a file of that kind."""
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": "collsyn"} if kind == "svg" else {"Software": "collsyn"}
    figure.savefig(out, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return out.getvalue()
