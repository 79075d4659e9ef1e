"""Reading documents field by field: what is taken, and the one line for each mistake."""

import json
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collsyn.errors import InputError
from collsyn.model import fields as module
from collsyn.model.fields import Fields, load_document, parse_document


def fields(**values):
    """Fields of a mapping in the file `f`."""
    return Fields(values, "f")


def refused(call, *args, **kwargs):
    """The message with which a call refuses; one line."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TAKEN = [
    ("text", "a", {}, "a"),
    ("text", "b", {"choices": ["a", "b"]}, "b"),
    ("flag", False, {}, False),
    ("integer", 3, {"minimum": 3, "maximum": 3}, 3),
    ("integer", -(10**30), {}, -(10**30)),
    ("number", 3, {}, 3.0),
    ("number", "1e-6", {}, 1e-6),
    ("number", "-2.5E+3", {}, -2500.0),
    ("number", 0, {"minimum": 0}, 0.0),
    ("number", 0.1, {"above": 0}, 0.1),
    ("fraction", "1/3", {}, Fraction(1, 3)),
    ("fraction", 0.1, {}, Fraction(1, 10)),
    ("fraction", 2, {}, Fraction(2)),
    ("fraction", "-2.50", {}, Fraction(-5, 2)),
    ("fraction", "1e-3", {}, Fraction(1, 1000)),
    ("size_bytes", "16K", {}, 16384),
    ("size_bytes", 7, {}, 7),
    ("items", [1, "a"], {}, [1, "a"]),
    ("mapping", {"a": 1}, {}, {"a": 1}),
    ("integers", [1, 2**63 - 1], {}, [1, 2**63 - 1]),
    ("integers", [], {"minimum": 3}, []),
    ("numbers", [1, 2.5, "1e-3"], {}, [1.0, 2.5, 1e-3]),
]


@pytest.mark.parametrize(("kind", "value", "limits", "expected"), TAKEN)
def test_values_are_taken_once(kind, value, limits, expected):
    document = fields(k=value)
    assert document.has("k")
    assert document.peek("k") == value
    taken = getattr(document, kind)("k", **limits)
    assert (taken.tolist() if hasattr(taken, "tolist") else taken) == expected
    assert not document.has("k")
    document.done()
    assert refused(getattr(document, kind), "k") == "f:k: is missing"


REFUSED = [
    ("text", 3, {}, "is a number; expected text"),
    ("text", None, {}, "is empty; expected text"),
    ("text", "c", {"choices": ["a", "b"]}, "is 'c'; expected one of a, b"),
    ("flag", 1, {}, "is 1; expected true or false"),
    ("flag", "yes", {}, "is 'yes'; expected true or false"),
    ("integer", True, {}, "is True; expected a whole number"),
    ("integer", 1.0, {}, "is 1.0; expected a whole number"),
    ("integer", "1", {}, "is '1'; expected a whole number"),
    ("integer", 2, {"minimum": 3}, "is 2; expected at least 3"),
    ("integer", 4, {"maximum": 3}, "is 4; expected at most 3"),
    ("number", "fast", {}, "is 'fast'; expected a finite number"),
    ("number", "1", {}, "is '1'; expected a finite number"),
    ("number", True, {}, "is True; expected a finite number"),
    ("number", float("nan"), {}, "is nan; expected a finite number"),
    ("number", float("-inf"), {}, "is -inf; expected a finite number"),
    ("number", "1e999", {}, "is '1e999'; expected a finite number"),
    ("number", 10**400, {}, "expected a finite number"),
    ("number", 0, {"above": 0}, "is 0; expected a number above 0"),
    ("number", -0.5, {"minimum": 0}, "is -0.5; expected at least 0"),
    ("fraction", "1/0", {}, "is '1/0'; expected a number or a fraction"),
    ("fraction", "a", {}, "is 'a'; expected a number or a fraction"),
    ("fraction", True, {}, "is True; expected"),
    ("fraction", float("inf"), {}, "is inf; expected"),
    ("fraction", "1e999999999", {}, "is '1e999999999'; expected"),
    ("fraction", [1], {}, "is [1]; expected"),
    ("fraction", None, {}, "is None; expected"),
    ("size_bytes", "16Q", {}, "size '16Q' is not a size"),
    ("size_bytes", [1], {}, "is not a size"),
    ("items", {"a": 1}, {}, "is a mapping; expected a list"),
    ("mapping", [1], {}, "is a list; expected a mapping"),
    ("inner", "a", {}, "is text; expected a mapping"),
    ("integers", 3, {}, "is a number; expected a list"),
    ("integers", [1, 2.5], {}, "holds 2.5; expected whole numbers"),
    ("integers", [1, True], {}, "holds True; expected whole numbers"),
    ("integers", [1, 5], {"maximum": 4}, "is 5; expected at most 4"),
    ("integers", [-1, 5], {"minimum": 0}, "is -1; expected at least 0"),
    ("integers", [2**63], {}, "expected at most 9223372036854775807"),
    ("numbers", [1, None], {}, "holds None; expected finite numbers"),
    ("numbers", [float("inf")], {}, "holds inf; expected finite numbers"),
]


@pytest.mark.parametrize(("kind", "value", "limits", "message"), REFUSED)
def test_wrong_values_are_refused_by_key(kind, value, limits, message):
    told = refused(getattr(fields(k=value), kind), "k", **limits)
    assert told.startswith("f:k: ")
    assert message in told


def test_defaults_take_the_place_of_missing_keys():
    empty = fields()
    assert empty.text("a", default="x") == "x"
    assert empty.integers("a", default=[3]).tolist() == [3]
    assert list(empty.each("a", default=[])) == []
    assert empty.peek("a") is None


def test_messages_tell_the_whole_place():
    document = fields(a={"b": [{"c": 1}, {"c": "x"}]})
    entries = list(document.inner("a").each("b"))
    assert entries[0].integer("c") == 1
    assert refused(entries[1].integer, "c") == "f:a.b[1].c: is 'x'; expected a whole number"
    assert refused(list, fields(b=[{}, 3]).each("b")).startswith("f:b[1]: is a number; expected a mapping")
    assert refused(Fields, [1], "f") == "f: is a list; expected a mapping of keys to values"
    assert refused(fields().fail, "", "is odd") == "f: is odd"


def test_keys_that_nobody_took_are_mistakes():
    document = fields(known=1, knwon=2)
    document.integer("known")
    assert refused(document.done) == "f:knwon: is not a key that is known here"
    assert document.names() == ["knwon"]
    assert refused(Fields({3: 4}, "f").done) == "f:3: is not a key that is known here"
    assert refused(Fields({3: 4}, "f").names) == "f:3: is a key that is no text"


BROKEN = [
    (b"", "d: is empty"),
    (b"- 1\n", "d: is a list"),
    (b"a: 1\n\tb: 2\n", "d:line 2: is not valid YAML"),
    (b"a: [1, 2\nb: 3\n", "d:line 2: is not valid YAML"),
    (b"a: &x 1\nb: *x\n", "d: uses YAML aliases"),
    (b"a: !!python/object:os.system x\n", "d:line 1: is not valid YAML"),
    (b"a: \x00\n", "d: is not valid YAML"),
    (b"a: \xff\n", "d: is not a text file (byte 3 is not UTF-8)"),
    (b'{"a": ', "d:line 1: is not valid JSON"),
    (b'{"a": 1}\n{"b": 2}', "d:line 2: is not valid JSON"),
    (b'{"a": ' + b"[" * 100_000, "d: is nested too deeply"),
    (b"a: " + b"[" * 100_000, "d"),
    (b'{"a": ' + b"1" * 5000 + b"}", "d: holds a number of thousands of digits"),
    (b"a: " + b"1" * 5000, "d: is not valid YAML"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_broken_documents_are_one_line(content, message):
    assert refused(parse_document, content, "d").startswith(message)


def test_a_tab_is_pointed_out():
    assert "tabs" in refused(parse_document, b"a: 1\nb:\n\tc: 2\n", "d")


@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.text(alphabet="{}[]:,-'\"&*!|>%@`#? \n\tab1", max_size=40).map(str.encode)
)
def test_any_bytes_are_a_mapping_or_an_input_error(content):
    try:
        parse_document(content, "d")
    except InputError as error:
        assert str(error).startswith("d")
        assert "\n" not in str(error)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(codec="ascii", categories="L"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), PLAIN, max_size=3))
def test_yaml_and_json_of_a_document_are_the_same(document):
    for text in (yaml.safe_dump(document), json.dumps(document)):
        read = parse_document(text.encode(), "d")
        assert {name: read.raw(name) for name in read.names()} == document


def test_files_are_read_and_named(tmp_path, monkeypatch):
    path = tmp_path / "d.yaml"
    path.write_text("a: 1\n")
    assert load_document(path).integer("a") == 1
    assert refused(load_document, tmp_path / "absent").startswith(f"{tmp_path}/absent: cannot be read")
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 3)
    assert refused(load_document, path) == f"{path}: is larger than 3 bytes"


@pytest.mark.parametrize("text", ['{"a": 1, "b": {"c": 1, "c": 2}}', "a: 1\nb: {c: 1, c: 2}\n"], ids=["json", "yaml"])
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^file:c: stands twice"):
        parse_document(text.encode(), "file")
