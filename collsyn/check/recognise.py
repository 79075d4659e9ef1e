"""Reads a file that holds a schedule, a plan or a foreign program, told by what is in it and not by its name."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from collsyn.check.large import listed
from collsyn.check.report import Report
from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model import plan_file, schedule_file
from collsyn.model.fields import Fields, parse_document
from collsyn.model.large_file import is_large, read_large
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.model.set_file import is_set


class Foreign(Protocol):
    """A program of another runtime, judged by that runtime's rules; to all others it is a plan."""

    def verify(self) -> Report:
        """All checks of the program."""

    def plan(self, size_bytes: int | None = None) -> Plan:
        """The plan that does the same, as it runs at a size; raises VerificationError where there is none."""


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

    @property
    def element(self) -> str:
        """The name of the first element of an XML document, or nothing."""
        found = None if self.fields is not None else re.search(rb"<([A-Za-z_][\w.-]*)", self.raw)
        return "" if found is None else found[1].decode()


@dataclass(frozen=True)
class Format:
    """A kind of file: its name, what messages call it, how it is told from others, and how it is read (InputError where
    it cannot be)."""

    kind: str
    title: str
    matches: Callable[[Content], bool]
    read: Callable[[Content], Schedule | Plan | Foreign]


def _from_fields(read: Callable[[Fields], Schedule | Plan]) -> Callable[[Content], Schedule | Plan]:
    def apply(content: Content) -> Schedule | Plan:
        assert content.fields is not None
        return read(content.fields)

    return apply


def _named(reader: str) -> Callable[[Content], Foreign]:
    """A reader of foreign files by its name, "module:function"; it takes bytes and a path. The packages that know
    foreign formats lie above this one, so that they are known here by name only, and loaded for such a file."""

    def apply(content: Content) -> Foreign:
        module, _, function = reader.partition(":")
        return cast(Foreign, getattr(import_module(module), function)(content.raw, str(content.path)))

    return apply


# In the order in which they are tried; a foreign format is one more row.
FORMATS: tuple[Format, ...] = (
    Format("schedule", "a schedule", lambda c: c.raw[:2] == b"PK", lambda c: schedule_file.read_schedule(c.path)),
    Format(
        "schedule",
        "a schedule",
        lambda c: c.schema == schedule_file.SCHEMA,
        _from_fields(schedule_file.schedule_from_fields),
    ),
    Format("plan", "a plan", lambda c: c.schema == plan_file.SCHEMA, _from_fields(plan_file.plan_from_fields)),
    Format("msccl-xml", "MSCCL XML", lambda c: c.element == "algo", _named("collsyn.export.msccl_check:read_msccl")),
    Format(
        "mscclpp-json",
        "MSCCL++ JSON",
        lambda c: c.fields is not None and not c.schema and isinstance(c.fields.peek("gpus"), list),
        _named("collsyn.export.mscclpp_check:read_mscclpp"),
    ),
)


def read_any(path: str | Path) -> tuple[str, Schedule | Plan]:
    """Kind and content of a file, a foreign program as the plan that it is; raises as `read_content`, and
    VerificationError where a foreign program is none."""
    kind, what = read_content(path)
    return kind, what if isinstance(what, Schedule | Plan) else what.plan()


def read_content(path: str | Path) -> tuple[str, Schedule | Plan | Foreign]:
    """Kind and content of a file; raises InputError, which says what else the file is if known.

    A large schedule is found right and listed send by send; raises as `listed`.
    """
    if is_large(path):
        return "schedule", listed(read_large(path), str(path))
    if is_set(path):
        raise InputError(f"{path}: is an algorithm set; expected one schedule or plan")
    content = Content.of(Path(path))
    for known in FORMATS:
        if known.matches(content):
            return known.kind, known.read(content)
    *others, last = dict.fromkeys(known.title for known in FORMATS)
    kinds = f"{', '.join(others)} or {last}"
    if content.schema.startswith("collsyn-"):
        raise InputError(f"{path}:schema: is {content.schema}; expected {kinds}")
    raise InputError(f"{path}: has no schema that is known here; expected {kinds}")
