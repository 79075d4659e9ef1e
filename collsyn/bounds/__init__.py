"""Lower bounds on time, each with a certificate that needs no solver to check."""

from collsyn.bounds.bound import chunk_bound, fluid_bound, recheck, schedule_bounds

__all__ = ["chunk_bound", "fluid_bound", "recheck", "schedule_bounds"]
