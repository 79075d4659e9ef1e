"""The text of a preset: `NAME[:DIMS][@key=value,...]`, such as torus:4x4@bandwidth_gb_s=100/50,overhead=alpha."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from collsyn.errors import InputError
from collsyn.topology.wiring import Costs

COST_KEYS = ("bandwidth_gb_s", "alpha_us", "overhead")


@dataclass(frozen=True)
class Spec:
    """The parts of a preset's text; option values are text still."""

    text: str
    name: str
    dims: tuple[int, ...]
    options: Mapping[str, str]

    def fail(self, what: str) -> NoReturn:
        """Raise InputError about this preset."""
        raise InputError(f"{self.text}: {what}")

    def check_options(self, known: Iterable[str]) -> None:
        """Raise InputError for an option that is not among those known."""
        keys = list(known)
        for key in self.options:
            if key not in keys:
                self.fail(f"option {key!r} is not known; {suggestion(key, keys)}")

    def values(self, key: str, count: int, zero_allowed: bool) -> tuple[float, ...] | None:
        """Numbers of an option, one a dimension (`a/b/c`, or one for all of `count`); None where it was not given."""
        if key not in self.options:
            return None
        parts = self.options[key].split("/")
        if len(parts) not in (1, count):
            per = f"1 or {count} (one a dimension)" if count > 1 else "1"
            self.fail(f"{key} has {len(parts)} values; expected {per}")
        numbers = tuple(self._number(key, part, zero_allowed) for part in parts)
        return numbers * count if len(numbers) == 1 else numbers

    def _number(self, key: str, part: str, zero_allowed: bool) -> float:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
            self.fail(f"{key} is {part!r}; expected a number {'of at least' if zero_allowed else 'above'} 0")
        return value

    def overheads(self, count: int) -> tuple[float, ...] | None:
        """Microseconds of the option `overhead` a dimension, infinite for the word alpha; None if it was not given."""
        if "overhead" not in self.options:
            return None
        words, parts = {"none": 0.0, "alpha": math.inf}, self.options["overhead"].split("/")
        if len(parts) not in (1, count) or not all(
            part in words or re.fullmatch(r"[\d.eE+-]+", part) for part in parts
        ):
            self.fail(f"overhead is {self.options['overhead']!r}; expected none, alpha or microseconds")
        values = tuple(words[part] if part in words else self._number("overhead", part, True) for part in parts)
        return values * count if len(values) == 1 else values

    def costs(self, count: int) -> tuple[Costs, ...]:
        """Costs of `count` dimensions, the defaults where nothing is said."""
        default = Costs()
        bandwidths = self.values("bandwidth_gb_s", count, zero_allowed=False) or (default.bandwidth_gb_s,) * count
        alphas = self.values("alpha_us", count, zero_allowed=True) or (default.alpha_us,) * count
        overheads = self.overheads(count) or (default.overhead_us,) * count
        self.check_overheads(overheads, alphas)
        return tuple(
            Costs(bandwidth, alpha, min(overhead, alpha))
            for bandwidth, alpha, overhead in zip(bandwidths, alphas, overheads, strict=True)
        )

    def check_overheads(self, overheads: Iterable[float], alphas: Iterable[float]) -> None:
        """Raise InputError for an overhead that is larger than every alpha; elsewhere a link's alpha caps it."""
        most = max(alphas)
        for overhead in overheads:
            if most < overhead < math.inf:
                self.fail(f"overhead is {overhead:g} us; expected at most alpha_us, which is {most:g}")


def preset_name(text: str) -> str:
    """The NAME of a preset's text."""
    return re.split("[:@]", text.strip(), maxsplit=1)[0]


def parse_spec(text: str) -> Spec:
    """The parts of a preset's text; raises InputError for text of another shape."""
    text = text.strip()
    head, at, tail = text.partition("@")
    name, colon, dims = head.partition(":")
    if colon and not re.fullmatch(r"\d{1,9}(x\d{1,9})*", dims, re.ASCII):
        raise InputError(f"{text}: dimensions are {dims!r}; expected whole numbers like 8 or 4x4")
    options: dict[str, str] = {}
    for part in tail.split(",") if at else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise InputError(f"{text}: option {part!r} is not key=value, like alpha_us=0.7")
        if key in options:
            raise InputError(f"{text}: option {key!r} is given twice")
        options[key] = value
    return Spec(text, name, tuple(int(size) for size in dims.split("x")) if colon else (), options)


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` where a known word is near, else all the known words."""
    names = list(known)
    near = get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
