"""Maps one process's GPU memory into another by an IPC handle, verifying the bytes: `... ipc` for every device."""

import json
import subprocess
import sys
from typing import Any

_BYTES = 1 << 20
_OFFSET = 4096
_STRIDE = 251
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_LAZY_PEER_ACCESS = 1
_LIMIT_S = 30.0


def main() -> dict[str, Any]:
    """For each device `verified`, or in words what failed."""
    import cupy

    runtime = cupy.cuda.runtime
    return {"devices": [_shared(runtime, device) for device in range(runtime.getDeviceCount())]}


def _shared(runtime: Any, device: int) -> str:
    """Another process fills memory of this one, beginning at an offset as buffers of ranks do."""
    import numpy as np

    back = np.zeros(_BYTES, np.uint8)
    try:
        runtime.setDevice(device)
        pointer = runtime.malloc(_BYTES)
    except Exception as error:
        return _words(error)
    try:
        runtime.memcpy(pointer, back.ctypes.data, _BYTES, _HOST_TO_DEVICE)
        handle = runtime.ipcGetMemHandle(pointer)
        words = [sys.executable, "-m", __spec__.name, str(device), bytes(handle).hex()]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            lines = (done.stderr.strip() or f"the other process ended with {done.returncode}").splitlines()
            return lines[-1]
        runtime.memcpy(back.ctypes.data, pointer, _BYTES, _DEVICE_TO_HOST)
    except subprocess.TimeoutExpired:
        return f"the other process did not end within {_LIMIT_S:g} s"
    except Exception as error:
        return _words(error)
    finally:
        runtime.free(pointer)
    wrong = int(np.count_nonzero(back != _wanted(device)))
    return "verified" if wrong == 0 else f"{wrong} of {_BYTES} bytes wrong"


def _wanted(device: int) -> Any:
    import numpy as np

    filled = (np.arange(_BYTES) + device + 1) % _STRIDE
    filled[:_OFFSET] = 0
    return filled.astype(np.uint8)


def fill(device: int, handle: str) -> None:
    """The other process: opens the handle, writes from the offset on, and closes it before the owner frees it."""
    import cupy

    runtime = cupy.cuda.runtime
    runtime.setDevice(device)
    pointer = runtime.ipcOpenMemHandle(bytes.fromhex(handle), _LAZY_PEER_ACCESS)
    data = _wanted(device)[_OFFSET:].copy()
    runtime.memcpy(pointer + _OFFSET, data.ctypes.data, data.nbytes, _HOST_TO_DEVICE)
    runtime.deviceSynchronize()
    runtime.ipcCloseMemHandle(pointer)


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fill(int(sys.argv[1]), sys.argv[2])
    else:
        print(json.dumps(main()))
