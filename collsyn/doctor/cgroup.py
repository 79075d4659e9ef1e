"""Limits that a container or a batch system puts on this process through control groups, version 1 or 2."""

from collections.abc import Iterator

from collsyn.doctor.system import System

_ROOT = "/sys/fs/cgroup"
# Version 1 writes "no limit" as the largest multiple of a page.
_UNLIMITED = 1 << 62


def cpu_quota(system: System) -> float | None:
    """Processors that this process may keep busy on average; None where nothing limits it."""
    quotas = []
    for folder in _folders(system, ""):
        words = (system.read(f"{folder}/cpu.max") or "").split()
        if len(words) == 2 and all(word.isdecimal() for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    for folder in _folders(system, "cpu"):
        quota = _number(system, f"{folder}/cpu.cfs_quota_us")
        period = _number(system, f"{folder}/cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(system: System) -> tuple[int, int] | None:
    """The tightest limit on memory in bytes, and how much of it is left (caches of files can go); None without."""
    found = []
    for controller, limit_file, used_file in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in _folders(system, controller):
            limit = _number(system, f"{folder}/{limit_file}")
            if limit is None or limit >= _UNLIMITED:
                continue
            used = _number(system, f"{folder}/{used_file}") or 0
            found.append((limit, max(limit - max(used - _file_cache(system, folder), 0), 0)))
    return min(found, key=lambda pair: pair[1], default=None)


def process_limit(system: System) -> int | None:
    """The tightest limit on the number of processes and threads; None without."""
    limits = [_number(system, f"{folder}/pids.max") for name in ("", "pids") for folder in _folders(system, name)]
    return min((limit for limit in limits if limit is not None), default=None)


def _folders(system: System, controller: str) -> Iterator[str]:
    """This process's group and all above it, of a controller of version 1, or ("") of version 2."""
    mount = f"{_ROOT}/{controller}".rstrip("/")
    for line in (system.read("/proc/self/cgroup") or "").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller not in names.split(","):
            continue
        # In a container the path may be one of the machine outside: then only the root is there.
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield "/".join([mount, *parts[:count]])


def _number(system: System, path: str) -> int | None:
    """The number that a file holds; None where there is none, or a word such as `max`."""
    try:
        return int(system.read(path) or "")
    except ValueError:
        return None


def _file_cache(system: System, folder: str) -> int:
    """Bytes of a group's memory that the kernel takes back before it ends a process."""
    for line in (system.read(f"{folder}/memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdecimal():
            return int(value)
    return 0
