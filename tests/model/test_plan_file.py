"""Plan files: written, read and written again; broken ones are answered in one line that names file and key."""

import json

import pytest

from collsyn.errors import InputError
from collsyn.lower.lower import lower
from collsyn.model.plan_file import plan_text, read_plan, write_plan
from tests.model.test_plan import small
from tests.support.schedules import SCHEDULES, by_hand


@pytest.mark.parametrize("name", SCHEDULES)
def test_written_read_and_written_again(name, tmp_path):
    plan = lower(by_hand(name), piece_bytes=50_000)
    write_plan(plan, tmp_path / "a.json")
    back = read_plan(tmp_path / "a.json")
    write_plan(back, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    for key, values in plan.columns.items():
        assert back.columns[key].tolist() == values.tolist()
    assert back.routes.tuples() == plan.routes.tuples()
    assert back.topology.wiring == plan.topology.wiring
    assert (back.name, back.provenance, back.collective.spec) == (plan.name, plan.provenance, plan.collective.spec)


def test_a_plan_without_topology(tmp_path):
    write_plan(small(), tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").topology is None
    assert plan_text(read_plan(tmp_path / "plan.json")) == plan_text(small())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], "collsyn-plan/9", "schema: .*collsyn-plan/1"),
        (["units_per_chunk_unit"], 0, "units_per_chunk_unit: "),
        (["units_per_chunk_unit"], 2**62, "units_per_chunk_unit: is .*; expected at most "),
        (["num_flags"], [0, 2, 10**9], "num_flags: is 1000000000; expected at most 16777216"),
        (["scratch_chunk"], [0, 2**32], "scratch_chunk: is 4294967296; expected at most 2147483647"),
        (["instructions", "op"], [7, 3, 2**32 + 1], "instructions.op: is 4294967297; expected at most 2147483647"),
        (["instructions", "src_offset"], [0, 2**63 - 1, 0], "instructions.src_offset: is .*; expected at most "),
        (["routes"], [[10**30]], "routes: is 10*; expected at most 2147483647"),
        (["channel_ptr"], [0, 2, 3], "channel_ptr: must rise from 0 to 3 in 3 steps"),
        (["channel_ptr"], [0, 3, 2, 3], "channel_ptr: must rise"),
        (["scratch_ptr"], [0, 0, 3, 2], "scratch_ptr: must rise from 0 to 2 in 3 steps"),
        (["scratch_first"], [1, 1], "scratch_units: a segment is no part of its chunk"),
        (["scratch_units"], [4, -1], "scratch_units: a segment is no part of its chunk"),
        (["scratch_first"], [0], "scratch_chunk: scratch columns differ in length"),
        (["scratch_chunk"], [0, 3], "scratch_chunk: names a chunk that is not there"),
        (["num_flags"], [0, 2], "num_flags: needs one number of at least 0 for each of 3 ranks"),
        (["channel_rank"], [1, 0, 3], r"channel_rank: expected ranks 0 \.\. 2"),
        (["routes"], [["a"]], "routes: expected a list of lists of link numbers"),
        (["instructions", "op"], [7, 3, 9], r"instructions.op\[2\]: is 9: no such instruction"),
        (["instructions", "op"], [7, 3], "instructions: columns differ in length"),
        (["instructions", "peer"], [0, 3, 1], r"instructions.peer\[1\]: is 3: no such rank"),
        (["instructions", "flag"], [1, 0, 2], r"instructions.flag\[2\]: is 2: no such flag"),
        (["instructions", "value"], [0, 0, 2], r"instructions.value\[0\]: is 0: expected a value of at least 1"),
        (["instructions", "length"], [0, 0, 0], r"instructions.length\[1\]: is 0: expected at least 1 unit"),
        (["instructions", "route"], [-1, 0, -1], r"instructions.route\[1\]: is 0: no such route"),
        (["instructions", "dst_buffer"], [0, 3, 0], r"instructions.dst_buffer\[1\]: is 3: no such buffer"),
        (["instructions", "dst_offset"], [0, 9, 0], r"instructions.dst_offset\[1\]: is 9: outside the buffer"),
        (["instructions", "src_offset"], [0, -1, 0], r"instructions.src_offset\[1\]: is -1: outside the buffer"),
    ],
)
def test_broken_files_name_the_key(path, value, message, tmp_path):
    document = json.loads(plan_text(small()))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"^{file}:({message})") as error:
        read_plan(file)
    assert "\n" not in str(error.value)


def test_routes_must_be_links_of_the_topology(tmp_path):
    document = json.loads(plan_text(lower(by_hand("ring allgather"))))
    document["routes"][0] = [99]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=rf"^{file}:routes: names link 99; expected 0 \.\. 9"):
        read_plan(file)


def test_a_key_too_many_or_too_few_is_named(tmp_path):
    document = json.loads(plan_text(small()))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**document, "colour": "red"}))
    with pytest.raises(InputError, match=f"{file}:colour"):
        read_plan(file)
    del document["num_flags"]
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"{file}:num_flags"):
        read_plan(file)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(plan_text(small())[:-100])
    with pytest.raises(InputError, match=str(file)):
        read_plan(file)
