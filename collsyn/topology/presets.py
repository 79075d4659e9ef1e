"""The table of presets that are a formula, and how the text of any preset becomes a topology.

A new preset is a builder (sizes -> Wiring) and one row here; a new machine is one file in profiles/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from collsyn.data import data_file, data_names
from collsyn.errors import InputError
from collsyn.model.topology import Topology
from collsyn.topology import distance_regular, families, graphs, grids
from collsyn.topology.composite import CONSTRUCTIONS, composite_wiring, is_construction, split_costs
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
    "closed-genkautz": Preset(
        "closed-genkautz:DxN", "genkautz, a circle for the loops left out", families.closed_genkautz, 2
    ),
    "debruijn": Preset("debruijn:DxK", "de Bruijn digraph of degree D, D^K ranks", families.debruijn, 2),
    "gendebruijn": Preset("gendebruijn:DxN", "generalised de Bruijn digraph, N ranks", families.gendebruijn, 2),
    "closed-gendebruijn": Preset(
        "closed-gendebruijn:DxN", "gendebruijn, a circle for the loops left out", families.closed_debruijn, 2
    ),
    "circulant": Preset("circulant:NxSxT...", "N ranks, u to u + S, u - S, u + T, ...", families.circulant, None),
    "circulant1": Preset(
        "circulant1:NxSxT...", "one-way links, u to u + S, u + T, ...", families.one_way_circulant, None
    ),
    "cayley": Preset("cayley:AxBxRxGxH...", "semidirect product of cyclic groups, one way", families.cayley, None),
    "twisted-torus": Preset("twisted-torus:AxBxT", "a torus whose columns close T further", families.twisted_torus, 3),
    "random": Preset("random:NxDxSEED", "a random regular graph, links both ways", families.random_regular, 3),
    "random1": Preset("random1:NxDxSEED", "a random regular digraph, one-way links", families.one_way_random, 3),
    "hamming": Preset("hamming:DxQ", "words of D letters out of Q", grids.hamming, 2),
    "johnson": Preset("johnson:NxK", "K of N things, linked if one differs", distance_regular.johnson, 2),
    "kneser": Preset("kneser:NxK", "K of N things, linked if none is common", distance_regular.kneser, 2),
    "paley": Preset("paley:Q", "a field of Q numbers, linked if their difference is a square", distance_regular.paley),
    "projective": Preset(
        "projective:Q", "points and lines of a plane; projective:2 is Heawood's graph", distance_regular.projective
    ),
    "quadrangle": Preset("quadrangle:Q", "generalised quadrangle W(Q), incidence", distance_regular.quadrangle),
    "hoffman-singleton": Preset(
        "hoffman-singleton", "50 ranks of degree 7, two hops", distance_regular.hoffman_singleton, 0
    ),
}


@dataclass(frozen=True)
class Entry:
    """A preset as lists show it: `kind` is formula, construction or machine, `options` its published instances."""

    name: str
    form: str
    kind: str
    summary: str
    options: tuple[str, ...] = ()


def catalogue() -> list[Entry]:
    """All presets in the order of `preset_names`."""
    formulas = [Entry(name, preset.form, "formula", preset.summary) for name, preset in PRESETS.items()]
    made = [Entry(name, row.form, "construction", row.summary) for name, row in CONSTRUCTIONS.items()]
    machines = [machine(name) for name in data_names("profiles")]
    return formulas + made + [Entry(m.name, m.form, "machine", m.summary, m.option_texts()) for m in machines]


def preset_names() -> list[str]:
    """Names of all presets: those of the table, the constructions, then the machines of profiles/."""
    return [*PRESETS, *CONSTRUCTIONS, *data_names("profiles")]


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
    if is_construction(text):
        return _composite(text.strip())
    spec = parse_spec(text)
    if spec.name not in preset_names():
        spec.fail(f"preset {spec.name!r} is not known; {suggestion(spec.name, preset_names())} (or a file)")
    if spec.name in PRESETS:
        return _parametric(spec, PRESETS[spec.name])
    return machine_topology(machine(spec.name), spec)


def preset_wiring(text: str) -> Wiring:
    """The graph of a formula's or construction's text without costs; raises InputError, for a formula with its text."""
    if is_construction(text):
        return composite_wiring(text, preset_wiring)
    spec = parse_spec(text)
    if spec.name not in PRESETS:
        known = [*PRESETS, *CONSTRUCTIONS]
        spec.fail(f"{spec.name!r} is no formula; {suggestion(spec.name, known)}")
    spec.check_options([])
    return _wiring(spec, PRESETS[spec.name])


def _composite(text: str) -> Topology:
    head, costs = split_costs(text)
    # A name stands in for the graph, whose own text holds parentheses.
    options = parse_spec(f"{preset_name(text)}@{costs}" if text != head else preset_name(text)).options
    spec = Spec(text, preset_name(text), (), options)
    spec.check_options(COST_KEYS)
    try:
        wiring = composite_wiring(head, preset_wiring)
    except InputError as error:
        spec.fail(str(error))
    return wiring.topology(text, spec.costs(len(wiring.share)))


def _parametric(spec: Spec, preset: Preset) -> Topology:
    spec.check_options(COST_KEYS)
    # hypercube:D has D dimensions, the others one for each size that grids are made of.
    wiring = _wiring(spec, preset)
    return wiring.topology(spec.text, spec.costs(len(wiring.share)))


def _wiring(spec: Spec, preset: Preset) -> Wiring:
    if len(spec.dims) != preset.num_sizes if preset.num_sizes is not None else not spec.dims:
        spec.fail(f"has {len(spec.dims) or 'no'} dimensions; expected {preset.form}")
    if 0 in spec.dims:
        spec.fail("has a dimension of size 0; expected at least 1")
    try:
        return preset.build(spec.dims)
    except InputError as error:
        spec.fail(str(error))
