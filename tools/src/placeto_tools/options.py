"""Options that several subcommands share, and the class of all subcommands."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from placeto.errors import not_among
from placeto.placing.placers import PLACER_NAMES
from placeto_execution.measuring.real_devices import RealDevices
from placeto_graphs import LINK_NAMES, GraphError, parse_cluster

DEBUG = "--debug"
DEFAULT_DEVICES = "cpu:0,cpu:1"
PRESETS = ("default", "general", "fine-tuning", "paper")
Function = TypeVar("Function", bound=Callable[..., Any])
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


class KeyValues(click.ParamType[tuple[tuple[str, str], ...]]):
    """``NAME=VALUE,NAME=VALUE,...``: what is meant together."""

    name = "name=value,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, str], ...]:
        """Return the names and the values as texts."""
        if isinstance(value, tuple):
            return value
        one = KeyValue()
        return tuple(one.convert(part, param, ctx) for part in str(value).split(","))


class _SeveralNames:
    separator: ClassVar[str]
    known: ClassVar[Sequence[str]]

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return how the last name may go on."""
        before, separator, begun = incomplete.rpartition(self.separator)
        names = [name for name in self.known if name.startswith(begun)]
        return [CompletionItem(before + separator + name) for name in names]


class PlacerNames(_SeveralNames, click.ParamType[tuple[str, ...]]):
    """``NAME,NAME,...``: placers."""

    name, separator, known = "name,...", ",", PLACER_NAMES

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        for name in names:
            if name not in PLACER_NAMES:
                self.fail(not_among(name, PLACER_NAMES), param, ctx)
        return names


class NearestChoice(click.Choice[str]):
    """One of some texts; of another one the nearest is named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, if it is one of them."""
        if value not in self.choices:
            self.fail(not_among(str(value), self.choices), param, ctx)
        return str(value)


class LinkNames(_SeveralNames, click.ParamType[str]):
    """``NAME`` or ``NAME+NAME``: what joins devices, see `parse_cluster`."""

    name, separator, known = "name+...", "+", LINK_NAMES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the names, if all are known."""
        try:
            parse_cluster("2x(2xv100)", link=str(value))  # devices that any of them joins
        except GraphError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def link_option(function: Function) -> Function:
    """Add ``--link``."""
    return click.option(
        "--link",
        type=LinkNames(),
        help="What joins the devices of a machine, and machines such as 2x(4xv100): "
        f"{', '.join(LINK_NAMES)}; one of each kind by a +.  [default: bus+ethernet-10g]",
    )(function)


def json_option(function: Function) -> Function:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, in SI units.")(
        function
    )


def force_option(function: Function) -> Function:
    """Add ``--force``."""
    return click.option("--force", is_flag=True, help="Overwrite what is there.")(function)


def jobs_option(function: Function) -> Function:
    """Add ``--jobs``."""
    return click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="How many trials run at once, each on one core.",
    )(function)


def preset_option(function: Function) -> Function:
    """Add ``--preset``."""
    return click.option(
        "--preset",
        "preset_name",
        type=NearestChoice(PRESETS),
        help="Which hyperparameters: what was measured to be best, those of policies for any "
        "number and kind of devices, those for going on from one, or the paper's.  "
        f"[default: {PRESETS[0]}]",
    )(function)


def seed_option(function: Function) -> Function:
    """Add ``--seed``."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Fixes every random choice.",
    )(function)


def output_option(help_text: str, *, required: bool = True) -> Decorator:
    """Add ``-o``."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=required,
        help=help_text,
    )


def decorated(function: Any, decorators: list[Decorator]) -> Any:
    """Return a function with several decorators, the first outermost."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def devices_options(function: Callable[..., Any]) -> Any:
    """Add ``--devices`` and ``--threads`` as one argument ``devices``."""

    @wraps(function)
    def gathered(*args: Any, devices: str, threads: int, **named: Any) -> Any:
        names = tuple(part.strip() for part in devices.split(","))
        return function(*args, devices=RealDevices(names, threads), **named)

    named_devices = click.option(
        "--devices",
        default=DEFAULT_DEVICES,
        show_default=True,
        metavar="NAME,NAME,...",
        help="Devices of this machine: cpu:NUMBER, a worker on that core, or cuda:NUMBER.",
    )
    threads = click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="How many threads work on one op on each CPU.",
    )
    return named_devices(threads(gathered))
