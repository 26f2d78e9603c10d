"""The options that all experiments have in common, and the plan that they make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placeto.errors import InputError
from placeto.training.settings import changed_fields, parse_settings
from placeto_experiments.paper.scale import NUMBERS, SCALE_NAMES, SCALES
from placeto_tools.options import (
    KeyValue,
    NearestChoice,
    decorated,
    force_option,
    jobs_option,
    link_option,
    output_option,
    preset_option,
)

if TYPE_CHECKING:
    from placeto_experiments.paper.plan import Plan

Pairs = tuple[tuple[str, str], ...]
DEFAULT_GPUS = 2


@dataclass(frozen=True)
class ExperimentOptions:
    """What the user says about an experiment.

    Attributes
    ----------
    output : path
        The folder.
    scale_name : text
        How large it is.
    numbers : mapping
        Numbers in place of those of the scale; None for those that stay.
    num_gpus : int
        On how many GPUs graphs are placed.
    link : text or None
        What joins them.
    preset_name : text or None
        Of Placeto's hyperparameters.
    settings, rnn_settings : pairs of texts
        Other hyperparameters.
    jobs : int
        How many trials run at once.
    force : bool
        Whether the folder may hold something else.
    """

    output: Path
    scale_name: str
    numbers: Mapping[str, int | None]
    num_gpus: int
    link: str | None
    preset_name: str | None
    settings: Pairs
    rnn_settings: Pairs
    jobs: int
    force: bool

    def check_one_job(self) -> None:
        """Refuse several jobs where trials are measured on this machine.

        Raises
        ------
        InputError
            When there are several.
        """
        if self.jobs > 1:
            raise InputError(f"--jobs: expected 1, as nothing may run beside it, got {self.jobs}")

    def command(self, name: str, *arguments: str) -> str:
        """Return the command that makes the same again, but for where and with how many jobs."""
        given = [f"--scale {self.scale_name}"]
        given += [f"{NUMBERS[key][0]} {number}" for key, number in self.numbers.items() if number]
        given += [f"--gpus {self.num_gpus}"] if self.num_gpus != DEFAULT_GPUS else []
        given += [f"--link {self.link}"] if self.link else []
        given += [f"--preset {self.preset_name}"] if self.preset_name else []
        given += [f"--set {key}={value}" for key, value in self.settings]
        given += [f"--rnn-set {key}={value}" for key, value in self.rnn_settings]
        return " ".join(["placeto experiment", name, *arguments, *given])

    def plan(self, name: str) -> "Plan":
        """Return what follows for an experiment.

        Raises
        ------
        InputError
            When a number or a hyperparameter is not one that can be chosen.
        """
        from placeto_baselines import RnnSettings  # noqa: PLC0415 (torch takes seconds to import)
        from placeto_experiments.paper.plan import Plan  # noqa: PLC0415

        scale = SCALES[name][self.scale_name]
        if self.preset_name == "paper" and scale.groupings:
            scale = replace(scale, groupings=1)
        scale = scale.changed(self.numbers)
        of_preset = parse_settings((), None, self.preset_name)
        _refuse(
            "--set", self.settings, "updates", "--updates" if scale.updates else "--evaluations"
        )
        _refuse("--rnn-set", self.rnn_settings, "evaluations", "--rnn-evaluations")
        rnn = RnnSettings(evaluations=scale.rnn_evaluations or RnnSettings().evaluations)
        return Plan(
            scale=scale,
            settings=changed_fields(of_preset, self.settings, scale.settings),
            rnn_settings=changed_fields(
                rnn, self.rnn_settings, scale.rnn_settings, option="--rnn-set"
            ),
            num_gpus=self.num_gpus,
            link=self.link,
        )


def _refuse(option: str, pairs: Pairs, name: str, instead: str) -> None:
    """Raise if a hyperparameter is given that is a number of the scale."""
    if name in dict(pairs):
        raise InputError(f"{option} {name}: expected {instead} in its place")


def scale_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--scale``."""
    return click.option(
        "--scale",
        "scale_name",
        type=NearestChoice(SCALE_NAMES),
        default="small",
        show_default=True,
        help="smoke: a minute, to try it; small: some hours; full: days, for the study.",
    )(function)


def experiment_options(function: Callable[..., None]) -> Any:
    """Add the options of all experiments, as one argument ``options``."""
    decorators = [
        output_option("The folder of the experiment: a new one, or one that goes on."),
        scale_option,
        *(
            click.option(
                option,
                name,
                type=click.IntRange(min=1),
                help=f"{help_text}  [default: of the scale]",
            )
            for name, (option, help_text) in NUMBERS.items()
        ),
        click.option(
            "--gpus",
            "num_gpus",
            type=click.IntRange(min=1, max=1024),
            default=DEFAULT_GPUS,
            show_default=True,
            help="On how many GPUs; `table1` has its own.",
        ),
        link_option,
        preset_option,
        click.option(
            "--set",
            "settings",
            type=KeyValue(),
            multiple=True,
            help="A hyperparameter of Placeto, such as hidden_units=64; may be repeated.",
        ),
        click.option(
            "--rnn-set",
            "rnn_settings",
            type=KeyValue(),
            multiple=True,
            help="A hyperparameter of the RNN, such as hidden_size=64; may be repeated.",
        ),
        jobs_option,
        force_option,
    ]

    @wraps(function)
    def gathered(**named: Any) -> None:
        numbers = {name: named.pop(name) for name in NUMBERS}
        own = {field.name for field in fields(ExperimentOptions)} - {"numbers"}
        given = {name: named.pop(name) for name in own}
        function(**named, options=ExperimentOptions(numbers=numbers, **given))

    return decorated(gathered, decorators)
