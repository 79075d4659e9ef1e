"""Why GPUs cannot be used is said in one line, whatever is missing."""

import json
import re
from pathlib import Path

import pytest

from collsyn.cuda.availability import num_gpus, why_no_gpus
from collsyn.errors import DeviceError

FAKE_CUPY = Path(__file__).resolve().parent.parent / "support" / "fake_cupy"


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Makes CuPy one that behaves as asked."""
    monkeypatch.syspath_prepend(FAKE_CUPY)
    monkeypatch.setenv("FAKE_CUDA_FOLDER", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda **asked: monkeypatch.setenv("FAKE_CUDA", json.dumps(asked))


def only(tmp_path, monkeypatch, source):
    """Makes CuPy a module of this text."""
    (tmp_path / "cupy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


def test_enough_gpus(fake):
    fake(devices=4)
    assert num_gpus() == 4
    assert why_no_gpus(4) is None


def test_without_cupy(monkeypatch, tmp_path):
    only(tmp_path, monkeypatch, "raise ModuleNotFoundError(\"No module named 'cupy'\", name='cupy')")
    assert re.fullmatch(r"GPUs cannot be used: CuPy is not installed: pip install .*", why_no_gpus())


def test_cupy_without_a_driver(fake):
    fake(count_error="cudaErrorInsufficientDriver: CUDA driver version is insufficient\nfor CUDA runtime version")
    why = why_no_gpus()
    assert why.startswith("GPUs cannot be used: CuPy is installed, but CUDA says: cudaErrorInsufficientDriver")
    assert "\n" not in why


def test_cupy_that_does_not_load(fake):
    fake(import_error="libnvrtc.so.12: cannot open")
    assert why_no_gpus() == "GPUs cannot be used: CuPy cannot be imported: libnvrtc.so.12: cannot open"


def test_cupy_that_crashes(monkeypatch, tmp_path):
    only(tmp_path, monkeypatch, "import os; os.abort()")
    assert re.fullmatch(r"GPUs cannot be used: CuPy crashes when it is asked for them: .*", why_no_gpus())


def test_a_driver_that_hangs(monkeypatch, tmp_path):
    only(tmp_path, monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(DeviceError, match=r"^GPUs cannot be used: CUDA has not answered for 0\.5 s$"):
        num_gpus(0.5)


def test_too_few_gpus(fake, monkeypatch):
    fake(devices=4)
    assert why_no_gpus(8) == "8 ranks here need a GPU each, and CUDA sees 4"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert why_no_gpus(8).endswith("sees 4 (CUDA_VISIBLE_DEVICES=0,1,2,3)")
    fake(devices=0)
    assert why_no_gpus() == "GPUs cannot be used: CUDA sees none (CUDA_VISIBLE_DEVICES=0,1,2,3)"
