"""``placeto compare``."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from urllib.parse import quote

import click
import numpy as np

from placeto.errors import InputError, RunError, StoppedRunError, writing
from placeto.outputs import check_folder, file_name, write_json, write_text
from placeto.placing.evaluators import (
    ONE_F_ONE_B,
    STEP_OF_STAGES,
    EvaluatorSpec,
    evaluator_spec,
)
from placeto.placing.placers import PLACER_NAMES, PLACERS, PlacerSpec, placer_spec, policy_spec
from placeto.problems.making import kinds_text, problem_of
from placeto.problems.options import GroupingOptions, ProblemOptions, SourceOptions, Target
from placeto.problems.restrictions import Restrictions
from placeto.problems.sources import Source, files_of_sources, load_source
from placeto.progress import Progress
from placeto.texts import TextTable, counted
from placeto.trials.comparison import Comparison, chosen_limits, comparison_page
from placeto.trials.folder import DESCRIPTION, PAGE, ExperimentFolder, experiment_folder
from placeto.trials.records import Problem
from placeto.trials.tables import (
    CPU,
    MEDIANS,
    RESULTS,
    ComparisonReport,
    micro_batch_tables,
    placer_table,
    profile_table,
    profiles,
    rank_table,
)
from placeto.trials.trials import Graph, Page, Results
from placeto_baselines import Limits
from placeto_graphs import GraphError, PlacementProblem, save_placement, scheduled
from placeto_tools.options import (
    PLACER_LIST,
    Command,
    Positive,
    check_heeded,
    evaluator_option,
    force_option,
    jobs_option,
    json_option,
    link_option,
    number_option,
    output_option,
)
from placeto_tools.plots.steps import comparison_figure
from placeto_tools.problem_options import (
    gpu_kind_option,
    grouping_options,
    restriction_options,
    schedule_option,
    source_options,
)
from placeto_tools.reports.page import ReportedPlacement, problem_report, report_page
from placeto_tools.screen import show, show_json, showing_progress

REPORT, LATEX = "report.html", "results.tex"
IN_FILES = ":=+,"  # characters that file names of placers keep, besides letters and digits


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="MODEL...")
@number_option(
    "--gpus", maximum=1024, multiple=True, help="Number of GPUs; may be repeated.  [default: 2]"
)
@gpu_kind_option
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="SPEC|FILE",
    help="Devices instead of --gpus: a text such as 1xcpu+2xk80, or a TOML file; may be repeated.",
)
@link_option
@click.option(
    "--placers",
    type=PLACER_LIST,
    multiple=True,
    metavar="NAME,...",
    help=f"Placers: {', '.join(PLACER_NAMES)}; or your own, package.module:Class, with arguments "
    "after colons, as in package.module:Class:depth=3.  [default: all of these names]",
)
@click.option(
    "--policy",
    "policies",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="RUN",
    help="Policy besides --placers, which places as in `placeto place --policy`: a folder of "
    "`placeto train`, or a policy file; may be repeated.  [default: none]",
)
@evaluator_option
@number_option(
    "--max-evaluations",
    help="Maximum number of evaluations of each placer.  [default: that of the placer, as in "
    "`placeto place`]",
)
@click.option(
    "--seconds",
    type=Positive(),
    help="CPU seconds of each placer, instead of evaluations. Searches use all of them; trainings "
    "keep their number of evaluations, and stop there.  [default: no limit]",
)
@number_option(
    "--rnn-max-evaluations",
    help="Maximum number of evaluations of the RNN alone, which takes longer for each.  "
    "[default: --max-evaluations, else that of the placer]",
)
@click.option(
    "--full",
    is_flag=True,
    help="Train with more evaluations, which takes much longer: "
    + ", ".join(
        f"{spec.full_evaluations:,} with {name}"
        for name, spec in PLACERS.items()
        if spec.full_evaluations
    )
    + ".",
)
@number_option(
    "--seeds", default=1, help="Number of seeds of each placer that draws random numbers."
)
@source_options
@number_option(
    "--micro-batches",
    multiple=True,
    help="Number of micro-batches of a step, as in GPipe; may be repeated. With several, a table "
    "compares them.  [default: 1]",
)
@schedule_option
@grouping_options
@restriction_options
@jobs_option
@output_option(
    "Folder to write, with results.json, results.md, results.tex, report.html, curves and "
    "placements: a new one, or one to resume.  [default: tables only]",
    required=False,
)
@json_option
@force_option
def compare(
    sources: tuple[str, ...],
    gpus: tuple[int, ...],
    gpu_kind: str | None,
    clusters: tuple[str, ...],
    link: str | None,
    placers: tuple[tuple[str, ...], ...],
    policies: tuple[Path, ...],
    objective: str | None,
    max_evaluations: int | None,
    seconds: float | None,
    rnn_max_evaluations: int | None,
    full: bool,
    seeds: int,
    choice: SourceOptions,
    micro_batches: tuple[int, ...],
    schedule: str | None,
    grouping: GroupingOptions,
    restrictions: Restrictions,
    jobs: int,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Compare placers on problems, with equal budgets.

    By default all placers run on two GPUs, with one seed. The quickest placers run first, then
    searches, then trainings, then your own placers; the table grows meanwhile. Ctrl-C stops with
    the table so far. Run the same command with the same -o folder again to resume.

    MODELS are those of `placeto build`, and folders of their files. Each has the objective of its
    kind: throughput for inputs of dnn-partitioning, else latency. CPU only has a row of its own,
    on one CPU; the other placers use the GPUs. A placer that fails is left out, and the exit code
    is 1.

    \b
    placeto compare inception-v3 --gpus 2 -o results
    placeto compare nmt-2 nmt-4 --gpus 2 --gpus 4 --seeds 3 -o results
    placeto compare nmt-2 --micro-batches 4 --micro-batches 8 --schedule 1f1b --placers expert,heft
    placeto compare profile.txt --placers expert,local-search --max-evaluations 1000
    placeto compare *.json.gz --placers heft,multilevel,my_module:MyPlacer --seeds 3 --seconds 10
    placeto compare graphs --placers single,heft,multilevel --policy run --max-evaluations 1000
    """
    clusters_with_options = _clusters_with_options(
        gpus,
        gpu_kind,
        clusters,
        ProblemOptions(link=link, grouping=grouping, restrictions=restrictions),
    )
    if full and max_evaluations:
        raise InputError("--full: excludes --max-evaluations")
    if output is not None:
        check_folder(output, DESCRIPTION, force=force)
    if seconds and (max_evaluations or rnn_max_evaluations or full):
        raise InputError("--seconds: excludes --max-evaluations, --rnn-max-evaluations and --full")
    specs = _specs([name for names in placers for name in names], policies)
    check_heeded(
        specs.values(),
        "--placers",
        max_evaluations=max_evaluations,
        seconds=seconds,
        rnn_max_evaluations=rnn_max_evaluations,
        full=full,
        seeds=seeds > 1,
    )
    with showing_progress() as progress:
        targets = list(dict.fromkeys(options.target for _, options in clusters_with_options))
        sources_by_target, left_out = _read(
            sources, choice, micro_batches or (1,), targets, progress
        )
        evaluators = {
            text: evaluator_spec(objective or by_target[targets[0]].evaluator)
            for text, by_target in sources_by_target
        }
        described, problems = _make_problems(
            sources_by_target, clusters_with_options, evaluators, schedule
        )
    limits = Limits(max_evaluations, seconds)
    comparison = Comparison(
        problems=described,
        makers={stem: partial(problems.__getitem__, stem) for stem in problems},
        placers=specs,
        seeds=range(seeds),
        limits_of_placer=chosen_limits(specs, limits, rnn_max_evaluations, full=full),
        limits=limits,
    )
    comparison.check_user_classes()
    options: dict[str, object] = {
        "problems": {
            stem: f"{counted(problem.graph.num_ops, 'op')} in "
            f"{counted(problem.num_groups, 'group')}"
            for stem, problem in problems.items()
        }
    }
    if left_out:
        options["left out"] = left_out
    report, error = _conduct(comparison, options, output, jobs=jobs, force=force)
    if as_json:
        show_json(report)
    elif report.problems:
        _show_report(comparison, report, output)
    if error:
        raise error


def _make_problems(
    sources: Sequence[tuple[str, Mapping[Target, Source]]],
    clusters_with_options: Sequence[tuple[str, ProblemOptions]],
    evaluators: Mapping[str, EvaluatorSpec],
    schedule: str | None,
) -> tuple[list[Problem], dict[str, PlacementProblem]]:
    """Return problems as tables describe them, and by their stems; evaluators are by source."""
    described: list[Problem] = []
    problems: dict[str, PlacementProblem] = {}
    first_target = clusters_with_options[0][1].target
    num_sources = Counter(by_target[first_target].name for _, by_target in sources)
    for text, by_target in sources:
        source = by_target[first_target]
        # Profiles of PipeDream are all called graph.txt.
        name = source.name if num_sources[source.name] == 1 else f"{source.name} ({text})"
        for cluster_name, options in clusters_with_options:
            problem, evaluator = _scheduled(
                problem_of(by_target[options.target], options), evaluators[text], schedule
            )
            cluster = cluster_name or kinds_text(problem.cluster)
            if options.link:
                cluster = f"{cluster} {options.link}"
            stem = file_name(f"{source.name}-{cluster}", problems)
            problems[stem] = problem
            described.append(
                Problem(
                    stem=stem,
                    source=name,
                    cluster=cluster,
                    step=text,
                    micro_batches=source.micro_batches,
                    evaluator=evaluator.name,
                    objective=evaluator.objective,
                    unit=evaluator.unit,
                )
            )
    if schedule and all(problem.graph.num_micro_batches == 1 for problem in problems.values()):
        raise InputError("--schedule: needs --micro-batches")
    return described, problems


def _scheduled(
    problem: PlacementProblem, evaluator: EvaluatorSpec, schedule: str | None
) -> tuple[PlacementProblem, EvaluatorSpec]:
    """Return a problem and its evaluator with the waits of a schedule, if it has micro-batches.

    By GPipe all placements have the same waits, which are those of the problem.
    """
    if schedule is None or problem.graph.num_micro_batches == 1:
        return problem, evaluator
    if not evaluator.simulates:
        raise InputError(f"--schedule: excludes --objective {evaluator.name}")
    if schedule == ONE_F_ONE_B:
        return problem, STEP_OF_STAGES
    anywhere = np.zeros(problem.num_groups, np.int32)
    by_schedule = replace(evaluator, objective=f"{evaluator.objective}, {schedule}")
    return scheduled(problem, schedule, anywhere), by_schedule


def _conduct(
    comparison: Comparison,
    options: Mapping[str, object],
    output: Path | None,
    *,
    jobs: int,
    force: bool,
) -> tuple[ComparisonReport, RunError | None]:
    """Run all trials in a folder, and write results if it stays; return them, and what failed."""
    experiment = comparison.experiment(options, partial(_page, comparison))
    path: AbstractContextManager[str] = (
        nullcontext(str(output)) if output else tempfile.TemporaryDirectory(prefix="placeto-")
    )
    with (
        path as folder_path,
        experiment_folder(Path(folder_path), experiment, force=force) as folder,
    ):
        with showing_progress() as progress:
            report, error = comparison.conduct(
                experiment, folder, progress, jobs=jobs, resumable=output is not None
            )
        if output:
            write_json(output / RESULTS, report)
            tables = [table.latex() for table in _tables(comparison, report.problems)]
            write_text(output / LATEX, "\n\n".join(tables) + "\n")
            stopped = isinstance(error, StoppedRunError)
            write_best(comparison, folder, page=not stopped)
    return report, error


def _show_report(comparison: Comparison, report: ComparisonReport, output: Path | None) -> None:
    """Show the tables of a comparison, and which files it wrote."""
    show(*_tables(comparison, report.problems))
    if output:
        files = ", ".join((RESULTS, PAGE, LATEX))
        click.echo(f"\n{output}: {files}, curves, problems and placements")
        if not any(evaluator.simulates for evaluator in comparison.evaluators.values()):
            names = " and ".join(comparison.evaluators)
            click.echo(f"no {REPORT}: it shows when ops run, which {names} does not say")
        elif (output / REPORT).exists():  # it was not stopped
            click.echo(output / REPORT)


def _read(
    sources: Sequence[str],
    choice: SourceOptions,
    micro_batches: Sequence[int],
    targets: Sequence[Target],
    progress: Progress,
) -> tuple[list[tuple[str, dict[Target, Source]]], list[str]]:
    """Return the sources by their texts, each file once, and errors of files of folders."""
    read: list[tuple[str, dict[Target, Source]]] = []
    left_out: list[str] = []
    for text, is_named in files_of_sources(sources):
        progress.update(f"{text}: reading or capturing its graph ...")
        try:
            for count in dict.fromkeys(micro_batches):
                load = partial(load_source, text, choice, count)
                read.append((text, {target: load(target) for target in targets}))
        except (GraphError, InputError) as error:
            if is_named:
                raise
            left_out.append(str(error).replace(text, Path(text).name))
    if not read:
        raise InputError(f"{', '.join(sources)}: expected a file of a graph, got none")
    return read, left_out


def _specs(names: Sequence[str], policies: Sequence[Path]) -> dict[str, PlacerSpec]:
    """Return the placers that were named, the quickest first and the user's own last."""
    bundled = [name for name in PLACER_NAMES if name in names or not names]
    of_user = [name for name in names if name not in PLACERS]
    specs = [placer_spec(name) for name in (*bundled, *of_user)]
    return {spec.name: spec for spec in (*specs, *map(policy_spec, policies))}


def _tables(comparison: Comparison, reports: Sequence[Problem]) -> list[TextTable]:
    return [*_summaries(comparison, reports), *map(placer_table, reports)]


def _summaries(comparison: Comparison, reports: Sequence[Problem]) -> list[TextTable]:
    """Return the tables of all problems together, as far as they have something to say."""
    tables = []
    profiles_of_placers = profiles(reports)  # none before the first placement
    if profiles_of_placers and len(reports) > 1 and len(comparison.placers) > 1:
        tables += [rank_table(profiles_of_placers, reports), profile_table(profiles_of_placers)]
    return [*tables, *micro_batch_tables(reports)]


def _clusters_with_options(
    gpus: Sequence[int],
    gpu_kind: str | None,
    clusters: Sequence[str],
    common: ProblemOptions,
) -> list[tuple[str, ProblemOptions]]:
    """Return the name of each cluster, empty for that of the source, with options of problems."""
    clusters_with_options = []
    stems = Counter(Path(spec).stem for spec in {*clusters})  # files of two folders may have one
    for spec, count in product(dict.fromkeys(clusters or ("",)), dict.fromkeys(gpus or (None,))):
        options = replace(common, cluster=spec, gpus=count, gpu_kind=gpu_kind)
        is_short = spec.endswith(".toml") and stems[Path(spec).stem] == 1
        name = Path(spec).stem if is_short else spec
        clusters_with_options.append(("" if options.devices is None else name, options))
    return clusters_with_options


def _page(comparison: Comparison, results: Results) -> Page:
    reports = comparison.reports(results)
    tables = [table.markdown() for table in _summaries(comparison, reports)]
    return comparison_page([*tables, MEDIANS], reports, comparison_figure)


def write_best(comparison: Comparison, folder: ExperimentFolder, *, page: bool) -> None:
    """Write the best, ``placements/PROBLEM/PLACER.json``, and with ``page`` a page of them."""
    placements, reports = folder.path / "placements", []
    with writing(folder.path):  # those of earlier problems, or of fewer placers
        (folder.path / REPORT).unlink(missing_ok=True)
        for compared in comparison.problems:
            shutil.rmtree(placements / compared.stem, ignore_errors=True)
    for compared in comparison.reports(folder.results):
        problem = folder.workspace.problem(Graph(compared.stem))
        evaluator = comparison.evaluators[compared.evaluator]
        reported = []
        for placer in compared.placers:
            best = placer.best
            if best is None or (placer.name == CPU and not compared.has_cpu):
                continue  # that is a placement of another problem
            devices = np.array(best.placement, np.int32)
            placement = ReportedPlacement(
                title=placer.title,
                problem=evaluator.scheduled(problem, devices),
                placement=devices,
                curve=[row for row in best.curve if row[1] is not None],
                evaluations=best.evaluations,
                seconds=best.seconds,
            )
            reported.append(placement)
            file = placements / compared.stem / f"{quote(placer.name, IN_FILES)}.json"
            with writing(file.parent):
                file.parent.mkdir(parents=True, exist_ok=True)
                save_placement(placement.placement, problem, file)
        if page and reported and evaluator.simulates:
            reports.append(problem_report(compared.title, problem, reported))
    if reports:
        write_text(folder.path / REPORT, report_page("Comparison of placers", reports))
