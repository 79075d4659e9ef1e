"""`collsyn cache`: results of searches that are kept for the same call again."""

from pathlib import Path

import click

from ._options import examples, json_option
from ._output import emit_json, note, table

# Shown, the latest first.
SHOWN = 20


@click.command("cache", epilog=examples("collsyn cache", "collsyn cache --clear"))
@click.option("--clear", is_flag=True, help="Remove all of them.")
@json_option()
def command(clear: bool, as_json: bool) -> None:
    """Show or remove the results of searches that are kept, for the same call again to be answered at once.

    COLLSYN_RESULTS names their folder, or is off.
    """
    from collsyn.portfolio.memory import Memory

    memory = Memory.usual()
    entries = memory.entries()
    removed = memory.clear() if clear else 0
    total = sum(size for _, size, _ in entries)
    if as_json:
        folder = None if memory.folder is None else str(memory.folder)
        emit_json({"folder": folder, "results": len(entries), "num_bytes": total, "removed": removed})
        return
    if memory.folder is None:
        note("COLLSYN_RESULTS is off; nothing is kept")
    elif clear:
        note(f"removed {removed} results from {memory.folder}")
    else:
        _show(str(memory.folder), entries, total)


def _show(folder: str, entries: list[tuple[Path, int, float]], total: int) -> None:
    import time

    title = f"{len(entries)} results in {folder}, {total / 1e6:.1f} MB"
    rows = [
        (path.name, f"{size / 1e3:.1f} kB", time.strftime("%Y-%m-%d %H:%M", time.localtime(used)))
        for path, size, used in entries[:SHOWN]
    ]
    table(title, ("result", "size", "last used"), rows)
