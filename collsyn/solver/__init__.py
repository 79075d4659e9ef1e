"""Linear and integer programs: one adapter to HiGHS, with statuses, limits, starts and files of what is solved."""

from collsyn.solver.from_pulp import solve_pulp
from collsyn.solver.highs import loaded, model_status, new_highs
from collsyn.solver.model import Answer, ArrayModel, Limits, Status
from collsyn.solver.solve import solve

__all__ = ["Answer", "ArrayModel", "Limits", "Status", "loaded", "model_status", "new_highs", "solve", "solve_pulp"]
