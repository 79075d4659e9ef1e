"""The pages on topologies and formats keep up: rows of presets, and examples that are read as they stand."""

import re
from pathlib import Path

import pytest
import yaml

from collsyn.model.collective import make_collective
from collsyn.model.collective_file import collective_document, collective_from_fields, read_counts
from collsyn.model.fields import parse_document
from collsyn.model.profile import profile_from_fields
from collsyn.model.topology_file import topology_from_fields, topology_text
from collsyn.topology.connect import require_connected
from collsyn.topology.machine import machine_topology
from collsyn.topology.machine_file import machine_from_fields
from collsyn.topology.presets import catalogue
from collsyn.topology.spec import parse_spec
from collsyn.topology.symmetry import is_symmetry

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page):
    """The YAML blocks of a page as Fields, and their text."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    return [(parse_document(block.encode(), "example.yaml"), block) for block in blocks]


def test_every_preset_and_option_has_a_row():
    rows = re.findall(r"^\| `([^`]+)` \|", (DOCS / "topologies.md").read_text(), re.MULTILINE)
    for entry in catalogue():
        assert entry.form in rows
        assert set(entry.options) <= set(rows)
    keys = {"bandwidth_gb_s", "alpha_us", "overhead"}
    known = {entry.form for entry in catalogue()} | {option for entry in catalogue() for option in entry.options}
    assert set(rows) == known | keys


def test_topology_example():
    ((fields, text),) = examples("formats/topology.md")
    topology = topology_from_fields(fields)
    require_connected(topology)
    assert all(is_symmetry(topology, permutation) for permutation in topology.symmetries)
    assert topology_from_fields(parse_document(topology_text(topology).encode(), "t")).wiring == topology.wiring
    assert topology_text(topology).splitlines() == text.splitlines()


def test_machine_example():
    (fields, _), (several, _) = examples("formats/machine.md")
    toy, mixed = machine_from_fields(fields), machine_from_fields(several)
    for text in ("toy", "toy:2", "toy:5", "toy@costs=logical", "toy:2@costs=logical"):
        require_connected(machine_topology(toy, parse_spec(text)))
    for text, ranks in (("mixed", 8), ("mixed:1x3", 14), ("mixed:0x2", 8), ("mixed:1x0", 2)):
        topology = machine_topology(mixed, parse_spec(text))
        require_connected(topology)
        assert topology.num_ranks == ranks


def test_profile_example():
    (fields, _), (sharing, _) = examples("formats/profile.md")
    topology = profile_from_fields(fields).topology()
    assert topology.num_ranks == 2
    require_connected(topology)
    shared = profile_from_fields(sharing).topology()
    assert (shared.num_ranks, len(shared.switch_names) > 0) == (3, True)


def test_collective_examples(tmp_path):
    *collectives, (_, counts) = examples("formats/collective.md")
    read = []
    for fields, text in collectives:
        fields.text("schema", choices=["collsyn-collective/1"])
        read.append(collective_from_fields(fields))
        again = collective_from_fields(parse_document(yaml.safe_dump(collective_document(read[-1])).encode(), "c"))
        assert collective_document(again) == collective_document(read[-1])
        assert text.startswith("schema: collsyn-collective/1")
    shift, half_sums, broadcast = read
    assert [shift.contributors(c).tolist() for c in range(3)] == [[0], [0], [1]]
    assert shift.chunk_bytes(100).tolist() == pytest.approx([50, 50, 100])
    assert half_sums.reduces
    assert half_sums.receivers(0).tolist() == [0, 1]
    assert broadcast.contributors(broadcast.num_chunks - 1).tolist() == [5]
    (tmp_path / "counts.yaml").write_text(counts)
    matrix = read_counts(tmp_path / "counts.yaml")
    assert make_collective("alltoallv", 3, counts=matrix).num_chunks == 6
