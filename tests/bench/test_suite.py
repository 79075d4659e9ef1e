"""Suite files: what they say is what is run, and every mistake is one line that names file and key."""

from pathlib import Path

import pytest
import yaml

from collsyn.bench.job import BenchOptions
from collsyn.bench.suite import DEFAULT_RULE, find_suite, read_suite, slowdown_rule
from collsyn.data import data_names
from collsyn.errors import InputError
from collsyn.model.schedule_file import write_schedule
from collsyn.portfolio.auto import best_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.bench.test_table import make_row

GOOD = {
    "schema": "collsyn-suite/1",
    "topology": "full:3",
    "iterations": 7,
    "benchmarks": [
        {"collective": "all-gather", "sizes": ["1K", 4096]},
        {"name": "small", "collective": "reduce", "method": "binomial", "root": 2, "sizes": ["1K"], "iterations": 3},
    ],
    "rules": [
        {"name": "loose", "benchmarks": ["sm*"], "max_slowdown": 0.5},
        {"name": "floor", "min_busbw_gb_s": 1},
        {"name": "tight", "min_size": "2K", "max_size": "8K", "max_slowdown": 0.02, "confidence": 0.999},
    ],
}
TWIN = {"name": "small", "collective": "allgather", "sizes": ["1K"]}


def written(folder, content):
    """A suite file."""
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_benchmarks_are_as_written(tmp_path):
    suite = read_suite(written(tmp_path, GOOD))
    assert (suite.name, suite.topology, suite.emulate, suite.makes_schedules) == ("suite", "full:3", None, True)
    first, second = suite.benchmarks(load_topology("full:3"), BenchOptions(sizes=(1,), iterations=20, warmup=4))
    assert (first.name, first.source.collective.kind, first.options.sizes) == ("allgather", "allgather", (1024, 4096))
    assert (first.options.iterations, first.options.warmup, first.options.in_place) == (7, 4, False)
    assert (second.name, second.source.method, second.source.collective.root) == ("small", "binomial", 2)
    assert (second.options.iterations, second.options.dtype) == (3, "float32")


def test_files_are_looked_for_beside_the_suite(tmp_path):
    schedule = best_schedule(Problem("allgather", load_topology("full:2"), 1024), Options(), "direct")
    write_schedule(schedule, tmp_path / "mine.json")
    content = {"schema": "collsyn-suite/1", "benchmarks": [{"file": "mine.json", "sizes": ["1K"]}]}
    suite = read_suite(written(tmp_path, content))
    assert not suite.makes_schedules
    (benchmark,) = suite.benchmarks(None, BenchOptions(sizes=(1,)))
    assert (benchmark.name, benchmark.source.num_ranks) == ("mine", 2)


@pytest.mark.parametrize(
    "benchmark, size, name",
    [
        ("small", 1024, "loose"),
        ("allgather", 4096, "tight"),
        ("allgather", 1024, "default"),
        ("allgather", 8193, "default"),
    ],
)
def test_the_first_rule_that_covers_a_row_counts(tmp_path, benchmark, size, name):
    rules = read_suite(written(tmp_path, GOOD)).rules
    assert slowdown_rule(rules, make_row(benchmark=benchmark, asked_bytes=size)).name == name
    assert DEFAULT_RULE.max_slowdown == 0.05


def changed(**changes):
    """GOOD with other keys; None takes one away."""
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not None}


def with_benchmark(**changes):
    """GOOD with another first benchmark."""
    return changed(rules=None, benchmarks=[{"collective": "allgather", "sizes": ["1K"], **changes}])


def with_rule(**changes):
    """GOOD with one rule."""
    return changed(rules=[{"name": "r", "max_slowdown": 0.1, **changes}])


@pytest.mark.parametrize(
    "content, told",
    [
        (changed(schema=None), "suite.yaml:schema: is missing"),
        (changed(schema="collsyn-suite/2"), "collsyn-suite/1"),
        (changed(benchmarks=None), "benchmarks: is missing"),
        (changed(benchmarks=[], rules=None), "benchmarks: is empty"),
        (changed(launches=0), "launches: is 0"),
        (changed(lanches=3), "lanches: is not a key"),
        (changed(datatype="float8"), "datatype: is 'float8'"),
        (with_benchmark(sizes=[]), "benchmarks[0].sizes: is empty"),
        (with_benchmark(sizes=["1K", "1024"]), "benchmarks[0].sizes[1]: 1024 stands twice"),
        (with_benchmark(sizes=["1X"]), "benchmarks[0].sizes[0]"),
        (with_benchmark(collective="alltoallv"), "make a schedule and name its file"),
        (with_benchmark(collective="gossip"), "benchmarks[0].collective: is 'gossip'"),
        (with_benchmark(method="magic"), "benchmarks[0].method: is 'magic'"),
        (with_benchmark(file="a.json"), "benchmarks[0].file: excludes"),
        (changed(benchmarks=[*GOOD["benchmarks"], TWIN]), "benchmarks[2].name: 'small' stands twice"),
        (with_rule(benchmarks=["allreduce"]), "rules[0].benchmarks: 'allreduce' matches none of"),
        (with_rule(max_slowdown=0), "rules[0].max_slowdown: is 0"),
        (with_rule(confidence=1), "rules[0].confidence: is 1"),
        (with_rule(min_size="2K", max_size="1K"), "rules[0].max_size"),
        (changed(rules=[{"name": "r"}]), "rules[0]: limits nothing"),
    ],
)
def test_mistakes_are_named(tmp_path, content, told):
    with pytest.raises(InputError) as caught:
        read_suite(written(tmp_path, content))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_suites_that_ship_can_be_read():
    names = [name.removeprefix("suites/") for name in data_names("configs") if name.startswith("suites/")]
    assert {"host", "emulated"} <= set(names)
    for name in names:
        assert read_suite(find_suite(name)).name == name


def test_names_and_paths_of_suites():
    assert find_suite("some/suite.yaml") == Path("some/suite.yaml")
    with pytest.raises(InputError, match="'nightly' is neither a file nor one that ships; there are"):
        find_suite("nightly")
