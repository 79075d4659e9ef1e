"""Traces: what the trace-event format asks, and times that agree with those of the schedule or plan."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collsyn import load_topology, lower, synthesize
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.export.chrome_trace import export
from collsyn.export.table import Options
from collsyn.model.plan import Op
from tests.support.hand_plans import swap_plan
from tests.support.schedules import by_hand

GOLDEN = Path(__file__).parent / "golden"
# Times are written in whole picoseconds.
SLACK_US = 2e-6


def traced(source, **options):
    """The document of one source, found valid."""
    [file] = export([(Path("a.json"), source)], Options(**options))
    document = json.loads(file.content)
    validate(document)
    return document


def validate(document):
    """What the trace-event format asks of its JSON form, and what viewers need to show all of it."""
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    slices, flows, named = defaultdict(list), defaultdict(dict), set()
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["pid"] > 0 < event["tid"]
        lane = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert set(event["args"]) == ({"name"} if event["name"].endswith("_name") else {"sort_index"})
            named.add((event["name"], *(lane if event["name"].startswith("thread") else lane[:1])))
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        assert isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[lane].append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] in ("s", "f")
            assert (event.get("bp") == "e") == (event["ph"] == "f")
            assert event["ph"] not in flows[event["id"]], "one start and one end"
            flows[event["id"]][event["ph"]] = (lane, event["ts"])
    for lane, spans in slices.items():
        assert ("thread_name", *lane) in named
        assert ("process_name", lane[0]) in named
        ordered = sorted(spans)
        for (_, end), (start, _) in itertools.pairwise(ordered):
            assert start >= end - SLACK_US, f"slices of lane {lane} overlap"
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"][1] <= ends["f"][1] + SLACK_US
        for lane, at in ends.values():
            assert any(a - SLACK_US <= at <= b + SLACK_US for a, b in slices[lane]), "an arrow hangs in the air"


def spans(document, process, category):
    """Begin and end in microseconds of the slices of a category in a process."""
    names = {
        event["pid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"
    }
    return [
        (event["ts"], event["ts"] + event["dur"])
        for event in document["traceEvents"]
        if event["ph"] == "X" and names[event["pid"]] == process and event["cat"] == category
    ]


def test_an_allreduce_of_dgx1_has_a_lane_for_every_rank_and_link():
    schedule = synthesize("allreduce", "dgx1", "1M", method="ring")
    document = traced(schedule)
    threads = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    processes = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert processes == [*(f"rank {rank}" for rank in range(8)), "links"]
    used = np.unique(schedule.routes.data)
    assert {schedule.topology.link_name(int(link)) for link in used} <= threads
    for rank in range(8):
        sent = spans(document, f"rank {rank}", "send")
        rows = schedule.messages.src == rank
        assert sum(b - a for a, b in sent) == pytest.approx(schedule.messages.busy_s[rows].sum() * 1e6, abs=1e-3)
        assert len(spans(document, f"rank {rank}", "receive")) == (schedule.messages.dst == rank).sum()
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert max(ends) == pytest.approx(schedule.finish_s * 1e6, abs=1.0)
    assert sum(event["ph"] == "s" for event in document["traceEvents"]) == len(schedule.messages)


@pytest.mark.parametrize("name", ["star broadcast", "shared gather", "ring allgather"])
def test_schedules_by_hand(name):
    schedule = by_hand(name)
    document = traced(schedule)
    arrivals = sorted(
        end for rank in range(schedule.topology.num_ranks) for _, end in spans(document, f"rank {rank}", "receive")
    )
    assert arrivals == pytest.approx(sorted((schedule.messages.done_s * 1e6).tolist()), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "where", "name"), [("allreduce", "dgx1", "ring"), ("allgather", "switch:4", "direct")]
)
def test_plans_show_their_channels_and_what_woke_them(kind, where, name):
    schedule = synthesize(kind, where, "1M", method=name)
    plan = lower(schedule)
    document = traced(plan, size_bytes=1 << 20)
    times = simulate_plan(plan, load_topology(where), 1 << 20)
    waits = (plan.columns["op"] == Op.WAIT) & (plan.columns["value"] > 0)
    arrows = [event for event in document["traceEvents"] if event["ph"] == "f"]
    assert len(arrows) == waits.sum()
    assert sorted(event["ts"] for event in arrows) == pytest.approx(
        sorted((times.end_s[waits] * 1e6).tolist()), abs=1e-5
    )
    assert document["otherData"]["finish_us"] == pytest.approx(times.finish_s * 1e6)


def test_what_has_no_times_is_refused():
    plan = replace(swap_plan(), topology=None)
    with pytest.raises(InputError, match="names no topology"):
        traced(plan)
    with pytest.raises(InputError, match="--size: a schedule has one of its own"):
        traced(by_hand("ring allgather"), size_bytes=5)
    with pytest.raises(InputError, match="--dialect: chrome-trace has none"):
        traced(by_hand("ring allgather"), dialect="x")


def test_golden_file():
    schedule = synthesize("allgather", "ring:3", "64K", method="ring")
    [file] = export([(Path("a.json"), schedule)], Options())
    path = GOLDEN / "allgather-ring-3-64K-ring.trace.json"
    assert file.content.decode() == path.read_text()
    validate(json.loads(path.read_text()))
