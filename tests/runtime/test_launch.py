"""Ranks started by fork and by mpirun: results, errors, limits, and what is left afterwards."""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from collsyn.errors import DeviceError, InputError, VerificationError
from collsyn.runtime.launch import launch
from collsyn.runtime.mpirun import find_mpirun, has_mpi

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = "tests.runtime.targets"
LIMIT_S = 60
needs_mpi = pytest.mark.skipif(not (has_mpi() and find_mpirun()), reason="no mpi4py or no mpirun here")
LAUNCHERS = ["fork", pytest.param("mpirun", marks=needs_mpi)]


def start(name, arguments=None, num_ranks=3, launcher="fork", timeout_s=LIMIT_S, **options):
    """Launch a function of targets.py."""
    return launch(f"{TARGETS}:{name}", arguments, num_ranks, launcher, timeout_s, **options)


def children():
    """Process numbers of this process's children."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No test leaves a child process or an open descriptor."""
    before, fds = children(), set(os.listdir("/proc/self/fd"))
    yield
    assert children() <= before
    assert len(os.listdir("/proc/self/fd")) <= len(fds)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_results_come_in_rank_order(launcher):
    results = start("who_am_i", {"word": "é", "list": [1, None]}, launcher=launcher)
    assert [result["rank"] for result in results] == [0, 1, 2]
    for result in results:
        assert result["size"] == 3
        assert result["lengths"] == [0, 100_000, 200_000]
        assert result["same"]
        assert result["arguments"] == {"word": "é", "list": [1, None]}


def test_one_rank_is_a_job():
    assert start("who_am_i", num_ranks=1)[0]["lengths"] == [0]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_error_of_a_rank_is_raised_here_with_its_kind(launcher):
    with pytest.raises(VerificationError, match=r"^rank 1: chunk 3 is wrong$"):
        start("fail", {"rank": 1, "kind": "verification"}, launcher=launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_any_other_exception_of_a_rank_is_one_line(launcher):
    with pytest.raises(DeviceError, match=r"^rank 2: ValueError: boom$") as caught:
        start("fail", {"rank": 2, "kind": "value"}, launcher=launcher)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_lost_rank_ends_the_job_and_leaves_nothing(launcher, how, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    with pytest.raises(DeviceError) as caught:
        start(
            "loop_until_one_dies",
            {"victim": 2, "how": how},
            num_ranks=4,
            launcher=launcher,
            on_report=lambda rank, value: seen.append(value),
        )
    message = str(caught.value)
    assert "not over" not in message
    assert "\n" not in message
    if how == "raise":
        assert message == "rank 2: ValueError: boom with a second line"
    elif how == "kill" and launcher == "fork":
        assert message == "rank 2 was killed by SIGKILL"
    else:
        # An mpirun ends the other ranks, too, mostly later.
        assert re.match(r"rank 2 (was lost|ended without a result)|ranks .*\b2\b.* were lost: mpirun ended", message)
    assert len(seen) == 4
    assert not [name for value in seen for name in value["files"] if os.path.exists(name)]
    assert not list(tmp_path.iterdir())
    for value in seen:
        wait_for(lambda pid=value["pid"]: not is_running(pid))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_limit_ends_a_job_that_hangs(launcher):
    with pytest.raises(DeviceError, match=r"^not over after 1\.5 s: no result of ranks 0, 1$"):
        start("sleep", {"seconds": 600}, num_ranks=2, launcher=launcher, timeout_s=1.5)


def test_a_rank_that_misses_an_exchange_is_named():
    with pytest.raises(DeviceError, match=r"^rank 0 waited 0\.2 s for rank 1 to join an exchange$"):
        start("miss_an_exchange", {"limit_s": 0.2})


@needs_mpi
def test_a_rank_that_misses_an_exchange_of_mpi_ends_the_job():
    with pytest.raises(DeviceError, match=r"^rank [02] waited 0\.2 s for all ranks to join an exchange$"):
        start("miss_an_exchange", {"limit_s": 0.2}, launcher="mpirun")


def test_forked_ranks_print_to_standard_error_and_repeat_nothing_of_the_parent():
    script = f"""
        import atexit
        from collsyn.runtime.launch import launch
        atexit.register(print, "at exit")
        print("once", end=" ")
        launch("{TARGETS}:print_something", {{}}, 2, "fork", {LIMIT_S})
        print("done")
    """
    done = run_python(script)
    assert done.stdout == "once done\nat exit\n"
    assert sorted(done.stderr.splitlines()) == [f"{name} of rank {rank}" for name in ("err", "out") for rank in (0, 1)]


@needs_mpi
def test_ranks_of_mpirun_print_to_standard_error():
    script = f"""
        from collsyn.runtime.launch import launch
        launch("{TARGETS}:print_something", {{}}, 2, "mpirun", {LIMIT_S})
        print("done")
    """
    done = run_python(script)
    assert done.stdout == "done\n"
    assert sorted(done.stderr.splitlines()) == [f"{name} of rank {rank}" for name in ("err", "out") for rank in (0, 1)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_end_with_the_process_that_launched_them(launcher, tmp_path):
    pids = tmp_path / "pids"
    script = f"""
        from collsyn.runtime.launch import launch
        def note(rank, value):
            with open({str(pids)!r}, "a") as stream:
                print(value["pid"], file=stream)
        arguments = {{"victim": -1, "how": ""}}
        launch("{TARGETS}:loop_until_one_dies", arguments, 2, {launcher!r}, {LIMIT_S}, on_report=note)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        process.send_signal(signal.SIGKILL)
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: not is_running(int(pid)))


def test_ctrl_c_ends_the_ranks_and_then_the_launcher(tmp_path):
    pids = tmp_path / "pids"
    script = f"""
        from collsyn.runtime.launch import launch
        def note(rank, value):
            with open({str(pids)!r}, "a") as stream:
                print(value["pid"], file=stream)
        arguments = {{"victim": -1, "how": ""}}
        try:
            launch("{TARGETS}:loop_until_one_dies", arguments, 2, "fork", {LIMIT_S}, on_report=note)
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=LIMIT_S)[0] == "interrupted\n"
    assert not [pid for pid in pids.read_text().split() if is_running(int(pid))]


@needs_mpi
def test_inside_the_users_own_mpirun_this_process_is_a_rank(tmp_path):
    # Files, not stdout: mpirun may mix the ranks' lines.
    script = f"""
        import os
        from pathlib import Path
        from collsyn.runtime.launch import launch
        results = launch("{TARGETS}:who_am_i", {{}})
        Path({str(tmp_path)!r}, str(os.getpid())).write_text(str([result["rank"] for result in results]))
    """
    run_python(script, [*find_mpirun(), "-n", "3"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["[0, 1, 2]"] * 3


@needs_mpi
def test_an_error_inside_the_users_own_mpirun_ends_all_ranks():
    script = f"""
        from collsyn.runtime.launch import launch
        launch("{TARGETS}:fail", {{"rank": 1, "kind": "verification"}})
    """
    done = run_python(script, [*find_mpirun(), "-n", "3"], check=False)
    assert done.returncode == VerificationError.exit_code
    assert "collsyn: error: chunk 3 is wrong\n" in done.stderr


@needs_mpi
def test_killed_ranks_of_the_users_own_mpirun_leave_no_shared_memory():
    script = """
        import os, signal
        from pathlib import Path
        from collsyn.runtime.bootstrap import MpiBootstrap
        bootstrap = MpiBootstrap()
        lines = Path("/proc/self/maps").read_text().splitlines()
        names = " ".join(line.split("/dev/shm/")[1].split()[0] for line in lines if "/dev/shm/" in line)
        gathered = bootstrap.allgather(names.encode())
        if bootstrap.rank == 0:
            print("names:", *(part.decode() for part in gathered), flush=True)
        bootstrap.barrier()
        if bootstrap.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        bootstrap.barrier()
    """
    done = run_python(script, [*find_mpirun(), "-n", "2"], check=False)
    assert done.returncode
    names = done.stdout.partition("names:")[2].splitlines()[0].split()
    assert names
    assert not set(names) & set(os.listdir("/dev/shm"))


@needs_mpi
def test_ranks_that_do_not_find_each_other_are_told_so():
    # As when mpirun belongs to another MPI than the one that mpi4py loads: every rank is alone in its world.
    script = """
        from collsyn.errors import DeviceError
        from collsyn.runtime.bootstrap import MpiBootstrap
        try:
            MpiBootstrap()
        except DeviceError as error:
            print(error)
    """
    done = run_python(script, env={"OMPI_COMM_WORLD_SIZE": "4"})
    assert re.match(r"the launcher started 4 ranks but MPI sees 1: mpi4py loaded .*--mpirun", done.stdout)


@pytest.mark.parametrize(
    ("target", "num_ranks", "launcher", "message"),
    [
        (f"{TARGETS}:who_am_i", 0, "fork", "ranks: is 0; expected at least 1"),
        (f"{TARGETS}:nobody", 2, "fork", "cannot be loaded"),
        ("collsyn.no_such_module:f", 2, "fork", "cannot be loaded"),
        ("no colon", 2, "fork", "cannot be loaded"),
        (f"{TARGETS}:BUILDERS", 2, "fork", "is not a function"),
        (f"{TARGETS}:who_am_i", 2, "no-such-mpirun -x", "'no-such-mpirun -x' is no command"),
        (f"{TARGETS}:who_am_i", 2, "", "'' is no command"),
        (f"{TARGETS}:who_am_i", 2, "an 'open quotation", "is no command that can be run: no closing quotation"),
    ],
)
def test_wrong_requests_are_refused(target, num_ranks, launcher, message):
    with pytest.raises(InputError, match=message):
        launch(target, {}, num_ranks, launcher, LIMIT_S)


def test_too_many_ranks_for_the_descriptors_of_a_process_is_one_line():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        with pytest.raises(DeviceError, match=r"^cannot start 50 ranks: Too many open files"):
            start("who_am_i", num_ranks=50)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_launcher_that_fails_is_quoted(tmp_path):
    launcher = tmp_path / "mpirun-of-sorts"
    launcher.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo sorts 1; exit 0; }\necho no slots >&2\nexit 3\n')
    launcher.chmod(0o755)
    with pytest.raises(DeviceError, match=r"mpirun-of-sorts ended with exit code 3: no slots$"):
        start("who_am_i", launcher=str(launcher))


def run_python(script, prefix=(), check=True, env=None):
    """Run a script with the repository at hand; what it printed."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=check,
    )


def wait_for(condition):
    """Return once the condition holds; fail if it does not within the limit."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
