"""From what people write for a topology (a preset's text or a file's path) to the topology."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model import profile, topology_file
from collsyn.model.fields import Fields, load_document, parse_document
from collsyn.model.topology import Topology
from collsyn.topology import machine_file
from collsyn.topology.machine import machine_topology
from collsyn.topology.presets import is_preset, preset_topology
from collsyn.topology.spec import Spec

if TYPE_CHECKING:
    from collsyn.topology.imports.assemble import Options
    from collsyn.topology.imports.baseline import Baseline
    from collsyn.topology.imports.recognise import Hints

FILE_SUFFIXES = (".yaml", ".yml", ".json")


def load_topology(text: str) -> Topology:
    """The topology that a text names: a preset, or the path of a file.

    Raises InputError that begins with the text or the file's name. A text that begins with a preset's name is a preset;
    otherwise an existing file, or what looks like a path, is one.
    """
    if not text.strip() or not text.isprintable():
        raise InputError(f"topology {text!r} is neither a preset nor a file")
    if not is_preset(text) and _is_path(text):
        return read_topology_file(text)
    return preset_topology(text)


def load_profile(text: str) -> profile.Profile | None:
    """The profile in the file that a text names, None where it names something else; raises InputError."""
    if is_preset(text) or not _is_path(text) or not os.path.isfile(text):
        return None
    fields = load_document(text)
    return profile.profile_from_fields(fields) if fields.peek("schema") == profile.SCHEMA else None


def read_topology_file(path: str | Path) -> Topology:
    """The topology in a file: of its own, as a profile measured it, one box of a machine, or what import makes of it.

    Raises InputError.
    """
    if not _is_document(path):
        from collsyn.topology.imports.recognise import import_topology

        return import_topology(path)
    return _topology_of(load_document(path))


def import_named(
    sources: Sequence[tuple[bytes, str]], options: "Options", hints: "Hints"
) -> "Topology | profile.Profile | Baseline":
    """What `topology import` makes of files (bytes, and name for messages); topology files stay as they are."""
    from collsyn.topology.imports.assemble import Options
    from collsyn.topology.imports.recognise import import_files

    content, file = sources[0]
    if not _looks_like_document(content[: 1 << 16]):
        return import_files(sources[0], sources[1:], options, hints)
    if len(sources) > 1 or options != Options():
        raise InputError(f"{file}: is a file of collsyn, which is taken as it is; expected output of another program")
    return _topology_of(parse_document(content, file))


def _topology_of(fields: Fields) -> Topology:
    schema = fields.peek("schema")
    if schema == profile.SCHEMA:
        from collsyn.topology.imports.assemble import measured_topology

        measured = profile.profile_from_fields(fields)
        with fields.named():
            return measured_topology(measured)
    if schema == machine_file.SCHEMA:
        found = machine_file.machine_from_fields(fields)
        return machine_topology(found, Spec(found.name, found.name, (), {}))
    if schema != topology_file.SCHEMA:
        fields.fail(
            "schema",
            f"is {schema!r}; expected {topology_file.SCHEMA}, {profile.SCHEMA} or {machine_file.SCHEMA}",
        )
    return topology_file.topology_from_fields(fields)


def _is_document(path: str | Path) -> bool:
    """Whether a file is YAML or JSON of collsyn, by its name or else by what is in it."""
    return str(path).lower().endswith(FILE_SUFFIXES) or _looks_like_document(read_bytes(path)[: 1 << 16])


def _looks_like_document(head: bytes) -> bool:
    if head.lstrip()[:1] == b"{":
        return b'"schema"' in head or b'"results"' not in head
    return re.search(rb"^[\"']?schema[\"']?\s*:", head, re.MULTILINE) is not None


def _is_path(text: str) -> bool:
    return text.lower().endswith(FILE_SUFFIXES) or os.sep in text or os.path.isfile(text)
