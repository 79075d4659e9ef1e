"""A stand-in for `cupy.cuda.nccl`: when a group ends its calls move memory of the host, all ranks in one process."""

import sys
from types import ModuleType
from typing import Any

import numpy as np

TYPES = {"NCCL_FLOAT32": "f4", "NCCL_FLOAT64": "f8", "NCCL_INT32": "i4", "NCCL_INT64": "i8", "NCCL_UINT8": "u1"}
OPS = {"NCCL_SUM": np.add, "NCCL_PROD": np.multiply, "NCCL_MIN": np.minimum, "NCCL_MAX": np.maximum}


def at(address: int, count: int, dtype: str) -> np.ndarray:
    """Memory as an array."""
    import ctypes

    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=dtype)


class Communicator:
    """One rank's."""

    def __init__(self, module: "FakeNccl", rank: int) -> None:
        self._module, self._rank = module, rank

    @classmethod
    def initAll(cls, devices: list[int]) -> list["Communicator"]:  # noqa: N802
        return [cls(FakeNccl.current, rank) for rank in range(len(devices))]

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._module.given.append((name, self._rank, given))


class FakeNccl(ModuleType):
    """Put it in the place of the module with `install(monkeypatch)`."""

    current: "FakeNccl"

    def __init__(self) -> None:
        super().__init__("cupy.cuda.nccl")
        self.given: list[tuple[str, int, tuple[Any, ...]]] = []
        self.NcclCommunicator = Communicator
        self.spoil = False
        for name, dtype in TYPES.items():
            setattr(self, name, dtype)
        for name in OPS:
            setattr(self, name, name)
        FakeNccl.current = self

    def groupStart(self) -> None:  # noqa: N802
        self.given = []

    def groupEnd(self) -> None:  # noqa: N802
        calls: dict[str, dict[int, list[Any]]] = {}
        for name, rank, given in self.given:
            calls.setdefault(name, {}).setdefault(rank, []).append(given)
        for name, by_rank in calls.items():
            if name != "recv":
                getattr(self, name)(by_rank, calls.get("recv", {}))

    def allReduce(self, by_rank: Any, _: Any) -> None:  # noqa: N802
        rows = {rank: one[0] for rank, one in by_rank.items()}
        _, _, count, dtype, op, _ = rows[0]
        total = OPS[op].reduce([at(row[0], count, dtype) for row in rows.values()])
        for row in rows.values():
            at(row[1], count, dtype)[...] = total + self.spoil

    def reduceScatter(self, by_rank: Any, _: Any) -> None:  # noqa: N802
        rows = {rank: one[0] for rank, one in by_rank.items()}
        _, _, count, dtype, op, _ = rows[0]
        total = OPS[op].reduce([at(row[0], count * len(rows), dtype) for row in rows.values()])
        for rank, row in rows.items():
            at(row[1], count, dtype)[...] = total[rank * count : (rank + 1) * count]

    def allGather(self, by_rank: Any, _: Any) -> None:  # noqa: N802
        rows = {rank: one[0] for rank, one in by_rank.items()}
        for row in rows.values():
            _, receive, count, dtype, _ = row
            at(receive, count * len(rows), dtype)[...] = np.concatenate(
                [at(rows[rank][0], count, dtype) for rank in sorted(rows)]
            )

    def reduce(self, by_rank: Any, _: Any) -> None:
        rows = {rank: one[0] for rank, one in by_rank.items()}
        _, _, count, dtype, op, root, _ = rows[0]
        at(rows[root][1], count, dtype)[...] = OPS[op].reduce([at(row[0], count, dtype) for row in rows.values()])

    def broadcast(self, by_rank: Any, _: Any) -> None:
        rows = {rank: one[0] for rank, one in by_rank.items()}
        for row in rows.values():
            _, receive, count, dtype, root, _ = row
            at(receive, count, dtype)[...] = at(rows[root][0], count, dtype)

    def send(self, by_rank: Any, received: Any) -> None:
        for rank, rows in by_rank.items():
            for address, count, dtype, peer, _ in rows:
                place = next(row for row in received[peer] if row[3] == rank)
                at(place[0], count, dtype)[...] = at(address, count, dtype)


def install(monkeypatch: Any) -> FakeNccl:
    """Make `from cupy.cuda import nccl` find it."""
    made = FakeNccl()
    cuda, cupy = ModuleType("cupy.cuda"), ModuleType("cupy")
    cuda.nccl, cupy.cuda = made, cuda  # type: ignore[attr-defined]
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", made)):
        monkeypatch.setitem(sys.modules, name, module)
    return made
