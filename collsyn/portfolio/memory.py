"""Results of searches, kept in the cache folder: the same problem again is answered at once, and judged again.

`COLLSYN_RESULTS` names another folder for them, or `off`. Entries are archives of `result.json` and `schedule.npz`.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import collsyn
from collsyn.check.verify import verify_schedule
from collsyn.errors import CollsynError, InputError
from collsyn.files import digest, write_atomic
from collsyn.model.collective_file import collective_document
from collsyn.model.schedule import Schedule
from collsyn.model.schedule_file import schedule_bytes, schedule_from_bytes
from collsyn.model.topology_file import topology_digest, topology_document
from collsyn.portfolio.candidates import Candidate
from collsyn.runtime.native_loader import cache_folder
from collsyn.synth.problem import Options, Problem

SCHEMA = "collsyn-result/1"
SUFFIX = ".result"
# Beyond so many bytes in all, results that were not asked for longest are removed.
MAX_BYTES = 1 << 30
_DATE = (1980, 1, 1, 0, 0, 0)
_NUMBERS = ("plan_s", "synthesis_s", "verify_s", "finish_s", "bound_s")
_TEXTS = ("refused", "cut")


class Memory:
    """Results in a folder (None: nothing is kept). Any number of processes may use one at a time."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def usual(cls) -> "Memory":
        """That of the user."""
        named = os.environ.get("COLLSYN_RESULTS", "")
        if named.lower() in ("off", "none", "0"):
            return cls(None)
        return cls(Path(named) if named else cache_folder() / "results")

    def file(self, problem: Problem, options: Options, method: str, plans: bool | None) -> Path | None:
        """Where the result of a problem is or would be kept, by all that it depends on, this code among it."""
        if self.folder is None or options.sketch is not None:
            return None
        key = {
            "code": fingerprint(),
            "topology": topology_document(problem.topology),
            "collective": collective_document(problem.collective()),
            "chunks_per_rank": problem.chunks_per_rank,
            "size_bytes": problem.size_bytes,
            "method": method,
            "options": {
                row.name: repr(getattr(options, row.name)) for row in fields(options) if row.name != "progress"
            },
            "plans": plans,
        }
        return self.folder / f"{problem.kind}-{digest(json.dumps(key, sort_keys=True))}{SUFFIX}"

    def recall(self, file: Path | None, problem: Problem) -> tuple[list[Candidate] | None, str | None]:
        """The candidates in a file, the first with its schedule, found right anew; or None, and why if damaged."""
        if file is None or not file.is_file():
            return None, None
        try:
            found = _read(file)
            schedule = found[0].schedule
            assert schedule is not None
            _require_same(schedule, problem)
            verify_schedule(schedule).raise_if_bad(str(file))
            os.utime(file)
        except (CollsynError, OSError) as error:
            return None, f"{error}; it is made anew"
        return found, None

    def keep(self, file: Path | None, candidates: Sequence[Candidate]) -> str | None:
        """Keep a result unless Ctrl-C or a process that went down cut it short; a sentence where that cannot be."""
        first = candidates[0]
        if file is None or first.schedule is None or any(each.interrupted or each.lost for each in candidates):
            return None
        try:
            write_atomic(file, _content(candidates, first.schedule))
            self._make_room()
        except (CollsynError, OSError) as error:
            return f"not kept for later: {error}"
        return None

    def entries(self) -> list[tuple[Path, int, float]]:
        """File, bytes and time of last use of what is kept, the latest first."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}") if self.folder is not None else ():
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # removed by somebody else since
            found.append((path, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda entry: (-entry[2], entry[0].name))

    def clear(self) -> int:
        """Remove everything; the number of results."""
        entries = self.entries()
        for path, _, _ in entries:
            path.unlink(missing_ok=True)
        return len(entries)

    def _make_room(self) -> None:
        total = 0
        for number, (path, size, _) in enumerate(self.entries()):
            total += size
            if number and total > MAX_BYTES:
                path.unlink(missing_ok=True)


@cache
def fingerprint() -> str:
    """Names the code that runs: its version, and size and time of every source file."""
    root = Path(collsyn.__file__).parent
    files = sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)
    rows = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return digest(json.dumps([collsyn.__version__, rows]))


def _content(candidates: Sequence[Candidate], schedule: Schedule) -> bytes:
    rows = [_row(candidate) for candidate in candidates]
    archive_bytes = io.BytesIO()
    with zipfile.ZipFile(archive_bytes, "w") as archive:
        archive.writestr(zipfile.ZipInfo("result.json", _DATE), json.dumps({"schema": SCHEMA, "candidates": rows}))
        archive.writestr(zipfile.ZipInfo("schedule.npz", _DATE), schedule_bytes(schedule, "schedule.npz"))
    return archive_bytes.getvalue()


def _row(candidate: Candidate) -> dict[str, Any]:
    numbers = {name: getattr(candidate, name) for name in _NUMBERS if candidate.served or name != "finish_s"}
    texts = {name: getattr(candidate, name) for name in _TEXTS}
    return {
        "method": candidate.method,
        **texts,
        **numbers,
        "not_needed": candidate.not_needed,
        "chunks_per_rank": candidate.chunks_per_rank,
    }


def _read(file: Path) -> list[Candidate]:
    """The candidates of a file; raises InputError for whatever is wrong with it."""
    try:
        with zipfile.ZipFile(file) as archive:
            document = json.loads(archive.read("result.json"))
            schedule = schedule_from_bytes(archive.read("schedule.npz"), f"{file}:schedule.npz")
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}")
        found = [_candidate(row) for row in document["candidates"]]
        return [replace(found[0], schedule=schedule), *found[1:]]
    except InputError:
        raise
    except Exception as error:
        # Damaged bytes fail in zipfile, zlib or json, or leave keys out: whichever way, it is no result.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{file}: is not a whole result ({reason})") from None


def _candidate(row: Mapping[str, Any]) -> Candidate:
    numbers = {name: None if row.get(name) is None else float(row[name]) for name in _NUMBERS}
    return Candidate(
        str(row["method"]),
        refused=row["refused"],
        cut=row["cut"],
        plan_s=numbers["plan_s"],
        synthesis_s=numbers["synthesis_s"] or 0.0,
        verify_s=numbers["verify_s"] or 0.0,
        finish_s=float("inf") if numbers["finish_s"] is None else numbers["finish_s"],
        bound_s=numbers["bound_s"],
        not_needed=bool(row["not_needed"]),
        chunks_per_rank=row["chunks_per_rank"],
    )


def _require_same(schedule: Schedule, problem: Problem) -> None:
    """Raise InputError unless a schedule is one of the problem that it is kept for."""
    sized = problem.at_size()
    own, asked = dict(schedule.collective.spec), dict(problem.collective().spec)
    if problem.chunks_per_rank is None:
        own.pop("chunks_per_rank", None)
        asked.pop("chunks_per_rank", None)
    same = own == asked and schedule.size_bytes == problem.size_bytes
    if not same or topology_digest(schedule.topology) != topology_digest(sized.topology):
        raise InputError("result: is of another problem")
