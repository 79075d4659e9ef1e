"""Ends cut off messages, and receives that are not fused: the same result, and no waiting."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn import load_topology
from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.export.msccl import Program
from collsyn.export.msccl_check import MscclFile
from collsyn.export.msccl_export import export
from collsyn.export.msccl_flow import Moved, Node
from collsyn.export.msccl_lower import make_gpus
from collsyn.export.msccl_tails import cut_tails
from collsyn.export.table import Options
from collsyn.synth.problem import Options as Effort
from collsyn.synth.problem import Problem
from collsyn.synth.table import method
from tests.support.plans import exportable
from tests.support.problems import random_problems


def message(index, target, count, begin_s, took_s=10.0, latency_s=1.0, at=0):
    """A send of rank 0 through one channel of the plan, its receive, and the reduction of what it brings."""
    line = ((0, 0), 0, target)
    end_s = begin_s + took_s
    there_s = end_s + latency_s
    return [
        Node("s", 0, (begin_s, index), count, src=(0, at), line=line, begin_s=begin_s, end_s=end_s),
        Node("r", target, (there_s, index + 2), count, (2, at), line=line, begin_s=begin_s, end_s=there_s),
        Node("red", target, (there_s, index + 4), count, (1, at), (2, at), (1, at), begin_s=there_s, end_s=there_s),
    ]


@pytest.mark.parametrize(("whole_pieces", "tail"), [(False, 1), (True, 2)])
def test_tails_are_as_long_as_the_latency_or_the_last_piece(whole_pieces, tail):
    """Ten chunks in ten seconds and a latency of one: one chunk hides it; in pieces of four, two are the last piece."""
    nodes = [*message(4, 1, 10, 0.0), *message(20, 2, 10, 10.0), *message(36, 2, 10, 20.0, at=10)]
    found = list(cut_tails(nodes, 4, whole_pieces))
    first, others = found[:6], found[6:]
    assert others == nodes[3:] or [node.count for node in others] == [10] * 6
    assert [(node.op, node.count, node.tail) for node in first] == [
        (op, count, last) for op in ("s", "r", "red") for count, last in ((10 - tail, False), (tail, True))
    ]
    assert [node.src for node in first[:2]] == [(0, 0), (0, 10 - tail)]
    assert [node.dst for node in first[2:4]] == [(2, 0), (2, 10 - tail)]
    assert [node.src2 for node in first[4:]] == [(1, 0), (1, 10 - tail)]
    assert first[1].key[0] == first[0].end_s == 10.0 - tail
    assert len({node.key for node in found}) == len(found)


def test_messages_of_one_piece_or_without_latency_have_no_tail():
    behind = message(20, 2, 10, 10.0)
    for whole_pieces, first in ((True, message(4, 1, 4, 0.0)), (False, message(4, 1, 10, 0.0, latency_s=0.0))):
        nodes = [*first, *behind]
        assert [id(node) for node in cut_tails(nodes, 4, whole_pieces)] == list(map(id, nodes))


# Those whose programs the reader takes.
KINDS = ("allgather", "reducescatter", "allreduce", "alltoall")


@settings(max_examples=6)
@given(
    problem=random_problems(),
    longest=st.integers(1, 4),
    whole_pieces=st.booleans(),
    patience=st.sampled_from([0.0, 0.1, float("inf")]),
    window=st.integers(0, 2),
)
def test_whatever_is_cut_and_fused_the_program_is_right(problem, longest, whole_pieces, patience, window):
    chosen = method("greedy")
    if problem.kind not in KINDS or problem.counts is not None or problem.groups is not None:
        return
    plan = exportable(chosen.synthesize(problem, Effort()))
    try:
        moved = Moved.of(plan, problem.size_bytes, longest, partial(cut_tails, piece=2, whole_pieces=whole_pieces))
    except InputError as error:
        assert "\n" not in str(error)
        return
    flow = moved.flow(1, None, window, moved.finish_s / 2)
    gpus = make_gpus(flow, True, False, patience * moved.finish_s if patience < 1 else patience)
    count = 1 + max((block.channel for gpu in gpus for block in gpu.blocks), default=0)
    kind = plan.collective.kind
    program = Program("t", kind, kind, "LL", count, flow.num_chunks, plan.collective.has_in_place, True, 0, 0, gpus)
    report = MscclFile(program).verify()
    wrong = {problem.what for problem in report.problems}
    # Many messages under way may be too many for a channel; results are never wrong.
    assert report.ok or {check.name for check in report.checks if not check.ok} == {"deadlock"}, wrong


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("reducescatter", 0.95), ("allgather", 0.97)])
def test_trees_of_unequal_shares_keep_their_rate(kind, least):
    """Two boxes, 64M: all GPUs behind one port each, whose pieces of 2 MiB each take the port's overhead."""
    problem = Problem(kind, load_topology("dgx-a100:2"), 64 << 20)
    schedule = method("trees").synthesize(problem, Effort())
    [file] = export([(Path("x"), schedule)], Options())
    assert schedule.finish_s >= least * file.facts["simulated_us"] * 1e-6
    assert file.facts["steps"] <= 64


@pytest.mark.slow
def test_a_receive_that_would_wait_leaves_its_channel_to_those_behind():
    """Trees that reduce: fused at any price, receives that wait for other sums stop ports that others share."""
    problem = Problem("reducescatter", load_topology("dgx-a100:2"), 1 << 30)
    plan = exportable(method("trees").synthesize(problem, Effort()))
    moved = Moved.of(plan, problem.size_bytes)
    times = []
    for patience_s in (float("inf"), 0.005 * moved.finish_s):
        flow = moved.flow(1, None, 1)
        gpus = make_gpus(flow, True, False, patience_s)
        channels = 1 + max(block.channel for gpu in gpus for block in gpu.blocks)
        kind = "reducescatter"
        program = Program("t", kind, kind, "Simple", channels, flow.num_chunks, False, True, 0, 0, gpus)
        made = MscclFile(program).plan(problem.size_bytes)
        times.append(simulate_plan(made, problem.topology, problem.size_bytes).finish_s)
    assert times[1] < 0.85 * times[0]
