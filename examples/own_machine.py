"""Describe a machine of one's own in Python, synthesize an allreduce for it, and lower it to what each rank runs."""

import collsyn
from collsyn.model.topology import Topology

# Four ranks in a square of 20 GB/s links, and a diagonal of 5 GB/s: one entry a directed link.
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
ENDS = [*PAIRS, *((b, a) for a, b in PAIRS)]
GB_S = [5.0 if {a, b} == {0, 2} else 20.0 for a, b in ENDS]

square = Topology(
    name="square",
    num_ranks=4,
    src=[a for a, _ in ENDS],
    dst=[b for _, b in ENDS],
    alpha_s=[0.7e-6] * len(ENDS),
    beta_s_per_byte=[1e-9 / gb_s for gb_s in GB_S],
    overhead_s=[0.0] * len(ENDS),
    count=[1] * len(ENDS),
)
schedule = collsyn.synthesize("allreduce", square, "16M")
plan = collsyn.lower(schedule)
print(f"{schedule.provenance['method']}: {schedule.num_sends} sends, {schedule.finish_s * 1e6:.1f} us")
print(f"plan: {plan.num_channels} channels, {plan.num_instructions} instructions; it begins with")
for instruction in range(3):
    print(f"  {plan.describe(instruction)}")
print("right" if collsyn.verify(plan).ok else "wrong")
