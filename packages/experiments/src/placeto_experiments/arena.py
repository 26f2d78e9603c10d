"""``placeto experiment arena``: every placer on the graphs that others published, and on ours."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from placeto.errors import InputError
from placeto.outputs import file_name
from placeto.placing.evaluators import evaluator_spec
from placeto.placing.placers import PLACER_NAMES, PlacerSpec, placer_spec
from placeto.placing.watching import Limits
from placeto.problems.making import kinds_text, make_problem, read_cluster, read_problem
from placeto.problems.options import ProblemOptions
from placeto.problems.sources import JSON_SUFFIXES, load_source
from placeto.texts import TextTable
from placeto.trials.comparing import (
    Case,
    Comparison,
    chosen_budgets,
    comparison_page,
    told_apart,
)
from placeto.trials.comparison import MEDIANS, ProblemReport, profile_table, profiles
from placeto.trials.trials import Experiment, News, Page, Results, Trial
from placeto_experiments.options import run_experiment
from placeto_experiments.tables import OF_FAMILIES, OF_TABLE_1
from placeto_graphs import GraphError
from placeto_tools.options import Command, PlacerNames, force_option, jobs_option, output_option
from placeto_tools.plots.curves import comparison_figure

NUM_GPUS = 4  # of a file that does not say its devices
SUFFIXES = (*JSON_SUFFIXES, ".txt")
STEP = "step"


@click.command("arena", cls=Command)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path))
@click.option(
    "--placers",
    type=PlacerNames(),
    multiple=True,
    metavar="NAME,...",
    help="Placers, as of `placeto compare`.  [default: all]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="CPU seconds after which each placer is stopped.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of seeds of each placer that draws at random.",
)
@click.option(
    "--models/--no-models",
    default=True,
    show_default=True,
    help="Also the models of table 1 and nine graphs of families that no policy is trained on.",
)
@jobs_option
@output_option("The folder of the experiment: a new one, or one that goes on.")
@force_option
def run_arena(
    files: tuple[Path, ...],
    placers: tuple[tuple[str, ...], ...],
    seconds: float,
    seeds: int,
    *,
    models: bool,
    jobs: int,
    output: Path,
    force: bool,
) -> None:
    """Compare placers on published graphs, each with the objective of its paper.

    FILES are profiles of PipeDream, inputs of dnn-partitioning, graphs of DOPPLER and problem
    files. Of a FOLDER all of these take part. Profiles are placed on four GPUs.

    \b
    placeto experiment arena profiles dnn-partitioning doppler -o results/arena --jobs 2
    """
    names = [name for some in placers for name in some] or PLACER_NAMES
    experiment = arena(files, {name: placer_spec(name) for name in names}, seeds, seconds, models)
    run_experiment(experiment, output, jobs=jobs, force=force)


def arena(
    files: Sequence[Path],
    schemes: Mapping[str, PlacerSpec],
    num_seeds: int,
    seconds: float,
    with_models: bool = True,
) -> Experiment:
    """Return the experiment: every placer on every problem, by the objective of each problem.

    Raises
    ------
    InputError
        When there is no problem, a file that was named is none, or a placer of a user's own cannot
        be made.
    """
    found: list[tuple[str, Case]] = []  # with the evaluator of each
    left_out: list[str] = []
    for path, is_named in _files(files).items():
        try:
            found.append(_case_of_file(path, {case.name for _, case in found}))
        except (GraphError, InputError) as error:
            if is_named:
                raise
            left_out.append(str(error).replace(str(path), path.name))
    if with_models:
        found += [(STEP, _case_of_model(name)) for name in (*OF_TABLE_1, *OF_FAMILIES)]
    if not found:
        raise InputError("arena: expected a file of a graph, got none")
    evaluators, all_cases = zip(*found, strict=True)
    cases: dict[str, list[Case]] = {}  # by evaluator
    for evaluator, case in zip(evaluators, told_apart(all_cases), strict=True):
        cases.setdefault(evaluator, []).append(case)
    comparisons = [
        Comparison(
            some,
            schemes,
            range(num_seeds),
            chosen_budgets(schemes, seconds=seconds),
            evaluator=evaluator_spec(evaluator),
            limits=Limits(seconds=seconds),
        )
        for evaluator, some in cases.items()
    ]
    comparisons[0].try_own()
    comparison_of = {case.name: one for one in comparisons for case in one.cases}

    def news(results: Results, trial: Trial) -> News:
        return comparison_of[trial.name.split("/")[1]].news(results, trial)

    return Experiment(
        name="arena",
        title="Arena",
        options={"seconds": seconds, "problems": list(comparison_of), "left out": left_out},
        problems={name: make for one in comparisons for name, make in one.problems.items()},
        trials=[trial for one in comparisons for trial in one.trials],
        page=lambda results: _page(comparisons, results, seconds),
        news=news,
    )


def _files(given: Sequence[Path]) -> dict[Path, bool]:
    """Return files, each once, and whether it was named, or is one of a folder alone."""
    found: dict[Path, tuple[Path, bool]] = {}  # by where it is
    for path in given:
        is_named = not path.is_dir()
        files = [path] if is_named else sorted(path.iterdir())
        for file in files:
            if is_named or file.name.endswith(SUFFIXES):
                first, was_named = found.get(file.resolve(), (file, False))
                found[file.resolve()] = first, was_named or is_named
    return dict(found.values())


def _case_of_file(path: Path, taken: Collection[str]) -> tuple[str, Case]:
    source = load_source(str(path))
    devices = None if source.problem else read_cluster(f"{NUM_GPUS}x{source.kind}")
    problem = make_problem(source, devices)
    name = file_name(f"{path.resolve().parent.name}-{source.name}", taken)
    cluster = kinds_text(problem.cluster)
    return source.evaluator, Case(source.name, cluster, name, lambda: problem, str(path))


def _case_of_model(name: str) -> Case:
    source, _, cluster = name.rpartition("/")
    options = ProblemOptions(cluster=cluster)
    return Case(source, cluster, file_name(name), lambda: read_problem(source, options))


def _page(comparisons: Sequence[Comparison], results: Results, seconds: float) -> Page:
    reports = {name: it for one in comparisons for name, it in one.reports(results).items()}
    problems = list(reports.values())
    parts = [
        f"Each placer has {seconds:g} CPU seconds on one core, and ends earlier if it has nothing "
        "left to do. A problem is priced by the objective of those who published it: "
        f"{_objectives(comparisons)}.",
        profile_table(profiles(problems)).markdown(),
        MEDIANS,
        _seconds_table(problems).markdown(),
    ]
    return comparison_page(parts, reports, comparison_figure)


def _objectives(comparisons: Sequence[Comparison]) -> str:
    return ", ".join(
        f"{one.evaluator.objective} ({one.evaluator.name}) of {len(one.cases)}"
        for one in comparisons
    )


def _seconds_table(problems: Sequence[ProblemReport]) -> TextTable:
    """Return what placers take, over all their runs."""
    taken: dict[str, list[float]] = {}
    for scheme in (scheme for problem in problems for scheme in problem.schemes):
        taken.setdefault(scheme.title, []).extend(run.seconds for run in scheme.runs)
    rows = [
        [title, f"{len(runs)}", f"{np.median(runs):.2f}", f"{max(runs):.2f}"]
        for title, runs in taken.items()
        if runs
    ]
    return TextTable(
        "CPU seconds of the runs of each placer", ["placer", ">runs", ">median", ">most"], rows
    )
