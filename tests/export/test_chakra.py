"""Traces for ASTRA-sim: decoded by the library of Protocol Buffers, and executed as a simulator would."""

import heapq
from collections import defaultdict
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from hypothesis import given
from hypothesis import strategies as st

from collsyn import lower, synthesize
from collsyn.errors import InputError
from collsyn.export import protobuf
from collsyn.export.chakra import export
from collsyn.export.table import Options
from tests.support.schedules import by_hand, random_schedules

GOLDEN = Path(__file__).parent / "golden"
TYPES = {"uint64": 4, "int32": 5, "int64": 3, "bool": 8, "string": 9, "message": 11}
FIELDS = {
    "Attribute": [
        ("name", 1, "string"),
        ("int32_val", 7, "int32"),
        ("int64_val", 9, "int64"),
        ("uint64_val", 13, "uint64"),
        ("bool_val", 27, "bool"),
    ],
    "Metadata": [("version", 1, "string"), ("attr", 2, "Attribute*")],
    "Node": [
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("data_deps", 5, "uint64*"),
        ("duration_micros", 7, "uint64"),
        ("attr", 10, "Attribute*"),
    ],
}


def schema():
    """Classes of the messages, made of the table above by the library."""
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="trace", syntax="proto3")
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind in fields:
            plain = kind.rstrip("*")
            field = made.field.add(name=name, number=number, label=3 if kind != plain else 1)
            field.type = TYPES.get(plain, TYPES["message"])
            if plain not in TYPES:
                field.type_name = f".trace.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"trace.{name}")) for name in FIELDS}


SCHEMA = schema()


def decoded(content):
    """Version and nodes of a file: (type, deps, duration, attributes) by id."""
    messages, at = [], 0
    while at < len(content):
        length = shift = 0
        while True:
            byte = content[at]
            length, shift, at = length | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        messages.append(content[at : at + length])
        at += length
    assert at == len(content)
    metadata = SCHEMA["Metadata"].FromString(messages[0])
    nodes = {}
    for raw in messages[1:]:
        node = SCHEMA["Node"].FromString(raw)
        assert len(unknown_fields.UnknownFieldSet(node)) == 0
        assert node.name
        assert node.id not in nodes
        values = {a.name: (a.int32_val or a.int64_val or a.uint64_val or int(a.bool_val)) for a in node.attr}
        nodes[node.id] = (node.type, list(node.data_deps), node.duration_micros, values)
    return metadata.version, nodes


def files_of(schedule):
    """Nodes of every rank, read back from the files."""
    files = export([(Path("a.json"), schedule)], Options())
    assert [file.name.split(".")[-2:] for file in files] == [[str(r), "et"] for r in range(len(files))]
    read = [decoded(file.content) for file in files]
    assert {version for version, _ in read} == {"0.0.4"}
    return [nodes for _, nodes in read]


def simulated_us(ranks, message_us):
    """Finish in microseconds, every message alone on its way; asserts that all nodes come to their end."""
    left = [{number: set(node[1]) for number, node in nodes.items()} for nodes in ranks]
    events, sent, posted, seen = [], {}, {}, 0

    def issue(now, rank):
        for number in [n for n, deps in left[rank].items() if not deps]:
            del left[rank][number]
            kind, _, duration, values = ranks[rank][number]
            if kind == 4:
                heapq.heappush(events, (now + duration, rank, number))
                continue
            key = (values["comm_src"], values["comm_dst"], values["comm_tag"], values["comm_size"])
            assert key[0 if kind == 5 else 1] == rank
            if kind == 5:
                assert key not in sent
                sent[key] = now + message_us(*key[:2], key[3])
                heapq.heappush(events, (now, rank, number))
            else:
                assert key not in posted
                posted[key] = (now, rank, number)
            if key in sent and key in posted:
                heapq.heappush(events, (max(sent[key], posted[key][0]), *posted[key][1:]))

    for rank in range(len(ranks)):
        issue(0.0, rank)
    finish = 0.0
    while events:
        now, rank, number = heapq.heappop(events)
        finish, seen = max(finish, now), seen + 1
        for deps in left[rank].values():
            deps.discard(number)
        issue(now, rank)
    assert seen == sum(map(len, ranks)), "some nodes wait for ever"
    assert set(sent) == set(posted)
    return finish


def link_times(schedule):
    """Time in microseconds of a message over the only link between two ranks."""
    t = schedule.topology
    cost = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(t.src, t.dst, strict=True))}
    return lambda a, b, n: float(t.alpha_s[cost[a, b]] + n * t.beta_s_per_byte[cost[a, b]]) * 1e6


@pytest.mark.parametrize(
    ("kind", "where", "name"),
    [("allgather", "ring:4", "ring"), ("reducescatter", "ring:4", "ring"), ("alltoall", "full:4", "direct")],
)
def test_a_simulator_takes_the_time_of_the_schedule(kind, where, name):
    schedule = synthesize(kind, where, "1M", method=name, chunks=1)
    assert simulated_us(files_of(schedule), link_times(schedule)) == pytest.approx(schedule.finish_s * 1e6, rel=1e-3)


@given(schedule=random_schedules())
def test_every_trace_comes_to_its_end_and_waits_for_its_data(schedule):
    ranks = files_of(schedule)
    simulated_us(ranks, lambda a, b, n: 1.0)
    bytes_sent = defaultdict(int)
    for rank, nodes in enumerate(ranks):
        for kind, deps, _, values in nodes.values():
            assert all(dep in nodes for dep in deps)
            if kind == 5:
                bytes_sent[rank] += values["comm_size"]
    m = schedule.messages
    for rank in range(len(ranks)):
        asked = m.num_bytes[(m.src == rank) & (m.dst != rank)]
        assert asked.sum() <= bytes_sent[rank] <= asked.sum() + len(asked)


def test_reductions_are_computed_behind_what_comes():
    schedule = by_hand("tree reduce")
    nodes = files_of(schedule)
    for mine in nodes:
        for kind, deps, _, values in mine.values():
            if kind == 4 and values["num_ops"]:
                assert [mine[dep][0] for dep in deps] == [6]
                assert values["tensor_size"] == values["num_ops"]
    assert sum(kind == 4 for mine in nodes for kind, *_ in mine.values()) >= (schedule.op == 1).sum() // 2


def test_who_has_nothing_to_do_ends_too():
    nodes = files_of(synthesize("allgather", "full:4", "64K", method="direct", groups=[[0, 1], [2], [3]]))
    assert [kind for kind, *_ in nodes[2].values()] == [4]


@given(st.integers(0, protobuf.MAX_UNSIGNED), st.integers(1, 1000), st.text(max_size=200))
def test_numbers_and_texts_on_the_wire(value, field, text):
    file = descriptor_pb2.FileDescriptorProto(name="one.proto", package="one", syntax="proto3")
    made = file.message_type.add(name="One")
    made.field.add(name="a", number=field, label=1, type=TYPES["uint64"])
    made.field.add(name="b", number=field + 1, label=1, type=TYPES["string"])
    made.field.add(name="c", number=field + 2, label=3, type=TYPES["uint64"])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    read = message_factory.GetMessageClass(pool.FindMessageTypeByName("one.One")).FromString(
        protobuf.number(field, value) + protobuf.data(field + 1, text) + protobuf.packed(field + 2, [value, 1])
    )
    assert (read.a, read.b, list(read.c)) == (value, text, [value, 1])


def test_golden_file_and_what_is_refused(tmp_path, run_cli, monkeypatch):
    schedule = synthesize("allgather", "ring:3", "64K", method="ring")
    files = export([(Path("a.json"), schedule)], Options())
    assert files[0].content == (GOLDEN / "allgather-ring-3-64K-ring.0.et").read_bytes()
    with pytest.raises(InputError, match=r"a.json: is a plan; expected a schedule"):
        export([(Path("a.json"), lower(schedule))], Options())
    with pytest.raises(InputError, match="--proto: chakra has none"):
        export([(Path("a.json"), schedule)], Options(protocol="LL"))


def test_the_files_of_the_ranks_go_into_the_folder_that_is_named(tmp_path, run_cli, monkeypatch):
    from collsyn import write_schedule

    monkeypatch.chdir(tmp_path)
    write_schedule(by_hand("ring allgather"), "a.json")
    assert run_cli("export", "a.json", "--format", "chakra", "-o", "traces").code == 0
    assert sorted(path.name.split(".")[-2] for path in (tmp_path / "traces").iterdir()) == [str(r) for r in range(5)]
