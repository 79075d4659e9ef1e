"""Pastes made readable: decoding, escape codes, line ends and typographers' spaces, with the numbers of lines kept."""

import html
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from collsyn.errors import InputError
from collsyn.files import digest

# A debug log of a large job is tens of megabytes; anything beyond is no paste.
MAX_BYTES = 64 << 20

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles of terminals
    r"|(?:\x1b|\^\[|\u241b)\[[0-?]*[ -/]*[@-~]"  # colours and cursor, also with the escape written out
    r"|\x1b[@-_]"
    r"|\[\d{1,3}(?:;\d{1,3})*m"  # colours whose escape character was lost
    r"|[\u200b-\u200f\u2060\ufeff\x00-\x08\x0e-\x1f\x7f]"
)
# Pages that were saved rather than copied.
_HTML = re.compile(r"&nbsp;|&lt;(?:system|graphs)\b")
_SPACES = re.compile(r"[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_DASHES = re.compile(r"[\u2010-\u2015\u2212]")


@dataclass(frozen=True)
class Paste:
    """A text and where it is from; `file` is only used in messages, `hash` names the bytes in provenance.

    `cut` says that the last line has no end, so that its last word may be half of one.
    """

    file: str
    hash: str
    lines: tuple[str, ...]
    cut: bool

    @cached_property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    @cached_property
    def squeezed(self) -> tuple[str, ...]:
        """The lines with single spaces, in which titles are looked for."""
        return tuple(" ".join(line.split()) for line in self.lines)

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raise InputError about the text, or about a line of it (0 is the first)."""
        raise InputError(f"{self.file}: {what}" if line is None else f"{self.file}:line {line + 1}: {what}")


def paste(raw: bytes, file: str) -> Paste:
    """The lines of a file without escape codes; raises InputError for what is no text."""
    if len(raw) > MAX_BYTES:
        raise InputError(f"{file}: is larger than {MAX_BYTES >> 20} MiB; expected the output of one command")
    text = _decoded(raw, file)
    if _HTML.search(text):
        text = html.unescape(text)
    text = _DASHES.sub("-", _SPACES.sub(" ", _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))))
    if not text.strip():
        raise InputError(f"{file}: is empty")
    return Paste(file, digest(raw), tuple(text.split("\n")), not text.endswith("\n"))


def _decoded(raw: bytes, file: str) -> str:
    for mark, name in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig")):
        if raw.startswith(mark):
            return raw.decode(name, errors="replace")
    if raw.count(b"\0") > len(raw) // 100:
        raise InputError(f"{file}: is not a text file")
    return raw.decode("utf-8", errors="replace")
