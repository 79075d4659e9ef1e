"""What a file is, told by its content, and what it becomes: a description of a box, a profile or a baseline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collsyn.errors import InputError
from collsyn.files import read_bytes
from collsyn.model.profile import Profile
from collsyn.model.topology import Topology
from collsyn.topology.imports import amd, nccl_graph, nccl_json, nccl_log, nccl_topology, nvidia, osu, pairs
from collsyn.topology.imports.assemble import Options, combined, measured_topology, topology_of
from collsyn.topology.imports.baseline import Baseline
from collsyn.topology.imports.described import Described
from collsyn.topology.imports.text import Paste, paste

Content = Described | Profile | Baseline


@dataclass(frozen=True)
class Hints:
    """What the user says of measurements that the file does not: ranks, collective, whether pairs share a port."""

    num_ranks: int | None = None
    collective: str | None = None
    pairs: str | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, how it is told from others and how it is read (InputError where it cannot be)."""

    name: str
    matches: Callable[[Paste], bool]
    read: Callable[[Paste, Hints], Content]


# In the order in which they are tried: a whole document first, then what describes a machine before measurements.
KINDS: tuple[Kind, ...] = (
    Kind(
        nccl_json.KIND, nccl_json.matches, lambda text, hints: nccl_json.read(text, hints.num_ranks, hints.collective)
    ),
    Kind(nccl_topology.KIND, nccl_topology.matches, lambda text, _: nccl_topology.read(text)),
    Kind(nccl_graph.KIND, nccl_graph.matches, lambda text, _: nccl_graph.read(text)),
    Kind(amd.AMD, amd.amd_matches, lambda text, _: amd.read_amd(text)),
    Kind(amd.ROCM, amd.rocm_matches, lambda text, _: amd.read_rocm(text)),
    Kind(nvidia.KIND, nvidia.matches, lambda text, _: nvidia.read(text)),
    Kind(pairs.NVBANDWIDTH, pairs.nvbandwidth_matches, lambda text, hints: pairs.read_nvbandwidth(text, hints.pairs)),
    Kind(pairs.P2P, pairs.p2p_matches, lambda text, hints: pairs.read_p2p(text, hints.pairs)),
    Kind(osu.KIND, osu.matches, lambda text, hints: osu.read(text, hints.num_ranks)),
    Kind(nccl_log.KIND, nccl_log.matches, lambda text, hints: nccl_log.read(text, hints.num_ranks, hints.collective)),
)


def read_content(raw: bytes, file: str, hints: Hints | None = None) -> tuple[str, Content, str]:
    """Kind, content and hash of a file; raises InputError, which says what else would be read."""
    text = paste(raw, file)
    for kind in KINDS:
        if kind.matches(text):
            return kind.name, kind.read(text, hints or Hints()), text.hash
    raise InputError(
        f"{file}: holds nothing that is known here; expected the output of {', '.join(kind.name for kind in KINDS)}"
    )


def import_files(
    first: tuple[bytes, str], others: Sequence[tuple[bytes, str]], options: Options, hints: Hints | None = None
) -> Topology | Profile | Baseline:
    """What a file becomes, with other files of the same machine (bytes and name for messages); raises InputError."""
    _, content, name = read_content(*first, hints)
    if not isinstance(content, Described):
        if others:
            raise InputError(
                f"{others[0][1]}: cannot be combined with measurements; expected files that describe a box"
            )
        if options != Options(name=options.name):
            raise InputError(
                f"{first[1]}: holds measurements; bandwidths, boxes and fabric are for files that describe one"
            )
        return content
    inputs, more = [name], []
    for raw, file in others:
        kind, other, digest = read_content(raw, file, hints)
        if not isinstance(other, Described):
            raise InputError(f"{file}: is {kind}, measurements; expected a file that describes the same box")
        inputs.append(digest)
        more.append((file, other))
    return topology_of(combined(content, more), options, first[1], inputs)


def import_topology(path: str | Path) -> Topology:
    """The topology of one file, as `TOPO` arguments take it; raises InputError for a log of collectives."""
    found = import_files((read_bytes(path), str(path)), (), Options())
    if isinstance(found, Baseline):
        raise InputError(
            f"{path}: is a {found.kind}, which holds no topology; collsyn topology import makes a baseline of it"
        )
    return measured_topology(found) if isinstance(found, Profile) else found
