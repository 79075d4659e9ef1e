"""The search: for every number of ranks and degree the best base graphs and the best expansions of smaller designs.

Dynamic programming over (N, D); source: Efficient Direct-Connect Topologies, arXiv 2202.03356. A line graph, a degree
expansion and a product cost what theorems say, or less where paths grow shorter; so each is built and computed, unless
what it could reach at best is there already.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from collsyn.errors import InputError
from collsyn.finder.bases import LIGHT, THOROUGH, base_texts, divisors
from collsyn.finder.design import Cost, Design, cost_of, is_bandwidth_optimal, is_regular, pareto
from collsyn.finder.limits import PHASES, least_factor, moore_steps, require_askable
from collsyn.topology.presets import preset_wiring

# Designs of equal cost whose line graphs are built, beside the first.
_EQUALS = 4


@dataclass(frozen=True)
class _Hope:
    """An expansion that is not built yet: what theorems say, what is the least it can cost, what may be carried."""

    text: str
    predicted: Cost
    least: Cost
    base: str | None = None


@dataclass
class Search:
    """Designs for a collective; results for each (N, D) are kept, and in `tried` all graphs whose cost was computed."""

    collective: str = "allgather"
    two_way: bool = False
    seed: int = 0
    tried: dict[tuple[int, int], list[Design]] = field(default_factory=dict)
    _thorough: set[tuple[int, int]] = field(default_factory=set)
    _known: dict[tuple[int, int], list[Design]] = field(default_factory=dict)

    @property
    def num_phases(self) -> int:
        """How many times data goes through the network."""
        return len(PHASES[self.collective])

    def find(self, num_ranks: int, degree: int) -> list[Design]:
        """`best`, after a look at the question; raises InputError for one that has no answer or takes too long."""
        if self.collective not in PHASES:
            raise InputError(f"collective: {self.collective} is not designed for; expected one of {', '.join(PHASES)}")
        require_askable(num_ranks, degree, self.two_way)
        # Those whose line graphs, or line graphs of these, have the ranks asked for.
        self._thorough = {
            (num_ranks // degree**k, degree) for k in range(1 if degree == 1 else 12) if num_ranks % degree**k == 0
        }
        return self.best(num_ranks, degree)

    def best(self, num_ranks: int, degree: int) -> list[Design]:
        """The Pareto set of steps and factor, by steps."""
        key = num_ranks, degree
        if key not in self._known:
            self._known[key] = []
            self._known[key] = self._designs(num_ranks, degree)
        return self._known[key]

    def least(self, num_ranks: int, degree: int) -> Cost:
        """What no design beats."""
        p = self.num_phases
        return Cost(p * moore_steps(num_ranks, degree, self.two_way), p * least_factor(num_ranks))

    def _designs(self, n: int, d: int) -> list[Design]:
        if n == 1 or (self.two_way and (n * d % 2 or (d == 1 and n > 2))):
            return []
        found: list[Design] = []
        least = self.least(n, d)
        effort = THOROUGH if (n, d) in self._thorough else LIGHT
        for text in base_texts(n, d, self.two_way, self.seed, effort):
            found = self._with(found, text, n, d)
            if found[:1] and found[0].cost.covers(least):
                return found
        ahead = [*self._lines(n, d), *self._copies(n, d), *self._products(n, d)]
        # What promises most comes first, so that the rest need not be built.
        for hope in sorted(ahead, key=lambda one: (one.least.steps, one.predicted.factor)):
            if not any(design.cost.covers(hope.least) for design in found):
                found = self._with(found, hope.text, n, d, hope.predicted, hope.base)
        return found

    def _with(
        self, found: list[Design], text: str, n: int, d: int, predicted: Cost | None = None, base: str | None = None
    ) -> list[Design]:
        """The Pareto set with one more graph, and with what is carried there from a base if that is given."""
        try:
            wiring = preset_wiring(text)
        except InputError:
            return found
        cost = cost_of(wiring, d, PHASES[self.collective])
        if cost is None:
            return found
        designs = [Design(text, n, d, cost, predicted, is_regular(wiring, d))]
        if predicted is not None and base is not None:
            designs.append(replace(designs[0], cost=predicted, base=base))
        self.tried.setdefault((n, d), []).append(designs[0])
        return pareto([*found, *designs])

    def _lines(self, n: int, d: int) -> Iterator[_Hope]:
        if n % d or d == 1 or self.two_way:
            return
        for design in self._with_equals(n // d, d):
            predicted = line_cost(design.cost, n // d, self.num_phases)
            least = self._optimistic(predicted.steps - self.num_phases, n, d)
            yield _Hope(f"line:({design.text})", predicted, least, self._carried_from(design))

    def _copies(self, n: int, d: int) -> Iterator[_Hope]:
        for copies in divisors(d)[1:]:
            if n % copies or n == copies:
                continue
            for design in self._regular(n // copies, d // copies):
                predicted = copies_cost(design.cost, n // copies, copies, self.num_phases)
                least = self._optimistic(design.cost.steps, n, d)
                yield _Hope(f"expand:({design.text})x{copies}", predicted, least, self._carried_from(design))

    def _products(self, n: int, d: int) -> Iterator[_Hope]:
        for first in divisors(n)[1:-1]:
            for share in range(1, d):
                second = n // first
                if (first, share) < (second, d - share):
                    continue
                for one in self._regular(first, share):
                    for other in self._regular(second, d - share):
                        steps = one.cost.steps + other.cost.steps
                        least = Cost(steps, self.num_phases * least_factor(n))
                        optimal = all(is_bandwidth_optimal(part, self.num_phases) for part in (one, other))
                        # Without the theorem a guess decides only in which order products are built.
                        guess = least if optimal else Cost(steps, max(one.cost.factor, other.cost.factor))
                        yield _Hope(f"product:({one.text})x({other.text})", guess, least)

    def _regular(self, n: int, d: int) -> list[Design]:
        return [design for design in self.best(n, d) if design.regular] if n > 1 and d > 0 else []

    def _with_equals(self, n: int, d: int) -> list[Design]:
        """The best regular designs, and some that cost the same: their line graphs may not."""
        best = self._regular(n, d)
        others = [
            one
            for design in best
            for one in [each for each in self.tried.get((n, d), []) if each.cost == design.cost][: 1 + _EQUALS]
            if one.regular and one.text != design.text
        ]
        return [*best, *others]

    def _carried_from(self, design: Design) -> str | None:
        """Where the schedule was solved that can be carried to expansions of a design; only allgathers are."""
        return (design.base or design.text) if self.collective == "allgather" else None

    def _optimistic(self, steps: int, n: int, d: int) -> Cost:
        least = self.least(n, d)
        return Cost(max(steps, least.steps), least.factor)


def line_cost(base: Cost, num_ranks: int, num_phases: int = 1) -> Cost:
    """What the line graph of a regular graph of N ranks costs: a step more, and 1/N of the bytes."""
    return Cost(base.steps + num_phases, base.factor + Fraction(num_phases, num_ranks))


def copies_cost(base: Cost, num_ranks: int, copies: int, num_phases: int = 1) -> Cost:
    """What n copies of every rank of a regular graph of N ranks cost: a step more, and (n-1)/(n N) of the bytes."""
    return Cost(base.steps + num_phases, base.factor + num_phases * Fraction(copies - 1, copies * num_ranks))


def power_cost(base: Cost, num_ranks: int, factors: int) -> Cost:
    """What the Cartesian power of a graph of N ranks costs: steps times the factors, the same multiple of the least.

    For graphs from all of whose ranks equally many are at each distance.
    """
    return Cost(base.steps * factors, base.factor * least_factor(num_ranks**factors) / least_factor(num_ranks))
