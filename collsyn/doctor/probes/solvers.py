"""Solves a small integer program with each solver: `... solvers highs|pulp`."""

import json
import sys
from typing import Any

# max 3x + 2y with x + y <= 4, x <= 2.5, integers: 2 and 2, that is 10.
_BEST = 10.0


def _highs() -> tuple[str, float]:
    import highspy

    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    x = model.addVariable(lb=0, ub=2.5, type=highspy.HighsVarType.kInteger)
    y = model.addVariable(lb=0, type=highspy.HighsVarType.kInteger)
    model.addConstr(x + y <= 4)
    model.maximize(3 * x + 2 * y)
    return model.version(), float(model.getObjectiveValue())


def _pulp() -> tuple[str, float]:
    import pulp

    model = pulp.LpProblem("doctor", pulp.LpMaximize)
    x = pulp.LpVariable("x", 0, 2.5, cat="Integer")
    y = pulp.LpVariable("y", 0, cat="Integer")
    model += 3 * x + 2 * y
    model += x + y <= 4
    available = pulp.listSolvers(onlyAvailable=True)
    chosen = next((name for name in ("PULP_CBC_CMD", "HiGHS", "COIN_CMD") if name in available), None)
    if chosen is None:
        raise RuntimeError("PuLP finds no solver")
    model.solve(pulp.getSolver(chosen, msg=False))
    return f"{pulp.__version__} ({chosen})", float(pulp.value(model.objective))


def main(name: str) -> dict[str, Any]:
    """Version of the solver, and whether its answer is right."""
    version, best = {"highs": _highs, "pulp": _pulp}[name]()
    return {"version": version, "right": abs(best - _BEST) < 1e-6}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
