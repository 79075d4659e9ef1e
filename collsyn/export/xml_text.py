"""Reads the plain XML of collective runtimes: elements and attributes, no entities, every element with its line."""

import re
from dataclasses import dataclass, field

from collsyn.errors import InputError

# Far beyond any real file; what is longer is refused before it is looked through.
MAX_BYTES = 64 << 20
MAX_DEPTH = 16

_NAME = re.compile(r"[A-Za-z_][\w.:-]*")
_ATTRIBUTE = re.compile(r'\s+([A-Za-z_][\w.:-]*)\s*=\s*"([^"<]*)"')
_CLOSE = re.compile(r"\s*>")
_OPEN_END = re.compile(r"\s*(/?)>")


@dataclass(slots=True, eq=False)
class Element:
    """One element: its name, its attributes as text, its line (counted from 1), and the elements in it."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)


def parse_xml(raw: bytes, where: str) -> Element:
    """The root element of a document; raises InputError that names file and line.

    There is no document type, no entity, no CDATA and no text between elements: the runtimes' own parsers know none,
    and nothing is ever expanded. O(bytes).
    """
    if len(raw) > MAX_BYTES:
        raise InputError(f"{where}: has {len(raw)} bytes; expected at most {MAX_BYTES}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not text: byte {error.start} is not UTF-8") from None
    return _Reader(text, where).read()


class _Reader:
    """Position in the text, with lines counted as it moves on."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._at = self._counted = 0
        self._line = 1

    def read(self) -> Element:
        """The whole document."""
        root: Element | None = None
        open_elements: list[Element] = []
        while self._skip():
            if self._text.startswith("</", self._at):
                self._close(open_elements)
                continue
            element, is_empty = self._open()
            if open_elements:
                open_elements[-1].children.append(element)
            elif root is not None:
                raise self._error(f"a second root element <{element.name}>; expected the end of the file")
            else:
                root = element
            if not is_empty:
                open_elements.append(element)
                if len(open_elements) > MAX_DEPTH:
                    raise self._error(f"elements nest deeper than {MAX_DEPTH}; expected a list of steps")
        if open_elements:
            last = open_elements[-1]
            raise self._error(f"the file ends inside <{last.name}> of line {last.line}; expected </{last.name}>")
        if root is None:
            raise self._error("there is no element; expected one")
        return root

    def _skip(self) -> bool:
        """Move on to the next tag, past blanks, comments and declarations; False at the end."""
        while True:
            begin = self._text.find("<", self._at)
            between = self._text[self._at : begin if begin >= 0 else len(self._text)]
            if between.strip():
                raise self._error(f"text {between.strip()[:20]!r} between elements; expected <")
            if begin < 0:
                return False
            self._at = begin
            for opening, closing in (("<!--", "-->"), ("<?", "?>")):
                if self._text.startswith(opening, begin):
                    end = self._text.find(closing, begin + len(opening))
                    if end < 0:
                        raise self._error(f"{opening} has no {closing}")
                    self._at = end + len(closing)
                    break
            else:
                return True

    def _open(self) -> tuple[Element, bool]:
        """The tag here, and whether it is complete in itself."""
        name = _NAME.match(self._text, self._at + 1)
        if name is None:
            raise self._error(f"{self._text[self._at : self._at + 12]!r}; expected an element such as <step ...>")
        element = Element(name[0], {}, self._line_here())
        at = name.end()
        while (match := _ATTRIBUTE.match(self._text, at)) is not None:
            key, value = match[1], match[2]
            if key in element.attributes:
                raise self._error(f"<{element.name}> has {key} twice; expected it once")
            if "&" in value:
                raise self._error(f"{key} has an entity; the readers expand none: write the character itself")
            element.attributes[key] = value
            at = match.end()
        end = _OPEN_END.match(self._text, at)
        if end is None:
            found = self._text[at : at + 20].split("\n")[0]
            raise self._error(f'<{element.name}> has {found!r}; expected NAME="VALUE" or the end of the tag')
        self._at = end.end()
        return element, bool(end[1])

    def _close(self, open_elements: list[Element]) -> None:
        name = _NAME.match(self._text, self._at + 2)
        end = None if name is None else _CLOSE.match(self._text, name.end())
        if name is None or end is None:
            raise self._error("a closing tag that is none; expected </NAME>")
        if not open_elements or open_elements[-1].name != name[0]:
            expected = f"</{open_elements[-1].name}>" if open_elements else "no closing tag"
            raise self._error(f"</{name[0]}>; expected {expected}")
        open_elements.pop()
        self._at = end.end()

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _error(self, what: str) -> InputError:
        return InputError(f"{self._where}:{self._line_here()}: {what}")
