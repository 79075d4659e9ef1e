"""The comparison with earlier runs, on times made up with known noise: it finds what is planted, and little else."""

from dataclasses import replace

import numpy as np
import pytest

from collsyn.bench.history import Key, PastRun, Sample
from collsyn.bench.regression import drift, judge
from collsyn.bench.suite import DEFAULT_RULE, Rule
from tests.bench.test_table import make_row

LAUNCHES, BLOCKS = 8, 10


class Machine:
    """Draws rows of several collectives: runs differ by `between`, launches by `within`, blocks are slow at times.

    A part of what runs differ by (`common`) hits the yardstick as well.
    """

    def __init__(self, seed, between=0.01, within=0.02, common=0.0, num_rows=4):
        self.rng = np.random.default_rng(seed)
        self.between, self.within, self.common, self.num_rows = between, within, common, num_rows

    def run(self, **slower):
        """Rows of one run; `slower={"c1": 1.1}` plants a slowdown."""
        rows = []
        shared = self.common * self.rng.standard_normal()
        for index in range(self.num_rows):
            own = self.between * self.rng.standard_normal()
            launches = self.within * self.rng.standard_normal((LAUNCHES, 1))
            hit = self.rng.random((LAUNCHES, BLOCKS)) < 0.2
            blocks = np.exp(shared + own + launches + 0.01 * self.rng.standard_normal((LAUNCHES, BLOCKS)) + 0.7 * hit)
            plain = np.exp(shared + 0.01 * self.rng.standard_normal((LAUNCHES, BLOCKS)))
            name = f"c{index}"
            rows.append(
                make_row(
                    benchmark=name,
                    out_of_place=replace(
                        make_row().out_of_place, blocks_s=tuple(1e-3 * blocks.ravel() * slower.get(name, 1.0))
                    ),
                    launches=LAUNCHES,
                    yardstick_s=tuple(1e-3 * plain.ravel()) if self.common else (),
                )
            )
        return rows

    def baseline(self, runs=6):
        """What a history of runs holds."""
        return [PastRun(None, {}, {Key.of(row): Sample.of(row) for row in self.run()}) for _ in range(runs)]


def alarms(verdicts):
    """Names of rows that regressed."""
    return [verdict.key.benchmark for verdict in verdicts if verdict.regressed]


@pytest.mark.parametrize("common", [0.0, 0.15])
def test_no_alarm_without_a_change_and_one_for_a_tenth(common):
    false, found = 0, 0
    for seed in range(40):
        machine = Machine(seed, common=common)
        past = machine.baseline()
        false += bool(alarms(judge(machine.run(), past, ())))
        found += alarms(judge(machine.run(c2=1.1), past, ())) == ["c2"]
    assert false <= 1
    assert found >= 36


def test_what_runs_differ_by_anyway_is_no_alarm():
    machine = Machine(1, between=0.15)
    past = machine.baseline()
    verdicts = [verdict for _ in range(20) for verdict in judge(machine.run(), past, ())]
    assert sum(verdict.regressed for verdict in verdicts) <= 2
    assert any(verdict.word == "unsure" for verdict in verdicts)


def test_an_effect_that_the_rule_allows_is_no_regression():
    machine = Machine(2, between=0.001, within=0.001)
    past = machine.baseline()
    rows = machine.run(c0=1.08)
    assert alarms(judge(rows, past, ())) == ["c0"]
    (first, *_) = judge(rows, past, [Rule(name="loose", max_slowdown=0.1)])
    assert (first.word, first.rule.name) == ("same", "loose")
    assert first.low > 1


def test_numbers_of_a_verdict():
    machine = Machine(3, between=0.0, within=0.0)
    past = machine.baseline()
    slow, fast, same, _ = judge(machine.run(c0=2.0, c1=0.5), past, ())
    assert slow.ratio == pytest.approx(2, rel=0.01)
    assert slow.low <= slow.ratio <= slow.high
    assert (slow.effect, fast.effect, slow.word, fast.word, same.word) == (1, -1, "SLOWER", "faster", "same")
    assert slow.runs == 6
    assert 1 <= slow.resolution < 1.05


def test_one_earlier_run_says_nothing_about_drift_so_that_is_allowed_for():
    machine = Machine(4, between=0.0, within=0.0)
    past = machine.baseline(runs=1)
    assert not alarms(judge(machine.run(c0=1.08), past, ()))
    assert alarms(judge(machine.run(c0=1.3), past, ())) == ["c0"]


def test_rows_that_the_baseline_lacks_are_new():
    machine = Machine(5, num_rows=2)
    past = machine.baseline()
    other = [make_row(benchmark="other", out_of_place=machine.run()[0].out_of_place, launches=LAUNCHES)]
    verdicts = judge([*machine.run(), *other], past, ())
    assert [verdict.word for verdict in verdicts] == ["same", "same", "new"]
    assert verdicts[2].rule == DEFAULT_RULE


def test_same_seed_same_verdict():
    machine = Machine(6)
    past, rows = machine.baseline(), machine.run()
    assert judge(rows, past, (), seed=3) == judge(rows, past, (), seed=3)


def test_how_the_machine_itself_changed():
    machine = Machine(7, common=1e-9)
    past = machine.baseline()
    rows = [replace(row, yardstick_s=tuple(2 * seconds for seconds in row.yardstick_s)) for row in machine.run()]
    assert drift(rows, past) == pytest.approx(2, rel=0.02)
    assert drift([make_row()], past) is None
    assert drift(machine.run(), []) is None


class TwoStates:
    """A machine that is slow for some launches in a row: the yardstick by four times, a row by six."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def sample(self, slow, factor=1.0):
        """A run in which so many of its launches are slow."""
        state = (np.arange(LAUNCHES) < slow)[:, None]
        noise = 0.01 * self.rng.standard_normal((2, LAUNCHES, BLOCKS)) + 0.01 * self.rng.standard_normal(
            (2, LAUNCHES, 1)
        )
        blocks_s = 1e-3 * np.exp(state * np.log(6.0) + noise[0]) * factor
        yardstick_s = 1e-3 * np.exp(state * np.log(4.0) + noise[1])
        return make_row(
            out_of_place=replace(make_row().out_of_place, blocks_s=tuple(blocks_s.ravel())),
            launches=LAUNCHES,
            yardstick_s=tuple(yardstick_s.ravel()),
        )

    def past(self, slow):
        """Earlier runs, with so many slow launches each."""
        rows = [self.sample(one) for one in slow]
        return [PastRun(None, {}, {Key.of(row): Sample.of(row)}) for row in rows]


def test_a_state_that_earlier_runs_were_in_as_well_is_told_from_a_slowdown():
    false, found = 0, 0
    for seed in range(8):
        machine = TwoStates(seed)
        past = machine.past([0, 2, 8, 8, 5, 0])
        for slow in (0, 3, 8):
            false += bool(alarms(judge([machine.sample(slow)], past, ())))
            found += bool(alarms(judge([machine.sample(slow, 1.1)], past, ())))
    assert false <= 1
    assert found >= 21


def test_a_state_that_no_earlier_run_was_in_proves_nothing():
    verdicts = []
    for seed in range(8):
        machine = TwoStates(seed)
        verdicts += judge([machine.sample(LAUNCHES)], machine.past([0] * 6), ())
    assert not alarms(verdicts)
    assert {verdict.word for verdict in verdicts} == {"unsure"}
