"""Lower bounds on time, each with a certificate that needs no solver to check."""

from collsyn.bounds.bound import avoids_overhead, chunk_bound, fluid_bound, recheck, tree_bound

__all__ = ["avoids_overhead", "chunk_bound", "fluid_bound", "recheck", "tree_bound"]
