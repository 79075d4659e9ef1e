"""Judging MSCCL programs: good ones pass, and faults are found and named, as an independent run confirms."""

import random
from collections import Counter
from pathlib import Path

import pytest

from collsyn import synthesize
from collsyn.errors import CollsynError
from collsyn.export.msccl_check import read_msccl
from collsyn.export.msccl_export import export
from collsyn.export.table import Options
from tests.support.msccl_files import BY_HAND, MUTATIONS, algo, exchange, mutant, nop, step
from tests.support.msccl_runner import harm


def judged(text):
    """Name of the first check that fails and its first problem in words, or (None, "")."""
    report = read_msccl(text.encode(), "f").verify()
    failed = [check.name for check in report.checks if not check.ok]
    return (failed[0], str(report.problems[0])) if failed else (None, "")


@pytest.mark.parametrize("name", BY_HAND)
def test_good_programs_pass(name):
    assert judged(BY_HAND[name]) == (None, "")
    assert harm(BY_HAND[name]) is None


def two(first, second, coll="allgather", counts=(1, 2, 2), chunks=2, **attributes):
    """A program of two GPUs."""
    return algo(coll, [(counts, first), (counts, second)], chunks, **attributes)


def gather(g, *more, **options):
    """The one thread block of GPU g of an allgather of two."""
    return [(1 - g, 1 - g, 0, [step("s", "i:0"), step("r", "o:0", f"o:{1 - g}"), step("cpy", "i:0", f"o:{g}"), *more])]


def test_the_base_of_the_faults_below_is_right():
    assert judged(two(gather(0), gather(1))) == (None, "")


@pytest.mark.parametrize(
    ("text", "check", "words"),
    [
        (two(gather(0), gather(1), proto="LL256"), "form", "proto is not known"),
        (two(gather(0), gather(1), outofplace=0), "form", "is never used"),
        (two(gather(0), gather(1), chunks=3), "form", "does not divide into shards"),
        (two(gather(0), gather(1), counts=(2, 2, 0)), "form", "i_chunks is more than the buffer has"),
        (two(gather(0), gather(1)).replace('tb id="0"', 'tb id="1"', 1), "form", "ids of thread blocks"),
        (two(gather(0), gather(1)).replace(' s="1"', ' s="2"', 1), "form", "steps are not in order"),
        (two(gather(0), gather(1)).replace('type="cpy"', 'type="ra"', 1), "form", "found ra"),
        (two(gather(0), gather(1)).replace('send="0"', 'send="1"'), "peers", "send is the GPU itself"),
        (two(gather(0), gather(1)).replace('send="1"', 'send="2"'), "peers", "send is no GPU"),
        (two(gather(0), gather(1)).replace('recv="1"', 'recv="-1"'), "peers", "r without a peer"),
        (two(gather(0), gather(1)).replace('chan="0"', 'chan="1"', 1), "peers", "chan is not set up"),
        (two(gather(0), gather(1)).replace('cnt="1"', 'cnt="72"', 1), "bounds", "expected 1 to 71, found 72"),
        (two(gather(0), gather(1)).replace('cnt="1"', 'cnt="0"', 1), "bounds", "moves nothing"),
        (two(gather(0), gather(1)).replace('srcoff="0"', 'srcoff="-1"', 1), "bounds", "src leaves the input"),
        (two(gather(0, step("rrc", "o:1", "o:2")), gather(1)), "bounds", "dst leaves the output"),
        (two(gather(0, step("re", "x:0", "o:1")), gather(1)), "form", "srcbuf"),
        (two([*gather(0), (1, -1, 0, [step("s", "i:0")])], gather(1)), "channels", "several thread blocks send"),
        (two(gather(0, step("s", "i:0")), gather(1)), "channels", "is never received"),
        (two(gather(0, step("r", "o:0", "o:1")), gather(1)), "channels", "waits for ever"),
        (two(gather(0, step("cpy", "i:0", "o:0", dep=(1, 0))), gather(1)), "dependencies", "thread block that is not"),
        (two(gather(0, step("cpy", "i:0", "o:0", dep=(0, 9))), gather(1)), "dependencies", "step of tb 0 that is not"),
        (two(gather(0, step("cpy", "i:0", "o:0", dep=(0, 1))), gather(1)), "dependencies", "tells nobody"),
        (two(gather(0, step("cpy", "i:0", "o:0", dep=(0, -1))), gather(1)), "dependencies", "both -1"),
        (two(gather(0, step("nop", "i:-1", "o:-1", 0)), gather(1)), "dependencies", "nop without a dependency"),
        (
            two(gather(0, step("s", "i:0", tells=True), nop((0, 3))), gather(1, step("r", "o:0", "s:0"))),
            "dependencies",
            "nop must be followed",
        ),
    ],
)
def test_faults_of_form_are_named(text, check, words):
    found, problem = judged(text)
    assert found == check
    assert words in problem


def crossing(messages, proto="Simple", **attributes):
    """Both GPUs send all their messages before they receive any."""
    blocks = [
        [
            (
                1 - g,
                1 - g,
                0,
                [step("s", f"i:{k}") for k in range(messages)]
                + [step("r", "o:0", f"o:{(1 - g) * messages + k}") for k in range(messages)],
            ),
            (-1, -1, 0, [step("cpy", f"i:{k}", f"o:{g * messages + k}") for k in range(messages)]),
        ]
        for g in (0, 1)
    ]
    return two(*blocks, counts=(messages, 2 * messages, 0), chunks=2 * messages, proto=proto, **attributes)


@pytest.mark.parametrize(("proto", "depth"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_channels_hold_so_many_messages_and_no_more(proto, depth):
    assert judged(crossing(depth, proto)) == (None, "")
    assert harm(crossing(depth, proto)) is None
    check, problem = judged(crossing(depth + 1, proto))
    assert check == "deadlock"
    assert "gpu 0 tb 0 step" in problem
    assert "a hang" in problem
    assert harm(crossing(depth + 1, proto)) == "hang"


def test_long_messages_fill_channels_where_the_sizes_make_pieces_of_them():
    """One message of 4 chunks: four pieces where chunks are as large as the slices of the runtime, else one."""
    whole = [
        [
            (
                1 - g,
                1 - g,
                0,
                [step("s", "i:0", cnt=4), step("r", "o:0", f"o:{(1 - g) * 4}", 4), step("cpy", "i:0", f"o:{g * 4}", 4)],
            )
        ]
        for g in (0, 1)
    ]
    text = two(*whole, counts=(4, 8, 0), chunks=8)
    assert judged(text)[0] == "deadlock"
    assert harm(text, longest=(1,)) == "hang"
    small = text.replace('maxBytes="0"', f'maxBytes="{4 << 20}"')
    assert judged(small) == (None, "")
    detail = {check.name: check.detail for check in read_msccl(small.encode(), "f").verify().checks}["deadlock"]
    assert detail == "none up to its maxBytes, 4194304; where pieces are single chunks it would hang"


def test_thread_blocks_that_wait_for_each_other():
    first = [
        (1, -1, 0, [step("cpy", "i:0", "o:0", dep=(1, 0), tells=True), step("s", "i:0")]),
        (-1, 1, 0, [step("cpy", "i:0", "o:0", dep=(0, 0), tells=True), step("r", "o:0", "o:1")]),
    ]
    check, problem = judged(two(first, gather(1)))
    assert check == "deadlock"
    assert "deadlock, 3 thread blocks wait" in problem
    assert "waits for gpu 0 tb" in problem


def test_what_two_thread_blocks_touch_without_a_dependency():
    split = [(1, -1, 0, [step("cpy", "i:0", "o:0"), step("s", "o:0")]), (-1, 1, 0, [step("r", "o:0", "o:1")])]
    assert judged(two(split, gather(1))) == (None, "")
    racing = [(1, -1, 0, [step("s", "o:0")]), (-1, 1, 0, [step("r", "o:0", "o:1"), step("cpy", "i:0", "o:0")])]
    check, problem = judged(two(racing, gather(1)))
    assert check == "hazards"
    assert "gpu 0 tb" in problem and "races with gpu 0 tb" in problem and "wrong data at times" in problem
    assert harm(two(racing, gather(1))) == "wrong"
    kept = [
        (1, -1, 0, [step("s", "o:0", dep=(1, 1))]),
        (-1, 1, 0, [step("r", "o:0", "o:1"), step("cpy", "i:0", "o:0", tells=True)]),
    ]
    assert judged(two(kept, gather(1))) == (None, "")


def test_results_are_told_by_contributions():
    check, problem = judged(
        two(
            [(1, 1, 0, [step("s", "i:0"), step("rrc", "i:0", "o:0"), step("re", "i:0", "o:0")])],
            [(0, 0, 0, [step("s", "i:0"), step("rrc", "i:0", "o:0")])],
            "allreduce",
            (1, 1, 0),
            1,
        )
    )
    assert check == "result"
    assert problem.endswith(
        "expected input chunk 0 of ranks 0-1, found input chunk 0 of rank 0 twice and input chunk 0 of rank 1"
    )
    check, problem = judged(two([(1, 1, 0, [step("s", "i:0"), step("r", "o:0", "o:1")])], gather(1)))
    assert problem.startswith("gpu 0 output chunk 0 at the end: wrong data")
    assert problem.endswith("expected input chunk 0 of rank 0, found nothing")


@pytest.mark.parametrize("coll", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", [0, 1, 2])
def test_the_root_is_found(coll, root):
    gpus = []
    for g in range(3):
        others = [p for p in range(3) if p != root]
        if coll == "broadcast":
            blocks = (
                [(p, -1, 0, [step("s", "i:0")]) for p in others]
                if g == root
                else [(-1, root, 0, [step("r", "o:0", "o:0")])]
            )
            if g == root:
                blocks.append((-1, -1, 0, [step("cpy", "i:0", "o:0")]))
        elif g == root:
            blocks = [
                (-1, others[0], 0, [step("rrc", "i:0", "o:0", tells=True)]),
                (-1, others[1], 0, [step("rrc", "o:0", "o:0", dep=(0, 0))]),
            ]
        else:
            blocks = [(root, -1, 0, [step("s", "i:0")])]
        gpus.append(((1, 1, 0), blocks))
    text = algo(coll, gpus, 1, inplace=1)
    assert judged(text) == (None, "")
    assert harm(text, root=root) is None
    details = {check.name: check.detail for check in read_msccl(text.encode(), "f").verify().checks}
    assert details["result"] == f"root {root}"


def compared(files, seed, count):
    """Mutants of files: how many there are, what was missed, and what was reported as certain without any harm."""
    rng = random.Random(seed)
    found, missed, invented = Counter(), [], []
    for i in range(count):
        text, kind = files[i % len(files)], MUTATIONS[i // len(files) % len(MUTATIONS)]
        broken = mutant(text, kind, rng)
        if broken is None:
            continue
        try:
            check = judged(broken)[0]
        except CollsynError:
            check = "read"
        damage = harm(broken)
        found[kind, check is not None] += 1
        if damage is not None and check is None:
            missed.append((kind, damage, broken))
        if damage is None and check in ("deadlock", "result", "data"):
            invented.append((kind, check, broken))
    return found, missed, invented


def test_mutants_that_do_harm_are_reported():
    files = [exchange(3, "LL"), *BY_HAND.values()]
    found, missed, invented = compared(files, seed=1, count=4 * len(MUTATIONS))
    assert missed == []
    assert invented == []
    assert {kind for kind, reported in found if reported} == set(MUTATIONS)


@pytest.mark.slow
def test_five_hundred_mutants_of_files_that_we_write():
    """As above, of files of every collective that exports make."""
    problems = [
        ("allgather", "ring:4", "ring"),
        ("reducescatter", "full:4", "direct"),
        ("allreduce", "full:3", "direct"),
        ("allreduce", "hypercube:2", "recursive"),
        ("alltoall", "full:4", "direct"),
        ("broadcast", "full:4", "binomial"),
        ("gather", "full:4", "direct"),
        ("scatter", "full:4", "direct"),
    ]
    files = list(BY_HAND.values())
    for kind, topology, method in problems:
        [made] = export([(Path("x"), synthesize(kind, topology, "64K", method=method))], Options())
        files.append(made.content.decode())
    assert [(judged(text), harm(text, range(40))) for text in files] == [((None, ""), None)] * len(files)
    found, missed, invented = compared(files, seed=2, count=900)
    assert found.total() >= 500
    assert missed == []
    assert invented == []
