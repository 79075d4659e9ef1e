"""A text is a preset or a file, recognised by what it looks like and what is in it."""

import pytest

from collsyn.data import data_file
from collsyn.errors import InputError
from collsyn.model.profile import Estimate, LinkFit, Profile, write_profile
from collsyn.model.topology_file import topology_digest, topology_text, write_topology
from collsyn.topology.resolve import load_topology, read_topology_file
from tests.support.topologies import zoo


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["a.yaml", "b.yml", "c.json", "d.YAML", "sub/e", "plain"])
def test_topology_files_are_read_under_any_name(folder, path):
    write_topology(zoo("two boxes"), path)
    assert topology_text(load_topology(path)) == topology_text(zoo("two boxes"))


def test_profiles_become_what_was_measured(folder):
    def fit(src, dst, alpha_us, overhead_us):
        alpha, overhead, beta = alpha_us * 1e-6, overhead_us * 1e-6, 1e-10
        estimates = [Estimate(value, value, value) for value in (alpha, beta, overhead)]
        return LinkFit(src, dst, *estimates, residual=0.01, linear=True, points=((1024, 1e-6),))

    profile = Profile("measured", "host", 2, (fit(0, 1, 2, 0.5), fit(1, 0, 3, 9)), reduce_s_per_byte=1e-11)
    write_profile(profile, "profile.yaml")
    topology = load_topology("profile.yaml")
    assert (topology.name, topology.num_ranks) == ("measured", 2)
    assert topology.alpha_s.tolist() == pytest.approx([2e-6, 3e-6])
    # What was fitted above alpha is cut to it.
    assert topology.overhead_s.tolist() == pytest.approx([0.5e-6, 3e-6])
    assert topology.beta_s_per_byte.tolist() == pytest.approx([1e-10] * 2)
    assert topology.reduce_s_per_byte.tolist() == pytest.approx([1e-11] * 2)


def test_a_machine_file_is_one_box_of_the_machine():
    path = data_file("profiles", "dgx-a100")
    assert topology_digest(read_topology_file(path)) == topology_digest(load_topology("dgx-a100"))


def test_a_preset_with_a_slash_is_no_path():
    assert load_topology("mesh:4x2@bandwidth_gb_s=100/50").num_ranks == 8


def test_a_preset_goes_before_a_file_of_its_name(folder):
    (folder / "dgx1").write_text("nonsense")
    assert load_topology("dgx1").num_ranks == 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.yaml", None, "absent.yaml: cannot be read: no such file"),
        ("sub/absent", None, "sub/absent: cannot be read"),
        ("empty.yaml", "", "empty.yaml: is empty"),
        ("list.yaml", "- 1\n", "list.yaml: is a list"),
        ("tab.yaml", "schema: x\n\tranks: 2\n", "tab.yaml:line 2: is not valid YAML"),
        ("cut.json", '{"schema": "colls', "cut.json:line 1: is not valid JSON"),
        ("other.yaml", "schema: other/1\n", "other.yaml:schema: is 'other/1'; expected collsyn-topology/1"),
        ("none.yaml", "ranks: 2\n", "none.yaml:schema: is None; expected collsyn-topology/1"),
    ],
)
def test_a_file_that_is_none_is_one_line(folder, name, content, message):
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError) as caught:
        load_topology(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_topology(folder):
    (folder / "x.yaml").mkdir()
    with pytest.raises(InputError, match=r"x\.yaml: cannot be read: is a directory"):
        load_topology("x.yaml")
