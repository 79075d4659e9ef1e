"""What `collsyn synthesize` says of the methods that were tried, for people and for scripts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._output import Cell, note, table

if TYPE_CHECKING:
    from collsyn.model.schedule_set import ScheduleSet
    from collsyn.portfolio.candidates import Candidate


def candidate_document(candidate: "Candidate") -> dict[str, Any]:
    """One method in `--json`."""
    from collsyn.units import s_to_us

    return {
        "method": candidate.method,
        "finish_us": s_to_us(candidate.finish_s) if candidate.served else None,
        "plan_us": None if candidate.plan_s is None else s_to_us(candidate.plan_s),
        "gap": candidate.gap,
        "refused": candidate.refused,
        "cut": candidate.cut,
        "seconds": candidate.synthesis_s + candidate.verify_s,
    }


def show_candidates(document: dict[str, Any], candidates: Sequence["Candidate"], is_sweep: bool) -> None:
    """The table of methods, what the best one chose, and where it is (in a sweep it is written later)."""
    from collsyn.units import format_size

    title = (
        f"{document['collective']} of {format_size(document['size_bytes'])} on {document['topology']}, "
        f"{document['num_ranks']} ranks, overhead {document['model']}; bound {document['bound_us']:.4g} us "
        f"({document['bound_kind']})"
    )
    rows: list[tuple[Cell, ...]] = [
        (
            candidate.method,
            candidate.finish_s * 1e6,
            None if candidate.plan_s is None else candidate.plan_s * 1e6,
            None if candidate.gap is None else f"{100 * candidate.gap:z.1f}%",
            candidate.chunks_per_rank,
            f"{candidate.synthesis_s + candidate.verify_s:.2f}",
            _outcome(candidate, candidate is candidates[0]),
        )
        for candidate in candidates
        if candidate.served
    ]
    table(title, ("method", "schedule us", "plan us", "gap", "chunks a rank", "seconds", ""), rows)
    others = [(candidate.method, candidate.refused) for candidate in candidates if not candidate.served]
    if others:
        table("Not served", ("method", "why"), others)
    said = {name: value for name, value in (document["options"] or {}).items() if name != "chunks_per_rank"}
    if said:
        texts = (f"{value:.4g}" if isinstance(value, float) else value for value in said.values())
        parts = [f"{name.replace('_', ' ')} {text}" for name, text in zip(said, texts, strict=True)]
        note(f"{document['method']}: {', '.join(parts)}")
    wrote = "" if is_sweep else f"; wrote {document['file']}" if document["file"] else "; nothing written"
    note(f"{document['algbw_gb_s']:.4g} GB/s algorithm bandwidth, {document['num_sends']} sends{wrote}")
    if document["cached"]:
        note("known from an earlier run and verified again; --no-cache makes it anew")
    if "warm_start" in document:
        cost = document["warm_start"]
        share = "" if cost["cost"] is None else f" ({100 * cost['cost']:+.1f}%)"
        note(
            f"the failure costs: bound {cost['bound_before_us']:.4g} -> {cost['bound_us']:.4g} us{share}; "
            f"{cost['kept_sends']} sends kept, {cost['new_sends']} new"
        )


def show_set(schedules: "ScheduleSet", file: str | None = None) -> None:
    """The ranges of an algorithm set."""
    from collsyn.model.schedule_set import ranges_text
    from collsyn.units import format_size

    first = schedules.schedules[0]
    rows: list[tuple[Cell, ...]] = [
        (sizes, str(schedule.provenance.get("method") or "-"), format_size(schedule.size_bytes), schedule.num_sends)
        for sizes, schedule in zip(ranges_text(schedules.ranges), schedules.schedules, strict=True)
    ]
    title = f"Algorithm set: {first.collective.kind} on {first.topology.name}, {first.topology.num_ranks} ranks"
    table(title, ("sizes", "method", "made for", "sends"), rows)
    if file is not None:
        note(f"wrote {file}")


def _outcome(candidate: "Candidate", is_first: bool) -> str:
    if is_first:
        return "verified, kept"
    return "verified" if candidate.cut is None else f"verified; {candidate.cut}"
