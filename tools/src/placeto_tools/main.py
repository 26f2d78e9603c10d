"""The ``placeto`` command line: its subcommands, and how it ends."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TextIO

import click

from placeto import errors
from placeto.errors import InputError, printable
from placeto_tools import __version__
from placeto_tools.groups import LazyCommand, LazyGroup
from placeto_tools.options import DEBUG

PLACE, LEARN, MEASURE = "Place a model", "Compare and learn", "Measure and run"
# The line of each command in the help, by section.
SECTIONS = {
    PLACE: {
        "models": "List the registered models and families of graphs.",
        "build": "Make a problem file from a model and devices.",
        "inspect": "Show the ops, bytes, groups, memory and lower bound of a problem.",
        "place": "Place a problem by search, another placer or a trained policy.",
        "simulate": "Simulate a step: runtime, memory, busy devices, critical path.",
        "explain": "Show the costs of groups on other devices, and their waits.",
        "export": "Write a placement in a form that another library takes.",
        "report": "Write a web page that shows placements.",
        "plot": "Draw a placement, a simulated step or learning curves.",
    },
    LEARN: {
        "compare": "Compare placers on problems, with equal budgets.",
        "train": "Train a policy on one or several problems.",
    },
    MEASURE: {
        "calibrate": "Measure the devices of this machine into a cluster file.",
        "profile": "Measure each op of a step on this machine.",
        "run": "Run a placed step on devices of this machine.",
    },
}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}
PLUGINS = "placeto.commands"  # the entry points by which other packages add commands


def all_commands() -> dict[str, LazyCommand]:
    """Return the commands of this package, and those that installed packages add."""
    own = {
        name: LazyCommand(line, partial(_own, name), section)
        for section, lines in SECTIONS.items()
        for name, line in lines.items()
    }
    return own | {
        entry.name: LazyCommand(_summary(entry), partial(_of_plugin, entry), LEARN)
        for entry in entry_points(group=PLUGINS)
        if entry.name not in own
    }


def _own(name: str) -> click.Command:
    command = getattr(import_module(f"placeto_tools.commands.{name}"), name)
    assert isinstance(command, click.Command), name  # noqa: S101 (of modules of this package)
    return command


def _of_plugin(entry: EntryPoint) -> click.Command:
    try:
        command = entry.load()
    except Exception as error:
        raise InputError(
            f"{entry.name}: expected a command that can be imported from {entry.value}, "
            f"got {type(error).__name__}: {error}"
        ) from error
    if not isinstance(command, click.Command):
        raise InputError(f"{entry.name}: expected {entry.value} to be a command, got {command!r}")
    return command


def _summary(entry: EntryPoint) -> str:
    """Return the summary of its package: the command is not imported for a line of help."""
    if entry.dist is None or "Summary" not in entry.dist.metadata:
        return f"See {entry.value}."
    return entry.dist.metadata["Summary"]


def _show_in_one_line(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 (warnings calls it with these names)
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    click.echo(f"placeto: warning: {printable(' '.join(str(message).split()))}", err=True)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, click.ClickException):
        return errors.WRONG_INPUT
    return errors.STOPPED if isinstance(error, click.Abort) else errors.exit_code(error)


def _one_line(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return printable(" ".join(error.format_message().split()))
    return "stopped" if isinstance(error, click.Abort) else errors.one_line(error)


class Commands(LazyGroup):
    """All commands; errors and warnings are one line each."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; see `click.Group.main`."""
        arguments = list(sys.argv[1:] if args is None else args)
        # Warnings of PyTorch's C++ code have stack traces. It reads this when it is imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_in_one_line
                result = super().main(
                    arguments, prog_name, complete_var, standalone_mode=False, **extra
                )
        except (Exception, KeyboardInterrupt) as error:
            if not standalone_mode:
                raise
            if DEBUG in arguments:
                traceback.print_exc()
            click.echo(f"placeto: error: {_one_line(error)}", err=True)
            sys.exit(_exit_code(error))
        if not standalone_mode:
            return result
        sys.exit(result if isinstance(result, int) else 0)


@click.group(
    cls=Commands,
    lazy=all_commands(),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "PLACETO",
    },
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 no placement fits, 130 stopped.",
)
@click.version_option(__version__, prog_name="placeto", message="%(prog)s %(version)s")
def placeto() -> None:
    """Place the operations of a neural network on several devices.

    \b
    placeto build inception-v3 --cluster 2xk80 -o problem.json.gz
    placeto place problem.json.gz --seconds 10 -o placement.json
    placeto simulate problem.json.gz placement.json
    """
