"""Asks CuPy for the GPUs, and copies between each ordered pair of them, verifying the bytes."""

import json
from typing import Any

_BYTES = 1 << 20
_STRIDE = 251
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_THREADS, _BLOCKS = 256, 32
# Sixteen bytes a thread and step, as plans are to be executed.
_SOURCE = """
extern "C" __global__ void put(unsigned long long to, unsigned long long from, unsigned long long count) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        ((uint4*)to)[i] = ((const uint4*)from)[i];
}
"""


def main() -> dict[str, Any]:
    """Versions, devices and pairs; `error` in place of what CUDA refused."""
    import cupy

    runtime = cupy.cuda.runtime
    facts: dict[str, Any] = {"cupy": cupy.__version__}
    try:
        facts["runtime"] = runtime.runtimeGetVersion()
        facts["driver"] = runtime.driverGetVersion()
        facts["devices"] = [_device(runtime, index) for index in range(runtime.getDeviceCount())]
    except Exception as error:
        # Errors of every layer below: CuPy's own, of the runtime and of its loader.
        return {**facts, "error": _words(error)}
    facts["pairs"] = _pairs(cupy, len(facts["devices"]))
    return facts


def _device(runtime: Any, index: int) -> dict[str, Any]:
    properties = runtime.getDeviceProperties(index)
    return {
        "name": properties["name"].decode(errors="replace"),
        "compute": f"{properties['major']}.{properties['minor']}",
        "memory_bytes": int(properties["totalGlobalMem"]),
    }


def _pairs(cupy: Any, count: int) -> list[dict[str, Any]]:
    pairs = []
    for source in range(count):
        for target in range(count):
            if source != target:
                try:
                    stores, copies = _tried(cupy, source, target)
                except Exception as error:
                    stores = copies = _words(error)
                pairs.append({"from": source, "to": target, "stores": stores, "copies": copies})
    return pairs


def _tried(cupy: Any, source: int, target: int) -> tuple[str, str]:
    """How data gets from one device into another's memory: by a kernel's stores, and by the copy engine."""
    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(source, target):
        return "no access", "no access"
    runtime.setDevice(target)
    into = runtime.malloc(_BYTES)
    runtime.setDevice(source)
    out_of = runtime.malloc(_BYTES)
    try:
        try:
            runtime.deviceEnablePeerAccess(target)
        except runtime.CUDARuntimeError as error:
            if "AlreadyEnabled" not in str(error):
                raise
        kernel = cupy.RawKernel(_SOURCE, "put")

        def by_stores() -> None:
            # Made here: `cupy` brings NumPy, and the kernel takes its integers as they are.
            arguments = tuple(cupy.uint64(value) for value in (into, out_of, _BYTES // 16))
            kernel((_BLOCKS,), (_THREADS,), arguments)

        def by_copies() -> None:
            runtime.memcpyPeer(into, target, out_of, source, _BYTES)

        return tuple(  # type: ignore[return-value]
            _verified(runtime, way, source, target, out_of, into, seed)
            for seed, way in enumerate((by_stores, by_copies))
        )
    finally:
        runtime.setDevice(source)
        runtime.free(out_of)
        runtime.setDevice(target)
        runtime.free(into)


def _verified(runtime: Any, way: Any, source: int, target: int, out_of: int, into: int, seed: int) -> str:
    import numpy as np

    # Other bytes for each pair and way: what an earlier one left is not taken for this one's.
    wanted = ((np.arange(_BYTES) * (2 * seed + 1) + 7 * source + target + 1) % _STRIDE).astype(np.uint8)
    back = np.zeros_like(wanted)
    runtime.setDevice(target)
    runtime.memcpy(into, back.ctypes.data, _BYTES, _HOST_TO_DEVICE)
    runtime.setDevice(source)
    runtime.memcpy(out_of, wanted.ctypes.data, _BYTES, _HOST_TO_DEVICE)
    way()
    runtime.deviceSynchronize()
    runtime.setDevice(target)
    runtime.memcpy(back.ctypes.data, into, _BYTES, _DEVICE_TO_HOST)
    wrong = int(np.count_nonzero(back != wanted))
    return "verified" if wrong == 0 else f"{wrong} of {_BYTES} bytes wrong"


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    print(json.dumps(main()))
