"""Options that experiments have in common; each experiment has those that change it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError
from placeto.texts import counted
from placeto.training.settings import changed_fields, parse_settings
from placeto.trials.folder import PAGE, TRIALS, experiment_folder
from placeto.trials.running import conduct
from placeto.trials.trials import Experiment
from placeto_baselines import RnnSettings
from placeto_experiments.paper.plan import SCALE_NAMES, SCALES, Plan
from placeto_tools.options import (
    Decorator,
    KeyValue,
    NearestChoice,
    decorated,
    force_option,
    jobs_option,
    link_option,
    output_option,
    preset_option,
)
from placeto_tools.progress import showing_progress

Pairs = tuple[tuple[str, str], ...]
DEFAULT_GPUS = 2
FOLDER_HELP = "Folder of the experiment: a new one, or one to resume."
NUMBERS = {  # options of the numbers of a scale, and their help
    "seeds": ("--seeds", "Number of seeds of everything that draws at random."),
    "graphs": ("--graphs", "Number of graphs, or orders of one, to train a policy on."),
    "test_graphs": ("--test-graphs", "Number of other graphs, or orders, to test it on."),
    "granularities": (
        "--granularities",
        "Number of granularities of each graph to train a policy on, with more and fewer groups.",
    ),
    "updates": ("--updates", "Number of updates of each policy that is trained beforehand."),
    "evaluations": ("--evaluations", "Number of evaluations of each search on one graph."),
    "rnn_evaluations": (
        "--rnn-evaluations",
        "Number of evaluations of each graph to train an RNN.",
    ),
    "num_groups": ("--groups", "Number of groups of each graph."),
}


@dataclass(frozen=True)
class Run:
    """Runs an experiment with the options of the user."""

    plan: Plan  # for the page
    output: Path
    jobs: int  # number of trials that run at once
    force: bool  # whether another content of the folder is overwritten
    options: str  # options that repeat the experiment, but for folder and jobs

    def __call__(self, chosen: Experiment, *arguments: str) -> None:
        """Run the trials that are left; ``arguments`` are those of the subcommand."""
        command = " ".join(["placeto experiment", chosen.name, *arguments, self.options])
        options = {**chosen.options, **self.plan.described()}
        experiment = replace(chosen, options=options, command=command)
        run_experiment(experiment, self.output, jobs=self.jobs, force=self.force)


def run_experiment(experiment: Experiment, output: Path, *, jobs: int, force: bool) -> None:
    """Run the trials of an experiment that are left, in its folder."""
    with (
        experiment_folder(output, experiment, force=force) as folder,
        showing_progress() as progress,
    ):
        conduct(experiment, folder, progress, jobs=jobs)
    click.echo(
        f"{output}: {counted(len(experiment.trials), 'trial')} in {TRIALS}, results in {PAGE}"
    )


def scale_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--scale``."""
    return click.option(
        "--scale",
        "scale_name",
        type=NearestChoice(SCALE_NAMES),
        default="small",
        show_default=True,
        help="Size of the experiment: smoke, a minute; small, some hours; full, days.",
    )(function)


def experiment_options(
    name: str, *, without: Collection[str] = (), decides: str | None = None
) -> Decorator:
    """Add the options of an experiment, as the arguments ``plan`` and ``run``."""
    numbers = {
        number: shown
        for number, shown in NUMBERS.items()
        if number == "num_groups" or getattr(SCALES[name]["small"], number) is not None
    }
    decorators = [
        output_option(FOLDER_HELP),
        scale_option,
        *(
            click.option(
                option,
                number,
                type=click.IntRange(min=1),
                help=f"{help_text}  [default: of the scale]",
            )
            for number, (option, help_text) in numbers.items()
        ),
        *(add for option, add in CHOICES.items() if option not in without),
        force_option,
    ]

    def decorator(function: Callable[..., None]) -> Any:
        @wraps(function)
        def gathered(
            output: Path,
            scale_name: str,
            *,
            jobs: int = 1,
            force: bool,
            num_gpus: int = DEFAULT_GPUS,
            link: str | None = None,
            preset_name: str | None = None,
            settings: Pairs = (),
            rnn_settings: Pairs = (),
            **named: Any,
        ) -> None:
            given = {number: named.pop(number) for number in numbers}
            given = {number: value for number, value in given.items() if value is not None}
            if decides in dict(settings):
                raise InputError(f"--hparam {decides}: the experiment tries all of them")
            plan = chosen_plan(name, scale_name, given, preset_name, settings, rnn_settings)
            plan = replace(plan, num_gpus=num_gpus, link=link)
            options = [f"--scale {scale_name}"]
            options += [f"{numbers[number][0]} {value}" for number, value in given.items()]
            options += [f"--gpus {num_gpus}"] if num_gpus != DEFAULT_GPUS else []
            options += [f"--link {link}"] if link else []
            options += [f"--preset {preset_name}"] if preset_name else []
            options += [f"--hparam {key}={value}" for key, value in settings]
            options += [f"--rnn-hparam {key}={value}" for key, value in rnn_settings]
            run = Run(plan, output, jobs, force, " ".join(options))
            function(**named, plan=plan, run=run)

        return decorated(gathered, decorators)

    return decorator


def chosen_plan(
    name: str,
    scale_name: str,
    numbers: Mapping[str, int] | None = None,
    preset_name: str | None = None,
    settings: Pairs = (),
    rnn_settings: Pairs = (),
) -> Plan:
    """Return the plan of an experiment from its options, on two GPUs."""
    scale = SCALES[name][scale_name]
    if preset_name == "paper" and scale.granularities:
        scale = replace(scale, granularities=1)
    scale = replace(scale, **(numbers or {}))  # type: ignore[arg-type]
    _refuse("--hparam", settings, "updates", "--updates" if scale.updates else "--evaluations")
    _refuse("--rnn-hparam", rnn_settings, "evaluations", "--rnn-evaluations")
    rnn = RnnSettings(evaluations=scale.rnn_evaluations or RnnSettings().evaluations)
    return Plan(
        scale=scale,
        settings=changed_fields(parse_settings((), None, preset_name), settings, scale.settings),
        rnn_settings=changed_fields(rnn, rnn_settings, scale.rnn_settings, option="--rnn-hparam"),
        num_gpus=DEFAULT_GPUS,
        is_smoke=scale_name == "smoke",
    )


def _refuse(option: str, pairs: Pairs, name: str, instead: str) -> None:
    """Raise if a hyperparameter is given that is a number of the scale."""
    if name in dict(pairs):
        raise InputError(f"{option} {name}: expected {instead} instead")


CHOICES: dict[str, Decorator] = {
    "--gpus": click.option(
        "--gpus",
        "num_gpus",
        type=click.IntRange(min=1, max=1024),
        default=DEFAULT_GPUS,
        show_default=True,
        help="Number of GPUs.",
    ),
    "--link": link_option,
    "--preset": preset_option,
    "--hparam": click.option(
        "--hparam",
        "settings",
        type=KeyValue(),
        multiple=True,
        help="Hyperparameter of Placeto, such as hidden_units=64; may be repeated.",
    ),
    "--rnn-hparam": click.option(
        "--rnn-hparam",
        "rnn_settings",
        type=KeyValue(),
        multiple=True,
        help="Hyperparameter of the RNN, such as hidden_size=64; may be repeated.",
    ),
    "--jobs": jobs_option,
}
