"""The plain JSON of schedules: a reader that knows nothing else can replay it."""

import json
from collections import Counter
from pathlib import Path

import pytest

from collsyn import lower, synthesize
from collsyn.errors import InputError
from collsyn.export.plain_json import export
from collsyn.export.table import Options
from tests.support.schedules import KINDS, by_hand

GOLDEN = Path(__file__).parent / "golden"


def document_of(schedule):
    """What is written, read back."""
    [file] = export([(Path("a.json"), schedule)], Options())
    return json.loads(file.content)


def replayed(document):
    """What every rank holds of every chunk at the end, by the document alone: contributions of a slot."""
    held = [
        {
            (chunk, slot): Counter([rank])
            for chunk, what in enumerate(document["chunks"])
            for slot in (0, -1)
            if rank in what["from"]
        }
        for rank in range(document["num_ranks"])
    ]
    if not document["reduces"]:
        for mine in held:
            for chunk, slot in mine:
                mine[chunk, slot] = Counter([document["chunks"][chunk]["from"][0]])
    events = []
    for number, message in enumerate(document["messages"]):
        events.append((message["start_us"], 1, number))
        events.append((message["done_us"], 0 if message["links"] else 1, number))
    carried = {}
    for _, leaves, number in sorted(events, key=lambda event: (round(event[0], 6), event[1], event[2])):
        message = document["messages"][number]
        cells = list(zip(message["chunks"], message["from_slots"], message["to_slots"], strict=True))
        if leaves and number not in carried:
            carried[number] = [held[message["from"]].get((chunk, a)) for chunk, a, _ in cells]
            assert None not in carried[number]
            if message["links"]:
                continue
        for (chunk, _, slot), value in zip(cells, carried[number], strict=True):
            mine = held[message["to"]]
            joined = value + mine.get((chunk, slot), Counter()) if message["op"] == "reduce" else value
            mine[chunk, slot] = joined
    return held


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("alltoallv", "custom")])
def test_a_replay_by_the_document_alone_gives_the_result(kind):
    name = {"broadcast": "binomial", "reduce": "binomial", "sendrecv": "paths"}.get(kind, "direct")
    document = document_of(synthesize(kind, "full:4", "64K", method=name))
    held = replayed(document)
    for chunk, what in enumerate(document["chunks"]):
        full = Counter(what["from"]) if document["reduces"] else Counter(what["from"][:1])
        for rank in what["to"]:
            assert held[rank][chunk, 0] == full


@pytest.mark.parametrize("name", ["ring allgather", "star broadcast"])
def test_costs_and_dependencies_are_those_of_the_schedule(name):
    document = document_of(by_hand(name))
    links = document["links"]
    for message in document["messages"]:
        route = [links[link] for link in message["links"]]
        assert message["path"] == [route[0]["from"], *(link["to"] for link in route)]
        transfer_us = message["bytes"] / (min(link["bandwidth_gb_s"] for link in route) * 1e3)
        took = sum(link["alpha_us"] for link in route) + transfer_us
        assert message["arrival_us"] == pytest.approx(message["start_us"] + took)
        for before in message["after"]:
            assert document["messages"][before]["done_us"] <= message["start_us"] * (1 + 1e-9)
        if message["from"] not in document["chunks"][message["chunks"][0]]["from"]:
            assert message["after"], "who did not begin with the chunk waits for it"
    assert document["finish_us"] == pytest.approx(max(message["done_us"] for message in document["messages"]))


def test_golden_file_and_what_is_refused():
    schedule = synthesize("allgather", "ring:3", "64K", method="ring")
    [file] = export([(Path("a.json"), schedule)], Options())
    assert file.content.decode() == (GOLDEN / "allgather-ring-3-64K-ring.sends.json").read_text()
    with pytest.raises(InputError, match="is a plan, which is plain JSON already"):
        export([(Path("a.json"), lower(schedule))], Options())
    with pytest.raises(InputError, match="--size: json has none"):
        export([(Path("a.json"), schedule)], Options(size_bytes=5))
