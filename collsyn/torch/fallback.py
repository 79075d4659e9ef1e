"""What plans do not serve, done by gloo: made when it is first needed, which it is on all ranks of a group at once."""

import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from collsyn.errors import InputError


class Fallback:
    """A group's gloo, and the one warning that it is used."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, is_strict: bool) -> None:
        """Where `is_strict`, every call raises InputError instead."""
        self._made_of = (store, rank, size, timeout)
        self._is_strict = is_strict
        self._gloo: Any = None

    def call(self, what: str, name: str, arguments: tuple[Any, ...], opts: Any) -> Any:
        """Call a method of gloo's backend; `what` says to people what that is."""
        if self._is_strict:
            raise InputError(f"{what} is not served by collsyn, and COLLSYN_STRICT=1 forbids gloo")
        if self._gloo is None:
            store, rank, size, timeout = self._made_of
            if not dist.is_gloo_available():
                raise InputError(f"{what} is not served by collsyn, and this torch has no gloo to serve it")
            warnings.warn(f"collsyn: {what} is left to gloo (COLLSYN_STRICT=1 makes it an error)", stacklevel=6)
            self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        method = getattr(self._gloo, name)
        return method(*arguments) if opts is None else method(*arguments, opts)

    def close(self) -> None:
        """Leave gloo's group, if it was made."""
        if self._gloo is not None:
            self._gloo.shutdown()
            self._gloo = None
