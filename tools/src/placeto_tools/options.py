"""Options that several subcommands share, and the class of all subcommands.

An option is a decorator; several that make one argument of a command are `gathered`.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from math import isfinite
from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError
from placeto.outputs import check_file
from placeto.placing.evaluators import EVALUATORS
from placeto.placing.own import EVALUATOR_PLUGINS, PLACER_PLUGINS, is_own, plugin_names
from placeto.placing.placers import PLACER_NAMES, PLACERS, PlacerSpec
from placeto_execution.devices import CPU, RealDevices
from placeto_graphs import LINK_NAMES, parse_cluster
from placeto_graphs.errors import not_among
from placeto_tools.groups import DEBUG

FORCE = "placeto.force"  # of a context: whether an existing file may be overwritten
DEFAULT_DEVICES = "cpu:0,cpu:1"
PRESETS = ("default", "general", "fine-tuning", "paper")
# A comma that is not within the brackets of an argument such as widths=[1,2].
BETWEEN_PLACERS = re.compile(r",(?![^\[\]{}]*[\]}])")
# The placers that heed an option: without one of them it is refused.
HEEDED_BY: Mapping[str, Callable[[PlacerSpec], bool]] = {
    "max_evaluations": lambda spec: spec.searches,
    "seconds": lambda spec: spec.searches,
    "rnn_max_evaluations": lambda spec: spec == PLACERS["rnn"],
    "full": lambda spec: spec.trains,
    "seeds": lambda spec: spec.random,
    "seed": lambda spec: spec.random,
}
Decorator = Callable[[Any], Any]


class Command(click.Command):
    """A subcommand: takes ``--debug``, which `placeto_tools.main` looks for, besides its own."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.append(
            click.Option(
                [DEBUG], is_flag=True, expose_value=False, help="Show the traceback of an error."
            )
        )


class Parsed(click.ParamType[Any]):
    """What a function returns for a text; the text of its `ValueError` is the error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Positive(click.FloatRange):
    """A finite number above 0."""

    def __init__(self, maximum: float | None = None) -> None:
        super().__init__(min=0, min_open=True, max=maximum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number of a text."""
        converted = super().convert(value, param, ctx)
        return converted if isfinite(converted) else self.fail(f"{value} is not finite", param, ctx)


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
        is_allowed = name.partition(":")[0] in self.choices or is_own(name, self._plugins)
        return name if is_allowed else super().convert(name, param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the error for another text."""
        names = [*self.choices, *plugin_names(self._plugins)]
        return f"{not_among(str(value), names)}; one of your own is package.module:Class"


def _key_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"expected NAME=VALUE, got {text!r}")
    return name.strip().replace("-", "_"), value.strip()


def _placer_names(text: str) -> tuple[str, ...]:
    return tuple(PLACER_NAME(name.strip()) for name in BETWEEN_PLACERS.split(text))


def _links(text: str) -> str:
    parse_cluster("2x(2xv100)", link=text)  # devices that any of them joins
    return text


KEY_VALUE = Parsed("name=value", _key_and_value)
LINKS = Parsed("name+...", _links)
PLACER_NAME = OwnChoice(PLACER_NAMES, PLACER_PLUGINS)
PLACER_LIST = Parsed("name,...", _placer_names)


def decorated(function: Any, decorators: Sequence[Decorator]) -> Any:
    """Return a function with several decorators, the first outermost."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def gathered(argument: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Add options; ``make`` is called with their values, and returns one argument of the command.

    Its parameters have the names of the options.
    """
    names = inspect.signature(make).parameters

    def decorator(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def command(**arguments: Any) -> Any:
            values = {name: arguments.pop(name) for name in names}
            return function(**{argument: make(**values)}, **arguments)

        return decorated(command, options)

    return decorator


def output_option(
    help_text: str, *suffixes: str, names: Sequence[str] = ("-o", "--output"), required: bool = True
) -> Decorator:
    """Return the option of something to write; one with ``suffixes`` is a file, checked at once."""

    def check(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        if ctx.meta[FORCE] and path is None:
            raise InputError(f"--force: needs {names[0]}")
        if suffixes and path is not None:
            check_file(path, force=ctx.meta[FORCE], suffixes=suffixes)
        return path

    kind = click.Path(path_type=Path)
    return click.option(*names, type=kind, required=required, callback=check, help=help_text)


def check_heeded(specs: Iterable[PlacerSpec], where: str, **options: object) -> None:
    """Refuse an option of `HEEDED_BY` that was given without a placer that heeds it."""
    for name, value in options.items():
        heeds = HEEDED_BY[name]
        if value and not any(map(heeds, specs)):
            heeding = ", ".join(name for name, spec in PLACERS.items() if heeds(spec))
            raise InputError(f"--{name.replace('_', '-')}: needs one of {heeding} in {where}")


def number_option(
    *names: str, minimum: int = 1, maximum: int | None = None, **attributes: Any
) -> Decorator:
    """Return an option with a whole number in a range, ends included."""
    return click.option(*names, type=click.IntRange(minimum, maximum), **attributes)


def steps_option(default: int) -> Decorator:
    """Return the option ``--steps`` of a command that measures."""
    return number_option(
        "--steps", default=default, help="Number of measured steps; one more runs before them."
    )


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


def _note_force(ctx: click.Context, _: click.Parameter, force: bool) -> bool:
    ctx.meta[FORCE] = force
    return force


_force = partial(
    click.option,
    "--force",
    is_flag=True,
    is_eager=True,
    callback=_note_force,
    help="Overwrite existing output.",
)
# For commands with an `output_option`, which heeds it; the second one where nothing else does.
force_option = _force(expose_value=True)
overwrite_option = _force(expose_value=False)


def result_options(help_text: str, *suffixes: str) -> Decorator:
    """Return the options of a file to write, which `overwrite_option` heeds, and ``--json``."""
    options = [output_option(help_text, *suffixes), json_option, overwrite_option]
    return partial(decorated, decorators=options)


trace_option = output_option(
    "Trace of a step to write, for Perfetto or chrome://tracing: .json or .json.gz.  "
    "[default: none]",
    *(".json", ".json.gz"),
    names=("--trace",),
    required=False,
)
seed_option = number_option("--seed", minimum=0, default=0, help="Seed of every random choice.")
jobs_option = number_option(
    "--jobs", default=1, help="Number of trials that run at once, each on one core."
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
    type=LINKS,
    help="Links inside a machine and between machines such as 2x(4xv100), with a + between the "
    f"two: {', '.join(LINK_NAMES)}.  [default: bus, or nvlink between P100 or V100 GPUs; "
    "ethernet-10g]",
)
devices_options = gathered(
    "devices",
    _devices,
    click.option(
        "--devices",
        default=DEFAULT_DEVICES,
        metavar="NAME,NAME,...",
        help="Devices of this machine: cpu:NUMBER, a process on that core, or cuda:NUMBER.",
    ),
    number_option("--threads", default=1, help="Number of threads of an op on a CPU."),
)
