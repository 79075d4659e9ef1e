"""The formats that `collsyn export` writes: a name, and what makes its files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from collsyn.errors import InputError
from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule

# Name -> "module:function", an Exporter; loaded when it is asked for. A new format is one more row.
FORMATS: dict[str, str] = {
    "msccl-xml": "collsyn.export.msccl_export:export",
    "mscclpp-json": "collsyn.export.mscclpp_export:export",
    "chakra": "collsyn.export.chakra:export",
    "chrome-trace": "collsyn.export.chrome_trace:export",
    "json": "collsyn.export.plain_json:export",
    "tuner-csv": "collsyn.export.tuner_csv:export",
}

# What fields of Options are called on the command line, where that differs.
_OPTIONS = {"protocol": "proto", "min_bytes": "min-size", "max_bytes": "max-size", "size_bytes": "size"}


@dataclass(frozen=True)
class Options:
    """What was asked for; None is the format's own choice. A format refuses what it has no use for (`refuse`).

    Sizes are in bytes; `max_bytes` 0 is no end. `as_set` says that a folder is wanted, with what belongs to it.
    `borders` are the sizes at which each schedule of an algorithm set gives way to the next.
    """

    dialect: str | None = None
    protocol: str | None = None
    in_place: bool | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    size_bytes: int | None = None
    instances: int | None = None
    max_channels: int | None = None
    as_set: bool = False
    borders: tuple[int, ...] | None = None

    def refuse(self, format_name: str, *names: str) -> None:
        """Raise InputError if one of these options was given."""
        for name in names:
            if getattr(self, name) is not None:
                option = _OPTIONS.get(name, name)
                raise InputError(f"--{option.replace('_', '-')}: {format_name} has none; leave it out")


def executable(plan: Plan) -> Plan:
    """The plan, if other runtimes can run it: none has the two sets of scratch that plans need which run ahead."""
    if plan.runs_ahead:
        raise InputError(
            f"plan {plan.name}: runs_ahead, which other runtimes do not; export its schedule, or lower with ahead=False"
        )
    return plan


@dataclass(frozen=True)
class Exported:
    """A file to write: its name if nobody names it, its content, and facts about it for people and scripts."""

    name: str
    content: bytes
    facts: dict[str, Any] = field(default_factory=dict)


class Exporter(Protocol):
    """Makes the files of a format; raises InputError for what the format cannot say."""

    def __call__(self, sources: Sequence[tuple[Path, Schedule | Plan]], options: Options) -> list[Exported]: ...


def exporter(name: str) -> Exporter:
    """What writes a format; raises InputError for an unknown name."""
    if name not in FORMATS:
        raise InputError(f"--format: {name!r} is not known; expected one of {', '.join(FORMATS)}")
    module, _, function = FORMATS[name].partition(":")
    return cast(Exporter, getattr(import_module(module), function))
