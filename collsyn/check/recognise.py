"""Reads a file that holds a schedule or a plan, told by what is in it and not by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model import plan_file, schedule_file
from collsyn.model.fields import Fields, parse_document
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule


@dataclass(frozen=True)
class Content:
    """A file that was read: where from, its bytes, and its fields if it is a JSON or YAML document."""

    path: Path
    raw: bytes
    fields: Fields | None

    @classmethod
    def of(cls, path: Path) -> "Content":
        """Read a file; raises InputError if it cannot be read, or looks like a document but is none."""
        raw = read_bytes(path)
        return cls(path, raw, None if raw[:2] == b"PK" or raw.lstrip()[:1] == b"<" else parse_document(raw, str(path)))

    @property
    def schema(self) -> str:
        """The schema that a document names, or nothing."""
        value = self.fields.peek("schema") if self.fields is not None else None
        return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Format:
    """A kind of file: its name, how it is told from others, and how it is read (InputError where it cannot be)."""

    kind: str
    matches: Callable[[Content], bool]
    read: Callable[[Content], Schedule | Plan]


def _from_fields(read: Callable[[Fields], Schedule | Plan]) -> Callable[[Content], Schedule | Plan]:
    def apply(content: Content) -> Schedule | Plan:
        assert content.fields is not None
        return read(content.fields)

    return apply


# In the order in which they are tried; a foreign format is one more row.
FORMATS: tuple[Format, ...] = (
    Format("schedule", lambda c: c.raw[:2] == b"PK", lambda c: schedule_file.read_schedule(c.path)),
    Format("schedule", lambda c: c.schema == schedule_file.SCHEMA, _from_fields(schedule_file.schedule_from_fields)),
    Format("plan", lambda c: c.schema == plan_file.SCHEMA, _from_fields(plan_file.plan_from_fields)),
)


def read_any(path: str | Path) -> tuple[str, Schedule | Plan]:
    """Kind and content of a schedule or plan file; raises InputError, which says what else the file is if known."""
    content = Content.of(Path(path))
    for known in FORMATS:
        if known.matches(content):
            return known.kind, known.read(content)
    kinds = " or ".join(f"a {kind}" for kind in dict.fromkeys(known.kind for known in FORMATS))
    if content.schema.startswith("collsyn-"):
        raise InputError(f"{path}:schema: is {content.schema}; expected {kinds}")
    raise InputError(f"{path}: has no schema that is known here; expected {kinds}")
