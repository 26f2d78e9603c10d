"""How the command ends: its exit code, and one line that says why."""

import click

from placeto import errors


def exit_code(error: BaseException) -> int:
    """Return 2 for what the user can mend by other input, 130 after Ctrl-C, else 1."""
    if isinstance(error, click.ClickException):
        return errors.WRONG_INPUT
    return errors.STOPPED if isinstance(error, click.Abort) else errors.exit_code(error)


def one_line(error: BaseException) -> str:
    """Return what went wrong as one line of printable characters."""
    if isinstance(error, click.ClickException):
        return errors.printable(" ".join(error.format_message().split()))
    return "stopped" if isinstance(error, click.Abort) else errors.one_line(error)
