"""`collsyn doctor`: what this machine can do, and what is in the way."""

from typing import TYPE_CHECKING

import click

from ._options import examples, json_option
from ._output import emit_json, progress, table, text

if TYPE_CHECKING:
    from collsyn.doctor.finding import Report


@click.command("doctor", epilog=examples("collsyn doctor", "collsyn doctor --json"))
@json_option()
def command(as_json: bool) -> None:
    """Try what collsyn rests on, and say of each thing whether it is ok, and what to do if not.

    Memory of ranks, MPI, compilers, solvers and, where there are GPUs, driver, CuPy, peer access
    and IPC are tried for real, with the bytes verified, each in a process of its own with a time
    limit. The exit code is 6 if there is a problem; warnings leave it 0.
    """
    from collsyn.doctor.diagnose import CHECKS, diagnose

    with progress("doctor", total=len(CHECKS)) as update:
        report = diagnose(on_check=update)
    if as_json:
        emit_json(report.document())
    else:
        _show(report)
    report.raise_if_bad()


def _show(report: "Report") -> None:
    findings = report.findings
    marks = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
    rows = [(name, marks[finding.status], report.shown(finding.detail)) for name, finding in findings.items()]
    rows += [(name, "-", f"not tried: {reason}") for name, reason in report.not_made.items()]
    table("", ("check", "", "found"), rows)
    for name, finding in findings.items():
        if finding.remedy:
            text(f"{name}: {report.shown(finding.remedy)}")
