"""Groups of commands: help without arguments; and commands that are not imported for it."""

from collections.abc import Callable

import click

DEBUG = "--debug"
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
