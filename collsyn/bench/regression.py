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
# Blocks that other work on the machine hit are slow, none is quick by chance: the lower quarter is what is compared.
QUANTILE = 0.25
# With fewer earlier runs than this nothing is known of how runs differ, and this much is allowed for (one sigma).
MIN_RUNS = 3
UNKNOWN_DRIFT = 0.05
# The weight of that assumption: launches whose yardsticks differ by 10% outweigh it from about five on.
SHARED = 0.05
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


class _Model:
    """How times vary on this machine, from the runs of a baseline."""

    def __init__(self, past: Mapping[Key, Sequence[Sample]]) -> None:
        self._past = past
        self._slopes = {key: _slope(samples) for key, samples in past.items()}
        self._levels = {key: [_levels(one, self._slopes[key]) for one in samples] for key, samples in past.items()}
        deviations = [_deviations(levels) for levels in self._levels.values() if len(levels) >= MIN_RUNS]
        self._deviations = np.concatenate(deviations) if deviations else None

    def verdict(self, key: Key, sample: Sample, rule: Rule, confidence: float, rng: np.random.Generator) -> Verdict:
        """The row's level against those of the earlier runs."""
        now, past = _levels(sample, self._slopes[key]), self._levels[key]
        ratio = float(np.exp(np.median(now) - np.median([np.median(levels) for levels in past])))
        drawn = np.sort(self._drawn(now, past, rng))
        # One end of the interval matters, and has all of the doubt.
        low, high = np.exp(np.quantile(drawn, [1 - confidence, confidence]))
        delta = float(np.sign(now[:, None] - np.concatenate(past)[None, :]).mean())
        return Verdict(key, rule, len(past), ratio, float(low), float(high), delta, float(ratio / low))

    def _drawn(self, now: F64, past: Sequence[F64], rng: np.random.Generator) -> F64:
        """Logarithms of the ratio that could as well have been found."""
        of_runs = np.stack([_resampled(levels, rng) for levels in past])
        chosen = rng.integers(len(past), size=(len(past), RESAMPLES))
        centre = np.median(of_runs[chosen, np.arange(RESAMPLES)], axis=0)
        if self._deviations is None:
            drift = UNKNOWN_DRIFT * rng.standard_normal(RESAMPLES)
        else:
            drift = rng.choice(self._deviations, RESAMPLES)
        return np.asarray(_resampled(now, rng) - centre + drift, dtype=np.float64)


def _levels(sample: Sample, slope: float) -> F64:
    """The level of each launch: of its blocks' logarithms, less `slope` of those of the yardstick beside them."""
    blocks = np.log(sample.blocks_s)
    if sample.yardstick_s is not None:
        blocks = blocks - slope * np.log(sample.yardstick_s)
    return np.asarray(np.quantile(blocks, QUANTILE, axis=1), dtype=np.float64)


def _resampled(levels: F64, rng: np.random.Generator) -> F64:
    """Medians of launches drawn anew, RESAMPLES times."""
    return np.asarray(np.median(levels[rng.integers(len(levels), size=(RESAMPLES, len(levels)))], axis=1))


def _deviations(levels: Sequence[F64]) -> F64:
    """How far runs were from their middle, widened for the few of them that the middle was taken from."""
    centres = np.array([np.median(of_run) for of_run in levels])
    return np.asarray((centres - np.median(centres)) * np.sqrt(len(centres) / (len(centres) - 1)))


def _slope(samples: Sequence[Sample]) -> float:
    """How much of its yardstick's changes a row shares, 0 .. 1: least squares over the launches of earlier runs.

    As long as the yardstick has hardly changed in these, a row is taken to share all of it.
    """
    pairs = [(sample.blocks_s, sample.yardstick_s) for sample in samples if sample.yardstick_s is not None]
    if not pairs:
        return 0.0
    y, x = (np.concatenate([np.log(np.median(pair[side], axis=1)) for pair in pairs]) for side in (0, 1))
    y, x = y - y.mean(), x - x.mean()
    return float(np.clip((x @ y + SHARED) / (x @ x + SHARED), 0.0, 1.0))
