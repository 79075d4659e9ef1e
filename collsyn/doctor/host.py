"""Checks of what host ranks live on: cores, memory, limits, and whether they reach each other's memory."""

import errno
import os

from collsyn.doctor.cgroup import cpu_quota, memory_limit, process_limit
from collsyn.doctor.finding import Finding, NotMade, gib
from collsyn.doctor.system import System

_GIB = 1 << 30
# What container engines give /dev/shm unless asked, and what MPI libraries outgrow first.
_SMALL_SHM = 64 << 20
_LITTLE_MEMORY = _GIB
_FEW_FILES = 1024
_FEW_PROCESSES = 256
_LAUNCH_LIMIT_S = 60.0


def check_cores(system: System) -> Finding:
    """Hardware threads that ranks may use, and a quota below that."""
    threads = system.cores()
    quota = cpu_quota(system)
    siblings = {system.read(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list") for thread in threads}
    cores = len(threads) if None in siblings else len(siblings)
    facts = {"threads": len(threads), "cores": cores, "cgroup_cpus": quota}
    detail = f"{len(threads)} hardware thread{'s' * (len(threads) != 1)} on {cores} core{'s' * (cores != 1)}"
    if quota is not None and quota < len(threads):
        detail += f", of which the control group lets {quota:g} be busy: ranks that wait are stopped for milliseconds"
        most = max(int(quota), 1)
        remedy = f"run at most {most} rank{'s' * (most != 1)}, or raise the limit (docker run --cpus, cpu.max)"
        return Finding("warning", detail, remedy, facts)
    if len(threads) == 1:
        remedy = "measure where ranks have cores of their own (taskset, docker --cpuset-cpus, the batch job's cores)"
        return Finding("warning", f"{detail}: ranks take turns, times are those of the scheduler", remedy, facts)
    return Finding("ok", detail, facts=facts)


def check_memory(system: System) -> Finding:
    """Memory that is free, within the limit of the control group; shared buffers of ranks count there."""
    total, available = (_meminfo(system, key) for key in ("MemTotal", "MemAvailable"))
    limited = memory_limit(system)
    facts = {
        "total_bytes": total,
        "available_bytes": available,
        "cgroup_limit_bytes": limited[0] if limited else None,
        "cgroup_left_bytes": limited[1] if limited else None,
    }
    known = [value for value in (available, limited[1] if limited else None) if value is not None]
    if not known:
        return Finding("warning", "/proc/meminfo says nothing of free memory", "mount /proc", facts)
    left = min(known)
    detail = f"{gib(left)} free"
    if total is not None:
        detail += f" of {gib(total)}"
    if limited is not None and (total is None or limited[0] < total):
        detail += f", limited to {gib(limited[0])} by the control group"
    if left < _LITTLE_MEMORY:
        remedy = (
            "use smaller sizes (bench -e) or fewer ranks, or raise the limit (docker run --memory, the batch job's)"
        )
        return Finding("warning", f"{detail}: ranks hold an input, an output and scratch each", remedy, facts)
    return Finding("ok", detail, facts=facts)


def check_shm(system: System) -> Finding:
    """/dev/shm, which MPI and NCCL use and collsyn's own ranks do not."""
    remedy = (
        "docker run --shm-size=8g or --ipc=host; Kubernetes: an emptyDir of medium Memory; mount -o remount,size=8g"
    )
    space = system.space("/dev/shm")
    if space is None:
        return Finding("warning", "there is no /dev/shm: MPI and NCCL need one, collsyn's own ranks do not", remedy)
    size, free = space
    left_over = [
        name for name in system.entries("/dev/shm") if name.startswith(("mpich_shm_", "vader_segment", "nccl-"))
    ]
    facts = {"size_bytes": size, "free_bytes": free, "left_by_mpi_or_nccl": len(left_over)}
    detail = f"{gib(free)} free of {gib(size)}"
    if free <= _SMALL_SHM:
        if left_over and size > _SMALL_SHM:
            remedy = f"delete what killed jobs left there ({len(left_over)} files of MPI or NCCL)"
        detail += ": MPI ends with a bus error (SIGBUS) when it is full; collsyn's own ranks do not use it"
        return Finding("warning", detail, remedy, facts)
    return Finding("ok", detail, facts=facts)


def check_limits(system: System) -> Finding:
    """Open files, processes and locked memory that this user may have."""
    files, processes, locked = (system.limit(name) for name in ("NOFILE", "NPROC", "MEMLOCK"))
    tasks = process_limit(system)
    has_rdma = bool(system.entries("/sys/class/infiniband"))
    facts = {
        "open_files": files,
        "processes": processes,
        "cgroup_processes": tasks,
        "locked_bytes": locked,
        "rdma_devices": list(system.entries("/sys/class/infiniband")),
    }
    complaints, remedies = [], []
    if files is not None and files < _FEW_FILES:
        complaints.append(f"only {files} open files, and a rank may hold one for each peer")
        remedies.append("ulimit -n 4096")
    few = min((limit for limit in (processes, tasks) if limit is not None), default=None)
    if few is not None and few < _FEW_PROCESSES:
        complaints.append(f"only {few} processes and threads")
        remedies.append("ulimit -u 4096, docker run --pids-limit=-1")
    if has_rdma and locked is not None:
        complaints.append(f"only {gib(locked)} of locked memory, and network cards that want theirs locked")
        remedies.append("ulimit -l unlimited (/etc/security/limits.conf, docker run --ulimit memlock=-1)")
    if complaints:
        return Finding("warning", "; ".join(complaints), "; ".join(remedies), facts)
    shown = "unlimited" if few is None else str(few)
    return Finding("ok", f"{'unlimited' if files is None else files} open files, {shown} processes", facts=facts)


def check_ranks(system: System) -> Finding:
    """Two forked ranks that write into each other's memory and verify the bytes."""
    answer = system.probe("launch", "fork", limit_s=_LAUNCH_LIMIT_S)
    remedy = "mount /proc without hidepid, and run all ranks as one user in one container (one process namespace)"
    if answer.facts is None:
        return Finding("problem", f"two forked ranks: {answer.trouble}", remedy)
    if "error" in answer.facts:
        return Finding("problem", f"two forked ranks: {answer.facts['error']}", remedy, answer.facts)
    if not answer.facts["verified"]:
        return Finding(
            "problem", "two forked ranks map memory of each other in which bytes are wrong", remedy, answer.facts
        )
    return Finding("ok", "two forked ranks wrote into each other's memory, all bytes verified", facts=answer.facts)


def check_process_vm(system: System) -> Finding | NotMade:
    """Whether one rank may read another by process_vm_readv, on which single copies of MPI libraries rest."""
    scope = (system.read("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
    answer = system.probe("launch", "fork", limit_s=_LAUNCH_LIMIT_S)
    if answer.facts is None or "process_vm_errno" not in answer.facts:
        return NotMade("forked ranks do not run")
    number = answer.facts["process_vm_errno"]
    facts = {"ptrace_scope": int(scope) if scope.isdecimal() else None, "errno": number}
    setting = f"kernel.yama.ptrace_scope is {scope}" if scope else "no ptrace_scope (no Yama)"
    if not number:
        return Finding("ok", f"one rank reads another by process_vm_readv; {setting}", facts=facts)
    remedy = "docker run --cap-add=SYS_PTRACE, or a container whose seccomp profile allows process_vm_readv"
    if scope not in ("", "0"):
        remedy = f"sysctl kernel.yama.ptrace_scope=0, or {remedy}"
    reason = errno.errorcode.get(number, str(number)) + f", {os.strerror(number)}"
    return Finding(
        "warning",
        f"process_vm_readv between ranks fails ({reason}); {setting}: MPI copies large messages twice, "
        "which flatters collsyn in bench --against mpi; collsyn's own ranks do not need it",
        remedy,
        facts,
    )


def _meminfo(system: System, key: str) -> int | None:
    """Bytes of a line of /proc/meminfo."""
    for line in (system.read("/proc/meminfo") or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == f"{key}:" and words[1].isdecimal():
            return 1024 * int(words[1])
    return None
