"""Cores, memory, /dev/shm, limits and memory of ranks, on machines that are not there."""

import errno

import pytest

from collsyn.doctor.finding import NotMade, gib
from collsyn.doctor.host import check_cores, check_limits, check_memory, check_process_vm, check_ranks, check_shm
from collsyn.doctor.system import Answer
from tests.support.machines import GIB, FakeSystem

UNLIMITED_V1 = "9223372036854771712\n"


def test_sizes_are_shown_in_three_digits():
    sizes = (64 << 20, GIB, int(13.84 * GIB), 512 * GIB)
    assert [gib(size) for size in sizes] == ["64 MiB", "1 GiB", "13.8 GiB", "512 GiB"]
    assert [gib(size) for size in (0, 4096, GIB - (1 << 20), 1500 * GIB)] == ["0 KiB", "4 KiB", "1023 MiB", "1500 GiB"]


def test_threads_of_one_core_are_one_core():
    path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {path.format(thread): f"{thread % 2},{thread % 2 + 2}\n" for thread in range(4)}
    found = check_cores(FakeSystem(files=files))
    assert (found.status, found.detail) == ("ok", "4 hardware threads on 2 cores")


def test_a_single_core_is_a_warning():
    found = check_cores(FakeSystem(threads=(5,)))
    assert found.status == "warning"
    assert "1 hardware thread on 1 core:" in found.detail


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # The tightest of the groups above counts.
        (
            {
                "/proc/self/cgroup": "0::/job/step/task\n",
                "/sys/fs/cgroup/job/step/task/cpu.max": "max 100000\n",
                "/sys/fs/cgroup/job/step/cpu.max": "350000 100000\n",
                "/sys/fs/cgroup/job/cpu.max": "200000 100000\n",
            },
            2,
        ),
        # Version 1, seen from inside a container: the path is one of the machine outside.
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/docker/0123\n0::/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
    ],
)
def test_a_quota_of_processors_is_a_warning(files, cpus):
    found = check_cores(FakeSystem(files=files))
    assert found.status == "warning"
    assert found.facts["cgroup_cpus"] == cpus
    assert f"at most {int(cpus)} rank" in found.remedy


@pytest.mark.parametrize(
    "files",
    [
        {"/sys/fs/cgroup/cpu.max": "max 100000\n"},
        {"/sys/fs/cgroup/cpu.max": "800000 100000\n"},
        {"/sys/fs/cgroup/cpu.max": "garbage\n"},
        {
            "/proc/self/cgroup": "1:cpu:/\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_no_quota_or_one_above_the_cores_is_fine(files):
    assert check_cores(FakeSystem(files=files)).status == "ok"


def test_memory_is_what_is_free():
    found = check_memory(FakeSystem())
    assert (found.status, found.detail) == ("ok", "16 GiB free of 32 GiB")


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (
            {
                "/sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
                "/sys/fs/cgroup/memory.current": f"{2 * GIB - 1}\n",
                "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
            },
            GIB // 2 + 1,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/a\n",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{GIB // 4}\n",
                "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{GIB}\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
            },
            0,
        ),
    ],
)
def test_little_memory_left_in_the_control_group_is_a_warning(files, left):
    found = check_memory(FakeSystem(files=files))
    assert found.status == "warning"
    assert found.facts["cgroup_left_bytes"] == left
    assert "by the control group" in found.detail


def test_a_control_group_with_room_is_fine_and_named():
    found = check_memory(FakeSystem(files={"/sys/fs/cgroup/memory.max": f"{8 * GIB}\n"}))
    assert (found.status, found.detail) == ("ok", "8 GiB free of 32 GiB, limited to 8 GiB by the control group")
    assert check_memory(FakeSystem(files={"/sys/fs/cgroup/memory.max": "max\n"})).facts["cgroup_limit_bytes"] is None


def test_memory_without_proc_is_a_warning():
    assert check_memory(FakeSystem(files={"/proc/meminfo": None})).status == "warning"


def test_64_mb_of_shared_memory_is_a_warning_with_the_remedy():
    found = check_shm(FakeSystem(spaces={"/dev/shm": (64 << 20, 64 << 20)}, folders={"/dev/shm": ["nccl-1"]}))
    assert found.status == "warning"
    assert "64 MiB free of 64 MiB" in found.detail
    assert "SIGBUS" in found.detail
    assert "--shm-size" in found.remedy


def test_no_shared_memory_is_a_warning():
    assert check_shm(FakeSystem(spaces={"/dev/shm": None})).status == "warning"


def test_full_shared_memory_names_what_was_left_there():
    names = ["mpich_shm_1", "mpich_shm_2", "sem.other", "vader_segment.x"]
    found = check_shm(FakeSystem(spaces={"/dev/shm": (GIB, 0)}, folders={"/dev/shm": names}))
    assert found.status == "warning"
    assert "3 files of MPI or NCCL" in found.remedy
    assert check_shm(FakeSystem(folders={"/dev/shm": names})).status == "ok"


@pytest.mark.parametrize(
    ("different", "word"),
    [
        ({"limits": {"NOFILE": 256}}, "256 open files"),
        ({"limits": {"NPROC": 100}}, "100 processes"),
        ({"files": {"/sys/fs/cgroup/pids.max": "64\n"}}, "64 processes"),
        ({"folders": {"/sys/class/infiniband": ["mlx5_0"]}}, "8 MiB of locked memory"),
    ],
)
def test_tight_limits_are_warnings(different, word):
    found = check_limits(FakeSystem(**different))
    assert found.status == "warning"
    assert word in found.detail
    assert found.remedy


@pytest.mark.parametrize(
    "different",
    [
        {},
        {"limits": {"NOFILE": None}},
        {"files": {"/sys/fs/cgroup/pids.max": "max\n"}},
        {"folders": {"/sys/class/infiniband": ["mlx5_0"]}, "limits": {"MEMLOCK": None}},
    ],
)
def test_wide_limits_are_fine(different):
    assert check_limits(FakeSystem(**different)).status == "ok"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(None, "did not end within 60 s"), "did not end"),
        (Answer({"error": "rank 0: cannot reach the memory of process 7"}), "process 7"),
        (Answer({"verified": False, "process_vm_errno": 0}), "bytes are wrong"),
    ],
)
def test_ranks_that_do_not_reach_each_other_are_a_problem(answer, word):
    found = check_ranks(FakeSystem(probes={("launch", "fork"): answer}))
    assert found.status == "problem"
    assert word in found.detail
    assert "/proc" in found.remedy


@pytest.mark.parametrize(("scope", "remedy"), [("1", "ptrace_scope=0"), (None, "SYS_PTRACE")])
def test_refused_single_copies_are_a_warning(scope, remedy):
    answer = Answer({"verified": True, "process_vm_errno": errno.EPERM})
    files = {"/proc/sys/kernel/yama/ptrace_scope": scope}
    found = check_process_vm(FakeSystem(probes={("launch", "fork"): answer}, files=files))
    assert found.status == "warning"
    assert "EPERM" in found.detail
    assert remedy in found.remedy
    assert check_ranks(FakeSystem(probes={("launch", "fork"): answer})).status == "ok"


def test_single_copies_that_work_are_fine_whatever_the_setting_says():
    found = check_process_vm(FakeSystem(files={"/proc/sys/kernel/yama/ptrace_scope": "1\n"}))
    assert (found.status, found.facts["ptrace_scope"]) == ("ok", 1)


def test_single_copies_are_not_tried_where_ranks_do_not_run():
    broken = FakeSystem(probes={("launch", "fork"): Answer({"error": "no"})})
    assert isinstance(check_process_vm(broken), NotMade)
