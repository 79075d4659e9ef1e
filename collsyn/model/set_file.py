"""Files of algorithm sets: an archive of `set.json` and schedule files as they are (docs/formats/schedule-set.md)."""

import io
import json
import zipfile
from pathlib import Path

from collsyn.errors import InputError
from collsyn.files import read_bytes, write_atomic
from collsyn.model.fields import parse_document
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import SET_HEADER, schedule_bytes, schedule_from_bytes
from collsyn.model.schedule_set import ScheduleSet

SCHEMA = "collsyn-schedule-set/1"
SUFFIX = ".set"
HEADER = SET_HEADER
# Schedules of more sends are columns inside.
MAX_JSON_SENDS = 20_000
MAX_ENTRIES = 1000
# So that equal sets are equal files.
_DATE = (1980, 1, 1, 0, 0, 0)


def is_set(path: str | Path) -> bool:
    """Whether a file is an archive with the header of a set."""
    try:
        with open(path, "rb") as stream:
            return stream.read(2) == b"PK" and HEADER in zipfile.ZipFile(stream).namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def write_set(schedules: ScheduleSet, path: str | Path) -> None:
    """Write a set, whole or not at all; equal sets give equal bytes."""
    write_atomic(path, set_bytes(schedules))


def set_bytes(schedules: ScheduleSet) -> bytes:
    """The content of a file."""
    stream = io.BytesIO()
    names = [f"{n}.{'json' if s.num_sends <= MAX_JSON_SENDS else 'npz'}" for n, s in enumerate(schedules.schedules)]
    entries = [{"from_bytes": first, "file": name} for first, name in zip(schedules.from_bytes, names, strict=True)]
    header = {"schema": SCHEMA, "entries": entries, "provenance": dict(schedules.provenance)}
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(HEADER, _DATE), json.dumps(header, indent=2) + "\n")
        for name, schedule in zip(names, schedules.schedules, strict=True):
            archive.writestr(zipfile.ZipInfo(name, _DATE), schedule_bytes(schedule, name))
    return stream.getvalue()


def read_set(path: str | Path) -> ScheduleSet:
    """The set in a file; raises InputError that names file, member and key."""
    content = read_bytes(path)
    members = _members(content, str(path))
    fields = parse_document(members[HEADER], f"{path}:{HEADER}")
    fields.text("schema", choices=[SCHEMA])
    first, schedules = [], []
    for entry in fields.each("entries"):
        first.append(entry.integer("from_bytes", minimum=0))
        schedules.append(_member(members, entry.text("file"), str(path)))
        entry.done()
    provenance = fields.mapping("provenance", default={})
    fields.done()
    try:
        return ScheduleSet(tuple(schedules), tuple(first), provenance)
    except InputError as error:
        raise InputError(f"{path}:{HEADER}:{error}") from None


def _members(content: bytes, file: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if len(names) > MAX_ENTRIES or any(info.compress_type for info in archive.infolist()):
                raise InputError(f"{file}: is no set as collsyn writes them; expected a few members, none compressed")
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, EOFError) as error:
        raise InputError(f"{file}: is not a whole set ({error}); is it damaged or cut off?") from None


def _member(members: dict[str, bytes], name: str, file: str) -> Schedule:
    if name not in members or name == HEADER:
        raise InputError(f"{file}:{HEADER}: names {name!r}, which is not in the set")
    return schedule_from_bytes(members[name], f"{file}:{name}")
