"""Groups of commands: help without arguments, and no command imported before it is used."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

ALL_OF_IT = 10_000  # characters: no line of help is cut


class Group(click.Group):
    """A group that alone shows its help, in which each command's line is whole."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; without any, show the help."""
        return super().parse_args(ctx, args or ["--help"])

    def line(self, ctx: click.Context, name: str) -> str:
        """Return the line of a command in the help of the group."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(ALL_OF_IT) if command else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their order, by section."""
        names = self.list_commands(ctx)
        for section in dict.fromkeys(map(self.section, names)):
            rows = [(name, self.line(ctx, name)) for name in names if self.section(name) == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def section(self, name: str) -> str:  # noqa: ARG002
        """Return the heading under which the help has a command."""
        return "Commands"


class LazyCommand(NamedTuple):
    """A command that is not imported yet."""

    line: str  # in the help of the group
    load: Callable[[], click.Command]
    section: str = "Commands"  # of the help


class LazyGroup(Group):
    """A group that imports a command when it is used, and not for its help or for completion."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **named: Any) -> None:
        super().__init__(*args, **named)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, imported now."""
        return self._lazy[cmd_name].load() if cmd_name in self._lazy else None

    def line(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002
        """Return the line of a command in the help of the group."""
        return self._lazy[name].line

    def section(self, name: str) -> str:
        """Return the heading of a command."""
        return self._lazy[name].section

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first; of an unknown one the error names the nearest."""
        if args[0] not in self._lazy and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=self._lazy, ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so."""
        names = [name for name in self._lazy if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self._lazy[name].line) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]
