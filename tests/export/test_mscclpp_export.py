"""Writing MSCCL++ JSON: what is read back does the same, fits the executor's tables, and runs right elsewhere."""

import json
import random
from dataclasses import replace
from math import lcm
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsyn import load_topology, synthesize
from collsyn.check.execute import execute
from collsyn.check.reference import make_inputs
from collsyn.check.simulate_plan import simulate_plan
from collsyn.check.verify import verify_plan
from collsyn.errors import InputError
from collsyn.export.mscclpp import MAX_OPS
from collsyn.export.mscclpp_check import read_mscclpp
from collsyn.export.mscclpp_export import export, port_pairs
from collsyn.export.mscclpp_lower import grain_of, make_gpus
from collsyn.export.mscclpp_parts import flush_points, tokens_of
from collsyn.export.mscclpp_write import program_text
from collsyn.export.table import Options
from collsyn.model.arrays import Rows
from collsyn.model.bind import bind
from collsyn.model.plan import Buffer, Op, Plan
from tests.support.hand_plans import swap_plan
from tests.support.mscclpp_files import BY_HAND, MUTATIONS, mutant
from tests.support.mscclpp_runner import harm
from tests.support.plans import exportable
from tests.support.schedules import KINDS, by_hand, random_schedules

GOLDEN = Path(__file__).parent / "golden"
SAID = ("allgather", "reducescatter", "allreduce", "alltoall")


def exported(source, **options):
    """The one file of a source."""
    [file] = export([(Path("a.json"), source)], Options(**options))
    return file


def outputs(plan, elements, in_place=False, seed=None):
    """What a plan makes of random numbers."""
    inputs = make_inputs(plan.collective, "int64", "sum", elements, seed=5)
    return [array.tobytes() for array in execute(bind(plan, elements, 8, in_place), "int64", "sum", inputs, seed)]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.mscclpp.json")), ids=lambda path: path.name.split(".")[0])
def test_golden_files(path):
    collective, *place, size, name = path.name.split(".")[0].split("-")
    schedule = synthesize(collective, ":".join(place), size, method=name)
    assert exported(schedule).content.decode() == path.read_text()
    assert harm(json.loads(path.read_text())) is None


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_that_the_executor_knows_is_written_and_right(kind, in_place):
    name = {"broadcast": "binomial", "reduce": "binomial", "sendrecv": "paths"}.get(kind, "direct")
    schedule = synthesize(kind, "full:4", "64K", method=name)
    if kind not in SAID or (kind == "alltoall" and in_place):
        with pytest.raises(
            InputError, match=r"a.json: collective: MSCCL\+\+ JSON knows no|--in-place: .* has no in-place"
        ):
            exported(schedule, in_place=in_place)
        return
    file = exported(schedule, in_place=in_place)
    read = read_mscclpp(file.content, "f")
    assert read.verify().ok
    assert harm(json.loads(file.content)) is None
    assert program_text(read.program).encode() == file.content
    assert file.facts["simulated_us"] == pytest.approx(
        simulate_plan(read.plan(1 << 16), schedule.topology, 1 << 16).finish_s * 1e6
    )


@settings(max_examples=20)
@given(schedule=random_schedules(SAID), seed=st.integers(0, 9), reduce_by=st.sampled_from(["put", "get"]))
def test_what_is_read_back_behaves_as_the_plan(schedule, seed, reduce_by):
    """Equal results on data, in any order and in place; equal time where thread blocks are the channels of the plan."""
    topology, size_bytes = schedule.topology, schedule.size_bytes
    plan = exportable(schedule, reduce_by=reduce_by)
    # The file names no routes: the plan takes those that it would take without names, too.
    plan = replace(plan, columns={**plan.columns, "route": np.full(plan.num_instructions, -1)})
    for in_place in (False, True) if plan.collective.has_in_place else (False,):
        try:
            file = exported(plan, in_place=in_place, size_bytes=size_bytes)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        read = read_mscclpp(file.content, "f")
        assert read.verify().ok
        after = read.plan(size_bytes)
        elements = lcm(after.total_units, plan.total_units)
        assert outputs(after, elements, seed=seed) == outputs(plan, elements, in_place)
        whole = sum(len(gpu.blocks) for gpu in read.program.gpus) == plan.num_channels
        if whole and not in_place and not port_pairs(topology):
            times = [simulate_plan(each, topology, size_bytes).finish_s for each in (plan, after)]
            assert times[1] == pytest.approx(times[0], rel=1e-9)


@pytest.mark.parametrize("kind", MUTATIONS)
def test_faults_of_exported_files_are_found(kind):
    good = [
        json.loads(exported(synthesize(collective, where, "64K", method=name), in_place=in_place).content)
        for collective, where, name, in_place in (
            ("allgather", "ring:3", "ring", False),
            ("allreduce", "full:3", "direct", True),
            ("reducescatter", "full:3", "direct", False),
        )
    ]
    rng = random.Random(kind)
    for _ in range(12):
        broken = mutant(rng.choice(good), kind, rng)
        if broken is None:
            continue
        try:
            found = not read_mscclpp(json.dumps(broken).encode(), "f").verify().ok
        except InputError:
            found = True
        assert found or harm(broken, range(12)) is None, json.dumps(broken)


def test_boxes_are_joined_by_port_channels():
    schedule = synthesize("allreduce", "dgx-a100:2", "1M", method="ring")
    file = exported(schedule)
    document = json.loads(file.content)
    for gpu in document["gpus"]:
        for entry in gpu["channels"]:
            for peer in entry["connected_to"]:
                assert (entry["channel_type"] == "port") == (peer // 8 != gpu["id"] // 8)
    names = {op["name"] for gpu in document["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"]}
    assert names & {"pws", "pwsf"}
    assert harm(document, range(3)) is None


def test_what_is_put_into_a_port_is_flushed_where_it_is_overwritten():
    """Rank 0 sends its scratch to the other box twice, and fills it anew in between."""
    plan = swap_plan(topology=load_topology("ndv2:2").subset([0, 8]))
    assert port_pairs(plan.topology) == {(0, 1), (1, 0)}
    copies = [{"op": Op.COPY, "dst_buffer": 2, "length": 1}]

    def twice(channels):
        for body in channels:
            at = next(k for k, row in enumerate(body) if row["op"] == Op.PUT)
            body[at:at] = copies
            body[at + 1]["src_buffer"] = 2
            body.insert(at + 3, {"op": Op.COPY, "dst_buffer": 2, "length": 1})

    plan = swap_plan(twice, scratch=[[(-1, 0, 1)], [(-1, 0, 1)]], topology=plan.topology)
    document = json.loads(exported(plan, size_bytes=1 << 16).content)
    names = [op["name"] for op in document["gpus"][0]["threadblocks"][0]["ops"]]
    assert "pwsf" in names
    assert "pws" not in names
    assert harm(document) is None


def test_reads_across_boxes_are_refused_in_plans_and_avoided_in_schedules():
    schedule = synthesize("reducescatter", "ndv2:2", "64K", method="ring")
    exported(schedule)
    with pytest.raises(InputError, match="reads memory in another box, which port channels cannot; lower it with put"):
        exported(exportable(schedule, reduce_by="get"))


def test_long_channels_become_thread_blocks_one_after_the_other():
    plan = exportable(synthesize("allreduce", "ring:4", "1M", method="ring"), piece_bytes=1 << 14)
    gpus = make_gpus(plan, False, frozenset())
    assert max(np.diff(plan.channel_ptr)) > 2 * MAX_OPS
    assert all(len(block.ops) <= MAX_OPS for gpu in gpus for block in gpu.blocks)
    assert sum(len(gpu.blocks) for gpu in gpus) > plan.num_channels
    file = exported(plan, size_bytes=1 << 20)
    read = read_mscclpp(file.content, "f")
    assert read.verify().ok
    assert outputs(read.plan(1 << 20), read.plan().total_units * 4, seed=1) == outputs(
        plan, read.plan().total_units * 4
    )


def test_every_flag_may_be_waited_for_by_several_channels():
    """Three channels wait for one flag, one of them twice: three signals, each taken once."""
    collective = synthesize("allgather", "full:2", "64K", method="direct").collective
    told = [{"op": Op.SIGNAL, "peer": 1 - 0, "flag": 0, "value": v} for v in (1, 2)]
    waits = [{"op": Op.WAIT, "peer": 0, "flag": 0, "value": v} for v in (1, 2)]
    plan = Plan.build(collective, [(0, told), (1, waits), (1, [waits[1]]), (1, [waits[0], waits[0]])], [[], []], [0, 1])
    gpus = make_gpus(plan, False, frozenset())
    ops = [op for gpu in gpus for block in gpu.blocks for op in block.ops]
    count = {name: sum(len(op.channels) for op in ops if op.name == name) for name in ("signal", "wait")}
    assert count == {"signal": 4, "wait": 4}
    assert len(gpus[0].channels["memory"]) == 3


def test_chunks_are_as_long_as_all_ranges_allow():
    plan = exportable(by_hand("ring allgather"))
    ends = plan.columns["dst_offset"] + plan.columns["length"]
    grain = grain_of(plan)
    assert grain >= 1
    assert not (ends % grain).any()
    gpus = make_gpus(plan, False, frozenset())
    assert gpus[0].output_chunks * grain == plan.buffer_units()[0, Buffer.OUTPUT]


def test_sizes_alignment_and_sets():
    schedules = [
        (Path(size), synthesize("allgather", "full:2", size, method="direct")) for size in ("64K", "1M", "16M")
    ]
    files = export(schedules, Options())
    ranges = [(file.facts["min_bytes"], file.facts["max_bytes"]) for file in files]
    assert ranges == [(0, (1 << 18) - 1), (1 << 18, (1 << 22) - 1), (1 << 22, (1 << 32) - 1)]
    assert [file.facts["multiple_bytes"] for file in files] == [16 * file.facts["num_chunks"] for file in files]
    one = export(schedules[:1], Options(min_bytes=16, max_bytes=4096))[0]
    assert (one.facts["min_bytes"], one.facts["max_bytes"]) == (16, 4096)
    document = json.loads(one.content)
    assert (document["min_message_size"], document["max_message_size"], document["buffer_alignment"]) == (16, 4096, 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dialect": "x"}, "--dialect: mscclpp-json has none"),
        ({"protocol": "LL128"}, "--proto: is 'LL128'; expected Simple or LL"),
        ({"protocol": "LL", "instances": 2}, "--instances: --proto LL has none"),
        ({"size_bytes": 5}, "--size: a schedule has one of its own"),
        ({"min_bytes": 100, "max_bytes": 50}, "no size is left between 100 and 50 bytes"),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(InputError) as error:
        exported(synthesize("allgather", "full:2", "64K", method="direct"), **options)
    assert words in str(error.value)


def test_what_no_file_can_say_is_one_line():
    for more in ({"groups": ((0, 1), (2, 3))}, {"counts": [1, 2, 3, 4]}):
        with pytest.raises(InputError, match="one group of ranks with equal buffers"):
            exported(synthesize("allgather", "full:4", "64K", method="direct", **more))
    with pytest.raises(InputError, match=r"thread blocks, and 108 surely run at once"):
        exported(exportable(synthesize("allreduce", "ring:4", "64M", method="ring"), piece_bytes=1 << 16))
    swapped = {Op.PUT: {"op": Op.GET, "peer": 1, "dst_buffer": 1, "dst_offset": 1, "src_offset": 0, "length": 1}}
    plan = swap_plan(lambda channels: channels[0].append(swapped[Op.PUT]))
    with pytest.raises(InputError, match="a GET between unequal offsets, which the executor of MSCCL"):
        make_gpus(plan, False, frozenset())


def test_plans_without_a_topology_are_written():
    bare = replace(swap_plan(), topology=None, routes=Rows.of([]))
    file = exported(bare)
    assert file.facts["simulated_us"] is None
    assert read_mscclpp(file.content, "f").verify().ok


@pytest.mark.parametrize("name", BY_HAND)
def test_writing_what_was_read_changes_nothing(name):
    program = read_mscclpp(json.dumps(BY_HAND[name]).encode(), "f").program
    assert read_mscclpp(program_text(program).encode(), "f").program == program


@pytest.mark.parametrize(
    ("kind", "where", "name"),
    [
        ("allgather", "ring:4", "ring"),
        ("reducescatter", "ring:4", "ring"),
        ("allreduce", "full:4", "direct"),
        ("allreduce", "full:4", "one-shot"),
        ("allreduce", "full:8", "recursive"),
        ("alltoall", "full:4", "direct"),
    ],
)
def test_packets_save_the_signals(kind, where, name):
    schedule = synthesize(kind, where, "4K", method=name)
    for in_place in (False, True) if kind != "alltoall" else (False,):
        file = exported(schedule, protocol="LL", in_place=in_place)
        document = json.loads(file.content)
        names = {op["name"] for gpu in document["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"]}
        assert names <= {"copy", "ppkt", "rppkt", "upkt", "repkt", "respkt"}
        assert (document["protocol"], document["use_double_scratch_buffer"]) == ("LL", True)
        assert harm(document) is None
        assert file.facts["simulated_us"] <= exported(schedule, in_place=in_place).facts["simulated_us"]


@settings(max_examples=12)
@given(schedule=random_schedules(SAID), seed=st.integers(0, 9))
def test_packets_of_any_schedule_give_its_result(schedule, seed):
    if port_pairs(schedule.topology):
        return
    plan = exportable(schedule)
    for in_place in (False, True) if schedule.collective.has_in_place else (False,):
        file = exported(schedule, protocol="LL", in_place=in_place)
        read = read_mscclpp(file.content, "f")
        assert read.verify().ok
        after = read.plan()
        elements = lcm(after.total_units, plan.total_units)
        assert outputs(after, elements, seed=seed) == outputs(plan, elements, in_place)
        assert file.facts["max_bytes"] * 4 * max(g.scratch_chunks for g in read.program.gpus) < (
            (1 << 32) * file.facts["num_chunks"]
        )


def test_packets_of_many_contributions_are_added_up_in_turns():
    """11 packets for one sum, of which an operation takes 9; and values that are sent on before they are results."""
    file = exported(synthesize("allreduce", "full:12", "4K", method="one-shot"), protocol="LL")
    document = json.loads(file.content)
    assert max(len(op["src_buff"]) for g in document["gpus"] for tb in g["threadblocks"] for op in tb["ops"]) <= 10
    assert harm(document, range(3)) is None
    assert judged_ok(exported(by_hand("doubling allreduce"), protocol="LL", in_place=True))


def judged_ok(file):
    """Whether a file that was written is right."""
    return read_mscclpp(file.content, "f").verify().ok


def test_packets_need_a_schedule_and_memory():
    schedule = synthesize("allgather", "ring:4", "4K", method="ring")
    with pytest.raises(InputError, match="LL is made from a schedule; a plan has places"):
        exported(exportable(schedule), protocol="LL")
    with pytest.raises(InputError, match="ranks are in different boxes; take Simple"):
        exported(synthesize("allgather", "ndv2:2", "4K", method="ring"), protocol="LL")
    with pytest.raises(InputError, match="one group of ranks with equal buffers"):
        exported(synthesize("allgather", "full:4", "64K", method="direct", counts=[1, 2, 3, 4]), protocol="LL")
    with pytest.raises(InputError, match="knows no broadcast"):
        exported(synthesize("broadcast", "full:4", "64K", method="binomial"), protocol="LL")


@pytest.mark.parametrize("kind", MUTATIONS)
def test_faults_of_packets_are_found(kind):
    good = [
        json.loads(exported(synthesize(collective, where, "4K", method=name), protocol="LL", in_place=in_place).content)
        for collective, where, name, in_place in (
            ("allreduce", "full:4", "direct", True),
            ("allreduce", "full:4", "recursive", False),
        )
    ]
    rng = random.Random(kind)
    for _ in range(8):
        broken = mutant(rng.choice(good), kind, rng)
        if broken is None:
            continue
        try:
            found = not read_mscclpp(json.dumps(broken).encode(), "f").verify().ok
        except InputError:
            found = True
        assert found or harm(broken, range(12)) is None, json.dumps(broken)


def passed_on():
    """An allgather of two ranks in two boxes, whose first channels put data, and whose second ones pass the word on."""
    topology = load_topology("ndv2:2").subset([0, 8])
    collective = synthesize("allgather", "full:2", "64K", method="direct").collective
    channels = []
    for rank in range(2):
        peer = 1 - rank
        put = [
            {"op": Op.SIGNAL, "peer": peer, "flag": 0, "value": 1},
            {"op": Op.WAIT, "peer": peer, "flag": 0, "value": 1},
            {"op": Op.PUT, "peer": peer, "dst_buffer": 1, "dst_offset": rank, "length": 1},
            {"op": Op.SIGNAL, "peer": rank, "flag": 1, "value": 1},
            {"op": Op.COPY, "dst_buffer": 1, "dst_offset": rank, "length": 1},
        ]
        tell = [
            {"op": Op.WAIT, "peer": rank, "flag": 1, "value": 1},
            {"op": Op.SIGNAL, "peer": peer, "flag": 2, "value": 1},
            {"op": Op.WAIT, "peer": peer, "flag": 2, "value": 1},
        ]
        channels += [(rank, put), (rank, tell)]
    return Plan.build(collective, channels, [[], []], [3, 3], topology=topology)


def test_data_in_a_port_is_flushed_before_others_are_told():
    plan = passed_on()
    assert verify_plan(plan).ok
    pairs = port_pairs(plan.topology)
    puts = np.flatnonzero(plan.columns["op"] == Op.PUT).tolist()
    assert flush_points(plan, tokens_of(plan), pairs) == {puts[0]: 1, puts[1]: 0}
    assert flush_points(plan, tokens_of(plan), frozenset()) == {}
    document = json.loads(exported(plan, size_bytes=1 << 16).content)
    for gpu in document["gpus"]:
        names = [op["name"] for op in gpu["threadblocks"][0]["ops"]]
        assert "pwsf" in names
        assert "put" not in names
    assert harm(document) is None


@settings(max_examples=12)
@given(
    schedule=random_schedules(SAID, st.just(load_topology("dgx-a100:2").subset([0, 1, 8, 9]))), seed=st.integers(0, 9)
)
def test_schedules_across_boxes_give_their_result(schedule, seed):
    file = exported(schedule)
    read = read_mscclpp(file.content, "f")
    assert read.verify().ok
    plan, after = exportable(schedule), read.plan()
    elements = lcm(after.total_units, plan.total_units)
    assert outputs(after, elements, seed=seed) == outputs(plan, elements)
    assert harm(json.loads(file.content), range(2)) is None


def test_packets_take_twice_their_bytes_on_the_links():
    schedule = synthesize("allgather", "full:2@alpha_us=0", "64K", method="direct")
    plain, packets = (exported(schedule, protocol=name).facts["simulated_us"] for name in ("Simple", "LL"))
    assert packets == pytest.approx(2 * plain)
