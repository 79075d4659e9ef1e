"""What results may say of the machine they were measured on: counts and kinds, never a name."""

import os
import platform
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Counts and kinds of this machine; nothing that names it or its users."""
    facts: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "architecture": platform.machine()}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts["processor"] = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return facts
