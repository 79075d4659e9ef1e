"""Whether rows are slower than they were in earlier runs, beyond what the machine does anyway (docs/benchmarking.md).

The logarithm of a row's time is its level, less what the plain exchange beside it explains. Runs differ more than the
blocks within one, so the interval of a ratio resamples whole launches and adds a deviation of the kind that earlier
runs showed from each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collsyn.bench.history import Key, PastRun, Sample
from collsyn.bench.result import Row
from collsyn.bench.suite import Rule, slowdown_rule
from collsyn.model.arrays import F64

RESAMPLES = 4000
# Within a launch, blocks that other work hits are slow, and none is quick by chance: the lower quarter counts.
# Launches, less what their yardsticks say, stray both ways: of these the median counts.
QUANTILE = 0.25
# With fewer earlier runs than this nothing is known of how runs differ, and this much is allowed for (one sigma).
MIN_RUNS = 3
UNKNOWN_DRIFT = 0.05
# A row is taken to share all of its yardstick's changes until 50 launches with yardsticks 10% apart outweigh that; it
# may turn out to share more of them, so many times as much. How sure its share is before anything is known (one sigma).
SHARED = 0.5
MOST_SHARED = 2.0
UNSURE_SHARED = 0.4
# As many runs' worth of what rows stray in the middle count in what a single row does.
POOLED = 2
# A comparison that would not see this many times the allowed slowdown says nothing.
BLIND = 3


@dataclass(frozen=True)
class Verdict:
    """One row against its baseline: `ratio` is its time over the earlier ones, `low` .. `high` the interval.

    `effect` is Cliff's delta between its launches and the earlier ones: 1 if each is slower than each, 0 if none is on
    average. `resolution` is the least ratio that would have been seen. `runs` is how many earlier runs there are, 0 for
    a row that the baseline lacks; then the rest is without meaning. `confirmed` is False where a second run was not
    slow. `regressed` is what exit code 7 is about.
    """

    key: Key
    rule: Rule
    runs: int = 0
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    effect: float = 0.0
    resolution: float = 1.0
    confirmed: bool = True

    @property
    def is_slow(self) -> bool:
        """Whether it took longer than the rule allows, noise or not."""
        assert self.rule.max_slowdown is not None
        return bool(self.runs) and self.ratio > 1 + self.rule.max_slowdown

    @property
    def regressed(self) -> bool:
        """Slower than the rule allows, beyond noise, and not refuted by a second run."""
        return self.is_slow and self.low > 1 and self.effect > 0 and self.confirmed

    @property
    def word(self) -> str:
        """In a word."""
        if not self.runs:
            return "new"
        if self.regressed:
            return "SLOWER"
        assert self.rule.max_slowdown is not None
        if self.high < 1 and self.ratio < 1 / (1 + self.rule.max_slowdown):
            return "faster"
        return "unsure" if self.resolution > 1 + BLIND * self.rule.max_slowdown else "same"


def judge(rows: Sequence[Row], runs: Sequence[PastRun], rules: Sequence[Rule], seed: int = 0) -> list[Verdict]:
    """A verdict a row, in their order (rows without a time count as new).

    The confidence of the rules is that of the whole run: it is shared out over the rows, so that a run of many rows
    gives no more false alarms than one of few.
    """
    now = {Key.of(row): Sample.of(row) for row in rows if row.out_of_place.time_s is not None}
    past = {key: [run.samples[key] for run in runs if key in run.samples] for key in now}
    known = {key: samples for key, samples in past.items() if samples}
    model = _Model(known)
    rng = np.random.default_rng(seed)
    verdicts = []
    for row in rows:
        key, rule = Key.of(row), slowdown_rule(rules, row)
        if key in known:
            verdicts.append(model.verdict(key, now[key], rule, 1 - (1 - rule.confidence) / len(known), rng))
        else:
            verdicts.append(Verdict(key, rule))
    return verdicts


def drift(rows: Sequence[Row], runs: Sequence[PastRun]) -> float | None:
    """How many times as long the yardstick took as in earlier runs, in the middle of all rows; None without any."""
    logs = []
    for row in rows:
        past = [run.samples[Key.of(row)] for run in runs if Key.of(row) in run.samples]
        plain = [sample.yardstick_s for sample in past if sample.yardstick_s is not None]
        if row.yardstick_s and plain:
            logs.append(np.log(np.median(row.yardstick_s)) - np.median([np.log(np.median(one)) for one in plain]))
    return float(np.exp(np.median(logs))) if logs else None


class _Model:
    """How times vary on this machine, from the runs of a baseline."""

    def __init__(self, past: Mapping[Key, Sequence[Sample]]) -> None:
        self._past = past
        self._yardsticks = {key: _Yardstick.of(samples) for key, samples in past.items()}
        self._slopes = {key: yardstick.slope for key, yardstick in self._yardsticks.items()}
        self._logs = {key: [_logs(one, self._slopes[key]) for one in samples] for key, samples in past.items()}
        self._levels = {key: np.array([_level(one) for one in logs]) for key, logs in self._logs.items()}
        deviations = {key: _deviations(levels) for key, levels in self._levels.items() if len(levels) >= MIN_RUNS}
        usual = np.median([np.mean(of_row**2) for of_row in deviations.values()]) if deviations else UNKNOWN_DRIFT**2
        # Few runs say little of a single row, so all rows together have a say in how far it strays.
        self._scale = {
            key: float(np.sqrt((np.sum(of_row**2) + POOLED * usual) / (len(of_row) + POOLED)))
            for key, of_row in deviations.items()
        }
        self._unknown = float(max(np.sqrt(usual), UNKNOWN_DRIFT))
        shapes = [of_row / max(float(np.sqrt(np.mean(of_row**2))), 1e-12) for of_row in deviations.values()]
        self._shapes = np.concatenate(shapes) if shapes else None

    def verdict(self, key: Key, sample: Sample, rule: Rule, confidence: float, rng: np.random.Generator) -> Verdict:
        """The row's level against those of the earlier runs."""
        now, past = _logs(sample, self._slopes[key]), self._levels[key]
        ratio = float(np.exp(_level(now) - np.median(past)))
        drawn = self._drawn(key, now, self._yardsticks[key].doubt(sample), rng)
        # One end of the interval matters, and has all of the doubt.
        low, high = np.exp(np.quantile(drawn, [1 - confidence, confidence]))
        earlier = np.concatenate(self._logs[key])
        delta = float(np.sign(now[:, None] - earlier[None, :]).mean())
        return Verdict(key, rule, len(past), ratio, float(low), float(high), delta, float(ratio / low))

    def _drawn(self, key: Key, now: F64, doubt: float, rng: np.random.Generator) -> F64:
        """Logarithms of the ratio that could as well have been found; the yardstick adds `doubt` (one sigma)."""
        past = self._levels[key]
        chosen = rng.integers(len(now), size=(RESAMPLES, len(now)))
        above = np.median(now[chosen], axis=1)
        centre = np.median(past[rng.integers(len(past), size=(RESAMPLES, len(past)))], axis=1)
        scale = self._scale.get(key, self._unknown)
        normal = rng.standard_normal(RESAMPLES)
        # Shapes of few runs have no tails, so half of what is drawn is normal.
        if self._shapes is not None:
            normal = np.where(rng.random(RESAMPLES) < 0.5, rng.choice(self._shapes, RESAMPLES), normal)
        spread = scale * normal + doubt * rng.standard_normal(RESAMPLES)
        return np.asarray(above - centre + spread, dtype=np.float64)


def _logs(sample: Sample, slope: float) -> F64:
    """Logarithms of the times of launches, less `slope` of those of the yardstick beside them."""
    logs = _levels(sample.blocks_s)
    return logs if sample.yardstick_s is None else logs - slope * _levels(sample.yardstick_s)


def _level(logs: F64) -> float:
    return float(np.median(logs))


def _deviations(levels: F64) -> F64:
    """How far runs were from their middle, widened for the few of them that the middle was taken from."""
    return np.asarray((levels - np.median(levels)) * np.sqrt(len(levels) / (len(levels) - 1)))


@dataclass(frozen=True)
class _Yardstick:
    """How much of its yardstick's changes a row shares (`slope`), how sure that is (`sigma`), and the mean level of the
    yardsticks that say so."""

    slope: float
    sigma: float
    middle: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "_Yardstick":
        """Least squares over the launches of earlier runs, 0 .. MOST_SHARED.

        As long as the yardstick has hardly changed in these, a row is taken to share all of it (ridge towards 1).
        """
        pairs = [(sample.blocks_s, sample.yardstick_s) for sample in samples if sample.yardstick_s is not None]
        if not pairs:
            return cls(0.0, 0.0, 0.0)
        y, x = (np.concatenate([_levels(pair[side]) for pair in pairs]) for side in (0, 1))
        middle = float(x.mean())
        y, x = y - y.mean(), x - middle
        slope = float(np.clip((x @ y + SHARED) / (x @ x + SHARED), 0.0, MOST_SHARED))
        # Launches of a run stray together, so that a run says no more than a launch would.
        noise = float(np.sqrt(np.mean((y - slope * x) ** 2) * len(x) / len(pairs)))
        return cls(slope, noise / float(np.sqrt(x @ x + (noise / UNSURE_SHARED) ** 2 + 1e-30)), middle)

    def doubt(self, sample: Sample) -> float:
        """How far off the correction of a run may be: the further, the stranger its yardstick is (one sigma)."""
        if sample.yardstick_s is None:
            return 0.0
        return self.sigma * abs(float(np.median(_levels(sample.yardstick_s))) - self.middle)


def _levels(blocks_s: F64) -> F64:
    """Logarithms of the lower quarter of the blocks of each launch."""
    return np.asarray(np.log(np.quantile(blocks_s, QUANTILE, axis=1)), dtype=np.float64)
