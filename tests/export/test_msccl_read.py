"""Reading MSCCL XML: what is kept, and one line for everything that cannot be understood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.check.recognise import read_any, read_content
from collsyn.check.verify import verify_file
from collsyn.errors import CollsynError, InputError, VerificationError
from collsyn.export.msccl import DIALECTS
from collsyn.export.msccl_check import read_msccl
from collsyn.export.msccl_limits import readers
from collsyn.export.msccl_read import read_program
from collsyn.export.msccl_write import program_text
from collsyn.model.plan import Plan
from tests.support.msccl_files import BY_HAND, algo, exchange, step


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_read_is_written_again(name):
    program = read_program(BY_HAND[name].encode(), name)
    again = read_program(program_text(program).encode(), name)
    assert again == program
    assert program_text(again) == program_text(program)


def test_unknown_elements_and_attributes_are_skipped_and_blocks_go_by_their_ids():
    text = exchange(2)
    odd = text.replace("<gpu", '<gpu extra="1"', 1).replace("<tb", '<copy i_off="0" o_off="0" /><tb', 1)
    assert read_program(odd.encode(), "f") == read_program(text.encode(), "f")
    turned = text.replace('<tb id="0"', '<tb id="9"').replace('<tb id="1"', '<tb id="0"').replace('id="9"', 'id="1"')
    blocks = read_program(turned.encode(), "f").gpus[0].blocks
    assert [(block.number, block.send) for block in blocks] == [(0, -1), (1, 1)]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("<algo", "<system", "f:1: is <system>"),
        (' coll="allgather"', "", "f:1: <algo> has no coll; the readers require it"),
        ('coll="allgather"', 'coll="custom"', "f:1: coll is 'custom', whose result is not known"),
        ('ngpus="2"', 'ngpus="3"', "f:1: ngpus is 3, and there are 2 elements <gpu>"),
        ('gpu id="1"', 'gpu id="0"', "f:1: ngpus is 2, and there are 2 elements <gpu>"),
        ('nchunksperloop="2"', 'nchunksperloop="0"', "f:1: nchunksperloop is 0"),
        ('nchunksperloop="2"', 'nchunksperloop="999999999999"', "f:1: nchunksperloop is 999999999999"),
        ('srcoff="0"', 'srcoff="x"', "f:4: srcoff is 'x'; expected a whole number"),
        ('srcoff="0"', 'srcoff="1_0"', "f:4: srcoff is '1_0'"),
        ('cnt="1"', f'cnt="{"9" * 40}"', f"f:4: cnt is '{'9' * 20}...'"),
        (' hasdep="0"', "", "f:4: <step> has no hasdep"),
    ],
)
def test_what_cannot_be_understood_names_line_and_attribute(old, new, what):
    text = exchange(2).replace(old, new, 1).replace("</algo", "</system" if new == "<system" else "</algo")
    with pytest.raises(InputError) as error:
        read_program(text.encode(), "f")
    assert str(error.value).startswith(what)
    assert "\n" not in str(error.value)


def test_files_are_recognised_and_are_plans_to_others(tmp_path):
    path = tmp_path / "x"
    path.write_text(f"<!-- first -->\n{exchange(3)}")
    kind, what = read_content(path)
    assert kind == "msccl-xml"
    assert not isinstance(what, Plan)
    assert isinstance(read_any(path)[1], Plan)
    report = verify_file(path)
    assert (report.kind, report.ok) == ("msccl-xml", True)
    path.write_text(exchange(3).replace('recv="1"', 'recv="0"', 1))
    assert not verify_file(path).ok
    with pytest.raises(VerificationError, match=r"msccl-xml is wrong \(peers\): gpu 0 tb 0 .* recv is the GPU itself"):
        read_any(path)


@pytest.mark.parametrize(
    ("change", "who", "what"),
    [
        (lambda text: text.replace(' minBytes="0"', ""), {"azure", "rccl"}, "minBytes"),
        (lambda text: text.replace(' name="test"', ""), {"msccl"}, "name"),
        (lambda text: text.replace("<algo", '<?xml version="1.0"?>\n<algo'), set(DIALECTS), "declaration"),
        (lambda text: text.replace('name="test"', f'name="{"x" * 256}"'), set(DIALECTS), "more than 255 characters"),
        (
            lambda text: text.replace("<gpu", "<gpu " + " ".join(f'a{i}="0"' for i in range(13)), 1),
            set(DIALECTS),
            "17 att",
        ),
        (lambda text: text.replace('i_chunks="1"', 'i_chunks="2"', 1), {"msccl"}, "i_chunks"),
        (lambda text: text.replace('nchannels="1"', 'nchannels="33"'), {"msccl", "azure"}, "channels"),
    ],
)
def test_readers_differ_in_what_they_take(change, who, what):
    found = readers(read_program(change(exchange(3)).encode(), "f"))
    assert {name for name, problems in found.items() if problems} == who
    assert all(what in str(problems[0]) for problems in found.values() if problems)


@pytest.mark.parametrize(("steps", "who"), [(64, set()), (65, {"azure", "rccl"}), (257, set(DIALECTS))])
def test_tables_of_steps_end(steps, who):
    body = [step("cpy", "i:0", "o:0")] * (steps - 2)
    gpus = [((1, 2, 0), [(1 - g, 1 - g, 0, [step("s", "i:0"), step("r", "o:0", f"o:{1 - g}"), *body])]) for g in (0, 1)]
    found = readers(read_program(algo("allgather", gpus, 2).encode(), "f"))
    assert {name for name, problems in found.items() if problems} == who


@given(data=st.data())
def test_any_bytes_end_in_a_verdict_or_in_one_line(data):
    """Good files with some bytes replaced, removed or added, and numbers that are too large."""
    content = bytearray(data.draw(st.sampled_from(list(BY_HAND.values()))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.sampled_from((0, 1, 1, 40)))
        content[at : at + length] = data.draw(
            st.sampled_from((b"", b"x", b"9", b"-", b'"', b"<", b"99999999999", b"\xff"))
        )
    try:
        file = read_msccl(bytes(content), "f")
        file.verify()
        file.plan(1 << 20)
    except CollsynError as error:
        assert "\n" not in str(error)
