"""What all tests share: Hypothesis profiles and a way to run the command line."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent

# No deadlines: other work on the machine must not fail a test. `ci` finds the same examples each
# time, so that what fails there fails here; `thorough` is for a long look by hand.
settings.register_profile("default", max_examples=30, deadline=None)
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


# A shell that starts the tests in the background may have them ignore Ctrl-C, which some of them press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_of_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds results of earlier ones, or starts processes or writes models that it does not ask for."""
    monkeypatch.setenv("COLLSYN_RESULTS", "off")
    monkeypatch.setenv("COLLSYN_JOBS", "1")
    monkeypatch.setenv("COLLSYN_WRITE_MODELS", "")


class CliResult(NamedTuple):
    """What a run of the command line left: its exit code and all it printed."""

    code: int
    stdout: str
    stderr: str


class RunCli(Protocol):
    """`run_cli("bound", "--size", "1M")`, in this process unless `new_process` is set."""

    def __call__(
        self,
        *args: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        new_process: bool = False,
        timeout_s: float = 120,
    ) -> CliResult: ...


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Runs `collsyn ARGS...` and returns code, stdout and stderr.

    In this process it is quick, and what child processes print is not caught; a new process
    (`python -m cli`) takes the time of Python's start, and is ended after `timeout_s`.
    """

    def run(
        *args: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        new_process: bool = False,
        timeout_s: float = 120,
    ) -> CliResult:
        argv = [str(arg) for arg in args]
        if new_process:
            done = subprocess.run(
                [sys.executable, "-m", "cli", *argv],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            return CliResult(done.returncode, done.stdout, done.stderr)
        from cli.main import main

        stdout, stderr = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            if cwd is not None:
                patch.chdir(cwd)
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                code = main(argv)
        return CliResult(code, stdout.getvalue(), stderr.getvalue())

    return run
