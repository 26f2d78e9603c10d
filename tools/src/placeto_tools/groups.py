"""Groups of commands: help without arguments, and no command imported before it is used."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

ALL_OF_IT = 10_000  # characters: no line of help is cut


class Group(click.Group):
    """A group that alone shows its help, in which each command's line is whole."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; without any, show the help."""
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their order, by section; none is imported for that."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            rows = sections.setdefault(getattr(command, "section", "Commands"), [])
            rows.append((name, command.get_short_help_str(ALL_OF_IT)))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


class LazyCommand(click.Command):
    """A command that is not imported yet."""

    def __init__(
        self, name: str, line: str, section: str, load: Callable[[], click.Command]
    ) -> None:
        super().__init__(name, short_help=line)
        self.section = section  # of the help
        self.load = load


class LazyGroup(Group):
    """A group that imports a command when it is used, and not for its help or for completion."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now."""
        command = super().get_command(ctx, cmd_name)
        return command.load() if isinstance(command, LazyCommand) else command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so."""
        return [
            *(
                CompletionItem(name, help=command.short_help)
                for name, command in self.commands.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]
