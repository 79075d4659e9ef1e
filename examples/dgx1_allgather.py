"""Synthesize, prove and time an allgather for a DGX-1, and compare it with a ring and with the lower bound."""

import collsyn

schedule = collsyn.synthesize("allgather", "dgx1", "64M")
ring = collsyn.synthesize("allgather", "dgx1", "64M", method="ring")
bound = collsyn.bound("allgather", "dgx1", "64M")

assert collsyn.verify(schedule).ok
print(f"best   {schedule.provenance['method']:10} {schedule.finish_s * 1e6:8.1f} us")
print(f"ring   {'':10} {ring.finish_s * 1e6:8.1f} us")
print(f"bound  {bound.kind:10} {bound.time_s * 1e6:8.1f} us")
for size in ("64K", "1M", "16M"):
    print(f"the same schedule at {size:>4}: {collsyn.simulate(schedule, size).finish_s * 1e6:8.1f} us")
