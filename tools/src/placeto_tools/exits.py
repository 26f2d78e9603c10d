"""The end of the command: its exit code, and the line of an error."""

import click

from placeto import errors


def exit_code(error: BaseException) -> int:
    """Return 2 for wrong input, 130 after Ctrl-C, and 1 for any other error."""
    if isinstance(error, click.ClickException):
        return errors.WRONG_INPUT
    return errors.STOPPED if isinstance(error, click.Abort) else errors.exit_code(error)


def one_line(error: BaseException) -> str:
    """Return what went wrong as one line of printable characters."""
    if isinstance(error, click.ClickException):
        return errors.printable(" ".join(error.format_message().split()))
    return "stopped" if isinstance(error, click.Abort) else errors.one_line(error)
