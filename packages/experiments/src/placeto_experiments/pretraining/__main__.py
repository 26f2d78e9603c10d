"""How the bundled pretrained policy is made: ``python -m placeto_experiments.pretraining``."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

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
from placeto_tools.options import Decorator, seed_option

IMITATED = "imitated.safetensors"  # the best policy of each of the two trainings
POLICY = "policy.safetensors"
Found = TypeVar("Found")


def _number(option: str, help_text: str, default: int | None = None) -> Decorator:
    """Return an option of a number of at least 1."""
    return click.option(
        option,
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        help=help_text,
    )


folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
variants_option = _number("--variants", "Problems of each graph.", 1)
PARTS = click.Choice(get_args(Part))
part_option = click.option("--part", type=PARTS, default="test", show_default=True)
POLICY_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
policy_option = click.option(
    "--policy", type=POLICY_FILE, help="Policy file.  [default: the bundled one]"
)


@click.group(cls=OneLineErrors)
def main() -> None:
    """Make a policy for every graph and cluster: search, learn from it, and evaluate."""


@main.command()
@folder_argument
@click.option("--part", type=PARTS, required=True, help="Part of the problem set.")
@variants_option
@_number("--evaluations", "Evaluations of the search of each problem.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="CPU seconds of that search, on one core.",
)
@_number("--limit", "Number of problems.  [default: all]")
@_number("--jobs", "Number of processes.", 1)
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

    Problems that have a placement there are not searched again.
    """
    if (evaluations is None) == (seconds is None):
        raise InputError("--evaluations, --seconds: expected one of the two")
    budget = Budget(evaluations, seconds)
    search_part(folder, part, budget, variants=variants, jobs=jobs, limit=limit, report=click.echo)


@main.command()
@folder_argument
@variants_option
@_number("--steps", "Steps of Adam.", 4_000)
@click.option(
    "--policy", "start", type=POLICY_FILE, help="Policy to begin with.  [default: a new one]"
)
@seed_option
def imitate(folder: Path, variants: int, steps: int, start: Path | None, seed: int) -> None:
    """Learn from the placements in FOLDER, and keep the policy there.

    The same command resumes after a stop. Under torchrun, all its processes train together.
    """
    with join_processes() as processes:
        training = _searched(folder, "training", variants)
        validation = _searched(folder, "validation", 1)
        begun = _begun(start) if start else None
        run = Imitation(
            begun.policy if begun else PlacementPolicy(settings=preset("general"), seed=seed),
            [
                demonstration_of(Simulator(each.problem, num_threads=1), each.placement)
                for each in training
            ],
            weights=weights_of([each.name for each in training]),
            steps=steps,
            seed=seed,
            processes=processes,
        )
        learned = [(each.name, each.problem.compute_time, each.placement) for each in training]
        described = f"{_told(learned)}, {steps} steps, seed {seed}"
        if begun:
            described += f", from {begun.digest}"
        files = folder / "imitation.safetensors", folder / IMITATED
        learn(run, *files, validation, described, report=_echo_of(processes.rank))


@main.command()
@folder_argument
@variants_option
@_number("--random-graphs", "Graphs of each random shape.  [default: all]")
@_number("--steps", "Steps of Adam.", 3_000)
@_number("--graphs", "Graphs from which a step learns.", ReinforcementSettings().graphs)
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
    type=POLICY_FILE,
    help="Policy file to begin with.  [default: that of `imitate` in FOLDER]",
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
        validation = _searched(folder, "validation", 1)
        begun = _begun(start or folder / IMITATED)
        training = {
            name: Simulator(problem, num_threads=1)
            for name, problem in training_problems(
                variants, random_graphs, report=_echo_of(processes.rank)
            )
        }
        run = Reinforcement(
            begun.policy,
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
            f"{learning_rate:g}, seed {seed}, from {begun.digest if start else 'imitation'}"
        )
        files = folder / "reinforcement.safetensors", folder / POLICY
        learn(run, *files, validation, described, report=_echo_of(processes.rank))


@main.command()
@folder_argument
@part_option
@variants_option
@policy_option
@seed_option
def evaluate(folder: Path, part: Part, variants: int, policy: Path | None, seed: int) -> None:
    """Print costs of a policy on the problems that have a placement in FOLDER."""
    chosen = _chosen(policy)
    click.echo(evaluation.header())
    problems = searched_problems(folder, part, variants=variants)
    found = []
    for each in _some(evaluation.evaluate(chosen, problems, seed), folder, part):
        found.append(each)
        click.echo(evaluation.row(each))
    click.echo("\n" + evaluation.summary(found))


class _Begun(NamedTuple):
    """The policy that a training begins with, and a digest of its file."""

    policy: PlacementPolicy
    digest: str


def _begun(path: Path) -> _Begun:
    with reading(path):
        return _Begun(load_policy(path), hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def _searched(folder: Path, part: Part, variants: int) -> list[Searched]:
    return list(_some(searched_problems(folder, part, variants=variants), folder, part))


def _some(found: Iterable[Found], folder: Path, part: Part) -> Iterator[Found]:
    """Yield the problems found; refuse a part of which the folder has none."""
    empty = True
    for each in found:
        empty = False
        yield each
    if empty:
        raise InputError(f"{folder}: expected placements of the {part} part, got none")


def _told(learned: Sequence[Any]) -> str:
    """Return the number of problems of a training, and a digest of them."""
    return f"{len(learned)} problems ({content_digest(learned)[:16]})"


def _echo_of(rank: int) -> Callable[[str], None]:
    """Return the function that shows progress: of the first process alone."""
    return (lambda _line: None) if rank else click.echo


def _chosen(policy: Path | None) -> PlacementPolicy:
    if policy is None:
        return load_pretrained()
    with reading(policy):
        return load_policy(policy)


if __name__ == "__main__":
    main(prog_name="python -m placeto_experiments.pretraining")
