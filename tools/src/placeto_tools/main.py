"""The ``placeto`` command line: its subcommands, and how it ends."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from placeto.errors import InputError, exit_code, one_line, printable
from placeto_tools import __version__
from placeto_tools.groups import DEBUG, Group, LazyCommand

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
        "export": "Write a placement in the format of another library.",
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
PLUGINS = "placeto.commands"  # the entry points by which other packages add commands


def all_commands() -> dict[str, click.Command]:
    """Return the commands of this package, and those that installed packages add."""
    commands: dict[str, click.Command] = {
        name: LazyCommand(name, line, section, partial(_own, name))
        for section, lines in SECTIONS.items()
        for name, line in lines.items()
    }
    return commands | {
        entry.name: LazyCommand(entry.name, _summary(entry), LEARN, partial(_of_plugin, entry))
        for entry in entry_points(group=PLUGINS)
        if entry.name not in commands
    }


def _own(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"placeto_tools.commands.{name}"), name)
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


def _show_in_one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"placeto: warning: {printable(' '.join(str(message).split()))}", err=True)


def _without_click(error: BaseException) -> BaseException:
    """Return an error of click as one of this package with the same line; others as they are."""
    if isinstance(error, click.ClickException):
        return InputError(error.format_message())
    return KeyboardInterrupt() if isinstance(error, click.Abort) else error


class Commands(Group):
    """All commands, each imported when it is used; errors and warnings are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names, in the order of the help."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

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
            reported = _without_click(error)
            click.echo(f"placeto: error: {one_line(reported)}", err=True)
            sys.exit(exit_code(reported))
        if not standalone_mode:
            return result
        sys.exit(result if isinstance(result, int) else 0)


@click.group(
    cls=Commands,
    commands=all_commands(),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "PLACETO",
        "show_default": True,
    },
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 placed (`place` alone), "
    "but nothing fits the memory, 130 stopped.",
)
@click.version_option(__version__, prog_name="placeto", message="%(prog)s %(version)s")
def placeto() -> None:
    """Place the operations of a neural network on several devices.

    \b
    placeto build inception-v3 --cluster 2xk80 -o problem.json.gz
    placeto place problem.json.gz --seconds 10 -o placement.json
    placeto simulate problem.json.gz placement.json
    """
