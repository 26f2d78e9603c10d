"""How the bundled pretrained policy is made: ``python -m placeto_experiments.pretraining``."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import click

from placeto.errors import InputError, reading
from placeto.trials.store import content_digest
from placeto_experiments.pretraining import evaluation
from placeto_experiments.pretraining.learning import learn, weights_of
from placeto_experiments.pretraining.searched import (
    Budget,
    Searched,
    search_part,
    searched_problems,
    training_problems,
)
from placeto_experiments.problem_set.problems import Part
from placeto_policy import (
    Imitation,
    PlacementPolicy,
    Reinforcement,
    ReinforcementSettings,
    join_processes,
    load_policy,
    load_pretrained,
    preset,
)
from placeto_policy import demonstrate as demonstration_of
from placeto_simulator import Simulator
from placeto_tools.main import OneLineErrors
from placeto_tools.options import seed_option

POLICY = "policy.safetensors"

folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
variants_option = click.option(
    "--variants",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Problems of each graph.",
)


def steps_option(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return ``--steps``."""
    return click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Steps of Adam.",
    )


@click.group(cls=OneLineErrors)
def main() -> None:
    """Make a policy for every graph and cluster: search, learn from it, and evaluate."""


@main.command()
@folder_argument
@click.option(
    "--part", type=click.Choice(get_args(Part)), required=True, help="Part of the problem set."
)
@variants_option
@click.option(
    "--evaluations", type=click.IntRange(min=1), help="Evaluations of the search of each problem."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="CPU seconds of that search, on one core.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Number of problems.  [default: all]")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
def demonstrate(
    folder: Path,
    part: Part,
    variants: int,
    evaluations: int | None,
    seconds: float | None,
    limit: int | None,
    jobs: int,
) -> None:
    """Search problems of the problem set, and keep the placements in FOLDER.

    What is there already is left as it is.
    """
    if (evaluations is None) == (seconds is None):
        raise InputError("--evaluations, --seconds: expected one of the two")
    budget = Budget(evaluations, seconds)
    search_part(folder, part, budget, variants=variants, jobs=jobs, limit=limit, report=click.echo)


@main.command()
@folder_argument
@variants_option
@steps_option(4_000)
@seed_option
def imitate(folder: Path, variants: int, steps: int, seed: int) -> None:
    """Learn from the placements in FOLDER, and keep the policy there.

    The same command resumes after a stop. Under torchrun, all its processes train together.
    """
    with join_processes() as processes:
        training = _found(folder, "training", variants)
        validation = _found(folder, "validation", 1)
        run = Imitation(
            PlacementPolicy(settings=preset("general"), seed=seed),
            [demonstration_of(_simulator(each), each.placement) for each in training],
            weights=weights_of([each.name for each in training]),
            steps=steps,
            seed=seed,
            processes=processes,
        )
        report = _say_nothing if processes.rank else click.echo
        learned = [(each.name, each.problem.compute_time, each.placement) for each in training]
        described = f"{_told(learned)}, {steps} steps, seed {seed}"
        checkpoint = folder / "imitation.safetensors"
        learn(run, checkpoint, folder / POLICY, validation, described, report=report)


@main.command()
@folder_argument
@variants_option
@click.option(
    "--random-graphs",
    type=click.IntRange(min=1),
    help="Graphs of each random shape.  [default: all]",
)
@steps_option(3_000)
@click.option(
    "--graphs",
    type=click.IntRange(min=1),
    default=ReinforcementSettings().graphs,
    show_default=True,
    help="Graphs from which a step learns.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=ReinforcementSettings().learning_rate,
    show_default=True,
    help="Learning rate of Adam in the first step.",
)
@click.option(
    "--policy",
    "start",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The policy file to begin with.  [default: what `imitate` left in FOLDER]",
)
@seed_option
def reinforce(
    folder: Path,
    variants: int,
    random_graphs: int | None,
    steps: int,
    graphs: int,
    learning_rate: float,
    start: Path | None,
    seed: int,
) -> None:
    """Let a policy learn from rollouts of its own, and keep the best one in FOLDER.

    It needs the placements of the validation part there, to choose by. The same command resumes
    after a stop. Under torchrun, all its processes train together.
    """
    with join_processes() as processes:
        report = _say_nothing if processes.rank else click.echo
        validation = _found(folder, "validation", 1)
        begun = start or folder / POLICY
        with reading(begun):
            policy = load_policy(begun)
            digest = hashlib.sha256(begun.read_bytes()).hexdigest()[:16]
        training = {
            name: Simulator(problem, num_threads=1)
            for name, problem in training_problems(variants, random_graphs, report=report)
        }
        run = Reinforcement(
            policy,
            list(training.values()),
            weights=weights_of(list(training)),
            steps=steps,
            settings=ReinforcementSettings(graphs=graphs, learning_rate=learning_rate),
            seed=seed,
            processes=processes,
        )
        learned = [(name, each.problem.compute_time) for name, each in training.items()]
        described = (
            f"{_told(learned)}, {steps} steps of {graphs} graphs, learning rate "
            f"{learning_rate:g}, seed {seed}, from {digest if start else 'imitation'}"
        )
        checkpoint = folder / "reinforcement.safetensors"
        learn(run, checkpoint, folder / POLICY, validation, described, report=report)


def _found(folder: Path, part: Part, variants: int) -> list[Searched]:
    """Return the problems of a part that were searched."""
    found = list(searched_problems(folder, part, variants=variants))
    _refuse_none(folder, part, len(found))
    return found


def _told(learned: Sequence[Any]) -> str:
    """Return how many problems a training learns from, and a digest of what they are."""
    return f"{len(learned)} problems ({content_digest(learned)[:16]})"


def _simulator(each: Searched) -> Simulator:
    return Simulator(each.problem, num_threads=1)


def _say_nothing(_: str) -> None:
    """Leave it to the first process to say how far all are."""


part_option = click.option(
    "--part", type=click.Choice(get_args(Part)), default="test", show_default=True
)
policy_option = click.option(
    "--policy",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A policy file.  [default: the bundled one]",
)


@main.command()
@folder_argument
@part_option
@variants_option
@policy_option
@seed_option
def evaluate(folder: Path, part: Part, variants: int, policy: Path | None, seed: int) -> None:
    """Print how a policy places the problems that have a placement in FOLDER."""
    chosen = _chosen(policy)
    click.echo(evaluation.header())
    found = []
    for each in evaluation.evaluate(
        chosen, searched_problems(folder, part, variants=variants), seed
    ):
        found.append(each)
        click.echo(evaluation.row(each))
        sys.stdout.flush()
    _refuse_none(folder, part, len(found))
    click.echo("\n" + evaluation.summary(found))


@main.command()
@folder_argument
@part_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=12, show_default=True, help="Number of problems."
)
@policy_option
@seed_option
def tune(folder: Path, part: Part, limit: int, policy: Path | None, seed: int) -> None:
    """Print the effect of training a policy on each of some problems in FOLDER."""
    chosen = _chosen(policy)
    click.echo(evaluation.training_header())
    problems = islice(searched_problems(folder, part, variants=1), limit)
    count = 0
    for row in evaluation.training_rows(chosen, problems, seed):
        count += 1
        click.echo(row)
        sys.stdout.flush()
    _refuse_none(folder, part, count)


def _chosen(policy: Path | None) -> PlacementPolicy:
    if policy is None:
        return load_pretrained()
    with reading(policy):
        return load_policy(policy)


def _refuse_none(folder: Path, part: Part, count: int) -> None:
    if not count:
        raise InputError(f"{folder}: expected placements of the {part} part, got none")


if __name__ == "__main__":
    main(prog_name="python -m placeto_experiments.pretraining")
