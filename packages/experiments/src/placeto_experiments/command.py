"""``placeto experiment``: each experiment has the options that change it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError
from placeto.progress import clock
from placeto.texts import counted
from placeto.trials.folder import PAGE, TRIALS, experiment_folder
from placeto.trials.running import conduct
from placeto.trials.trials import Experiment
from placeto_experiments.paper.architectures import architectures
from placeto_experiments.paper.generalise import generalise
from placeto_experiments.paper.plan import (
    NUMBER_OF_GPUS,
    NUMBERS,
    SCALE_NAMES,
    Plan,
    chosen_plan,
    numbers_of,
)
from placeto_experiments.paper.rewards import rewards
from placeto_experiments.paper.table1 import seconds_of_trainings, table1
from placeto_experiments.paper.traversal import traversal
from placeto_tools.groups import Group
from placeto_tools.options import (
    KEY_VALUE,
    PLACER_NAME,
    Command,
    Decorator,
    NearestChoice,
    decorated,
    force_option,
    jobs_option,
    link_option,
    number_option,
    output_option,
    preset_option,
)
from placeto_tools.screen import showing_progress

FAMILIES = ("nmt", "ptb", "cifar10")  # of the paper; see `placeto_workloads.family_names`
ALL_FAMILIES = (*FAMILIES, "ptb-enas", "cifar10-enas")
# Parameters of `chosen_plan`; others are arguments of the experiments.
PLAN_PARAMETERS = {
    *(*NUMBERS, "scale", "preset_name", "settings", "paper_settings", "rnn_settings"),
    *("num_gpus", "link"),
}

scale_option = click.option(
    "--scale",
    type=NearestChoice(SCALE_NAMES),
    default="small",
    help="Size of the experiment: smoke, a minute; small, some hours; full, days.",
)
CHOICES: Mapping[str, Decorator] = {
    "--gpus": number_option(
        "--gpus",
        "num_gpus",
        maximum=1024,
        help=f"Number of GPUs.  [default: {NUMBER_OF_GPUS}]",
    ),
    "--link": link_option,
    "--preset": preset_option,
    "--hparam": click.option(
        "--hparam",
        "settings",
        type=KEY_VALUE,
        multiple=True,
        help="Hyperparameter of Placeto, such as hidden_units=64; may be repeated.",
    ),
    "--paper-hparam": click.option(
        "--paper-hparam",
        "paper_settings",
        type=KEY_VALUE,
        multiple=True,
        help="Hyperparameter of the paper configuration, such as entropy_control=target; may be "
        "repeated.",
    ),
    "--rnn-hparam": click.option(
        "--rnn-hparam",
        "rnn_settings",
        type=KEY_VALUE,
        multiple=True,
        help="Hyperparameter of the RNN, such as hidden_size=64; may be repeated.",
    ),
    "--jobs": jobs_option,
}


def experiment_options(name: str, *, without: Collection[str] = ()) -> Decorator:
    """Add the options of an experiment, and run what the function returns for their plan."""
    defaults = numbers_of(name, "small")
    decorators = [
        output_option("Folder of the experiment: a new one, or one to resume."),
        scale_option,
        *(
            number_option(
                f"--{field.replace('_', '-')}", help=f"{help_text}  [default: of the scale]"
            )
            for field, help_text in NUMBERS.items()
            if defaults[field] or field == "groups"
        ),
        *(add for option, add in CHOICES.items() if option not in without),
        force_option,
    ]

    def decorator(function: Callable[..., Experiment]) -> Any:
        @wraps(function)
        def run(output: Path, *, force: bool, jobs: int, **values: Any) -> None:
            plan_values = {key: values.pop(key) for key in values.keys() & PLAN_PARAMETERS}
            plan = chosen_plan(name, **plan_values)
            planned = function(**values, plan=plan)
            options = {**planned.options, **plan.described()}
            command = _repeating(click.get_current_context())
            planned = replace(planned, options=options, command=command)
            run_experiment(planned, output, jobs=jobs, force=force)

        return decorated(run, decorators)

    return decorator


def _repeating(context: click.Context) -> str:
    """Return the command of an experiment, but for its folder and jobs."""
    words = [f"placeto experiment {context.command.name}"]
    for param in context.command.params:
        value = context.params.get(param.name or "")
        flags = [param.opts[-1]] if isinstance(param, click.Option) else []
        # The scale is always named: without it one would not see how long the command takes.
        is_usual = flags and param.name != "scale" and value == param.get_default(context)
        if value is None or is_usual or param.name in {"output", "jobs", "force"}:
            continue
        for item in value if isinstance(value, tuple) else [value]:
            words += [*flags, "=".join(item) if isinstance(item, tuple) else str(item)]
    return " ".join(words)


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


@click.group(cls=Group)
def experiment() -> None:
    """Run experiments of the paper, each in a folder.

    The folder has tables, figures and all finished trials. If you interrupt an experiment, run the
    same command again to resume.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --scale smoke
    placeto experiment table1 -o results/table1 --jobs 2
    """


@experiment.command("generalise", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES), required=False, metavar="[FAMILY]")
@click.option(
    "--graphs",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder of your own problem and graph files, instead of FAMILY. Every third is for test.  "
    "[default: FAMILY]",
)
@experiment_options("generalise")
def run_generalise(family: str | None, folder: Path | None, plan: Plan) -> Experiment:
    """Place unseen graphs of FAMILY with a trained policy.

    The policy is trained on other graphs. By default on two K80s, at the scale small. FAMILY is
    nmt, ptb or cifar10; ptb-enas and cifar10-enas have the architectures of a controller.

    The other placers are policies trained on each graph, the RNN, random placements, a single GPU,
    Scotch and searches. The page has their ratios to a lower bound, too.

    \b
    placeto experiment generalise nmt -o results/generalise-nmt --jobs 2
    placeto experiment generalise --graphs graphs -o results/generalise-graphs --scale smoke
    """
    if (family is None) == (folder is None):
        raise InputError("generalise: expected FAMILY, or --graphs FOLDER")
    return generalise(family or str(folder), plan, folder)


@experiment.command("traversal", cls=Command)
@click.argument("source", metavar="[MODEL]", default="inception-v3")
@experiment_options("traversal")
def run_traversal(source: str, plan: Plan) -> Experiment:
    """Place MODEL in unseen orders of visiting its groups.

    The policies are trained on other random orders.

    MODEL is a model of `placeto build`, by default inception-v3.

    \b
    placeto experiment traversal inception-v3 -o results/traversal
    """
    return traversal(source, plan)


@experiment.command("architectures", cls=Command)
@click.argument("family", type=NearestChoice(ALL_FAMILIES), default="nmt")
@experiment_options("architectures", without=["--rnn-hparam"])
def run_architectures(family: str, plan: Plan) -> Experiment:
    """Compare graph embeddings on unseen graphs of FAMILY.

    By default on nmt. The full embedding and two simpler ones are compared in two configurations.

    \b
    placeto experiment architectures nmt -o results/architectures
    """
    return architectures(family, plan)


@experiment.command("rewards", cls=Command)
@click.argument("source", metavar="[MODEL]", default="nmt:0")
@experiment_options("rewards", without=["--rnn-hparam"])
def run_rewards(source: str, plan: Plan) -> Experiment:
    """Compare intermediate with terminal rewards on MODEL.

    MODEL is a model of `placeto build`, by default nmt:0, the first graph of the family nmt.

    \b
    placeto experiment rewards nmt:0 -o results/rewards --seeds 5
    """
    return rewards(source, plan)


@experiment.command("table1", cls=Command)
@click.option(
    "--own-placer",
    "own_placers",
    type=PLACER_NAME,
    multiple=True,
    metavar="NAME",
    help="Placer of your own beside the others, package.module:Class; may be repeated.",
)
@experiment_options("table1", without=["--gpus"])
def run_table1(own_placers: tuple[str, ...], plan: Plan) -> Experiment:
    """Place the models of the paper's table 1 with every placer.

    The models are Inception-V3, NMT and NASNet in the paper's sizes, on two and four K80s. A first
    line says about how long the trainings take.

    \b
    placeto experiment table1 -o results/table1 --jobs 2
    """
    seconds = seconds_of_trainings(plan)
    click.echo(f"trainings of about {clock(seconds)} (h:mm:ss) over --jobs cores", err=True)
    return table1(plan, own_placers)


# By the name of their folder: the command of each experiment, and its arguments. Those whose
# numbers are the most wanted run first.
EVERYTHING: Mapping[str, tuple[click.Command, Mapping[str, object]]] = {
    "table1": (run_table1, {}),
    **{
        f"generalise-{family}": (run_generalise, {"family": family, "folder": None})
        for family in FAMILIES
    },
    "traversal": (run_traversal, {}),
    "architectures": (run_architectures, {}),
    "rewards": (run_rewards, {}),
}


@experiment.command("all", cls=Command)
@click.argument("names", nargs=-1, type=NearestChoice(tuple(EVERYTHING)), metavar="[NAME]...")
@output_option("Folder with a folder for each experiment.")
@scale_option
@jobs_option
@force_option
@click.pass_context
def run_all(
    context: click.Context,
    names: tuple[str, ...],
    output: Path,
    scale: str,
    jobs: int,
    force: bool,
) -> None:
    """Run the experiments of the paper one after the other.

    By default all NAMES run: table1, generalise-nmt, generalise-ptb, generalise-cifar10, traversal,
    architectures and rewards. An experiment that fails ends the command; run it again to resume.

    \b
    placeto experiment all -o results --jobs 2
    placeto experiment all table1 rewards -o results --scale smoke
    """
    chosen = [name for name in EVERYTHING if name in names or not names]
    for position, name in enumerate(chosen, start=1):
        command, arguments = EVERYTHING[name]
        click.echo(f"{position} of {len(chosen)}: {name}", err=True)
        context.invoke(
            command,
            **arguments,
            output=output / name,
            scale=scale,
            jobs=jobs,
            force=force,
        )
