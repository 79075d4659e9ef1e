"""Judging MSCCL++ programs: good ones pass, and faults are found and named, as an independent run confirms."""

import copy
import json
import random

import pytest

from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_file
from collsyn.errors import InputError, VerificationError
from collsyn.export.mscclpp_check import read_mscclpp
from collsyn.topology.resolve import load_topology
from tests.support.mscclpp_files import (
    BY_HAND,
    MUTATIONS,
    NOP,
    exchange,
    mutant,
    one_shot,
    op,
    pipelined,
    pulled,
    switched,
)
from tests.support.mscclpp_runner import harm


def report_of(document):
    """The report of a document."""
    return read_mscclpp(json.dumps(document).encode(), "f.json").verify()


def judged(document):
    """Name of the first check that fails and its first problem in words, or (None, "")."""
    try:
        report = report_of(document)
    except InputError as error:
        return "read", str(error)
    failed = [check.name for check in report.checks if not check.ok]
    return (failed[0], str(report.problems[0])) if failed else (None, "")


@pytest.mark.parametrize("name", BY_HAND)
def test_good_programs_pass(name):
    assert harm(BY_HAND[name]) is None
    assert judged(BY_HAND[name]) == (None, "")


@pytest.mark.parametrize("kind", MUTATIONS)
def test_whatever_changes_the_result_or_can_hang_is_reported(kind):
    rng = random.Random(kind)
    made = harmful = reported = 0
    while made < 25:
        document = mutant(BY_HAND[rng.choice(list(BY_HAND))], kind, rng)
        if document is None or document in BY_HAND.values():
            continue
        made += 1
        found, _ = judged(document)
        reported += found is not None
        damage = harm(document, range(12))
        harmful += damage is not None
        assert found is not None or damage is None, f"{damage} in {json.dumps(document)}"
    assert reported >= harmful > 0 or kind == "nop dropped"


def changed(document, change):
    """A copy of a document after a change."""
    made = copy.deepcopy(document)
    change(made)
    return made


def ops_of(document, g=0, b=0):
    """The operations of a thread block."""
    return document["gpus"][g]["threadblocks"][b]["ops"]


def swap(ops, a, b):
    """Exchange two operations."""
    ops[a], ops[b] = ops[b], ops[a]


@pytest.mark.parametrize(
    ("base", "change", "check", "words"),
    [
        (exchange(), lambda d: d.update(collective="scan"), "form", "is 'scan'; expected one of allgather, "),
        (exchange(), lambda d: d["gpus"][1].update(id=2), "form", "not in the order of ids"),
        (exchange(), lambda d: [g.update(output_chunks=0) for g in d["gpus"]], "form", "divides by it and crashes"),
        (
            exchange(),
            lambda d: [g.update(output_chunks=4) for g in d["gpus"]],
            "form",
            "chunks do not fit the collective",
        ),
        (
            exchange(),
            lambda d: ops_of(d)[3].update(name="glre"),
            "form",
            "the executor knows none: a file that is not loaded",
        ),
        (exchange(), lambda d: ops_of(d)[0].update(channel_ids=[1]), "form", "memory channel 1 is not there"),
        (exchange(), lambda d: ops_of(d).extend([NOP] * 60), "form", "at most 64 a thread block"),
        (exchange(), lambda d: ops_of(d)[3]["dst_buff"][0].update(index=3), "bounds", "leaves its buffer"),
        (pulled(), lambda d: ops_of(d)[3].update(reduce_op="max"), "form", "always adds: wrong data"),
        (
            switched(),
            lambda d: d["gpus"][0]["channels"][1].pop("buffer_type"),
            "form",
            "buffer_type: a file that is not",
        ),
        (exchange(), lambda d: ops_of(d).pop(4), "threads", "tells others before the data is there"),
        (exchange(), lambda d: ops_of(d).pop(2), "threads", "runs before the wait ends"),
        (exchange(), lambda d: ops_of(d).pop(0), "signals", "gpu 0 -> gpu 1 memory channel 0: a hang"),
        (exchange(), lambda d: ops_of(d).pop(6), "signals", "the next call starts with what is left"),
        (
            exchange(),
            lambda d: [swap(ops_of(d, g, b), 0, 1) for g in range(3) for b in range(2)],
            "deadlock",
            "waits for ever",
        ),
        (
            exchange(),
            lambda d: [swap(ops_of(d, g, b), 3, 5) for g in range(3) for b in range(2)],
            "hazards",
            "wrong data at times",
        ),
        (one_shot(), lambda d: ops_of(d, 1).pop(0), "deadlock", "waits for ever"),
        (one_shot(), lambda d: d.update(use_double_scratch_buffer=False), "hazards", "two halves of scratch"),
        (one_shot(), lambda d: ops_of(d, 1)[0]["dst_buff"][0].update(index=6), "signals", "packets are written twice"),
        (BY_HAND["far"], lambda d: ops_of(d, 0, 1)[0].update(num_threadblocks=3), "signals", "a hang, or no barrier"),
        (pipelined(), lambda d: d["gpus"][0]["semaphores"][1].update(init_value=6), "hazards", "races with"),
        (BY_HAND["far"], lambda d: ops_of(d)[3].update(name="pws"), "hazards", "races with"),
    ],
)
def test_faults_are_named(base, change, check, words):
    found, text = judged(changed(base, change))
    assert found == check, text
    assert words in text


def test_get_exchanges_the_offsets():
    document = changed(
        pulled(), lambda d: [ops_of(d, g, b).insert(4, op("get", [(0, 1)], [("o", 0)])) for g in (0,) for b in (0,)]
    )
    assert judged(document)[1].startswith("gpu 0 tb 0 op 4 get: the executor exchanges the two offsets")


def test_relaxed_signals_publish_no_stores():
    document = changed(exchange(), lambda d: ops_of(d)[5].update(name="rlxsignal"))
    assert judged(document) == (
        "threads",
        "gpu 0 tb 0 op 5 rlxsignal: does not publish gpu 0 tb 0 op 3 put: wrong data at times; "
        "expected signal, found rlxsignal",
    )


@pytest.mark.parametrize("units", [1, 3])
def test_pipelines_are_unrolled_until_scratch_is_used_again(units):
    assert judged(pipelined(units, units)) == (None, "")
    assert judged(pipelined(units, units + 1))[0] == "hazards"
    assert judged(pipelined(units, 0))[0] == "deadlock"


def test_a_pipeline_is_timed_with_the_units_of_the_size():
    file = read_mscclpp(json.dumps(pipelined()).encode(), "f.json")
    small, large = (file.plan(size) for size in (1 << 20, 64 << 20))
    assert small.num_instructions < large.num_instructions
    for plan in (small, large):
        assert simulate_plan(plan, load_topology("full:2"), 64 << 20).finish_s > (64 << 20) / 50e9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("name"), "f.json:name: is missing"),
        (lambda d: d.update(inplace=1), "f.json:inplace: is 1; expected true or false"),
        (lambda d: d.update(gpus=[]), "f.json:gpus: are 0"),
        (
            lambda d: ops_of(d)[3]["src_buff"][0].pop("size"),
            "f.json:gpus[0].threadblocks[0].ops[3].src_buff[0].size: is missing",
        ),
        (lambda d: d["gpus"][0].update(input_chunks=-1), "f.json:gpus[0].input_chunks: is -1"),
        (lambda d: d["gpus"][0]["channels"][0].update(channel_type="x"), "expected one of memory, port, switch"),
    ],
)
def test_what_cannot_be_read_says_where(change, words):
    found, text = judged(changed(exchange(), change))
    assert found == "read"
    assert words in text


def test_files_are_recognised_and_programs_of_wrong_form_have_no_plan(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(exchange()))
    report = verify_file(tmp_path / "a.json")
    assert (report.kind, report.ok) == ("mscclpp-json", True)
    broken = changed(exchange(), lambda d: ops_of(d)[3].update(name="glre"))
    with pytest.raises(VerificationError, match="mscclpp-json is wrong"):
        read_mscclpp(json.dumps(broken).encode(), "f").plan()


def test_programs_too_large_to_judge_are_refused():
    def shares(document):
        for number, size in enumerate((997, 1009, 1013)):
            ops_of(document, number)[3]["tbg_info"] = {"tb_id": 0, "tbg_size": size}

    assert judged(changed(exchange(), shares)) == (
        "read",
        "gpus: chunks are cut into shares of 9171455841 units in all; too many to judge",
    )
    many = changed(exchange(), lambda d: [g.update(scratch_chunks=1 << 30) for g in d["gpus"]])
    assert "too many to judge" in judged(many)[1]


def spots(value, path=()):
    """All places of a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from spots(inner, (*path, key))


def test_whatever_is_in_a_file_is_answered():
    """Values of other types and sizes, and keys that are gone, anywhere in a file: a report or one line follows."""
    rng = random.Random(5)
    strange = [None, True, -1, 0, 7, 1 << 40, 1 << 70, 0.5, "", "memory", "x", [], [0], {}, {"index": 0}, "pipeline"]
    for _ in range(400):
        document = copy.deepcopy(rng.choice([*BY_HAND.values(), pipelined()]))
        for _ in range(rng.choice((1, 1, 2))):
            path = rng.choice([spot for spot in spots(document) if spot])
            place = document
            for key in path[:-1]:
                place = place[key]
            if rng.random() < 0.3:
                del place[path[-1]]
            else:
                place[path[-1]] = rng.choice(strange)
        try:
            file = read_mscclpp(json.dumps(document).encode(), "f")
            report = file.verify()
            assert report.ok or report.problems
            file.plan(1 << 20)
        except (InputError, VerificationError) as error:
            assert "\n" not in str(error)
