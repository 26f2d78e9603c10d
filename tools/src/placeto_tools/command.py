"""The ``placeto`` command line."""

import click

from placeto_tools import __version__


@click.group()
@click.version_option(__version__, prog_name="placeto", message="%(prog)s %(version)s")
def placeto() -> None:
    """Place the operations of a neural network on several devices."""


if __name__ == "__main__":
    placeto(prog_name="placeto")
