"""XML of topology files: elements and attributes. Declarations and entities are refused, size and depth limited."""

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from collsyn.topology.imports.text import Paste

# NCCL's own reader stops at 1024 and depth 32 or so; a file of a large box has some hundred elements.
MAX_ELEMENTS = 100_000
MAX_DEPTH = 64


@dataclass
class Element:
    """An element, its attributes, what is in it, and the number of its line in the paste (0 is the first)."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def all(self, *tags: str) -> list["Element"]:
        """Direct children with one of some tags."""
        return [child for child in self.children if child.tag in tags]

    def integer(self, name: str) -> int | None:
        """An attribute that is a whole number (0x...: hexadecimal), else None."""
        text = self.attributes.get(name, "").strip()
        match = re.fullmatch(r"-?\d{1,12}|0x[0-9a-fA-F]{1,12}", text, re.ASCII)
        return None if match is None else int(text, 16 if text.startswith("0x") else 10)

    def number(self, name: str) -> float | None:
        """An attribute that is a number of at least 0, else None."""
        text = self.attributes.get(name, "").strip()
        return float(text) if re.fullmatch(r"\d{1,12}(\.\d{0,12})?", text, re.ASCII) else None


def root(paste: Paste, tag: str) -> Element:
    """The element `tag` of a paste, with whatever stands before and after it left out; raises InputError."""
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment.group().count("\n"), paste.text, flags=re.DOTALL)
    begin = re.search(rf"<{tag}[\s>/]", text)
    if begin is None:
        paste.fail(f"has no <{tag}> outside comments")
    if re.search(r"<!(DOCTYPE|ENTITY)", text):
        paste.fail("declares a document type or entities, which are not read; expected elements only")
    closing = f"</{tag}>"
    end = text.find(closing, begin.start())
    first = text.count("\n", 0, begin.start())
    body = text[begin.start() : len(text) if end < 0 else end + len(closing)]
    builder = _Builder(paste, first)
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: builder.start(name, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler = builder.end
    try:
        parser.Parse(body.encode("utf-8", errors="replace"), True)
    except expat.ExpatError as error:
        what = expat.errors.messages[error.code]
        cut = f"; is the file cut off? It has no {closing}" if end < 0 else ""
        paste.fail(f"is not well-formed XML ({what}){cut}", min(first + error.lineno - 1, len(paste.lines) - 1))
    assert builder.top is not None
    return builder.top


class _Builder:
    """Collects elements while the parser runs."""

    def __init__(self, paste: Paste, first: int) -> None:
        self.paste, self.first = paste, first
        self.top: Element | None = None
        self.open: list[Element] = []
        self.count = 0

    def start(self, tag: str, attributes: dict[str, str], line: int) -> None:
        self.count += 1
        at = self.first + line - 1
        if self.count > MAX_ELEMENTS or len(self.open) >= MAX_DEPTH:
            self.paste.fail(f"has more than {MAX_ELEMENTS} elements or {MAX_DEPTH} levels", at)
        element = Element(tag, attributes, at)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.top = element
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()
