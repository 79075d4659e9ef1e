"""Entry point: finds the subcommand, and turns every failure into one line and an exit code.

Only click is imported here. A subcommand's module is imported when it is asked for, so that
`collsyn --help` answers at once, and imports NumPy, solvers and the rest inside its functions.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from collsyn import __version__
from collsyn.errors import CollsynError, forget_interrupt, interrupts, was_interrupted

# Name -> module beside this one that defines `command`, and its line in `collsyn --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "profile": ("profile", "Measure the links between the ranks of this machine."),
    "topology": ("topology", "List, show and convert topologies."),
    "bound": ("bound", "Lower bound on the time of a collective, with a certificate."),
    "pareto": ("pareto", "Chunks, steps and rounds that no others beat, proven."),
    "synthesize": ("synthesize", "Make a verified schedule for a collective on a topology."),
    "verify": ("verify", "Prove a schedule or plan right, or say where it is wrong."),
    "simulate": ("simulate", "Time a schedule or plan under the time model."),
    "compare": ("compare", "Tabulate methods over sizes, with bound and gap."),
    "export": ("export", "Write schedules and plans as files of other runtimes."),
    "bench": ("bench", "Run schedules between real ranks, checking every byte."),
    "cache": ("cache", "Show or remove the results of searches that are kept."),
    "doctor": ("doctor", "Say what this machine can do, and what is in the way."),
}

INTERRUPTED = 130
USAGE = 2


class LazyGroup(click.Group):
    """A click group whose commands are the rows of COMMANDS, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order of work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None; imports its module."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the known ones."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"no command {name!r}; there are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands from the table alone, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="collsyn", message="%(prog)s %(version)s")
@click.pass_context
def collsyn(ctx: click.Context) -> None:
    """Synthesizes, proves, times and runs collective communication for the machine at hand.

    \b
    Example:
      collsyn profile                                # measure this machine
      collsyn synthesize --collective allgather      # for what was measured
      collsyn bench                                  # run it between real ranks
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; the one place where errors end.

    `argv` defaults to the process's own arguments. With COLLSYN_DEBUG=1 in the environment the
    traceback of a failure comes before its line.
    """
    # None where whoever started this closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    forget_interrupt()
    try:
        args = None if argv is None else list(argv)
        with interrupts():
            result = collsyn.main(args, prog_name="collsyn", standalone_mode=False)
        sys.stdout.flush()
        # Without standalone_mode click returns what the command did, or the code of `ctx.exit`.
        return result if isinstance(result, int) else 0
    except CollsynError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "collsyn"
        return _fail(f"{error.format_message()} (see {where} --help)", USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:
            return _fail("output: cannot be written: no space left on device", USAGE)
        if error.filename is None:
            return _fail_internally(error)
        return _fail(f"{error.filename}: {error.strerror}", USAGE)
    except Exception as error:
        return _fail_internally(error)


def _fail_internally(error: Exception) -> int:
    hint = "" if _debugging() else " (run with COLLSYN_DEBUG=1 for the traceback)"
    return _fail(f"internal error: {type(error).__name__}: {error}{hint}", 1)


def _fail(message: str, code: int) -> int:
    """Says one line on stderr, whatever line breaks the message has, and returns the code."""
    if _debugging():
        traceback.print_exc()
    if was_interrupted():
        message, code = "interrupted", INTERRUPTED
    click.echo(f"collsyn: error: {' '.join(message.split())}", err=True)
    return code


def _debugging() -> bool:
    return os.environ.get("COLLSYN_DEBUG", "0") not in ("", "0")
