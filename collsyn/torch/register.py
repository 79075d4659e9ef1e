"""Makes process groups for torch: the first one meets all ranks through the store, others are parts of it."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collsyn.comm.communicator import Communicator
from collsyn.comm.plans import Searching
from collsyn.comm.store import StoreBootstrap
from collsyn.errors import CollsynError, DeviceError, InputError
from collsyn.runtime.bootstrap import launched_size
from collsyn.torch.measured import measured_machine
from collsyn.torch.process_group import CollsynGroup
from collsyn.torch.settings import Settings, read_settings

NAME = "collsyn"
_MEET_LIMIT_S = 300.0


class _LimitedStore:
    """A store whose `get` gives up after a time of its own, whatever that of the store is."""

    def __init__(self, store: Any, limit_s: float) -> None:
        self._store, self._limit = store, timedelta(seconds=limit_s)

    def set(self, key: str, value: bytes, /) -> object:
        """Put a value."""
        return self._store.set(key, value)

    def get(self, key: str, /) -> bytes:
        """Wait for a value."""
        self._store.wait([key], self._limit)
        return bytes(self._store.get(key))


class _Job:
    """What the groups of this process share: the communicator of all ranks, and how strict to be."""

    def __init__(self) -> None:
        self.world: Communicator | None = None
        self.settings: Settings | None = None
        self.made = 0


_JOB = _Job()


def register() -> None:
    """Make the backend known to torch, for tensors of processors and of CUDA; a second call does nothing."""
    if NAME.upper() in dist.Backend._plugins:
        return
    from collsyn.torch.mpi import adopt_mpi_job

    adopt_mpi_job()
    dist.Backend.register_backend(NAME, make_group, extended_api=True, devices=["cpu", "cuda"])


def make_group(asked: Any, _: object = None) -> CollsynGroup:
    """The process group of some ranks, which torch calls on each of them; raises InputError and DeviceError."""
    ranks = list(asked.global_ranks_in_group)
    timeout: timedelta = asked.timeout
    if not ranks:
        comm, settings = _meet(asked.store, asked.group_rank, asked.group_size, timeout)
        _JOB.world, _JOB.settings = comm, settings
    elif _JOB.world is not None and _is_default_ours():
        assert _JOB.settings is not None
        comm, settings = _JOB.world.group(ranks), _JOB.settings
    else:
        # The group of all ranks is another backend's.
        comm, settings = _meet(asked.store, asked.group_rank, asked.group_size, timeout)
    return CollsynGroup(comm, asked.store, timeout, settings.is_strict)


def _is_default_ours() -> bool:
    return dist.is_initialized() and isinstance(dist.group.WORLD, CollsynGroup)


def _meet(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Communicator, Settings]:
    """A communicator of ranks that see one store, which agree on their settings."""
    limit_s = min(timeout.total_seconds(), _MEET_LIMIT_S)
    _JOB.made += 1
    bootstrap = StoreBootstrap(_LimitedStore(store, limit_s), rank, size, f"collsyn/{_JOB.made}", limit_s)
    settings = _agreed(bootstrap, lambda: _settings_here(size))
    # What takes over in the middle of a run changes the order of sums, and so their last bits.
    must_wait = settings.search == "wait" or torch.are_deterministic_algorithms_enabled()
    search = None if settings.search == "off" else Searching(must_wait, settings.search_limit_s)
    topology = settings.topology
    if topology is None and search is not None:
        topology = measured_machine(bootstrap)
    comm = Communicator(
        bootstrap,
        topology,
        settings.algorithms,
        timeout.total_seconds(),
        settings.emulation_factor,
        search,
    )
    return comm, settings


def _settings_here(size: int) -> Settings:
    launched = launched_size()
    if launched is not None and launched != size and "TORCHELASTIC_RUN_ID" not in os.environ:
        raise DeviceError(f"the launcher started {launched} ranks; init_process_group was told of {size}")
    return read_settings(size)


def _agreed(bootstrap: StoreBootstrap, read: Callable[[], Settings]) -> Settings:
    """What `read` says here, once all ranks are known to say the same; else every rank raises the same error."""
    settings: Settings | None = None
    failure: CollsynError | None = None
    try:
        settings = read()
        mine: dict[str, str] = settings.summary
    except CollsynError as error:
        failure, mine = error, {"error": str(error)}
    answers = [json.loads(text) for text in bootstrap.allgather(json.dumps(mine).encode())]
    if failure is not None:
        raise failure
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise DeviceError(f"rank {rank} failed: {answer['error']}")
    for rank, answer in enumerate(answers):
        for name, value in answer.items():
            if value != answers[0][name]:
                raise InputError(f"{name}: ranks 0 and {rank} disagree: {answers[0][name]} and {value}")
    assert settings is not None
    return settings
