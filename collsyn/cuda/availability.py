"""Whether ranks can use GPUs here, and in one line why not."""

import json
import os
import subprocess
import sys

from collsyn.errors import DeviceError

_LIMIT_S = 60.0
_INSTALL = "pip install 'collsyn[cuda12]' (or cuda13, by the driver)"
# In a process of its own: a driver that hangs or crashes takes nobody along, and who has asked it cannot fork ranks
# that use it.
_ASK = """
import json
try:
    import cupy
except ImportError as error:
    print(json.dumps(["import", str(error), isinstance(error, ModuleNotFoundError) and error.name == "cupy"]))
else:
    try:
        print(json.dumps(["count", int(cupy.cuda.runtime.getDeviceCount())]))
    except Exception as error:
        print(json.dumps(["driver", str(error) or type(error).__name__]))
"""


def num_gpus(limit_s: float = _LIMIT_S) -> int:
    """GPUs that a process started like this one sees; DeviceError, in one line, where there are none to use."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"GPUs cannot be used: CUDA has not answered for {limit_s:g} s") from None
    try:
        what, said, *more = json.loads(asked.stdout.strip().split("\n")[-1])
    except ValueError:
        last = " ".join(asked.stderr.strip().split("\n")[-1].split()) or f"exit code {asked.returncode}"
        raise DeviceError(f"GPUs cannot be used: CuPy crashes when it is asked for them: {last}") from None
    said = said if what == "count" else " ".join(said.split())
    if what == "import":
        why = f"CuPy is not installed: {_INSTALL}" if more[0] else f"CuPy cannot be imported: {said}"
        raise DeviceError(f"GPUs cannot be used: {why}")
    if what == "driver":
        raise DeviceError(f"GPUs cannot be used: CuPy is installed, but CUDA says: {said} (is there a driver?)")
    if said == 0:
        raise DeviceError(f"GPUs cannot be used: CUDA sees none{_visible()}")
    return int(said)


def why_no_gpus(needed: int = 1, limit_s: float = _LIMIT_S) -> str | None:
    """Why `needed` ranks on this machine cannot have a GPU each, or None where they can."""
    try:
        found = num_gpus(limit_s)
    except DeviceError as error:
        return str(error)
    if found < needed:
        return f"{needed} ranks here need a GPU each, and CUDA sees {found}{_visible()}"
    return None


def _visible() -> str:
    """What hides GPUs, as far as this process knows."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})"
