"""The XML reader: elements, lines, and every way in which a file can be none."""

import pytest

from collsyn.errors import InputError
from collsyn.export import xml_text
from collsyn.export.xml_text import parse_xml


def test_elements_attributes_and_lines():
    root = parse_xml(
        b'<?xml version="1.0"?>\n<!-- a < b -->\n<a x="1"  y = "two words">\n\t<b/>\n<c z="&#39;"\n/></a>\n'.replace(
            b"&#39;", b"'"
        ),
        "f",
    )
    assert (root.name, root.attributes, root.line) == ("a", {"x": "1", "y": "two words"}, 3)
    assert [(child.name, child.attributes, child.line) for child in root.children] == [
        ("b", {}, 4),
        ("c", {"z": "'"}, 5),
    ]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "there is no element"),
        ("<a>\n<b>\n</a>", 3, "</a>; expected </b>"),
        ("<a>\n<b/>", 2, "the file ends inside <a> of line 1"),
        ("<a/>\n<b/>", 2, "a second root element <b>"),
        ("</a>", 1, "</a>; expected no closing tag"),
        ("<a>\nhello</a>", 1, "text 'hello' between elements"),
        ('<a x="1" x="2"/>', 1, "<a> has x twice"),
        ("<a x='1'/>", 1, "<a> has \" x='1'/>\""),
        ("<a x/>", 1, "<a> has ' x/>'"),
        ('<a\n x="&lt;"/>', 1, "x has an entity"),
        ('<!DOCTYPE a [<!ENTITY b "cc">]><a/>', 1, "'<!DOCTYPE a '"),
        ("<![CDATA[x]]>", 1, "'<![CDATA[x]]"),
        ("<a>\n<!-- ", 2, "<!-- has no -->"),
        ("<a", 1, "<a> has ''"),
        ("</ a>", 1, "a closing tag that is none"),
    ],
)
def test_what_is_no_document_is_refused_with_its_line(text, line, what):
    with pytest.raises(InputError) as error:
        parse_xml(text.encode(), "dir/f.xml")
    assert str(error.value).startswith(f"dir/f.xml:{line}: {what}")
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text():
    with pytest.raises(InputError, match="f: is not text: byte 3 is not UTF-8"):
        parse_xml(b"<a>\xff</a>", "f")


def test_depth_and_size_have_limits(monkeypatch):
    with pytest.raises(InputError, match="f:1: elements nest deeper than 16"):
        parse_xml(b"<a>" * 100_000, "f")
    monkeypatch.setattr(xml_text, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="f: has 11 bytes; expected at most 10"):
        parse_xml(b"<aaaaaaaa/>", "f")
