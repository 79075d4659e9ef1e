"""Packages, solvers, compilers and MPI, on machines that are not there."""

import pytest

from collsyn.doctor.finding import NotMade
from collsyn.doctor.system import Answer, Ran
from collsyn.doctor.tools import (
    check_compiler,
    check_cuda_compilers,
    check_mpi,
    check_mpi_launch,
    check_packages,
    check_solvers,
)
from tests.support.machines import FakeSystem, gpu_machine


def without(system, *commands):
    """The machine without some commands."""
    for name in commands:
        del system.commands[name]
    return system


def test_packages_of_an_uninstalled_tree_are_known_by_name():
    found = check_packages(FakeSystem())
    assert found.status == "ok"
    assert found.detail == "all 9 that are required; optional: mpi4py 9.0"


def test_a_missing_package_and_an_old_one_are_a_problem_with_the_command():
    required = ["numpy>=1.26", "scipy>=1.11 ; python_version > '3'", "rich>=13.0", "torch>=2.6; extra == 'torch'"]
    versions = {"numpy": "1.9.3", "scipy": None, "rich": "13.0rc1"}
    found = check_packages(FakeSystem(required=required, versions=versions))
    assert found.status == "problem"
    assert found.detail == "numpy is 1.9.3, not 1.26 or newer; scipy is missing"
    assert found.remedy == "pip install 'numpy>=1.26' 'scipy>=1.11'"


def test_two_builds_of_cupy_are_a_warning():
    found = check_packages(FakeSystem(versions={"cupy-cuda12x": "13.6", "cupy-cuda13x": "13.6"}))
    assert found.status == "warning"
    assert found.remedy.startswith("pip uninstall cupy-cuda12x cupy-cuda13x")


@pytest.mark.parametrize(
    ("name", "answer", "status", "word"),
    [
        ("highs", Answer(None, "ended with code 1: ModuleNotFoundError"), "problem", "ModuleNotFoundError"),
        ("highs", Answer(None, "was ended by SIGSEGV"), "problem", "SIGSEGV"),
        ("highs", Answer({"version": "1.9", "right": False}), "problem", "wrongly"),
        ("pulp", Answer(None, "ended with code 1: PuLP finds no solver"), "warning", "no solver"),
        ("pulp", Answer({"version": "3", "right": True}), "ok", "PuLP 3"),
    ],
)
def test_solvers_are_judged_by_their_answers(name, answer, status, word):
    found = check_solvers(FakeSystem(probes={("solvers", name): answer}))
    assert found.status == status
    assert word in found.detail


def test_no_compiler_is_a_warning_for_ranks_run_without():
    found = check_compiler(without(FakeSystem(), "cc"))
    assert found.status == "warning"
    assert "NumPy" in found.detail
    assert "apt install gcc" in found.remedy


@pytest.mark.parametrize(
    ("variables", "word"),
    [({"CC": "icx -O2"}, "CC names icx -O2"), ({"COLLSYN_NATIVE": "0"}, "COLLSYN_NATIVE=0")],
)
def test_settings_that_take_the_compiler_away_are_named(variables, word):
    found = check_compiler(FakeSystem(variables=variables))
    assert found.status == "warning"
    assert word in found.detail


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(None, "did not end within 250 s"), "did not end"),
        (Answer(None, "was ended by SIGILL"), "SIGILL"),
        (
            Answer({"works": False, "said": "collsyn: cc -O3\nx.c:1: fatal error: stdint.h", "is_kept": True}),
            "stdint.h",
        ),
        (Answer({"works": False, "said": "", "is_kept": True}), "says nothing"),
        (Answer({"works": True, "said": "", "is_kept": False}), "compiles anew"),
    ],
)
def test_a_compiler_that_fails_is_a_warning(answer, word):
    found = check_compiler(FakeSystem(probes={("native",): answer}))
    assert found.status == "warning"
    assert word in found.detail


def test_a_compiler_that_hangs_is_not_asked_to_compile():
    found = check_compiler(FakeSystem(commands={"cc": Ran(None, "", "")}, probes={("native",): None}))
    assert found.status == "warning"
    assert "did not end within 20 s" in found.detail


def test_a_compiler_that_does_not_say_its_version_may_work():
    for silent in (None, Ran(1, "", "no"), Ran(0, "", "")):
        assert check_compiler(FakeSystem(commands={"cc": silent})).status == "ok"


def test_mpi_is_described():
    found = check_mpi(FakeSystem())
    assert found.status == "ok"
    assert found.detail == "MPICH 4.3 by mpi4py 4.1, threads multiple, not CUDA-aware; mpirun of mpich"


@pytest.mark.parametrize(("aware", "word"), [(True, " CUDA-aware"), (False, "not CUDA-aware"), (None, "does not say")])
def test_mpi_says_whether_it_takes_device_pointers(aware, word):
    answer = Answer({"mpi4py": "4", "library": "Open MPI v5", "thread_level": "single", "cuda_aware": aware})
    assert word in check_mpi(FakeSystem(probes={("mpi",): answer})).detail


@pytest.mark.parametrize(
    ("commands", "mpi4py", "status", "word"),
    [
        ((), None, "warning", "no MPI: ranks are forked"),
        (("mpirun",), None, "warning", "but no mpi4py"),
        ((), "4.1", "warning", "no mpirun or mpiexec"),
    ],
)
def test_half_an_mpi_is_a_warning(commands, mpi4py, status, word):
    system = FakeSystem(versions={"mpi4py": mpi4py})
    system.commands = {name: system.commands[name] for name in commands}
    found = check_mpi(system)
    assert (found.status, word in found.detail) == (status, True), found
    assert "pip install 'collsyn[mpi]'" in found.remedy
    assert isinstance(check_mpi_launch(system), NotMade)


@pytest.mark.parametrize(
    ("ran", "word"),
    [(None, "cannot be started"), (Ran(None, "", ""), "did not end"), (Ran(127, "", "libpmix.so: no"), "libpmix")],
)
def test_a_launcher_that_does_not_run_is_a_problem(ran, word):
    found = check_mpi(FakeSystem(commands={"mpirun": ran}))
    assert found.status == "problem"
    assert word in found.detail


def test_an_mpi4py_without_its_library_is_a_problem():
    answer = Answer(None, "ended with code 1: RuntimeError: cannot load MPI library")
    found = check_mpi(FakeSystem(probes={("mpi",): answer}))
    assert found.status == "problem"
    assert "cannot load MPI library" in found.detail


@pytest.mark.parametrize(
    "answer",
    [
        Answer(None, "did not end within 60 s"),
        Answer({"error": "the launcher started 2 ranks but MPI sees 1"}),
        Answer({"verified": False, "process_vm_errno": 0}),
    ],
)
def test_ranks_of_mpi_that_do_not_meet_are_a_problem(answer):
    found = check_mpi_launch(FakeSystem(probes={("launch", "mpirun"): answer}))
    assert found.status == "problem"
    assert "--launcher fork" in found.remedy


def test_bus_errors_of_mpi_point_to_shared_memory():
    loading = check_mpi(FakeSystem(probes={("mpi",): Answer(None, "was ended by SIGBUS")}))
    running = Answer({"error": "mpirun ended with exit code 7: EXIT STRING: Bus error (signal 7)"})
    launching = check_mpi_launch(FakeSystem(probes={("launch", "mpirun"): running}))
    for found in (loading, launching):
        assert (found.status, "/dev/shm" in found.remedy) == ("problem", True), found


def test_no_job_is_started_inside_a_job():
    for check in (check_mpi, check_mpi_launch):
        assert isinstance(check(FakeSystem(in_job=True)), NotMade)
    assert check_mpi_launch(FakeSystem()).status == "ok"


@pytest.mark.parametrize(("has_gpu", "status"), [(True, "problem"), (False, "ok")])
def test_a_missing_nvrtc_matters_where_gpus_are(has_gpu, status):
    assert check_cuda_compilers(FakeSystem(), has_gpu).status == status


@pytest.mark.parametrize(("has_gpu", "status"), [(True, "problem"), (False, "warning")])
@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(None, "was ended by SIGABRT"), "SIGABRT"),
        (
            Answer(
                {
                    "found": True,
                    "path": "x.so",
                    "version": "12.9",
                    "architectures": [],
                    "compiles": False,
                    "reason": "BAD",
                }
            ),
            "BAD",
        ),
    ],
)
def test_a_broken_nvrtc_is_named(has_gpu, status, answer, word):
    found = check_cuda_compilers(FakeSystem(probes={("nvrtc",): answer}), has_gpu)
    assert found.status == status
    assert word in found.detail


def test_nvrtc_and_nvcc_are_described():
    found = check_cuda_compilers(gpu_machine(), True)
    assert (found.status, found.detail) == ("ok", "NVRTC 12.9 compiles, for sm_50 to sm_90; nvcc 13.0")
