"""The table of arguments for lower bounds; a new one is a file beside this one and a row here (docs/bounds.md)."""

from importlib import import_module

from collsyn.bounds.argument import Argument

# Name -> "module:object". Of equal bounds the one further up is reported.
ARGUMENTS: dict[str, str] = {
    "cut": "collsyn.bounds.cut:ARGUMENT",
    "degree": "collsyn.bounds.degree:ARGUMENT",
    "distance": "collsyn.bounds.distance:ARGUMENT",
    "parts": "collsyn.bounds.parts:ARGUMENT",
    "lengths": "collsyn.bounds.lengths:ARGUMENT",
    "spread": "collsyn.bounds.spread:ARGUMENT",
}

# Those that hold for schedules of one form only, here for allreduces along trees: bounds of scope `tree`.
TREE_ARGUMENTS: dict[str, str] = {"dual": "collsyn.bounds.dual:ARGUMENT"}


def argument(name: str) -> Argument:
    """The argument of that name in the tables."""
    module, _, attribute = (ARGUMENTS | TREE_ARGUMENTS)[name].partition(":")
    found: Argument = getattr(import_module(module), attribute)
    return found
