"""Plans on real data against the oracle of their collective."""

import numpy as np

from collsyn.check.execute import execute
from collsyn.check.reference import make_inputs, reference
from collsyn.model.bind import bind, layout
from collsyn.model.plan import Plan


def assert_runs(plan: Plan, num_elements: int) -> None:
    """The plan's outputs on real data, in and out of place, are those of the oracle wherever a chunk is wanted."""
    collective = plan.collective
    inputs = make_inputs(collective, "int32", "sum", num_elements)
    wanted = reference(collective, "int32", "sum", inputs, num_elements)
    places = layout(collective, num_elements)
    for in_place in (False, True)[: 1 + collective.has_in_place]:
        outputs = execute(bind(plan, num_elements, 4, in_place), "int32", "sum", inputs, seed=1)
        for rank, (chunks, first, _) in enumerate(places.output):
            for chunk, begin in zip(chunks.tolist(), first.tolist(), strict=True):
                part = slice(begin, begin + int(places.lengths[chunk]))
                assert np.array_equal(outputs[rank][part], wanted[rank][part]), (collective.kind, rank, chunk)
