"""`collsyn verify`: is a schedule or plan right, and if not, where."""

from pathlib import Path

import click

from ._options import FILE, examples, json_option
from ._output import emit_json, table, text


@click.command(
    "verify",
    epilog=examples("collsyn verify allgather.json", "collsyn verify collsyn-out/schedules/*.json --json"),
)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@json_option()
def command(files: tuple[Path, ...], as_json: bool) -> None:
    """Prove that schedules and plans are right, or say where they are wrong.

    A FILE is recognised by its content. A schedule is replayed with the contributions of every
    chunk, the loads of every link and its bounds; a plan is searched for races and deadlocks and
    run on real data. The exit code is 5 if one of them is wrong.
    """
    from collsyn.check.verify import verify_file

    reports = {str(file): verify_file(file) for file in files}
    if as_json:
        documents = [{"file": file, **report.document()} for file, report in reports.items()]
        emit_json(documents[0] if len(files) == 1 else documents)
    else:
        for file, report in reports.items():
            rows = [(check.name, "ok" if check.ok else "WRONG", check.detail) for check in report.checks]
            text(f"{file}: {report.kind}, {'right' if report.ok else 'WRONG'}")
            table("", ("check", "", "detail"), rows)
            for problem in report.problems:
                text(f"  {problem}")
    for file, report in reports.items():
        report.raise_if_bad(file)
