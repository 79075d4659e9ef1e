"""Profiles of ranks in several boxes: what is measured between them goes by MPI."""

import pytest

from collsyn.runtime.boxes import BOX_SIZE
from collsyn.runtime.mpirun import has_mpi
from collsyn.runtime.native_loader import native_library
from collsyn.topology.resolve import load_topology


@pytest.mark.skipif(not has_mpi() or native_library() is None, reason="needs mpi4py, an mpirun and a compiler")
def test_pairs_in_two_boxes_are_measured(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv(BOX_SIZE, "1")
    file = tmp_path / "profile.yaml"
    done = run_cli("profile", "--quick", "--launcher", "mpirun", "--ranks", "2", "-o", file)
    assert done.code == 0, done.stderr
    machine = load_topology(str(file))
    assert machine.num_ranks == 2
    # Messages of another process and thread take microseconds, however fast the memory is.
    assert (machine.alpha_s.sum() > 1e-6) and (machine.beta_s_per_byte > 0).any()
    monkeypatch.setenv(BOX_SIZE, "none")
    wrong = run_cli("profile", "--quick", "--launcher", "mpirun", "--ranks", "2", "-o", tmp_path / "b.yaml")
    assert wrong.code == 2 and "COLLSYN_BOX_SIZE: is 'none'; expected a number of ranks" in wrong.stderr
    assert not (tmp_path / "b.yaml").exists()
