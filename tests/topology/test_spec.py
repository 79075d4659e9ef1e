"""Texts of presets: what is wrong with one is told in one line that begins with the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.topology.resolve import load_topology
from collsyn.topology.spec import parse_spec

WRONG = {
    "rign:8": "did you mean ring?",
    "dgx-h10": "did you mean dgx-h100",
    "nothing-like-it": "expected one of ring, full",
    "ring": "expected ring:N",
    "ring:": "expected whole numbers",
    "ring:4x4": "expected ring:N",
    "ring:0": "size 0",
    "ring:1": "fewer than 2 ranks",
    "ring:-4": "expected whole numbers",
    "ring:4.5": "expected whole numbers",
    "ring:٣": "expected whole numbers",
    "ring:9999999999999": "expected whole numbers",
    "mesh:1x1": "fewer than 2 ranks",
    "torus:4x": "expected whole numbers",
    "torus": "expected torus:AxBx...",
    "hetero3d:2x2": "expected hetero3d:AxBxC",
    "petersen:10": "expected petersen",
    "kautz:4": "expected kautz:DxK",
    "kautz:4x99": "diameter",
    "genkautz:4x4": "more ranks than the degree",
    "full:100000": "at most",
    "hypercube:21": "at most 20",
    "torus:999999999x999999999": "at most",
    "ring:8@": "not key=value",
    "ring:8@alpha_us": "not key=value",
    "ring:8@alpha_us=": "not key=value",
    "ring:8@alpha=1": "did you mean alpha_us?",
    "ring:8@costs=teccl": "is not known",
    "ring:8@alpha_us=1,alpha_us=2": "given twice",
    "ring:8@bandwidth_gb_s=-3": "above 0",
    "ring:8@bandwidth_gb_s=0": "above 0",
    "ring:8@bandwidth_gb_s=nan": "above 0",
    "ring:8@bandwidth_gb_s=inf": "above 0",
    "ring:8@bandwidth_gb_s=fast": "above 0",
    "ring:8@bandwidth_gb_s=10/20": "has 2 values",
    "mesh:4x4x4@bandwidth_gb_s=10/20": "expected 1 or 3",
    "mesh:4x4@alpha_us=1/": "at least 0",
    "ring:8@alpha_us=-1": "at least 0",
    "ring:8@overhead=0.6": "at most alpha_us",
    "ring:8@overhead=some": "none, alpha or microseconds",
    "ring:8@overhead=-1": "at least 0",
    "dgx1:2": "at most 1",
    "dgx1:0": "at least 1 box",
    "ndv2:2x2": "at least 1 box",
    "ndv2:2@costs=other": "expected costs=teccl",
    "ndv2:2@sketch=2": "expected costs=teccl",
    "ndv2:2@costs=teccl,sketch=1": "expected costs=teccl",
    "ndv2:3@costs=taccl,sketch=2": "at most 2",
    "dgx2:3@costs=teccl": "at most 2",
    "dgx1@bandwidth_gb_s=1/2": "has 2 values",
    "dgx1@overhead=1": "at most alpha_us",
    "dgx-a100:99999999": "at most",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_one_line_that_says_what_would_be_right(text):
    with pytest.raises(InputError) as caught:
        load_topology(text)
    message = str(caught.value)
    assert message.startswith(f"{text}: ")
    assert WRONG[text] in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "  ", "ring\n:8", "a\x00b"])
def test_a_text_that_cannot_be_printed_is_quoted(text):
    with pytest.raises(InputError, match="neither a preset nor a file"):
        load_topology(text)


def test_spaces_around_do_not_matter():
    assert load_topology(" ring:4@ alpha_us = 1 ").num_ranks == 4


def test_parts_of_a_text():
    spec = parse_spec("mesh:32x16@bandwidth_gb_s=100/50,overhead=alpha")
    assert (spec.name, spec.dims) == ("mesh", (32, 16))
    assert dict(spec.options) == {"bandwidth_gb_s": "100/50", "overhead": "alpha"}


@given(
    st.text(max_size=30)
    | st.from_regex(r"(ring|mesh|dgx2|ndv2|kautz)(:[0-9x]{0,3})?(@[a-z_=0-9,./]{0,30})?", fullmatch=True)
)
def test_any_text_is_a_topology_or_an_input_error(text):
    try:
        topology = load_topology(text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert topology.num_ranks >= 2
