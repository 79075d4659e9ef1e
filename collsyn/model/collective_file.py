"""Collectives in files: the short form in schedules and plans, the YAML of custom ones (docs/formats/collective.md)."""

from pathlib import Path
from typing import Any

from collsyn.model.collective import Collective, custom_collective, make_collective
from collsyn.model.fields import Fields, load_document
from collsyn.model.kinds import KINDS

SCHEMA = "collsyn-collective/1"
MAX_RANKS = 1 << 20


def read_collective(path: str | Path) -> Collective:
    """The collective of a YAML file; raises InputError that names file and key."""
    fields = load_document(path)
    fields.text("schema", choices=[SCHEMA])
    return collective_from_fields(fields)


def collective_document(collective: Collective) -> dict[str, Any]:
    """What the collective was made from, as plain values."""
    return dict(collective.spec)


def collective_from_fields(fields: Fields) -> Collective:
    """The collective of a mapping with `kind`, `ranks` and what the kind needs; raises InputError."""
    kind = fields.text("kind", choices=KINDS)
    num_ranks = fields.integer("ranks", minimum=1, maximum=MAX_RANKS)
    if kind == "custom":
        return _custom_from_fields(fields, num_ranks)
    chunks_per_rank = fields.integer("chunks_per_rank", default=1, minimum=1)
    root = fields.integer("root", minimum=0) if fields.has("root") else None
    groups = fields.items("groups") if fields.has("groups") else None
    counts = fields.items("counts") if fields.has("counts") else None
    fields.done()
    if groups is not None and not all(
        isinstance(group, list) and all(isinstance(rank, int) and not isinstance(rank, bool) for rank in group)
        for group in groups
    ):
        fields.fail("groups", "expected a list of lists of ranks")
    return make_collective(kind, num_ranks, chunks_per_rank, root, groups, counts)


def read_counts(path: str | Path) -> list[Any]:
    """The `counts` of a YAML or JSON file {counts: [...]}: one number a rank, or a matrix [sender][receiver]."""
    fields = load_document(path)
    counts = fields.items("counts")
    fields.done()
    rows = isinstance(counts[0], list) if counts else False
    for place, entry in enumerate(counts):
        row = entry if rows else [entry]
        if not isinstance(row, list) or (rows and len(row) != len(counts)):
            fields.fail(f"counts[{place}]", f"expected a list of {len(counts)} numbers, as there are rows")
        wrong = next((value for value in row if type(value) is not int or value < 0), None)
        if wrong is not None:
            fields.fail(f"counts[{place}]", f"holds {wrong!r}; expected whole numbers of at least 0")
    return counts


def _custom_from_fields(fields: Fields, num_ranks: int) -> Collective:
    reduces = fields.flag("reduces", default=False)
    rows, entries = [], []
    for entry in fields.each("chunks"):
        length, in_offset, out_offset = (
            entry.fraction("length"),
            entry.fraction("in_offset", default=0),
            entry.fraction("out_offset", default=0),
        )
        ranks = [entry.integers(key, minimum=0, maximum=num_ranks - 1).tolist() for key in ("from", "to")]
        for key, members in zip(("from", "to"), ranks, strict=True):
            if not members or len(set(members)) != len(members):
                entry.fail(key, "expected at least one rank, each once")
        if length <= 0 or in_offset < 0 or out_offset < 0:
            entry.fail("length", "expected a length above 0 and offsets of at least 0")
        entry.done()
        rows.append((length, in_offset, out_offset, *ranks))
        offsets = {"length": str(length), "in_offset": str(in_offset), "out_offset": str(out_offset)}
        entries.append({"from": ranks[0], "to": ranks[1], **offsets})
    fields.done()
    spec = {"kind": "custom", "ranks": num_ranks, "reduces": reduces, "chunks": entries}
    return custom_collective(num_ranks, rows, reduces, spec)
