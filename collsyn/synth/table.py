"""The table of synthesizers: a new one is one file and one row here (and one in docs/synthesizers.md)."""

from functools import cache
from importlib import import_module

from collsyn.errors import InputError
from collsyn.synth.problem import Synthesizer

# Name -> "module:object", imported when it is asked for.
METHODS: dict[str, str] = {
    "ring": "collsyn.synth.ring:RING",
    "two-way-ring": "collsyn.synth.ring:TWO_WAY",
    "recursive": "collsyn.synth.recursive:RECURSIVE",
    "doubling": "collsyn.synth.recursive:DOUBLING",
    "direct": "collsyn.synth.direct:DIRECT",
    "at-once": "collsyn.synth.at_once:AT_ONCE",
    "one-shot": "collsyn.synth.direct:ONE_SHOT",
    "one-phase": "collsyn.synth.one_phase:ONE_PHASE",
    "binomial": "collsyn.synth.binomial:BINOMIAL",
    "double-binary-tree": "collsyn.synth.double_tree:DOUBLE_BINARY_TREE",
    "in-network": "collsyn.synth.in_network:IN_NETWORK",
    "hierarchical": "collsyn.synth.hierarchical:HIERARCHICAL",
    "swing": "collsyn.synth.swing:SWING",
    "swing-latency": "collsyn.synth.swing:SWING_LATENCY",
    "bine": "collsyn.synth.bine:BINE",
    "bfb": "collsyn.synth.bfb:BFB",
    "bfb-repaired": "collsyn.synth.bfb_repair:REPAIRED",
    "paths": "collsyn.synth.paths:PATHS",
    "trees": "collsyn.synth.trees:TREES",
    "split": "collsyn.synth.split:SPLIT",
    "joint": "collsyn.synth.joint:JOINT",
    "translated": "collsyn.synth.translated:TRANSLATED",
    "rebalanced": "collsyn.synth.rebalanced:REBALANCED",
    "symmetric": "collsyn.synth.symmetric:SYMMETRIC",
    "lockstep": "collsyn.synth.lockstep:LOCKSTEP",
    "flow": "collsyn.synth.concurrent_flow:FLOW",
    "exact": "collsyn.synth.exact:EXACT",
    "exact:epochs": "collsyn.synth.exact_epochs:EPOCHS",
    "greedy": "collsyn.synth.greedy:GREEDY",
    "milp": "collsyn.synth.milp:MILP",
}


@cache
def method(name: str) -> Synthesizer:
    """The synthesizer of that name: a row of the table, or one behind a colon (`exact:C/S/R`); raises InputError."""
    row, colon, inner = (name, "", "") if name in METHODS else name.partition(":")
    if row not in METHODS:
        raise InputError(f"method {name!r} is not known; expected auto or one of {', '.join(METHODS)}")
    module, attribute = METHODS[row].split(":")
    found: Synthesizer = getattr(import_module(module), attribute)
    if not colon:
        return found
    if not hasattr(found, "with_inner"):
        raise InputError(f"method {name!r}: {row} takes nothing behind a colon; hierarchical:INNER and exact:C/S/R do")
    chosen: Synthesizer = found.with_inner(inner)
    return chosen
