"""What exported files are called."""

import re

from collsyn.model.plan import Plan
from collsyn.model.schedule import Schedule
from collsyn.units import format_size


def stem(source: Schedule | Plan, size_bytes: int) -> str:
    """Collective, method, topology and size of a source as a file name without a suffix."""
    where = "" if source.topology is None else source.topology.name
    method = str(source.provenance.get("method") or "")
    words = [source.collective.kind, method, where, format_size(size_bytes)]
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-") for word in words if word)[:120]
