"""The kernels compile for GPUs of four generations, by NVRTC and by nvcc, where these are; and faults are told."""

import shutil
import subprocess
from pathlib import Path

import pytest

from collsyn.cuda import nvrtc
from collsyn.cuda.pack import pack
from collsyn.cuda.sources import device_sources
from collsyn.cuda.specialise import specialised_source
from collsyn.errors import DeviceError
from collsyn.model.bind import bind
from tests.support.hand_plans import sum_plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "scaled_allreduce.cu"
ARCHITECTURES = (70, 80, 90, 100)


# Packets of 16 bytes, which C++ cannot express, so that no other test has them.
WIDE = """
#include "collsyn.cuh"
using namespace collsyn;
struct wide { vector16 *packets; const u32 *words; u32 *got; u64 count; };
COLLSYN_FN void collsyn_execute_wide_threads(thread &t, const wide &w) {
    put_wide_packets(worker_of(t), w.packets, w.words, w.count, 1);
    get_wide_packets(worker_of(t), w.packets, w.count, 1, patience{1000, nullptr}, [&](u64 i, u32 x) { w.got[i] = x; });
}
COLLSYN_ENTRY(collsyn_execute_wide, wide)
"""


def sources() -> dict[str, str]:
    special = specialised_source(pack(bind(sum_plan(), 64, 2), "bfloat16", "max"))
    return {
        "execute.cu": device_sources()["execute.cu"],
        "special.cu": special,
        "wide.cu": WIDE,
        EXAMPLE.name: EXAMPLE.read_text(),
    }


def has_nvrtc() -> bool:
    try:
        nvrtc.version()
    except DeviceError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not here: pip install 'collsyn[cuda-test]'")


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_makes_cubins(architecture: int) -> None:
    if architecture not in nvrtc.architectures():
        pytest.skip(f"NVRTC {nvrtc.version()} does not know sm_{architecture}")
    for name, text in sources().items():
        image = nvrtc.compile_kernel(text, architecture, name=name)
        assert image[:4] == b"\x7fELF"
        entry = b"scaled_allreduce" if name == EXAMPLE.name else b"collsyn_execute"
        assert entry in image
    small = nvrtc.execute_cubin(architecture, 0, 0)
    assert len(small) < len(nvrtc.execute_cubin(architecture))


@needs_nvrtc
def test_a_source_that_does_not_compile_is_told_with_the_compilers_words() -> None:
    with pytest.raises(DeviceError, match=r"(?s)wrong.cu: does not compile .*wrong.cu\(1\): error"):
        nvrtc.compile_kernel("int x = y;", 90, name="wrong.cu")
    with pytest.raises(DeviceError, match="sm_11: not known to NVRTC"):
        nvrtc.compile_kernel("", 11)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_makes_cubins(architecture: int, tmp_path: Path) -> None:
    known = subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=60).stdout
    if f"compute_{architecture}" not in known.split():
        pytest.skip(f"this nvcc does not know sm_{architecture}")
    for name, text in {**device_sources(), **sources()}.items():
        (tmp_path / name).write_text(text)
    for name in sources():
        words = [
            "nvcc",
            "-cubin",
            f"-arch=sm_{architecture}",
            "-std=c++17",
            "-o",
            str(tmp_path / "made"),
            str(tmp_path / name),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr


def test_without_nvrtc_one_line_says_what_brings_it(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(()))
    nvrtc._library.cache_clear()
    with pytest.raises(DeviceError, match=r"libnvrtc.* is not here; pip install"):
        nvrtc._library()
    nvrtc._library.cache_clear()
