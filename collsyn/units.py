"""Conversions between what people write (64M, 12.5 GB/s, 0.7 us) and the SI units that all code computes in."""

import math
import re
from fractions import Fraction

from collsyn.errors import InputError

_MULTIPLIER = {"": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _MULTIPLIER[_letter] = _MULTIPLIER[_letter + "IB"] = 1024**_power
    _MULTIPLIER[_letter + "B"] = 1000**_power
_MULTIPLIER["B"] = 1

# An exbibyte: beyond it byte counts leave what integers and floats of 64 bits can hold exactly.
MAX_SIZE_BYTES = 1 << 60

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?(?:I?B)?)\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes of a size as in nccl-tests: `1K` = `1KiB` = 1024, `1KB` = 1000.

    Raises InputError unless it is whole, above 0 and at most 1 EiB.
    """
    match = _SIZE.fullmatch(str(text))
    unit = match.group(2).upper() if match else ""
    if match is None or unit not in _MULTIPLIER:
        raise InputError(
            f"size {text!r} is not a size; expected a number with K, M, G (1024) or KB, MB, GB (1000), like 64M"
        )
    size = Fraction(match.group(1)) * _MULTIPLIER[unit]
    if size.denominator != 1 or size <= 0:
        raise InputError(f"size {text!r} must be a positive whole number of bytes")
    if size > MAX_SIZE_BYTES:
        raise InputError(f"size {text!r} is too large; expected at most {format_size(MAX_SIZE_BYTES)}")
    return int(size)


def format_size(size_bytes: int) -> str:
    """Shortest text that `parse_size` reads back to the same number, binary units preferred."""
    for base, suffix in ((1024, ""), (1000, "B")):
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if size_bytes and size_bytes % base**power == 0:
                return f"{size_bytes // base**power}{letter}{suffix}"
    return str(size_bytes)


def us_to_s(us: float) -> float:
    """Seconds of a number of microseconds, correctly rounded."""
    return us / 1e6


def s_to_us(s: float) -> float:
    """Microseconds of a number of seconds."""
    return s * 1e6


def gb_s_to_beta(gb_s: float) -> float:
    """Seconds per byte of a bandwidth in GB/s (10^9 bytes per second)."""
    return 1e-9 / gb_s


def beta_to_gb_s(beta_s_per_byte: float) -> float:
    """Bandwidth in GB/s (10^9 bytes per second) of an inverse bandwidth."""
    return 1e-9 / beta_s_per_byte


def rounded(value: float) -> float:
    """The number as files hold it: 14 significant digits, which undo the noise of converting units back and forth."""
    return float(f"{value:.14g}")


def tidy_beta(beta_s_per_byte: float) -> float:
    """The inverse bandwidth next to a computed one that files hold: what is proven of it is then true when reread."""
    return gb_s_to_beta(rounded(beta_to_gb_s(beta_s_per_byte)))


def exact_gb_s(beta_s_per_byte: float) -> Fraction:
    """Bandwidth in GB/s as the simplest fraction that the float can mean.

    Bounds are rational only if capacities are: 12.5 GB/s becomes 25/2 and 23 us/MB becomes 1000/23 GB/s, although
    neither inverse is a binary fraction. A measured value that no denominator up to 10^6 explains stays as it is.
    """
    gb_s = 1e-9 / beta_s_per_byte
    simple = Fraction(gb_s).limit_denominator(10**6)
    if simple > 0 and math.isclose(float(simple), gb_s, rel_tol=1e-14):
        return simple
    return Fraction(rounded(gb_s))
