"""The ``placeto`` command line: its subcommands, and how it ends."""

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any
from typing import TextIO

import click

from placeto_tools import __version__
from placeto_tools.commands.bench import bench
from placeto_tools.commands.build import build
from placeto_tools.commands.calibrate import calibrate
from placeto_tools.commands.compare import compare
from placeto_tools.commands.diff import diff
from placeto_tools.commands.experiment import experiment
from placeto_tools.commands.explain import explain
from placeto_tools.commands.export import export
from placeto_tools.commands.inspect import inspect
from placeto_tools.commands.models import models
from placeto_tools.commands.place import place
from placeto_tools.commands.plot import plot
from placeto_tools.commands.profile import profile
from placeto_tools.commands.report import report
from placeto_tools.commands.run import run
from placeto_tools.commands.simulate import simulate
from placeto_tools.commands.train import train
from placeto_tools.errors import exit_code
from placeto_tools.errors import one_line
from placeto_tools.errors import printable
from placeto_tools.options import DEBUG


def _show_in_one_line(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 (warnings calls it with these names)
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    click.echo(f"placeto: warning: {printable(' '.join(str(message).split()))}", err=True)


class OneLineErrors(click.Group):
    """A group whose errors and warnings are one line each, with the exit codes 1 and 2."""

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
            click.echo(f"placeto: error: {one_line(error)}", err=True)
            sys.exit(exit_code(error))
        if not standalone_mode:
            return result
        sys.exit(result if isinstance(result, int) else 0)


@click.group(
    cls=OneLineErrors,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 a run failed or was stopped, 2 wrong input.",
)
@click.version_option(__version__, prog_name="placeto", message="%(prog)s %(version)s")
def placeto() -> None:
    """Place the operations of a neural network on several devices.

    \b
    placeto build inception-v3 --cluster 2xk80 -o problem.json.gz
    placeto place problem.json.gz --placer placeto -o placement.json
    placeto simulate problem.json.gz placement.json
    placeto compare inception-v3 --gpus 2 -o results
    """


COMMANDS = (
    models,
    build,
    inspect,
    place,
    simulate,
    calibrate,
    profile,
    run,
    explain,
    diff,
    export,
    report,
    train,
    compare,
    experiment,
    bench,
    plot,
)
for command in COMMANDS:
    placeto.add_command(command)


if __name__ == "__main__":
    placeto(prog_name="placeto")
