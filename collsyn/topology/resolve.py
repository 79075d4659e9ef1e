"""From what people write for a topology (a preset's text or a file's path) to the topology."""

import os
from pathlib import Path

from collsyn.errors import InputError
from collsyn.model import profile, topology_file
from collsyn.model.fields import load_document
from collsyn.model.topology import Topology
from collsyn.topology import machine_file
from collsyn.topology.machine import machine_topology
from collsyn.topology.presets import is_preset, preset_topology
from collsyn.topology.spec import Spec

FILE_SUFFIXES = (".yaml", ".yml", ".json")


def load_topology(text: str) -> Topology:
    """The topology that a text names: a preset, or the path of a topology, profile or machine file.

    Raises InputError that begins with the text or the file's name. A text that begins with a preset's name is a preset;
    otherwise an existing file, or what looks like a path, is one.
    """
    if not text.strip() or not text.isprintable():
        raise InputError(f"topology {text!r} is neither a preset nor a file")
    if not is_preset(text) and _is_path(text):
        return read_topology_file(text)
    return preset_topology(text)


def read_topology_file(path: str | Path) -> Topology:
    """The topology in a file: of its own, as a profile measured it, or one box of a machine; raises InputError."""
    fields = load_document(path)
    schema = fields.peek("schema")
    if schema == profile.SCHEMA:
        return profile.profile_from_fields(fields).topology()
    if schema == machine_file.SCHEMA:
        found = machine_file.machine_from_fields(fields)
        return machine_topology(found, Spec(found.name, found.name, (), {}))
    if schema != topology_file.SCHEMA:
        fields.fail(
            "schema",
            f"is {schema!r}; expected {topology_file.SCHEMA}, {profile.SCHEMA} or {machine_file.SCHEMA}",
        )
    return topology_file.topology_from_fields(fields)


def _is_path(text: str) -> bool:
    return text.lower().endswith(FILE_SUFFIXES) or os.sep in text or os.path.isfile(text)
