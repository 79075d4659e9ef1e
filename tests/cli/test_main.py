"""The shell of the command line: start-up, errors, exit codes, and the table of commands."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from cli import main as shell
from collsyn import __version__, errors

COMMAND_NAMES = list(shell.COMMANDS)
HEAVY = (
    "numpy",
    "yaml",
    "networkx",
    "scipy",
    "numba",
    "pulp",
    "highspy",
    "rich",
    "mpi4py",
    "cupy",
    "importlib.metadata",
)


def fail_with(monkeypatch, error):
    """Puts a command `bound` in place that raises the error."""

    @click.command("bound")
    @click.option("--size", type=int)
    def command(size):
        raise error

    monkeypatch.setattr(shell.LazyGroup, "get_command", lambda self, ctx, name: command)


def imports_of(*args):
    """Names of all modules that are loaded once `python -m cli ARGS` has answered."""
    script = (
        "import runpy, sys\n"
        f"sys.argv[1:] = {args!r}\n"
        "try: runpy.run_module('cli', run_name='__main__')\n"
        "except SystemExit as done: assert done.code == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


def test_what_ctrl_c_was_turned_into_is_ctrl_c(monkeypatch, capsys):
    # As modules do that are loaded in parts.
    @click.command("bound")
    def command():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half of it is missing") from None

    monkeypatch.setattr(shell.LazyGroup, "get_command", lambda self, ctx, name: command)
    before = signal.signal(signal.SIGINT, errors.interrupt)
    try:
        assert shell.main(["bound"]) == shell.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "collsyn: error: interrupted\n"
    # And no later one's doing.
    fail_with(monkeypatch, errors.InputError("x: wrong"))
    assert shell.main(["bound"]) == 2


def test_ctrl_c_in_code_made_from_a_string_is_our_exit_code(tmp_path):
    # Python keeps in mind that it left such code, and would end itself by the signal.
    script = (
        "import signal, sys, cli, cli.main\n"
        "def main():\n"
        "    exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
        "cli.main.main = main\n"
        "sys.exit(cli.run())"
    )
    (tmp_path / "started.py").write_text(script)
    command = [sys.executable, "-m", "started"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "collsyn: error: interrupted\n")


@pytest.mark.parametrize("args", [["--help"], ["--version"], []])
def test_answers_without_loading_anything_heavy(args):
    imported = imports_of(*args)
    assert "click" in imported
    assert not [name for name in HEAVY if name in imported]


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_help_of_a_command_loads_nothing_heavy(name):
    imported = imports_of(name, "--help")
    assert f"cli.{shell.COMMANDS[name][0]}" in imported
    assert not [module for module in HEAVY if module in imported]


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_is_there_with_help_and_a_worked_example(name, run_cli):
    module, line = shell.COMMANDS[name]
    command = import_module(f"cli.{module}").command
    assert isinstance(command, click.Command)
    assert command.name == name
    assert len(line) < 65 and line.endswith(".")
    result = run_cli(name, "--help")
    assert (result.code, result.stderr) == (0, "")
    assert re.search(rf"Examples?:\n +collsyn {name}\b", result.stdout)


def test_every_command_module_is_in_the_table():
    files = {path.stem for path in Path(shell.__file__).parent.glob("[!_]*.py")} - {"main"}
    assert files == {module for module, _ in shell.COMMANDS.values()}


def test_help_lists_the_commands(run_cli):
    result = run_cli("--help")
    assert result.code == 0
    for name, (_, line) in shell.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", result.stdout, re.MULTILINE)
    assert run_cli() == result


def test_version(run_cli):
    assert run_cli("--version") == (0, f"collsyn {__version__}\n", "")


@pytest.mark.parametrize(
    "error_type, code",
    [
        (errors.InputError, 2),
        (errors.Infeasible, 3),
        (errors.SolverFailed, 4),
        (errors.VerificationError, 5),
        (errors.DeviceError, 6),
        (errors.Regression, 7),
    ],
)
def test_an_expected_error_is_one_line_and_its_exit_code(error_type, code, monkeypatch, run_cli):
    fail_with(monkeypatch, error_type("a.yaml:links: too many\nexpected 3"))
    assert run_cli("bound") == (
        code,
        "",
        "collsyn: error: a.yaml:links: too many expected 3\n",
    )


@pytest.mark.parametrize(
    "args, says",
    [
        (["nonsense"], "no command 'nonsense'; there are profile, topology"),
        (["--nonsense"], "No such option"),
        (["bound", "--nonsense"], "No such option"),
        (["bound", "--size", "big"], "Invalid value for '--size'"),
        (["bound", "surplus"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_2(args, says, monkeypatch, run_cli):
    if args[0] == "bound":
        fail_with(monkeypatch, AssertionError("not reached"))
    code, stdout, stderr = run_cli(*args)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("collsyn: error: ")
    assert says in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("depth", range(3))
def test_ctrl_c_is_130(monkeypatch, run_cli, depth):
    error = KeyboardInterrupt()
    for _ in range(depth):  # as a compiled kernel hands it on
        cause, error = error, SystemError("returned a result with an exception set")
        error.__cause__ = cause
    fail_with(monkeypatch, error)
    code, stdout, stderr = run_cli("bound")
    assert (code, stdout, stderr.strip()) == (130, "", "collsyn: error: interrupted")


def test_a_file_that_the_system_refuses_is_an_input_error(monkeypatch, run_cli):
    fail_with(monkeypatch, PermissionError(13, "Permission denied", "/root/x.json"))
    assert run_cli("bound") == (2, "", "collsyn: error: /root/x.json: Permission denied\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("division\nby zero"), OSError("no name")])
def test_an_unexpected_error_is_one_line_too(error, monkeypatch, run_cli):
    fail_with(monkeypatch, error)
    monkeypatch.delenv("COLLSYN_DEBUG", raising=False)
    code, stdout, stderr = run_cli("bound")
    assert (code, stdout) == (1, "")
    assert stderr.count("\n") == 1
    assert f"internal error: {type(error).__name__}: {' '.join(str(error).split())}" in stderr
    assert "COLLSYN_DEBUG=1" in stderr


def test_debugging_shows_the_traceback_before_the_line(monkeypatch, run_cli):
    fail_with(monkeypatch, ZeroDivisionError("by zero"))
    code, _, stderr = run_cli("bound", env={"COLLSYN_DEBUG": "1"})
    assert code == 1
    assert stderr.startswith("Traceback")
    assert stderr.splitlines()[-1] == "collsyn: error: internal error: ZeroDivisionError: by zero"


def test_a_reader_that_goes_away_is_no_error():
    script = "import sys; from cli.main import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


def test_exit_code_of_a_command_is_handed_on(monkeypatch, run_cli):
    @click.command("verify")
    @click.option("--json", "as_json", is_flag=True)
    @click.pass_context
    def command(ctx, as_json):
        click.echo(json.dumps({"ok": False}))
        ctx.exit(5)

    monkeypatch.setattr(shell.LazyGroup, "get_command", lambda self, ctx, name: command)
    assert run_cli("verify", "--json") == (5, '{"ok": false}\n', "")


@pytest.mark.parametrize(
    ("to", "code", "told"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">/dev/full", 2, "collsyn: error: output: cannot be written: no space left on device\n"),
    ],
)
def test_outputs_that_are_closed_or_full(to, code, told):
    command = f"exec {shlex.quote(sys.executable)} -m cli topology find --num-ranks 3 --degree 2 -o none {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, told)
