"""What carries data between boxes: MPI; `COLLSYN_TRANSPORT` may ask for something else, and is told why not."""

import importlib.util
import os
import threading
from collections.abc import Iterable

from collsyn.errors import DeviceError, InputError
from collsyn.runtime.arena import Control
from collsyn.runtime.boxes import Boxes
from collsyn.runtime.mpi_library import MpiLibrary, Post
from collsyn.runtime.proxy import DIRECT_FROM, NEVER, Proxy

TRANSPORT = "COLLSYN_TRANSPORT"
STAGING = "COLLSYN_STAGING"


class ContextNumbers:
    """Numbers that tell the contexts of a process apart; ranks of a context agree on the highest that one offers."""

    def __init__(self) -> None:
        self._lock, self._highest = threading.Lock(), 0

    def next(self) -> int:
        """A number to offer."""
        with self._lock:
            self._highest += 1
            return self._highest

    def agree(self, offered: Iterable[int]) -> int:
        """The number that counts."""
        with self._lock:
            chosen = max(offered)
            self._highest = max(self._highest, chosen)
            return chosen


context_numbers = ContextNumbers()


def make_proxy(rank: int, boxes: Boxes, control: Control, post: Post, number: int, is_crowded: bool) -> Proxy:
    """The proxy of a rank in host memory; raises DeviceError where the machine lacks what it takes."""
    transport = os.environ.get(TRANSPORT) or "mpi"
    if transport == "nccl":
        raise DeviceError(why_not_nccl())
    if transport != "mpi":
        raise InputError(f"{TRANSPORT}: is {transport!r}; expected mpi or nccl")
    return Proxy(rank, boxes, control, post, number, is_crowded, _direct_from(), MpiLibrary())


def make_device_proxy(
    rank: int, boxes: Boxes, control: Control, post: Post, number: int, is_crowded: bool, device_calls: int
) -> Proxy:
    """The proxy of a rank whose memory is a GPU's; `device_calls` as `Proxy` takes it. Raises as `make_proxy` does."""
    transport = os.environ.get(TRANSPORT) or "mpi"
    if transport != "mpi":
        raise InputError(f"{TRANSPORT}: is {transport!r}; expected mpi, which carries what GPUs send to other boxes")
    library = MpiLibrary()
    direct_from = {"": device_direct_from(library), "1": NEVER, "0": 1}[_staging()]
    return Proxy(rank, boxes, control, post, number, is_crowded, direct_from, library, device_calls)


def why_not_nccl() -> str:
    """Why NCCL's puts and signals carry nothing between these ranks."""
    if importlib.util.find_spec("nccl") is None:
        return f"{TRANSPORT}=nccl: nccl4py is not installed (pip install nccl4py); mpi carries data without it"
    return f"{TRANSPORT}=nccl: NCCL moves memory of GPUs, and host ranks have none; mpi carries their data"


def device_direct_from(library: MpiLibrary) -> int:
    """From how many bytes on GPU memory is given to MPI itself: always where it says it can take it, else never."""
    return 1 if library.is_device_aware else NEVER


def _direct_from() -> int:
    return {"": DIRECT_FROM, "1": NEVER, "0": 1}[_staging()]


def _staging() -> str:
    text = os.environ.get(STAGING, "")
    if text not in ("", "0", "1"):
        raise InputError(f"{STAGING}: is {text!r}; expected 1 (all data is staged) or 0 (none is)")
    return text
