"""Runs every collective between host ranks on all element types and checks every byte against NumPy.

    python scripts/host_check.py             # 4 and 8 ranks, from one element to 64 MiB, some minutes
    python scripts/host_check.py --ranks 4 --largest 1M

Sizes are mostly ones that neither ranks nor types divide. Each collective is the best schedule for a full mesh,
lowered, run out of place and, where that is known, in place. The exit code counts what was wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from collsyn.check.reference import make_inputs, reference
from collsyn.lower.lower import lower
from collsyn.model.bind import bind
from collsyn.model.dtypes import DTYPES, OPS, dtype_of, first_difference
from collsyn.model.kinds import KINDS, REDUCING
from collsyn.model.plan_file import read_plan, write_plan
from collsyn.portfolio.auto import best_schedule
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.host import HostContext
from collsyn.runtime.launch import launch
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from collsyn.units import format_size, parse_size

SMALL = (1, 2, 7, 1000, 65_537)
LARGE_TYPES = ("float32", "bfloat16", "uint8")


def main() -> int:
    """Print one line a collective and number of ranks; returns how many runs were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--largest", default="64M", help="largest size, given to a few element types only")
    options = parser.parse_args()
    # Ranks find this file as a module of the repository.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            for kind in KINDS[:-1]:
                file = Path(folder) / f"{kind}-{ranks}.json"
                counts = [[(s * 7 + d * 3) % 5 for d in range(ranks)] for s in range(ranks)]
                problem = Problem(
                    kind, load_topology(f"full:{ranks}"), 1 << 20, counts=counts if kind == "alltoallv" else None
                )
                schedule = best_schedule(problem, Options(time_limit_s=10.0))
                write_plan(lower(schedule), file)
                arguments = {"file": str(file), "largest_bytes": parse_size(options.largest)}
                found = launch("scripts.host_check:check", arguments, ranks, "fork", 600)
                wrong = sorted({line for _, lines in found for line in lines})
                failures += len(wrong)
                method = schedule.provenance["method"]
                print(f"{kind:14} {ranks} ranks  {method:12} {found[0][0]:5} runs  {len(wrong)} wrong", *wrong[:3])
                sys.stdout.flush()
    print(f"up to {format_size(parse_size(options.largest))}: {failures} wrong")
    return min(failures, 100)


def check(bootstrap: Bootstrap, file: str, largest_bytes: int) -> tuple[int, list[str]]:
    """What one rank finds: how many runs, and what was wrong in them."""
    plan = read_plan(file)
    collective = plan.collective
    runs, wrong = 0, []
    with HostContext(bootstrap) as context:
        for dtype, width in ((name, dtype_of(name).num_bytes) for name in DTYPES):
            large = (largest_bytes // width, largest_bytes // width - 3) if dtype in LARGE_TYPES else ()
            for num_elements in (*SMALL, *large):
                for op in OPS if collective.kind in REDUCING and num_elements <= max(SMALL) else ("sum",):
                    inputs = make_inputs(collective, dtype, op, num_elements, seed=num_elements)
                    want = reference(collective, dtype, op, inputs, num_elements)[bootstrap.rank]
                    for in_place in (False, True) if collective.has_in_place else (False,):
                        bound = bind(plan, num_elements, width, in_place)
                        prepared = context.prepare(bound, dtype, op, in_place)
                        context.barrier()
                        prepared.input[:] = inputs[bootstrap.rank]
                        context.barrier()
                        prepared.run(60)
                        difference = first_difference(dtype, np.asarray(prepared.output), want)
                        runs += 1
                        if difference is not None:
                            wrong.append(f"{num_elements} {dtype} {op} in_place={in_place}: element {difference}")
                        prepared.close()
    return runs, wrong


if __name__ == "__main__":
    sys.exit(main())
