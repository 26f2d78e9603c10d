"""Groups of commands: each command's line whole, unknown names with the nearest, none too early."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from placeto.errors import not_among

ALL_OF_IT = 10_000  # characters: no line of help is cut


class Group(click.Group):
    """A group that shows each command's line whole; of an unknown command it names the nearest."""

    def line(self, ctx: click.Context, name: str) -> str:
        """Return what is said of a command in one line."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(ALL_OF_IT) if command else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their order."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line(ctx, name)) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(not_among(args[0], names))
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports a command's module only when the command is asked for.

    Parameters
    ----------
    package
        Of which each module has the command of its name.
    lines
        By command, what is said of it in the help of the group.
    """

    def __init__(self, *args: Any, package: str, lines: Mapping[str, str], **named: Any) -> None:
        super().__init__(*args, **named)
        self._package = package
        self._lines = lines

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names."""
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, imported now."""
        if cmd_name not in self._lines:
            return None
        command = getattr(import_module(f"{self._package}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command), cmd_name  # noqa: S101 (of modules of ours)
        return command

    def line(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002
        """Return what is said of a command in one line."""
        return self._lines[name]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so."""
        names = [name for name in self._lines if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self._lines[name]) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]
