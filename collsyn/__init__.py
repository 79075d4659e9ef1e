"""Collective communication made for the machine it runs on: measure, synthesize, prove, run.

    import collsyn

    schedule = collsyn.synthesize("allgather", "dgx1", "64M")
    assert collsyn.verify(schedule).ok
    print(schedule.finish_s, collsyn.bound("allgather", "dgx1", "64M").time_s)

The names come from `collsyn.api`, which is imported when one is first used: importing the package alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collsyn.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Python asks for `__path__` and other dunder names while importing; those are never in the library.
    if not name.startswith("_"):
        api = import_module("collsyn.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'collsyn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module("collsyn.api").__all__]
