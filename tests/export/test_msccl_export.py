"""Writing MSCCL XML: what is written does what the schedule does, fits the readers, and is the same text every time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn import load_topology, synthesize
from collsyn.check.execute import execute
from collsyn.check.reference import make_inputs, reference
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_schedule
from collsyn.errors import InputError
from collsyn.export.msccl import DIALECTS, Program
from collsyn.export.msccl_check import MscclFile, read_msccl
from collsyn.export.msccl_export import export
from collsyn.export.msccl_flow import Moved, data_flow
from collsyn.export.msccl_form import (
    bound_problems,
    dependency_problems,
    fifo_problems,
    form_problems,
    peer_problems,
)
from collsyn.export.msccl_limits import dealt_problem, limit_problems
from collsyn.export.msccl_lower import make_gpus
from collsyn.export.msccl_make import Wanted, make_program
from collsyn.export.msccl_read import read_program
from collsyn.export.msccl_write import program_text
from collsyn.export.table import FORMATS, Options, exporter
from collsyn.model.arrays import Rows
from collsyn.model.bind import bind
from collsyn.model.collective import make_collective
from collsyn.model.plan import Buffer, Op, Plan
from collsyn.synth.problem import Options as Effort
from collsyn.synth.table import method
from tests.support.hand_plans import swap_plan
from tests.support.msccl_files import BY_HAND, algo, step
from tests.support.msccl_runner import harm
from tests.support.plans import exportable
from tests.support.problems import random_problems
from tests.support.schedules import KINDS, SIZE, by_hand, from_rows

GOLDEN = Path(__file__).parent / "golden"


def exported(schedule, **options):
    """The one file of a schedule."""
    [file] = export([(Path("schedule.json"), schedule)], Options(**options))
    return file


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.xml")), ids=lambda path: path.stem)
def test_golden_files(path):
    collective, *place, size, name = path.stem.split("-")
    schedule = synthesize(collective, ":".join(place), size, method=name)
    assert exported(schedule).content.decode() == path.read_text()
    assert harm(path.read_text()) is None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_that_a_reader_knows_is_written_and_right(kind, dialect):
    name = {"broadcast": "binomial", "reduce": "binomial", "sendrecv": "paths"}.get(kind, "direct")
    schedule = synthesize(kind, "full:4", "64K", method=name)
    if kind not in DIALECTS[dialect].collectives:
        with pytest.raises(
            InputError, match=f"schedule.json: collective: {dialect} knows no {kind}; it knows allreduce"
        ):
            exported(schedule, dialect=dialect)
        return
    file = exported(schedule, dialect=dialect)
    read = read_msccl(file.content, "f")
    assert read.verify().ok
    assert not limit_problems(read.program, DIALECTS[dialect])
    assert harm(file.content.decode()) is None
    assert program_text(read.program).encode() == file.content


def outputs(plan, elements, in_place=False, seed=None):
    """What a plan makes of random numbers."""
    inputs = make_inputs(plan.collective, "int64", "sum", elements, seed=5)
    return [array.tobytes() for array in execute(bind(plan, elements, 8, in_place), "int64", "sum", inputs, seed)]


@settings(max_examples=12)
@given(problem=random_problems(), seed=st.integers(0, 9))
def test_what_is_read_back_behaves_as_what_was_written(problem, seed):
    """Equal results on data in any order, and equal simulated time; refusals are one line."""
    chosen = method("greedy")
    if chosen.accepts(problem) is not None:
        return
    schedule = chosen.synthesize(problem, Effort())
    plan = exportable(schedule)
    wanted = Wanted(DIALECTS["msccl"], "LL", False, True, 0, 0, problem.size_bytes, "test")
    try:
        made = make_program(schedule, wanted)
    except InputError as error:
        assert "\n" not in str(error)
        return
    read = read_program(program_text(made.program).encode(), "f")
    assert read == made.program
    before, after = (MscclFile(program).plan(problem.size_bytes) for program in (made.program, read))
    times = [simulate_plan(each, problem.topology, problem.size_bytes).finish_s for each in (before, after)]
    assert times == [made.time_s, made.time_s]
    elements = after.total_units * plan.total_units
    assert outputs(after, elements, seed=seed) == outputs(plan, elements)


@pytest.mark.parametrize(
    ("kind", "topology", "size", "name"),
    [
        ("allgather", "full:4", "1M", "direct"),
        ("allreduce", "ring:4", "1M", "ring"),
        ("alltoall", "full:4", "64K", "direct"),
    ],
)
def test_files_take_the_time_of_their_plans(kind, topology, size, name):
    schedule = synthesize(kind, topology, size, method=name)
    plan_s = simulate_plan(exportable(schedule), schedule.topology, schedule.size_bytes).finish_s
    assert exported(schedule, protocol="Simple").facts["simulated_us"] == pytest.approx(plan_s * 1e6, rel=0.02)


def test_protocols_take_the_time_of_the_flags_that_they_send():
    """Alone on a link without latency, a message takes the time of its bytes there: LL sends every byte twice."""
    schedule = synthesize("allgather", "full:2@alpha_us=0", "1M", method="direct")
    facts = {name: exported(schedule, protocol=name).facts for name in ("Simple", "LL", "LL128")}
    plain_us = (1 << 19) / float(schedule.topology.bandwidth[0]) * 1e6
    assert facts["Simple"]["simulated_us"] == pytest.approx(plain_us)
    assert facts["LL"]["simulated_us"] == pytest.approx(2 * plain_us)
    assert facts["LL128"]["simulated_us"] == pytest.approx(plain_us * 128 / 120)


def test_a_ring_needs_one_thread_block_a_gpu_and_no_dependency():
    read = read_program(exported(synthesize("reducescatter", "ring:4", "8M", method="ring")).content, "f")
    assert [len(gpu.blocks) for gpu in read.gpus] == [1] * 4
    assert [step.op for step in read.gpus[0].blocks[0].steps] == ["s", "rrs", "rrs", "rrc"]
    assert all(step.dep_block < 0 for *_, step in read.steps())


def test_hazards_of_a_plan_become_dependencies():
    flow = data_flow(exportable(by_hand("ring allgather")))
    for node in flow.nodes:
        assert all(earlier.rank == node.rank and earlier.key <= node.key for earlier in node.needs)
        assert all(node in earlier.users for earlier in node.needs)
        assert set(node.readers) <= set(node.users)
    sends = [node for node in flow.nodes if node.op == "s" and node.src[0] == Buffer.OUTPUT]
    assert sends
    assert all(any(earlier.op == "r" for earlier in node.needs) for node in sends)


def test_plans_are_exported_too():
    plan = swap_plan()
    file = exported(plan, size_bytes=1 << 16)
    assert read_msccl(file.content, "f").verify().ok
    assert file.facts["simulated_us"] > 0
    bare = exported(replace(plan, topology=None, routes=Rows.of([])), size_bytes=1 << 16)
    assert read_msccl(bare.content, "f").verify().ok
    assert bare.facts["simulated_us"] is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_gets_and_long_moves_are_exported(dialect):
    """GET and GET_REDUCE become a send by the peer; what no step can move at once becomes several."""
    plan = exportable(synthesize("allreduce", "full:3", "64K", method="direct"), reduce_by="get")
    assert (plan.columns["op"] == Op.GET_REDUCE).any()
    assert read_msccl(exported(plan, dialect=dialect).content, "f").verify().ok
    collective = plan.collective
    body = [{"op": Op.COPY, "length": 3, "dst_buffer": 1}]
    long = Plan.build(collective, [(rank, body) for rank in range(3)], [[]] * 3, [0] * 3, 1)
    assert max(node.count for node in data_flow(long).nodes) <= 71


def test_sets_share_the_sizes():
    schedules = [
        (Path(size), synthesize("allgather", "full:2", size, method="direct")) for size in ("64K", "1M", "16M")
    ]
    files = export(schedules, Options(as_set=True))
    assert [(file.facts["min_bytes"], file.facts["max_bytes"]) for file in files] == [
        (0, (1 << 18) - 1),
        (1 << 18, (1 << 22) - 1),
        (1 << 22, 0),
    ]
    assert [file.facts["proto"] for file in files] == ["LL", "LL128", "Simple"]
    assert len({file.name for file in files}) == 3
    files = export(schedules[:2], Options(as_set=True, dialect="msccl"))
    assert [(f.facts["min_bytes"], f.facts["max_bytes"], f.facts["in_place"]) for f in files[:-1]] == [
        (0, 1 << 18, False),
        (0, 1 << 18, True),
        (1 << 18, 1 << 40, False),
        (1 << 18, 1 << 40, True),
    ]
    config = files[-1].content.decode()
    assert all(f'<load path="{file.name}" minbytes="{file.facts["min_bytes"]}"' in config for file in files[:-1])
    with pytest.raises(InputError, match="msccl loads 4 files at most, these make 6"):
        export(schedules, Options(as_set=True, dialect="msccl"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dialect": "nccl"}, "--dialect: 'nccl' is not known; expected one of msccl, azure, rccl"),
        ({"protocol": "ll"}, "--proto: is 'll'; expected one of Simple, LL, LL128"),
        ({"size_bytes": 5}, "--size: a schedule has one of its own"),
        ({"min_bytes": 100, "max_bytes": 50}, "--min-size, --max-size: no size is left between 100 and 50 bytes"),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(InputError) as error:
        exported(synthesize("allgather", "full:2", "64K", method="direct"), **options)
    assert words in str(error.value)


def test_sizes_and_places_can_be_given():
    schedule = synthesize("allgather", "full:2", "64K", method="direct")
    for dialect, last in (("azure", 4096), ("msccl", 4097)):
        facts = exported(schedule, dialect=dialect, min_bytes=16, max_bytes=4096, in_place=True).facts
        assert (facts["min_bytes"], facts["max_bytes"]) == (16, last)
        assert (facts["in_place"], facts["out_of_place"]) == (True, False)
    with pytest.raises(InputError, match="--in-place: alltoall has no in-place form"):
        exported(synthesize("alltoall", "full:2", "64K", method="direct"), in_place=True)


def test_what_no_program_can_say_is_one_line():
    groups = ((0, 1), (2, 3))
    with pytest.raises(InputError, match=r"schedule.json: groups: a program is for all GPUs of one communicator"):
        exported(synthesize("allgather", "full:4", "64K", method="direct", groups=groups))
    with pytest.raises(InputError, match="counts: MSCCL knows no shards of unequal length"):
        exported(synthesize("allgather", "full:4", "64K", method="direct", counts=[1, 2, 3, 4]))
    for piece_bytes, what in ((128, "elements for a rank"), (256, "steps")):
        plan = exportable(synthesize("allgather", "ring:4", "1M", method="ring"), piece_bytes=piece_bytes)
        with pytest.raises(InputError, match=f"does not fit: gpu 0: too many {what} for azure; expected at most"):
            exported(plan, size_bytes=1 << 20)


def test_steps_beyond_the_table_are_dealt_out_over_channels():
    plan = exportable(synthesize("allgather", "ring:4", "64K", method="ring"), piece_bytes=512)
    facts = {name: exported(plan, dialect=name, size_bytes=1 << 16).facts for name in DIALECTS}
    assert max(len(block.steps) for gpu in make_gpus(data_flow(plan)) for block in gpu.blocks) > 64
    assert all(fact["steps"] <= DIALECTS[name].max_steps for name, fact in facts.items())
    assert facts["azure"]["num_channels"] > 1


def test_the_table_of_formats():
    assert "msccl-xml" in FORMATS
    assert all(callable(exporter(name)) for name in FORMATS)
    with pytest.raises(InputError, match="--format: 'png' is not known; expected one of msccl-xml"):
        exporter("png")


def test_scratch_is_packed():
    for path in GOLDEN.glob("*.xml"):
        assert 's_chunks="0"' in path.read_text()
    assert np.all(
        [gpu.scratch_chunks <= 2 for gpu in read_program(exported(by_hand("ring allgather")).content, "f").gpus]
    )


def test_shares_of_unequal_length_keep_their_rate():
    """Parts of 2, 1 and 3 sixths of every shard, each a message: steps of as many chunks, as fast as the schedule."""
    topology = load_topology("full:2")
    collective = make_collective("allgather", 2, 6)
    rate = float(topology.bandwidth[0])
    size_bytes = 64 * SIZE
    part_s = size_bytes / 12 / rate
    rows = []
    for rank in range(2):
        link = next(i for i in range(2) if topology.src[i] == rank)
        sent = 0
        for number, parts in enumerate(((0, 1), (5,), (2, 3, 4))):
            for part in parts:
                at = {"chunk": rank * 6 + part, "src": rank, "dst": 1 - rank, "route": link, "rate": rate}
                rows.append({**at, "start_s": sent * part_s, "batch": rank * 3 + number})
            sent += len(parts)
    schedule = from_rows(collective, topology, rows, size_bytes, [[0], [1]])
    assert verify_schedule(schedule).ok
    for dialect in DIALECTS:
        file = exported(schedule, dialect=dialect)
        read = read_msccl(file.content, "f")
        assert {step.count for *_, step in read.program.steps() if step.op == "s"} == {1, 2, 3}
        assert schedule.finish_s >= 0.97 * file.facts["simulated_us"] * 1e-6
        assert harm(file.content.decode()) is None


@pytest.mark.parametrize("size_bytes", [1 << 10, 1 << 22, 1 << 26, 1 << 40])
def test_slices_and_pieces_of_every_size_come_to_the_same_result(size_bytes):
    for text in BY_HAND.values():
        file = read_msccl(text.encode(), "f")
        plan = file.plan(size_bytes)
        elements = 12 * plan.total_units
        inputs = make_inputs(plan.collective, "int64", "sum", elements, seed=5)
        want = [array.tobytes() for array in reference(plan.collective, "int64", "sum", inputs, elements)]
        assert all(outputs(plan, elements, seed=seed) == want for seed in (None, 0, 1))


def test_long_chunks_are_worked_off_in_slices_that_overlap():
    """A chain of three GPUs: at sizes of many slices, all links are busy most of the time."""
    steps = [[step("s", "i:0"), step("cpy", "i:0", "o:0")], [step("rcs", "o:0", "o:0")], [step("r", "o:0", "o:0")]]
    gpus = [((1, 1, 0), [(g + 1 if g < 2 else -1, g - 1, 0, body)]) for g, body in enumerate(steps)]
    file = read_msccl(algo("broadcast", gpus, 1).encode(), "f")
    assert file.verify().ok
    topology = load_topology("ring:3@alpha_us=0")
    small_s, large_s = (simulate_plan(file.plan(size), topology, size).finish_s for size in (1 << 20, 1 << 24))
    once_s = float(topology.beta_s_per_byte[0])
    assert small_s == pytest.approx(2 * (1 << 20) * once_s)
    assert large_s == pytest.approx((1 + 1 / 8) * (1 << 24) * once_s)


def test_instances_are_channels_of_their_own():
    schedule = synthesize("allgather", "full:2", "64M", method="direct")
    one, two = (exported(schedule, instances=count) for count in (1, 2))
    assert (one.facts["num_channels"], two.facts["num_channels"]) == (1, 2)
    assert two.facts["num_chunks"] >= 2 * 2
    assert harm(two.content.decode()) is None


def test_results_are_the_same_every_time():
    schedule = synthesize("allreduce", "dgx1", "64K", method="greedy")
    assert exported(schedule).content == exported(schedule).content


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(("place", "name"), [("ring:4", "ring"), ("full:5", "ring"), ("torus:2x2", "greedy")])
@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_thread_blocks_that_hand_on_share_no_channel_with_others(kind, place, name, instances):
    """However ends are paired, every channel has one thread block at either end, and sends meet receives."""
    plan = exportable(synthesize(kind, place, "1M", method=name), instances)
    flow = data_flow(plan, 1 << 20)
    gpus = make_gpus(flow)
    both = any(block.send >= 0 and block.recv >= 0 for gpu in gpus for block in gpu.blocks)
    assert both or name != "ring"
    channels = 1 + max(block.channel for gpu in gpus for block in gpu.blocks)
    program = Program("test", kind, kind, "LL", channels, flow.num_chunks, True, True, 0, 0, gpus)
    for problems in (form_problems, peer_problems, bound_problems, fifo_problems, dependency_problems):
        assert list(problems(program)) == []


def test_messages_are_dealt_out_in_turns_or_one_lane_after_the_other():
    plan = exportable(synthesize("allgather", "ring:4", "64K", method="ring"), piece_bytes=1024)
    whole = {line: len(sends) for line, (sends, _) in data_flow(plan).lines.items()}
    turns = {line: len(sends) for line, (sends, _) in data_flow(plan, lanes=3).lines.items()}
    assert len(turns) == 3 * len(whole)
    assert max(turns.values()) - min(turns.values()) <= 1
    lines = data_flow(plan, messages=10).lines
    assert max(len(sends) for sends, _ in lines.values()) <= 10
    assert sum(len(sends) for sends, _ in lines.values()) == sum(whole.values())
    for (channel, lane), source, target in lines:
        first = lines[(channel, lane), source, target][0][0]
        if lane:
            assert lines[(channel, lane - 1), source, target][0][-1] in first.needs
    flow = data_flow(plan, messages=10)
    gpus = make_gpus(flow)
    channels = 1 + max(block.channel for gpu in gpus for block in gpu.blocks)
    program = Program("test", "allgather", "allgather", "LL", channels, flow.num_chunks, True, True, 0, 0, gpus)
    assert MscclFile(program).verify().ok


def test_sends_of_one_channel_of_the_plan_can_keep_their_order():
    """A rank behind one port sends to its peers in turn: each send waits for the one that comes a window before."""
    plan = exportable(synthesize("allgather", "switch:5", "1M", method="direct"), channels_by="link")
    assert plan.max_channels() == 1
    for window in (0, 1, 2):
        flow = data_flow(plan, 1 << 20, window=window)
        sends = [[node for node in flow.nodes if node.op == "s" and node.rank == rank] for rank in range(5)]
        waits = [
            {
                number - nodes.index(before)
                for number, node in enumerate(nodes)
                for before in node.needs
                if before in nodes
            }
            for nodes in sends
        ]
        assert waits == [{window} if window else set()] * 5
    made = exported(plan, size_bytes=1 << 20, protocol="Simple")
    assert made.facts["simulated_us"] * 1e-6 <= 1.02 * simulate_plan(plan, plan.topology, 1 << 20).finish_s


def test_long_chunks_of_many_peers_behind_one_port_are_sent_in_the_order_of_the_plan():
    """The runtime goes through all steps once for every slice; a message of chunks of a slice goes before the next."""
    schedule = synthesize("allgather", "dgx-a100:1", "64M", method="greedy")
    plan_s = simulate_plan(exportable(schedule), schedule.topology, schedule.size_bytes).finish_s
    file = exported(schedule)
    assert (schedule.collective.num_chunks, file.facts["num_chunks"]) == (8, 32)
    assert file.facts["simulated_us"] * 1e-6 <= 1.05 * plan_s
    assert harm(file.content.decode()) is None


@settings(max_examples=6)
@given(problem=random_problems(), limits=st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(1, 4)))
def test_what_counting_refuses_no_program_would_have_fitted(problem, limits):
    """Counting messages says too much about no deal: every program made of it breaks a limit of the same reader."""
    chosen = method("greedy")
    if chosen.accepts(problem) is not None:
        return
    steps, blocks, channels = limits
    dialect = replace(DIALECTS["azure"], max_steps=steps, max_blocks=blocks, max_channels=channels)
    if problem.counts is not None or problem.groups is not None:
        return
    moved = Moved.of(exportable(chosen.synthesize(problem, Effort())), problem.size_bytes)
    kind = moved.plan.collective.kind
    for lanes, messages in ((1, None), (2, None), (1, 1), (1, 3)):
        found = dealt_problem(moved.dealt(lanes, messages), moved.plan.num_ranks, dialect)
        flow = moved.flow(lanes, messages)
        longest = {line: len(sends) for line, (sends, _) in flow.lines.items()}
        assert sum(number for *_, number, _ in moved.dealt(lanes, messages)) == len(longest)
        assert max((most for *_, most in moved.dealt(lanes, messages)), default=0) == max(longest.values(), default=0)
        for paired in (False, True):
            gpus = make_gpus(flow, True, paired)
            count = 1 + max((block.channel for gpu in gpus for block in gpu.blocks), default=0)
            program = Program("t", kind, kind, "LL", count, flow.num_chunks, False, True, 0, 0, gpus)
            assert found is None or limit_problems(program, dialect)


def test_divided_chunks_are_the_same_program():
    program = read_program(exported(by_hand("ring allgather")).content, "f")
    finer = program.divided(3)
    assert finer.num_chunks == 3 * program.num_chunks
    assert MscclFile(finer).verify().ok
    for one, other in zip(program.steps(), finer.steps(), strict=True):
        assert (other[3].src_offset, other[3].count) == (3 * one[3].src_offset, 3 * one[3].count)
        assert (other[3].dep_block, other[3].dep_step) == (one[3].dep_block, one[3].dep_step)
