"""How the policy in the box is made: ``python -m placeto_tools.pretraining``."""

import sys
from pathlib import Path
from typing import get_args

import click

from placeto_policy import join_processes
from placeto_policy import load_policy
from placeto_policy import load_pretrained
from placeto_tools.errors import InputError
from placeto_tools.errors import reading
from placeto_tools.pretraining import judging
from placeto_tools.pretraining.learning import learn
from placeto_tools.pretraining.searched import Budget
from placeto_tools.pretraining.searched import search_part
from placeto_tools.pretraining.searched import searched_problems
from placeto_workloads.corpus.graphs import Part

folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
variants_option = click.option(
    "--variants", type=click.IntRange(min=1), default=1, show_default=True, help="Of each graph."
)


@click.group()
def main() -> None:
    """Make a policy for every graph and cluster: search, learn from what was found, and judge."""


@main.command()
@folder_argument
@click.option("--part", type=click.Choice(get_args(Part)), required=True, help="Of the corpus.")
@variants_option
@click.option("--evaluations", type=click.IntRange(min=1), help="Of the search of each problem.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Of that search, of one core."
)
@click.option("--limit", type=click.IntRange(min=1), help="So many problems.  [default: all]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
def demonstrate(
    folder: Path,
    part: Part,
    variants: int,
    evaluations: int | None,
    seconds: float | None,
    limit: int | None,
    jobs: int,
) -> None:
    """Search problems of the corpus, and keep the placements in FOLDER.

    What is there already is left as it is.
    """
    if (evaluations is None) == (seconds is None):
        raise InputError("--evaluations, --seconds: expected one of the two")
    budget = Budget(evaluations, seconds)
    search_part(folder, part, budget, variants=variants, jobs=jobs, limit=limit, report=click.echo)


@main.command()
@folder_argument
@variants_option
@click.option("--steps", type=click.IntRange(min=1), default=12_000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def train(folder: Path, variants: int, steps: int, seed: int) -> None:
    """Learn from the placements in FOLDER, and keep the policy there.

    The same command goes on after a stop. Under torchrun, all its processes train together.
    """
    with join_processes() as processes:
        training = list(searched_problems(folder, "training", variants=variants))
        validation = list(searched_problems(folder, "validation", variants=1))
        for part, found in (("training", training), ("validation", validation)):
            if not found:
                raise InputError(f"{folder}: expected placements of the {part} part, got none")
        learn(
            folder,
            training,
            validation,
            steps=steps,
            seed=seed,
            processes=processes,
            report=_say_nothing if processes.rank else click.echo,
        )


def _say_nothing(_: str) -> None:
    """Leave it to the first process to say how far all are."""


@main.command()
@folder_argument
@click.option("--part", type=click.Choice(get_args(Part)), default="test", show_default=True)
@variants_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A policy file.  [default: the policy in the box]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def judge(folder: Path, part: Part, variants: int, policy: Path | None, seed: int) -> None:
    """Print how a policy places the problems that have a placement in FOLDER."""
    if policy is None:
        chosen = load_pretrained()
    else:
        with reading(policy):
            chosen = load_policy(policy)
    click.echo(judging.header())
    found = []
    for judged in judging.judge(chosen, searched_problems(folder, part, variants=variants), seed):
        found.append(judged)
        click.echo(judging.row(judged))
        sys.stdout.flush()
    if not found:
        raise InputError(f"{folder}: expected placements of the {part} part, got none")
    click.echo("\n" + judging.summary(found))


if __name__ == "__main__":
    main(prog_name="python -m placeto_tools.pretraining")
