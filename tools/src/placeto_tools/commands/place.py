"""``placeto place``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError, writing
from placeto.outputs import check_file
from placeto.placing.costs import overflow_text
from placeto.placing.placements import (
    run_placer,
    search,
    search_from,
    search_from_policy,
    search_problem,
)
from placeto.placing.placers import PLACERS, make_placer
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import bytes_text, seconds_text
from placeto.training.run_folder import read_policy
from placeto_baselines import MultilevelSearch
from placeto_graphs import PlacementProblem, PlacementResult, Placer, save_placement
from placeto_tools.options import (
    Command,
    NearestChoice,
    PlacerName,
    force_option,
    json_option,
    output_option,
    seed_option,
)
from placeto_tools.problem_options import problem_options
from placeto_tools.progress import showing_progress
from placeto_tools.tables import show_json

DEFAULT_SECONDS = 10.0
STARTS = ("pretrained", "nothing")
DEFAULT_REFINEMENT_ROUNDS = 10  # most placements need fewer; one gains more than a rollout


@click.command(cls=Command)
@click.argument("problem")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of the multilevel search, without --placer; with --policy, it starts from there. "
    f" [default: {DEFAULT_SECONDS:g}, or until --max-evaluations; none with --policy]",
)
@click.option("--placer", type=PlacerName(), help="Another placer.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="A folder of `placeto train`, or a policy file: that policy places, as it is.",
)
@click.option(
    "--start",
    type=NearestChoice(STARTS),
    help="Start of the search: a placement of the bundled pretrained policy, or nothing.  "
    f"[default: {STARTS[0]}]",
)
@click.option(
    "--max-evaluations",
    type=click.IntRange(min=1),
    help="Number of placements that a search evaluates at most; with --policy, that its further "
    "training does.",
)
@click.option(
    "--rollouts",
    type=click.IntRange(min=0),
    help="With --policy: number of placements that it samples with its most probable one, of which "
    "the best is taken.  [default: 0]",
)
@click.option(
    "--refinement-rounds",
    type=click.IntRange(min=0),
    help="With --policy: number of rounds, at most, in which each group then moves to where that "
    f"costs least.  [default: {DEFAULT_REFINEMENT_ROUNDS}, and 0 with --seconds]",
)
@problem_options()
@seed_option
@output_option("The placement file: .json.")
@json_option
@force_option
def place(
    problem: str,
    seconds: float | None,
    placer: str | None,
    policy: Path | None,
    start: str | None,
    max_evaluations: int | None,
    rollouts: int | None,
    refinement_rounds: int | None,
    asked: ProblemOptions,
    seed: int,
    output: Path,
    as_json: bool,
    force: bool,
) -> None:
    """Place a problem with a search, another placer, or a trained policy.

    Without --placer and --policy, the bundled pretrained policy places the problem, and a
    multilevel search starts from there. It shows the best so far, keeps it at Ctrl-C, and says how
    far the lower bound is. Its placement has more groups than the problem, unless --groups says how
    many: `placeto simulate` recognises the level by the names of the groups.

    PROBLEM is a problem file or any other SOURCE of `placeto build`, with its options. A placement
    of any but a problem file needs the same options again, wherever it is used.

    \b
    placeto place problem.json.gz --seconds 10 -o placement.json
    placeto place problem.json.gz --placer local-search --max-evaluations 5000 -o placement.json
    placeto place problem.json.gz --policy run -o placement.json
    placeto place problem.json.gz --policy run --seconds 5 -o placement.json
    """
    if placer is not None and policy is not None:
        raise InputError("--policy: expected no --placer beside it")
    if seconds is not None and placer is not None:
        raise InputError("--seconds: expected no --placer beside it")
    if start is not None and (placer is not None or policy is not None):
        raise InputError("--start: expected no --placer or --policy beside it")
    if max_evaluations and placer is not None and PLACERS[placer].budget is None:
        searching = ", ".join(name for name, spec in PLACERS.items() if spec.budget)
        raise InputError(
            f"--max-evaluations: expected --placer to be one of {searching}, got {placer!r}"
        )
    if seed and placer is not None and not PLACERS[placer].random:
        raise InputError(f"--seed: expected none beside --placer {placer}, which draws nothing")
    for option, value in (("--rollouts", rollouts), ("--refinement-rounds", refinement_rounds)):
        if value is not None and policy is None:
            raise InputError(f"{option}: expected --policy beside it")
    check_file(output, force=force, suffixes=(".json",))
    read = read_problem(problem, asked)
    bound = None
    if placer is None and policy is None:
        name = (
            MultilevelSearch.name if start == "nothing" else f"pretrained, {MultilevelSearch.name}"
        )
        if seconds is None and max_evaluations is None:
            seconds = DEFAULT_SECONDS
        if not asked.grouping.fixes_how_many:
            read = search_problem(read)
        find = search if start == "nothing" else search_from_policy
        with showing_progress() as progress:
            result, bound = find(
                read, progress, seconds=seconds, max_evaluations=max_evaluations, seed=seed
            )
    else:
        if refinement_rounds is None:
            refinement_rounds = DEFAULT_REFINEMENT_ROUNDS if seconds is None else 0
        chosen, total = _chosen(
            read, placer, policy, max_evaluations, rollouts or 0, refinement_rounds
        )
        name = placer or chosen.name
        with showing_progress() as progress:
            result = run_placer(chosen, read, progress, seed=seed, budget=total)
            if seconds is not None:
                name = f"{name}, {MultilevelSearch.name}"
                placed = read
                if not asked.grouping.fixes_how_many:
                    read = search_problem(read)
                result, bound = search_from(
                    result, placed, read, progress, seconds=seconds, seed=seed
                )
    with writing(output):
        save_placement(result.placement, read, output)
    report = _report(name, read, result, output, bound)
    if as_json:
        show_json(report)
    else:
        overflow = overflow_text(read.cluster, result.peak_memory)
        peaks = ", ".join(bytes_text(peak) for peak in report["peak_memory"])
        click.echo(
            f"{output}: {name}, {seconds_text(result.runtime)}{overflow}; peak memory "
            f"{peaks}; {result.evaluations:,} evaluations in {result.seconds:.1f} s"
        )
        if bound is not None:
            click.echo(
                f"no placement in {read.num_groups:,} groups is faster than "
                f"{seconds_text(bound)}{_distance(result, bound)}"
            )


def _chosen(
    problem: PlacementProblem,
    placer: str | None,
    policy: Path | None,
    max_evaluations: int | None,
    rollouts: int,
    refinement_rounds: int,
) -> tuple[Placer, int | None]:
    """Return the placer, and how many placements it may evaluate, if that is known."""
    if placer is not None:
        total = max_evaluations or PLACERS[placer].budget
        return make_placer(placer, problem, max_evaluations), total
    assert policy is not None  # noqa: S101 (one of them is given)
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    learned = PlacetoPlacer(
        policy=read_policy(policy),
        training_evaluations=max_evaluations or 0,
        samples=rollouts,
        sweeps=refinement_rounds,
    )
    return learned, learned.most_evaluations(problem)


def _distance(result: PlacementResult, bound: float) -> str:
    if bound <= 0:
        return ""
    return f"; this one takes {100 * (result.runtime / bound - 1):.1f} % more"


def _report(
    name: str,
    problem: PlacementProblem,
    result: PlacementResult,
    output: Path,
    bound: float | None,
) -> dict[str, Any]:
    return {
        "output": str(output),
        "placer": name,
        "runtime": result.runtime,
        "fits": result.fits(problem.cluster),
        "peak_memory": result.peak_memory.tolist(),
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "groups": problem.num_groups,
        **({} if bound is None else {"lower_bound": bound}),
    }
