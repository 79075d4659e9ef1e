"""Ranks that find each other through a key-value store, such as the one that torchrun serves."""

from typing import Protocol

from collsyn.errors import DeviceError
from collsyn.runtime.bootstrap import DEFAULT_LIMIT_S, Bootstrap


class Store(Protocol):
    """What a store must offer; its `get` should have a time limit of its own."""

    def set(self, key: str, value: bytes, /) -> object:
        """Put a value where every rank can see it."""

    def get(self, key: str, /) -> bytes:
        """The value of a key, as soon as it is there."""


class StoreBootstrap(Bootstrap):
    """Exchanges through a store: every rank sets one key under `prefix` and gets those of the others."""

    def __init__(self, store: Store, rank: int, size: int, prefix: str, limit_s: float = DEFAULT_LIMIT_S) -> None:
        """`prefix` must be new to the store for every job, and equal on its ranks."""
        super().__init__(limit_s)
        self.rank = self.local_rank = rank
        self.size = size
        self._store, self._prefix, self._turn = store, prefix, 0

    def allgather(self, data: bytes) -> list[bytes]:
        turn, self._turn = self._turn, self._turn + 1
        try:
            # Stores may refuse empty values.
            self._store.set(self._key(turn, self.rank), b"+" + data)
            return [bytes(self._store.get(self._key(turn, rank)))[1:] for rank in range(self.size)]
        except Exception as error:  # each store has its own
            text = " ".join(str(error).split()) or type(error).__name__
            raise DeviceError(f"rank {self.rank}: the key-value store failed: {text}") from None

    def kill(self, code: int) -> None:
        """Others end at the store's own time limit: it has no way to tell them sooner."""

    def _key(self, turn: int, rank: int) -> str:
        return f"{self._prefix}/{turn}/{rank}"
