"""What the environment says about a job: the machine, the algorithms, and how strict to be."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from collsyn.comm.algorithms import LENT, AlgorithmSet
from collsyn.errors import InputError
from collsyn.model.topology import Topology
from collsyn.model.topology_file import topology_document
from collsyn.topology.resolve import load_topology

# For whatever no rule serves: allreduces whose result has the same bits on every rank, for replicas of a model must not
# drift apart. (In a one-shot allreduce each rank adds up in an order of its own.)
_DEFAULTS = (
    ("allreduce", 256 << 10, inf, LENT),
    ("allreduce", 0.0, 8 << 20, "recursive"),
    ("allreduce", 0.0, 256 << 10, "direct"),
    ("allreduce", 0.0, inf, "ring"),
    ("allreduce", 0.0, inf, "direct"),
)
PROFILE = "collsyn-out/profile.yaml"
SEARCHES = ("off", "background", "wait")
_SEARCH_LIMIT_S = 30.0


@dataclass(frozen=True, eq=False)
class Settings:
    """Of one rank.

    `summary` holds what must be equal on all ranks, by the variable that says it. `search` is when schedules are
    searched for (one of SEARCHES), each for at most `search_limit_s` seconds. `emulation_factor` says by how much
    slower than it is the topology is to be emulated, None not at all.
    """

    topology: Topology | None
    algorithms: AlgorithmSet
    is_strict: bool
    search: str
    search_limit_s: float
    emulation_factor: float | None
    summary: dict[str, str]


def read_settings(num_ranks: int, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings for a job of so many ranks; raises InputError, which begins with the variable's name."""
    topology = _topology(num_ranks, environment)
    folder = environment.get("COLLSYN_SCHEDULES", "")
    is_strict = _switch("COLLSYN_STRICT", environment)
    algorithms = _algorithms(folder, is_strict)
    search = environment.get("COLLSYN_SYNTHESIS", "") or ("off" if topology is None else "background")
    if search not in SEARCHES:
        raise InputError(f"COLLSYN_SYNTHESIS: is {search!r}; expected one of {', '.join(SEARCHES)}")
    factor = _number("COLLSYN_EMULATE", environment)
    if factor is not None and topology is None:
        raise InputError("COLLSYN_EMULATE: needs a machine to emulate; name it in COLLSYN_TOPOLOGY")
    settings = Settings(
        topology=topology,
        algorithms=algorithms,
        is_strict=is_strict,
        search=search,
        search_limit_s=_number("COLLSYN_SYNTHESIS_LIMIT", environment) or _SEARCH_LIMIT_S,
        emulation_factor=factor,
        summary={},
    )
    settings.summary.update(
        COLLSYN_TOPOLOGY="none" if topology is None else f"{topology.name} (hash {_hash(topology_document(topology))})",
        COLLSYN_SCHEDULES=f"{folder} (hash {_hash(_contents(folder))})" if folder else "none",
        COLLSYN_SYNTHESIS=search,
        COLLSYN_EMULATE="no" if factor is None else f"{factor:g}",
        COLLSYN_STRICT=str(int(settings.is_strict)),
    )
    return settings


def _topology(num_ranks: int, environment: Mapping[str, str]) -> Topology | None:
    """The machine that was named, else that of the profile of as many ranks in this folder, if there is one."""
    named, subset = environment.get("COLLSYN_TOPOLOGY", ""), environment.get("COLLSYN_SUBSET", "")
    if not named:
        if subset:
            raise InputError("COLLSYN_SUBSET: needs COLLSYN_TOPOLOGY")
        found = _named(PROFILE) if Path(PROFILE).is_file() else None
        return found if found is not None and found.num_ranks == num_ranks else None
    topology = _named(named)
    if subset:
        topology = _subset(topology, subset)
    if topology.num_ranks != num_ranks:
        hint = "" if subset else "; COLLSYN_SUBSET=0,1,... takes some of them"
        raise InputError(
            f"COLLSYN_TOPOLOGY: {topology.name} has {topology.num_ranks} ranks, this job {num_ranks}{hint}"
        )
    return topology


def _named(text: str) -> Topology:
    try:
        return load_topology(text)
    except InputError as error:
        raise InputError(f"COLLSYN_TOPOLOGY: {error}") from None


def _subset(topology: Topology, text: str) -> Topology:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"COLLSYN_SUBSET: is {text!r}; expected ranks such as 0,1,4")
    try:
        return topology.subset([int(part) for part in parts])
    except InputError as error:
        raise InputError(f"COLLSYN_SUBSET: {error}") from None


def _algorithms(folder: str, is_strict: bool) -> AlgorithmSet:
    try:
        given = AlgorithmSet.from_folder(folder) if folder else AlgorithmSet()
    except InputError as error:
        raise InputError(f"COLLSYN_SCHEDULES: {error}") from None
    return AlgorithmSet(given.rules, AlgorithmSet.of(_DEFAULTS).rules, is_closed=bool(folder) and is_strict)


def _contents(folder: str) -> list[str]:
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(Path(folder).iterdir()) if file.is_file()]


def _switch(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "") or "0"
    if text not in ("0", "1"):
        raise InputError(f"{name}: is {text!r}; expected 0 or 1")
    return text == "1"


def _number(name: str, environment: Mapping[str, str]) -> float | None:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InputError(f"{name}: is {text!r}; expected a number above 0")
    return number


def _hash(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()[:12]
