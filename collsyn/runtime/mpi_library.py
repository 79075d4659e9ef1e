"""The MPI that mpi4py has loaded, as C code calls it: addresses of its functions, and handles as plain numbers."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collsyn.errors import DeviceError

_CALLS = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Cancel")
_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


@dataclass(frozen=True, eq=False)
class Post:
    """How a rank's proxy reaches others: a communicator (mpi4py) that nobody else receives on, and its rank of each of
    the ranks of a context."""

    comm: Any
    ranks: tuple[int, ...]

    def of(self, members: Sequence[int]) -> "Post":
        """The same for a group of the ranks."""
        return Post(self.comm, tuple(self.ranks[member] for member in members))


class MpiLibrary:
    """Addresses of calls, and handles; `is_device_aware`: whether MPI says that it takes pointers to GPU memory."""

    def __init__(self, mpi: Any = None) -> None:
        """`mpi` is the module mpi4py.MPI; DeviceError where its library cannot be called from a thread of its own."""
        if mpi is None:
            from mpi4py import MPI

            mpi = MPI
        self._mpi = mpi
        level = mpi.Query_thread()
        if level < mpi.THREAD_MULTIPLE:
            names = {getattr(mpi, f"THREAD_{name}"): name for name in _LEVELS}
            raise DeviceError(
                f"ranks in several boxes need an MPI with MPI_THREAD_MULTIPLE; {self.name} gives "
                f"MPI_THREAD_{names.get(level, level)}"
            )
        library = ctypes.CDLL(mpi.__file__)
        try:
            self.calls = [address_of(getattr(library, name)) for name in _CALLS]
        except AttributeError as error:
            raise DeviceError(f"the library of {self.name} cannot be called: {error}") from None
        self.byte = int(mpi._handleof(mpi.BYTE))
        self.any_source = int(mpi.ANY_SOURCE)
        self.is_device_aware = says_device_aware(library)

    @property
    def name(self) -> str:
        """Name and version of the MPI."""
        text: str = self._mpi.Get_library_version()
        return " ".join(text.partition(",")[0].partition("\n")[0].split())

    def comm(self, comm: Any) -> int:
        """The handle of a communicator."""
        return int(self._mpi._handleof(comm))

    def error_text(self, code: int) -> str:
        """What an error code of a call means."""
        return " ".join(str(self._mpi.Get_error_string(code)).split())

    def tag(self, comm: Any, number: int) -> int:
        """The first of two tags that belong to a context with this number alone."""
        highest = int(comm.Get_attr(self._mpi.TAG_UB))
        return 2 * (number % (highest // 2))


def says_device_aware(library: Any) -> bool:
    """Whether MPI says that it takes pointers to the memory of CUDA GPUs (Open MPI and MPICH can be asked)."""
    try:
        return bool(library.MPIX_Query_cuda_support())
    except AttributeError:
        return False


def address_of(function: Any) -> int:
    """Where a function of a library is."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
