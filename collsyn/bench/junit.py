"""A benchmark as JUnit XML, which CI servers show as tests: a case a row, failed where it is wrong or too slow."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from collsyn.bench.result import BenchResult, Row


def junit_text(
    result: BenchResult, suite: str, complaints: Mapping[int, Sequence[str]], told: Mapping[int, str]
) -> str:
    """The XML text.

    `complaints` has for the number of a row what is wrong with it, a line each; `told` what else is to be read in its
    output. Times are seconds of one call.
    """
    rows = result.rows
    failed = sum(bool(complaints.get(index)) for index in range(len(rows)))
    totals = {"name": suite, "tests": str(len(rows)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", totals)
    group = ElementTree.SubElement(root, "testsuite", totals)
    for index, row in enumerate(rows):
        shown_s = row.out_of_place.time_s or 0.0
        case = ElementTree.SubElement(
            group,
            "testcase",
            {"classname": f"{suite}.{row.collective}", "name": case_name(row), "time": f"{shown_s:.9f}"},
        )
        lines = complaints.get(index, ())
        if lines:
            failure = ElementTree.SubElement(case, "failure", {"message": lines[0]})
            failure.text = "\n".join(lines)
        if index in told:
            ElementTree.SubElement(case, "system-out").text = told[index]
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def case_name(row: Row) -> str:
    """A row in words that stay the same from run to run."""
    words = [row.benchmark or row.collective, f"{row.size_bytes} bytes", row.dtype, *([row.op] if row.op else [])]
    return f"{' '.join(words)} on {row.group_size} ranks"
