"""`collsyn topology import`: what nvidia-smi, rocm-smi, NCCL or a benchmark wrote becomes a topology or a baseline."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._options import collective_name, examples, json_option, output_option, topology_option
from ._output import Cell, emit_json, note, table, text

if TYPE_CHECKING:
    from collsyn.model.profile import Profile
    from collsyn.model.topology import Topology
    from collsyn.topology.imports.baseline import Baseline

STDIN = "-"


def bandwidths(values: Sequence[str]) -> dict[str, float]:
    """GB/s by key of `KEY=VALUE` texts."""
    import math

    found: dict[str, float] = {}
    for value in values:
        key, sign, number = value.partition("=")
        try:
            gb_s = float(number) if sign else math.nan
        except ValueError:
            gb_s = math.nan
        if not 0 < gb_s < 1e6:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE with GB/s above 0, like nvlink=25")
        found[key.strip()] = gb_s
    return found


@click.command(
    "import",
    epilog=examples(
        "nvidia-smi topo -m | collsyn topology import - -o machine.yaml",
        "collsyn topology import matrix.txt --with topo.xml --boxes 4 -o cluster.yaml",
        "collsyn topology import matrix.txt --boxes 2 --bandwidth nvlink=50 --bandwidth nic=50",
        "collsyn topology import p2p.log -o profile.yaml",
        "collsyn topology import all_reduce.log --topology dgx-h100 -o nccl.json",
    ),
)
@click.argument("file")
@click.option("--with", "others", multiple=True, metavar="FILE", help="Also this file, of the same machine.")
@click.option(
    "--bandwidth",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="GB/s of a lane (nvlink, xgmi), a link (pcie, uplink, smp) or a card (nic).",
)
@click.option(
    "--boxes", type=click.IntRange(1, 4096), default=1, show_default=True, metavar="N", help="Join N such boxes."
)
@click.option(
    "--fabric",
    type=click.Choice(["rails", "one"]),
    help="Card k of all boxes on switch k, or all cards on one. [default: rails where every GPU has a card]",
)
@click.option("--name", metavar="NAME", help="Name of the topology. [default: the tool and the number of GPUs]")
@click.option(
    "--pairs",
    type=click.Choice(["shared", "own"]),
    help="Whether measured pairs share a GPU's bandwidth. [default: shared where all are alike]",
)
@click.option("--num-ranks", type=click.IntRange(2, 1 << 20), metavar="N", help="Ranks, where a log does not say.")
@click.option("--collective", type=collective_name, metavar="C", help="Collective, where a log does not say.")
@topology_option(required=False)
@output_option("Write it here. [default: print it]")
@json_option()
def command(
    file: str,
    others: tuple[str, ...],
    given: tuple[str, ...],
    boxes: int,
    fabric: str | None,
    name: str | None,
    pairs: str | None,
    num_ranks: int | None,
    collective: str | None,
    topology: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Make a topology, profile or baseline of what other programs wrote in FILE (- for a paste).

    Read are nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology, topology and graph files of
    NCCL and RCCL, p2pBandwidthLatencyTest, nvbandwidth, OSU micro-benchmarks and logs of nccl-tests.
    What a file does not say is assumed, and said to be. --topology is for logs: what its bound allows.
    """
    from collsyn.files import require_writable, write_atomic
    from collsyn.model.profile import Profile
    from collsyn.model.topology import Topology
    from collsyn.topology.imports.assemble import Options
    from collsyn.topology.imports.baseline import Baseline
    from collsyn.topology.imports.recognise import Hints
    from collsyn.topology.resolve import import_named

    if output is not None:
        require_writable(output)
    options = Options(bandwidths(given), boxes, fabric, name)
    sources = [(_content(one), "stdin" if one == STDIN else one) for one in (file, *others)]
    found = import_named(sources, options, Hints(num_ranks, collective, pairs))
    if not isinstance(found, Baseline) and (topology, num_ranks, collective) != (None, None, None):
        raise click.UsageError("--topology, --num-ranks and --collective are for logs of collectives")
    if pairs is not None and not isinstance(found, Profile):
        raise click.UsageError("--pairs is for matrices of measured bandwidths")
    _say(_facts(found))
    written = _written(found)
    if output is not None:
        write_atomic(output, written)
    if as_json:
        emit_json(_document(found, output))
    elif isinstance(found, Baseline):
        _compare(found, topology)
    elif output is None:
        text(written.removesuffix("\n"))
    elif isinstance(found, Topology):
        _show(found, output)
    else:
        rates = [1e-9 / link.beta_s_per_byte.value for link in found.links]
        text(f"{found.name}: {found.num_ranks} ranks, pairs of {min(rates):.4g} .. {max(rates):.4g} GB/s")
    if output is not None:
        note(f"wrote {output}")


def show_assumptions(topology: "Topology") -> None:
    """Say on stderr what an imported topology is warned of, and what no file said of it."""
    _say(topology.provenance)


def _say(facts: Mapping[str, Any]) -> None:
    for warning in facts.get("warnings", []):
        note(f"warning: {warning}")
    for key, what in dict(facts.get("assumed", {})).items():
        note(f"assumed, not in the file: {key}: {what}")


def _content(file: str) -> bytes:
    from collsyn.files import read_bytes
    from collsyn.topology.imports.text import MAX_BYTES

    if file != STDIN:
        return read_bytes(file)
    if sys.stdin.isatty():
        note("paste the output, then Ctrl-D")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _facts(found: "Topology | Profile | Baseline") -> Mapping[str, Any]:
    """Where what is assumed and warned of stands."""
    from collsyn.model.profile import Profile
    from collsyn.model.topology import Topology

    if isinstance(found, Topology):
        return found.provenance
    return found.facts if isinstance(found, Profile) else {"warnings": list(found.warnings)}


def _written(found: "Topology | Profile | Baseline") -> str:
    """The file that it becomes."""
    import json

    from collsyn.model.profile import Profile, profile_text
    from collsyn.model.topology import Topology
    from collsyn.model.topology_file import topology_text

    if isinstance(found, Topology):
        return topology_text(found)
    if isinstance(found, Profile):
        return profile_text(found)
    return json.dumps(found.document(), indent=2) + "\n"


def _document(found: "Topology | Profile | Baseline", output: str | None) -> dict[str, Any]:
    from collsyn.model.profile import Profile, profile_document
    from collsyn.model.topology import Topology
    from collsyn.model.topology_file import topology_document

    facts = _facts(found)
    head = {"file": output, "warnings": facts.get("warnings", []), "assumed": facts.get("assumed", {})}
    if isinstance(found, Topology):
        return {"kind": "topology", "num_ranks": found.num_ranks, **head, "topology": topology_document(found)}
    if isinstance(found, Profile):
        return {"kind": "profile", "num_ranks": found.num_ranks, **head, "profile": profile_document(found)}
    return {"kind": "baseline", **head, "baseline": found.document()}


def _show(topology: "Topology", output: str) -> None:
    rows: list[tuple[Cell, ...]] = [
        ("read from", str(topology.provenance.get("source", ""))),
        ("ranks", topology.num_ranks),
        ("boxes", len(topology.boxes)),
        ("switches", len(topology.switch_names)),
        ("links", f"{topology.num_links} (one direction each)"),
    ]
    cards = topology.provenance.get("cards", [])
    if cards:
        near = " | ".join(" ".join(map(str, card["near"])) for card in cards)
        rows.append(("network cards a box", f"{len(cards)}, next to ranks {near}"))
    if "fabric" in topology.provenance:
        rows.append(("between boxes", str(topology.provenance["fabric"])))
    table(topology.name, ("property", "value"), rows)
    text(f"collsyn topology show {Path(output)} has more")


def _compare(baseline: "Baseline", topology: str | None) -> None:
    """What was measured, a row a size, beside the bound of a topology."""
    from collsyn.bounds import fluid_bound
    from collsyn.errors import InputError
    from collsyn.model.collective import make_collective
    from collsyn.model.metrics import busbw_gb_s
    from collsyn.topology.resolve import load_topology
    from collsyn.units import format_size, s_to_us

    machine = None if topology is None else load_topology(topology)
    rows: list[tuple[Cell, ...]] = []
    best: dict[str, tuple[float, float | None, str]] = {}
    for row in baseline.rows:
        bound_gb_s = None
        if machine is not None:
            if machine.num_ranks != row.num_ranks:
                raise InputError(f"{topology}: has {machine.num_ranks} ranks; the log is of {row.num_ranks}")
            root = max(row.root, 0) if row.root >= 0 else None
            problem = make_collective(row.collective, row.num_ranks, root=root)
            bound_s = fluid_bound(problem, machine, row.size_bytes).time_s
            bound_gb_s = busbw_gb_s(row.collective, row.num_ranks, row.size_bytes, bound_s)
        size = format_size(row.size_bytes)
        rows.append((row.collective, size, s_to_us(row.time_s), row.busbw_gb_s, bound_gb_s))
        if row.busbw_gb_s >= best.get(row.collective, (0.0, None, ""))[0]:
            best[row.collective] = (row.busbw_gb_s, bound_gb_s, size)
    table(f"Measured by {baseline.library}", ("collective", "size", "us", "busbw GB/s", "bound GB/s"), rows)
    for kind, (measured, bound_gb_s, size) in best.items():
        limit = "" if bound_gb_s is None else f"; the bound for this topology is {bound_gb_s:.4g} GB/s"
        text(f"{baseline.library} measured {measured:.4g} GB/s busbw for {kind} at {size}{limit}")
