"""JUnit XML: a case a row, failures with their reason, text that needs escaping."""

from xml.etree import ElementTree

from collsyn.bench.junit import junit_text
from collsyn.bench.result import BenchResult
from tests.bench.test_table import make_row


def test_cases_and_failures():
    rows = [make_row(benchmark="a<b"), make_row(collective="allgather", op="", size_bytes=4)]
    text = junit_text(BenchResult(rows, {}, {}), "nightly", {0: ["x > 1 & more", "second"], 1: []}, {1: "same"})
    root = ElementTree.fromstring(text)
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "2", "1")
    (suite,) = root
    first, second = suite.findall("testcase")
    assert (first.get("classname"), first.get("name")) == (
        "nightly.allreduce",
        "a<b 1048576 bytes float32 sum on 4 ranks",
    )
    assert float(first.get("time")) == 1e-3
    failure = first.find("failure")
    assert (failure.get("message"), failure.text) == ("x > 1 & more", "x > 1 & more\nsecond")
    assert second.find("failure") is None
    assert second.find("system-out").text == "same"
    assert second.get("name") == "allgather 4 bytes float32 on 4 ranks"
