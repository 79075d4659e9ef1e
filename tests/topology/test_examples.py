"""The topology files of examples/ can be read, and every rank reaches every other."""

from pathlib import Path

import pytest

from collsyn.topology.connect import unreachable_pair
from collsyn.topology.resolve import load_topology

FILES = sorted((Path(__file__).parents[2] / "examples" / "topologies").glob("*.yaml"))


def test_there_are_some():
    assert len(FILES) >= 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_a_whole_machine(file):
    topology = load_topology(str(file))
    assert topology.switch_names
    assert unreachable_pair(topology) is None
