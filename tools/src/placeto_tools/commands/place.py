"""``placeto place``."""

from pathlib import Path
from typing import Any

import click

from placeto.errors import InputError, writing
from placeto.outputs import check_file
from placeto.placing.placements import (
    run_placer,
    search,
    search_from,
    search_from_policy,
    search_problem,
)
from placeto.placing.placers import PLACER_NAMES, SCHEMES, make_placer
from placeto.problems.making import read_problem
from placeto.problems.options import ProblemOptions
from placeto.texts import bytes_text, seconds_text
from placeto.training.run_folder import read_policy
from placeto_baselines import MultilevelSearch
from placeto_graphs import PlacementProblem, PlacementResult, Placer, save_placement
from placeto_tools.options import (
    Command,
    NearestChoice,
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
DEFAULT_SWEEPS = 10  # most placements are left by fewer; a sweep is worth more than a sample


@click.command(cls=Command)
@click.argument("problem")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="How long the search from coarse to fine takes, without --placer; with --policy, it goes "
    f"on from there.  [default: {DEFAULT_SECONDS:g}, or as long as --budget lasts, without "
    "--policy]",
)
@click.option("--placer", type=NearestChoice(PLACER_NAMES), help="Which other scheme places.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="A folder of `placeto train`, or a policy file: that policy places, as it is.",
)
@click.option(
    "--start",
    type=NearestChoice(STARTS),
    help="Whether the search starts from a placement of the policy that comes with Placeto, or "
    f"from nothing.  [default: {STARTS[0]}]",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    help="How many placements a search samples; with --policy, how many its further training does.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    help="With --policy: placements that it draws besides its most probable one, of which the best "
    "is taken; by default none.",
)
@click.option(
    "--sweeps",
    type=click.IntRange(min=0),
    help="With --policy: how often, at most, all groups are then moved to where that costs least, "
    f"one after the other, while it helps; by default {DEFAULT_SWEEPS}, and none with --seconds.",
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
    budget: int | None,
    samples: int | None,
    sweeps: int | None,
    asked: ProblemOptions,
    seed: int,
    output: Path,
    as_json: bool,
    force: bool,
) -> None:
    """Place a problem as well as some seconds allow, with one scheme, or with a trained policy.

    Without --placer and --policy that is a policy that was trained once for all graphs and
    clusters, and then a search from coarse groups to fine ones, which shows the best so far, keeps
    it at Ctrl-C, and says how far the lower bound is. Its placement is one of more groups than the
    problem has, unless --groups says how many: `placeto simulate` knows its level by its names.

    PROBLEM is a problem file or any other SOURCE of `placeto build`, with its options. A placement
    of any but a problem file needs the same options again, wherever it is used.

    \b
    placeto place problem.json.gz --seconds 10 -o placement.json
    placeto place problem.json.gz --placer local-search --budget 5000 -o placement.json
    placeto place problem.json.gz --policy run -o placement.json
    placeto place problem.json.gz --policy run --seconds 5 -o placement.json
    """
    if placer is not None and policy is not None:
        raise InputError("--policy: expected no --placer beside it")
    if seconds is not None and placer is not None:
        raise InputError("--seconds: expected no --placer beside it")
    if start is not None and (placer is not None or policy is not None):
        raise InputError("--start: expected no --placer or --policy beside it")
    if budget is not None and placer is not None and SCHEMES[placer].budget is None:
        searching = ", ".join(name for name, scheme in SCHEMES.items() if scheme.budget)
        raise InputError(f"--budget: expected --placer to be one of {searching}, got {placer!r}")
    if seed and placer is not None and not SCHEMES[placer].random:
        raise InputError(f"--seed: expected none beside --placer {placer}, which draws nothing")
    for option, value in (("--samples", samples), ("--sweeps", sweeps)):
        if value is not None and policy is None:
            raise InputError(f"{option}: expected --policy beside it")
    check_file(output, force=force, suffixes=(".json",))
    read = read_problem(problem, asked)
    bound = None
    if placer is None and policy is None:
        name = (
            MultilevelSearch.name if start == "nothing" else f"pretrained, {MultilevelSearch.name}"
        )
        if seconds is None and budget is None:
            seconds = DEFAULT_SECONDS
        if not asked.grouping.fixes_how_many:
            read = search_problem(read)
        find = search if start == "nothing" else search_from_policy
        with showing_progress() as progress:
            result, bound = find(read, progress, seconds=seconds, evaluations=budget, seed=seed)
    else:
        if sweeps is None:
            sweeps = DEFAULT_SWEEPS if seconds is None else 0
        chosen, total = _chosen(read, placer, policy, budget, samples, sweeps)
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
        verdict = "" if report["fits"] else ", out of memory"
        peaks = ", ".join(bytes_text(peak) for peak in report["peak_memory"])
        click.echo(
            f"{output}: {name}, {seconds_text(result.runtime)}{verdict}; peak memory "
            f"{peaks}; {result.evaluations:,} placements sampled in {result.seconds:.1f} s"
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
    budget: int | None,
    samples: int | None,
    sweeps: int,
) -> tuple[Placer, int | None]:
    """Return the placer, and how many placements it may sample, if that is known."""
    if placer is not None:
        return make_placer(placer, problem, budget), budget or SCHEMES[placer].budget
    assert policy is not None  # noqa: S101 (one of them is given)
    from placeto_policy import PlacetoPlacer  # noqa: PLC0415 (torch takes seconds to import)

    learned = PlacetoPlacer(
        policy=read_policy(policy),
        training_evaluations=budget or 0,
        samples=samples or 0,
        sweeps=sweeps,
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
