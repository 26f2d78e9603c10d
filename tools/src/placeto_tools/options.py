"""Options that several subcommands share, and the class of all subcommands.

An option is a decorator; several that make one argument of a command are `gathered`.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError, not_among
from placeto.placing.evaluators import EVALUATORS
from placeto.placing.own import EVALUATOR_PLUGINS, PLACER_PLUGINS, is_own, plugin_names
from placeto.placing.placers import PLACER_NAMES
from placeto_execution.devices import CPU, RealDevices
from placeto_graphs import LINK_NAMES, GraphError, parse_cluster

DEBUG = "--debug"
DEFAULT_DEVICES = "cpu:0,cpu:1"
PRESETS = ("default", "general", "fine-tuning", "paper")
# A comma that is not within the brackets of an argument such as widths=[1,2].
BETWEEN_PLACERS = re.compile(r",(?![^\[\]{}]*[\]}])")
Decorator = Callable[[Any], Any]


class Command(click.Command):
    """A subcommand: takes ``--debug``, which `placeto_tools.main` looks for, besides its own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.params.append(
            click.Option(
                [DEBUG], is_flag=True, expose_value=False, help="Show the traceback of an error."
            )
        )


class KeyValue(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the name and the value as texts."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not (equals and name.strip()):
            self.fail(f"expected NAME=VALUE, got {value!r}", param, ctx)
        return name.strip().replace("-", "_"), text.strip()


class NearestChoice(click.Choice[str]):
    """One of some texts; the error of another one names the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the error for another text."""
        return not_among(str(value), self.choices)


class OwnChoice(NearestChoice):
    """One of some names, a class of the user's own, or the name that a package gives to one."""

    def __init__(self, choices: Sequence[str], plugins: str) -> None:
        super().__init__(choices)
        self._plugins = plugins

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name if it may be one; nothing is imported."""
        name = str(value)
        own = name.partition(":")[0] in self.choices or is_own(name, self._plugins)
        return name if own else super().convert(name, param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the error for another text."""
        known = [*self.choices, *plugin_names(self._plugins)]
        return f"{not_among(str(value), known)}; one of your own is package.module:Class"


class PlacerNames(click.ParamType[tuple[str, ...]]):
    """``NAME,NAME,...``: placers."""

    name = "name,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names, if all are known."""
        given = value if isinstance(value, tuple) else BETWEEN_PLACERS.split(str(value))
        return tuple(PLACER_NAME.convert(name.strip(), param, ctx) for name in given)


class LinkNames(click.ParamType[str]):
    """``NAME`` or ``NAME+NAME``: links between devices, see `parse_cluster`."""

    name = "name+..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the names, if all are known."""
        try:
            parse_cluster("2x(2xv100)", link=str(value))  # devices that any of them joins
        except GraphError as error:
            self.fail(str(error), param, ctx)
        return str(value)


PLACER_NAME = OwnChoice(PLACER_NAMES, PLACER_PLUGINS)


def decorated(function: Any, decorators: Sequence[Decorator]) -> Any:
    """Return a function with several decorators, the first outermost."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def gathered(argument: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Add options whose values make one argument of the command."""
    names = inspect.signature(make).parameters

    def decorator(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def command(*args: Any, **named: Any) -> Any:
            values = {name: named.pop(name) for name in names}
            return function(*args, **{argument: make(**values)}, **named)

        return decorated(command, options)

    return decorator


def output_option(help_text: str, *, required: bool = True) -> Decorator:
    """Return the option ``-o``."""
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), required=required, help=help_text
    )


def steps_option(default: int) -> Decorator:
    """Return the option ``--steps`` of a command that measures."""
    return click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Number of measured steps; one more runs before them.",
    )


def check_force(option: str, output: object, *, force: bool) -> None:
    """Refuse ``--force`` if the option that names a file or folder is not given."""
    if force and output is None:
        raise InputError(f"--force: needs {option}")


def _devices(devices: str, threads: int) -> RealDevices:
    real = RealDevices(tuple(name.strip() for name in devices.split(",")), threads)
    for name in real.names:
        if not re.fullmatch(r"(cpu|cuda):[0-9]+", name):
            raise InputError(f"--devices: expected cpu:NUMBER or cuda:NUMBER, got {name!r}")
    if threads > 1 and CPU not in real.kinds:
        raise InputError(f"--threads: needs a CPU in --devices, got {devices}")
    return real


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, in SI units.")
evaluator_option = click.option(
    "--objective",
    type=OwnChoice(list(EVALUATORS), EVALUATOR_PLUGINS),
    metavar="NAME",
    help="Objective of placements: latency, the time of a simulated step; throughput, the time per "
    "sample of a pipeline; or your own, package.module:Class.  [default: latency; for a published "
    "graph that of its paper]",
)
trace_option = click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Trace of a step to write, for Perfetto or chrome://tracing: .json or .json.gz.  "
    "[default: none]",
)
force_option = click.option("--force", is_flag=True, help="Overwrite existing output.")
seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of every random choice.",
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of trials that run at once, each on one core.",
)
preset_option = click.option(
    "--preset",
    "preset_name",
    type=NearestChoice(PRESETS),
    help="Hyperparameters: default, the best measured; general, for any number and kind of "
    "devices; fine-tuning, for further training of a policy; paper, those of the paper.  "
    f"[default: {PRESETS[0]}]",
)
link_option = click.option(
    "--link",
    type=LinkNames(),
    help="Links inside a machine and between machines such as 2x(4xv100), with a + between the "
    f"two: {', '.join(LINK_NAMES)}.  [default: bus+ethernet-10g]",
)
devices_options = gathered(
    "devices",
    _devices,
    click.option(
        "--devices",
        default=DEFAULT_DEVICES,
        show_default=True,
        metavar="NAME,NAME,...",
        help="Devices of this machine: cpu:NUMBER, a process on that core, or cuda:NUMBER.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of threads of an op on a CPU.",
    ),
)
