"""Probes for real, in processes of their own: those of the host as they are, those of CUDA on a stand-in for CuPy."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from collsyn.doctor.probes import cuda
from collsyn.doctor.system import Answer, Ran, System, answer

FAKE_CUPY = Path(__file__).resolve().parent.parent / "support" / "fake_cupy"
LIMIT_S = 60.0


@pytest.fixture
def fake_cuda(monkeypatch, tmp_path):
    """`fake_cuda("cuda", devices=2, ...)`: what a probe says of a stand-in for CuPy with these devices and faults."""
    monkeypatch.syspath_prepend(str(FAKE_CUPY))
    monkeypatch.setenv("FAKE_CUDA_FOLDER", str(tmp_path))

    def ask(name, **asked):
        monkeypatch.setenv("FAKE_CUDA", json.dumps(asked))
        return System().probe(name, limit_s=LIMIT_S)

    return ask


def test_peers_are_tried_both_ways_and_bytes_compared(fake_cuda):
    found = fake_cuda("cuda", devices=3, no_access=[[2, 0]], wrong_stores=[[0, 1]], wrong_copies=[[1, 2]]).facts
    assert found["devices"] == [{"name": "Fake GPU", "compute": "9.0", "memory_bytes": 80 << 30}] * 3
    ways = {(pair["from"], pair["to"]): (pair["stores"], pair["copies"]) for pair in found["pairs"]}
    assert ways == {
        (0, 1): ("1 of 1048576 bytes wrong", "verified"),
        (0, 2): ("verified", "verified"),
        (1, 0): ("verified", "verified"),
        (1, 2): ("verified", "3 of 1048576 bytes wrong"),
        (2, 0): ("no access", "no access"),
        (2, 1): ("verified", "verified"),
    }


def test_errors_of_cuda_are_passed_on(fake_cuda):
    found = fake_cuda("cuda", devices=0, count_error="cudaErrorInsufficientDriver: driver version is insufficient")
    assert found.facts["error"].startswith("CUDARuntimeError: cudaErrorInsufficientDriver")
    broken = fake_cuda("cuda", import_error="libcudart.so.12: cannot open")
    assert broken.facts is None
    assert "ImportError: libcudart.so.12" in broken.trouble


def test_memory_is_shared_between_two_processes(fake_cuda):
    assert fake_cuda("ipc", devices=2).facts == {"devices": ["verified", "verified"]}


def test_a_refused_handle_is_said(fake_cuda):
    (said,) = fake_cuda("ipc", devices=1, ipc_error="cudaErrorInvalidResourceHandle: no").facts["devices"]
    assert "cudaErrorInvalidResourceHandle" in said


def test_forked_ranks_write_into_each_other():
    found = System().probe("launch", "fork", limit_s=LIMIT_S)
    assert found.facts["verified"] is True


def test_solvers_solve():
    assert System().probe("solvers", "highs", limit_s=LIMIT_S).facts["right"] is True


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_kernel_of_the_peer_probe_compiles(tmp_path):
    (tmp_path / "put.cu").write_text(cuda._SOURCE)
    words = ["nvcc", "-arch=sm_80", "-Werror", "all-warnings", "-cubin", "-o", f"{tmp_path}/put", f"{tmp_path}/put.cu"]
    made = System().run(words, LIMIT_S)
    assert made.code == 0, made.err
    assert (tmp_path / "put").stat().st_size > 0


FAKE_NVRTC = """
#include <stdlib.h>
#include <string.h>
int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 9; return 0; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int* archs) { archs[0] = 90; archs[1] = 70; return 0; }
int nvrtcCreateProgram(void** p, const char* s, const char* n, int h, const char** a, const char** b) { return 0; }
int nvrtcCompileProgram(void* p, int n, const char** options) {
    return n == 1 && !strcmp(options[0], "--gpu-architecture=sm_70") ? atoi(getenv("FAKE_NVRTC")) : 99;
}
const char* nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "?"; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("code", "compiles", "reason"), [(0, True, ""), (6, False, "NVRTC_ERROR_COMPILATION")])
def test_nvrtc_is_found_beside_the_packages_and_tried(code, compiles, reason, monkeypatch, tmp_path):
    folder = tmp_path / "nvidia/cuda_nvrtc/lib"
    folder.mkdir(parents=True)
    (tmp_path / "nvrtc.c").write_text(FAKE_NVRTC)
    made = System().run(["cc", "-shared", "-fPIC", "-o", f"{folder}/libnvrtc.so.12", f"{tmp_path}/nvrtc.c"], LIMIT_S)
    assert made.code == 0, made.err
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAKE_NVRTC", str(code))
    found = System().probe("nvrtc", limit_s=LIMIT_S).facts
    assert (found["version"], found["architectures"]) == ("12.9", [70, 90])
    assert (found["compiles"], found["reason"]) == (compiles, reason)


def test_a_command_is_ended_with_its_children_at_its_limit(tmp_path):
    script = f"sleep 60 & echo $! > {tmp_path}/child; echo begun; wait"
    begin = time.monotonic()
    ran = System().run(["sh", "-c", script], limit_s=1.0)
    assert ran.code is None
    assert time.monotonic() - begin < 30
    child = int((tmp_path / "child").read_text())
    state = "Z"
    for _ in range(100):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "Z"
        if state in "ZX":
            break
        time.sleep(0.05)
    assert state in "ZX"
    assert ran.trouble(1.0) == "did not end within 1 s"


def test_what_cannot_be_started_is_none():
    assert System().run(["/no/such/command"], 1.0) is None


@pytest.mark.parametrize(
    ("ran", "wanted"),
    [
        (Ran(0, 'noise\n{"a": 1}\n', ""), Answer({"a": 1})),
        (Ran(0, "", ""), Answer(None, "printed no answer")),
        (Ran(0, "[1]\n", ""), Answer(None, "printed no answer")),
        (Ran(0, "{\n", ""), Answer(None, "printed no answer")),
        (Ran(None, "", ""), Answer(None, "did not end within 3 s")),
        (Ran(-11, "", ""), Answer(None, "was ended by SIGSEGV")),
        (
            Ran(1, "", "Traceback (most recent call last):\n  File\nValueError: why\n"),
            Answer(None, "ended with code 1: ValueError: why"),
        ),
        (Ran(2, "", "lib.so: not found\nmore\n"), Answer(None, "ended with code 2: lib.so: not found")),
    ],
)
def test_answers_and_what_is_none(ran, wanted):
    assert answer(ran, 3.0) == wanted


def test_this_machine_is_seen():
    system = System()
    assert system.cores() == tuple(sorted(os.sched_getaffinity(0)))
    assert system.read("/proc/meminfo").startswith("MemTotal")
    assert system.read("/no/such/file") is None
    assert system.entries("/no/such/folder") == ()
    assert system.space("/no/such/folder") is None
    assert system.space("/")[0] > 0
    assert system.command("no-such-command", "sh").endswith("sh")
    assert system.version("click") and system.version("no-such-distribution") is None
    assert system.run([sys.executable, "-c", "print(1)"], LIMIT_S) == Ran(0, "1\n", "")


@pytest.mark.parametrize("size", ["1", "4"])
def test_a_launched_process_knows(monkeypatch, size):
    monkeypatch.setenv("PMI_SIZE", size)
    assert System().is_rank()


def test_a_probe_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(System, "run", lambda self, words, *_: asked.append(words) or Ran(0, "{}", ""))
    system = System()
    assert system.probe("mpi", limit_s=1) == system.probe("mpi", limit_s=1) == Answer({})
    assert len(asked) == 1
