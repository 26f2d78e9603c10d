"""``placeto experiment arena``: every placer on graphs that others published."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from os.path import realpath
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
from placeto.trials.trials import Experiment, Page, Results
from placeto_experiments.options import FOLDER_HELP, run_experiment
from placeto_experiments.tables import OF_FAMILIES, OF_TABLE_1
from placeto_graphs import GraphError
from placeto_tools.options import Command, PlacerNames, force_option, jobs_option, output_option
from placeto_tools.plots.curves import comparison_figure

NUM_GPUS = 4  # of a file without devices
SUFFIXES = (*JSON_SUFFIXES, ".txt")


@click.command("arena", cls=Command)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path))
@click.option(
    "--placers",
    type=PlacerNames(),
    multiple=True,
    metavar="NAME,...",
    help="Names of placers, as in `placeto compare`.  [default: all]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="CPU seconds of each placer.",
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
    help="Models of table 1 and nine unseen graphs of families, too.",
)
@jobs_option
@output_option(FOLDER_HELP)
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
    """Compare placers on graphs that others published.

    Each graph has the objective of its paper. By default every placer takes part, with 10 CPU
    seconds and three seeds.

    FILES are profiles of PipeDream, inputs of dnn-partitioning and problem
    files; a FOLDER stands for all of these in it. Profiles are placed on four GPUs.

    \b
    placeto experiment arena profiles dnn-partitioning doppler -o results/arena --jobs 2
    """
    names = [name for some in placers for name in some] or PLACER_NAMES
    experiment = arena(files, {name: placer_spec(name) for name in names}, seeds, seconds, models)
    run_experiment(experiment, output, jobs=jobs, force=force)


def arena(
    files: Sequence[Path],
    placers: Mapping[str, PlacerSpec],
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
    cases: list[Case] = []
    left_out: list[str] = []
    for path, is_named in _files(files).items():
        try:
            cases.append(_case_of_file(path, {case.name for case in cases}))
        except (GraphError, InputError) as error:
            if is_named:
                raise
            left_out.append(str(error).replace(str(path), path.name))
    if with_models:
        taken = {case.name for case in cases}
        cases += [_case_of_model(name, taken) for name in (*OF_TABLE_1, *OF_FAMILIES)]
    if not cases:
        raise InputError("arena: expected a file of a graph, got none")
    comparison = Comparison(
        told_apart(cases),
        placers,
        range(num_seeds),
        chosen_budgets(placers, seconds=seconds),
        limits=Limits(seconds=seconds),
    )
    comparison.try_own()
    return Experiment(
        name="arena",
        title="Arena",
        options={"seconds": seconds, "problems": list(comparison.problems), "left out": left_out},
        problems=comparison.problems,
        trials=comparison.trials,
        page=lambda results: _page(comparison, results, seconds),
        news=comparison.news,
    )


def _files(given: Sequence[Path]) -> dict[Path, bool]:
    """Return files, each once, and True if it was named itself rather than its folder."""
    found: dict[str, tuple[Path, bool]] = {}  # by where it is
    for path in given:
        is_named = not path.is_dir()
        files = [path] if is_named else sorted(path.iterdir())
        for file in files:
            if is_named or file.name.endswith(SUFFIXES):
                place = realpath(file)
                first, was_named = found.get(place, (file, False))
                found[place] = first, was_named or is_named
    return dict(found.values())


def _case_of_file(path: Path, taken: Collection[str]) -> Case:
    source = load_source(str(path))
    devices = None if source.problem else read_cluster(f"{NUM_GPUS}x{source.kind}")
    problem = make_problem(source, devices)
    name = file_name(f"{path.resolve().parent.name}-{source.name}", taken)
    return Case(
        source.name,
        kinds_text(problem.cluster),
        name,
        lambda: problem,
        step=str(path),
        evaluator=evaluator_spec(source.evaluator),
    )


def _case_of_model(name: str, taken: Collection[str]) -> Case:
    source, _, cluster = name.rpartition("/")
    options = ProblemOptions(cluster=cluster)
    return Case(source, cluster, file_name(name, taken), lambda: read_problem(source, options))


def _page(comparison: Comparison, results: Results, seconds: float) -> Page:
    reports = comparison.reports(results)
    problems = list(reports.values())
    objectives = Counter(
        f"{case.evaluator.objective} ({case.evaluator.name})" for case in comparison.cases
    )
    parts = [
        f"Each placer has {seconds:g} CPU seconds on one core; a placer without a search ends "
        "earlier. Costs are simulated, by the objective of the paper of each graph: "
        f"{', '.join(f'{objective} of {count}' for objective, count in objectives.items())}.",
        profile_table(profiles(problems)).markdown(),
        MEDIANS,
        _seconds_table(problems).markdown(),
    ]
    return comparison_page(parts, reports, comparison_figure)


def _seconds_table(problems: Sequence[ProblemReport]) -> TextTable:
    """Return the CPU seconds of placers, over all their runs."""
    taken: dict[str, list[float]] = {}
    for placer in (placer for problem in problems for placer in problem.placers):
        taken.setdefault(placer.title, []).extend(run.seconds for run in placer.runs)
    rows = [
        [title, f"{len(runs)}", f"{np.median(runs):.2f}", f"{max(runs):.2f}"]
        for title, runs in taken.items()
        if runs
    ]
    return TextTable(
        "CPU seconds of the runs of each placer", ["placer", ">runs", ">median", ">maximum"], rows
    )
