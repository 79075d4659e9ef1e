"""The table of presets that are a formula, and how the text of any preset becomes a topology.

A new preset is a builder (sizes -> Wiring) and one row here; a new machine is one file in profiles/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from collsyn.data import data_file, data_names
from collsyn.errors import InputError
from collsyn.model.topology import Topology
from collsyn.topology import graphs, grids
from collsyn.topology.machine import Machine, machine_topology
from collsyn.topology.machine_file import read_machine
from collsyn.topology.spec import COST_KEYS, Spec, parse_spec, preset_name, suggestion
from collsyn.topology.wiring import Wiring


@dataclass(frozen=True)
class Preset:
    """A row of the table: `form` shows the dimensions, of which there are `num_sizes` (None: any number above 0)."""

    form: str
    summary: str
    build: Callable[[Sequence[int]], Wiring]
    num_sizes: int | None = 1


PRESETS: dict[str, Preset] = {
    "ring": Preset("ring:N", "a circle, links both ways", grids.ring),
    "full": Preset("full:N", "a link from every rank to every other", grids.full),
    "switch": Preset("switch:N", "ranks around one switch; a way is two links", graphs.switch),
    "mesh": Preset("mesh:AxBx...", "a grid, the first dimension counts fastest", grids.mesh, None),
    "torus": Preset("torus:AxBx...", "a grid closed to rings", grids.torus, None),
    "hypercube": Preset("hypercube:D", "2^D ranks, a dimension is a bit", grids.hypercube),
    "hetero3d": Preset("hetero3d:AxBxC", "ring x full x full, a rank's bandwidth per dimension", grids.hetero3d, 3),
    "kautz": Preset("kautz:DxK", "Kautz digraph K(D,K) of degree D, D^K (D+1) ranks", graphs.kautz, 2),
    "genkautz": Preset("genkautz:DxN", "generalised Kautz digraph of degree D, N ranks", graphs.genkautz, 2),
    "bipartite": Preset("bipartite:AxB", "complete bipartite graph", graphs.bipartite, 2),
    "petersen": Preset("petersen", "the Petersen graph, 10 ranks of degree 3", graphs.petersen, 0),
}


@dataclass(frozen=True)
class Entry:
    """A preset as lists show it: `kind` is formula or machine, `options` name its published instances."""

    name: str
    form: str
    kind: str
    summary: str
    options: tuple[str, ...] = ()


def catalogue() -> list[Entry]:
    """All presets in the order of `preset_names`."""
    formulas = [Entry(name, preset.form, "formula", preset.summary) for name, preset in PRESETS.items()]
    machines = [machine(name) for name in data_names("profiles")]
    return formulas + [Entry(m.name, m.form, "machine", m.summary, m.option_texts()) for m in machines]


def preset_names() -> list[str]:
    """Names of all presets: those of the table, then the machines of profiles/."""
    return [*PRESETS, *data_names("profiles")]


def is_preset(text: str) -> bool:
    """Whether a text begins with the name of a preset."""
    return preset_name(text) in preset_names()


@cache
def machine(name: str) -> Machine:
    """The machine of profiles/ of that name; raises InputError."""
    path = data_file("profiles", name)
    if path is None:
        raise InputError(f"machine {name!r} is not known; {suggestion(name, data_names('profiles'))}")
    return read_machine(path)


def preset_topology(text: str) -> Topology:
    """The topology of a preset's text; raises InputError that begins with the text."""
    spec = parse_spec(text)
    if spec.name not in preset_names():
        spec.fail(f"preset {spec.name!r} is not known; {suggestion(spec.name, preset_names())} (or a file)")
    if spec.name in PRESETS:
        return _parametric(spec, PRESETS[spec.name])
    return machine_topology(machine(spec.name), spec)


def _parametric(spec: Spec, preset: Preset) -> Topology:
    if len(spec.dims) != preset.num_sizes if preset.num_sizes is not None else not spec.dims:
        spec.fail(f"has {len(spec.dims) or 'no'} dimensions; expected {preset.form}")
    if 0 in spec.dims:
        spec.fail("has a dimension of size 0; expected at least 1")
    spec.check_options(COST_KEYS)
    # hypercube:D has D dimensions, the others one for each size that grids are made of.
    try:
        wiring = preset.build(spec.dims)
    except InputError as error:
        spec.fail(str(error))
    return wiring.topology(spec.text, spec.costs(len(wiring.share)))
