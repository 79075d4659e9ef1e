"""Under mpirun, torch is told of its ranks as torchrun would tell it."""

import os
import socket

from collsyn.runtime.bootstrap import MpiBootstrap, inside_mpi

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def adopt_mpi_job() -> None:
    """In a job that mpirun or srun started, set the variables that `init_process_group` reads, unless they are set.

    Raises DeviceError where mpi4py is missing, or belongs to another MPI than the launcher.
    """
    if not inside_mpi() or any(name in os.environ for name in _NEEDED):
        return
    bootstrap = MpiBootstrap()
    port = bootstrap.allgather(str(_free_port() if bootstrap.rank == 0 else 0).encode())[0].decode()
    locals_ = bootstrap.allgather(str(bootstrap.local_rank).encode())
    os.environ.update(
        RANK=str(bootstrap.rank),
        WORLD_SIZE=str(bootstrap.size),
        LOCAL_RANK=str(bootstrap.local_rank),
        LOCAL_WORLD_SIZE=str(1 + max(map(int, locals_))),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])
