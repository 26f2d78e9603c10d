"""Every placer on some problems, for ``placeto compare`` and the experiments with all placers."""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec

from placeto.errors import InputError, RunError, StoppedRunError, check_count, check_seconds
from placeto.outputs import Picture, file_name
from placeto.placing.evaluators import STEP, EvaluatorSpec, evaluator_spec
from placeto.placing.placers import PlacerSpec, placer_spec
from placeto.problems.making import kinds_text
from placeto.progress import PlainProgress, Progress, clock
from placeto.texts import TextTable, counted
from placeto.trials.folder import ExperimentFolder, experiment_folder
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Failed, Placed, Problem, Runs, TrialRecord
from placeto.trials.running import conduct
from placeto.trials.tables import CPU, ComparisonReport, placer_table, profiles, runtime_text
from placeto.trials.trials import (
    Experiment,
    Graph,
    Page,
    Results,
    Trial,
    Watch,
    Workspace,
    placing_trial,
)
from placeto_baselines import Limits, RnnSettings, least_excess
from placeto_graphs import PlacementProblem
from placeto_policy import Settings

CASE = "case"
OF_PAPER = {"paper", "rnn"}  # placers that train as the paper's do


def compare(
    problems: Mapping[str, PlacementProblem],
    placers: Sequence[str],
    *,
    evaluator: str = STEP.name,
    seconds: float | None = None,
    max_evaluations: int | None = None,
    seeds: int = 1,
    jobs: int = 1,
    quiet: bool = False,
) -> ComparisonReport:
    """Place problems with several placers, as ``placeto compare`` does, and return all runs.

    Parameters
    ----------
    problems
        Problems by name, see `read_problem`.
    placers
        Names, such as ``"heft"``, or ``"package.module:Class"`` of your own.
    evaluator, seconds, max_evaluations, seeds, jobs
        As the options of the command.
    quiet
        True to show no progress.

    Raises
    ------
    InputError
        If there is no such placer or evaluator, or nothing to compare. An error of a placer is in
        its `Runs`.

    Examples
    --------
    >>> from placeto import read_problem
    >>> problems = {"nmt": read_problem("nmt:0", cluster="2xv100")}
    >>> report = compare(problems, ["single", "heft"], quiet=True)
    >>> [(runs.name, runs.best.fits) for runs in report.problems[0].placers]
    [('single', True), ('heft', True)]
    """
    _check_problems(problems)
    counts = {"problems": len(problems), "placers": len(placers), "seeds": seeds, "jobs": jobs}
    for name, count in {**counts, "max_evaluations": max_evaluations}.items():
        check_count(name, count)
    check_seconds(seconds)
    specs = {name: placer_spec(name) for name in placers}
    priced_by, limits = evaluator_spec(evaluator), Limits(max_evaluations, seconds)
    stems: dict[str, str] = {}
    for name in problems:
        stems[name] = file_name(name, stems.values())
    comparison = Comparison(
        problems=[
            Problem(
                stem=stems[name],
                source=name,
                cluster=kinds_text(problem.cluster),
                evaluator=priced_by.name,
                objective=priced_by.objective,
                unit=priced_by.unit,
            )
            for name, problem in problems.items()
        ],
        makers={stems[name]: partial(problems.__getitem__, name) for name in problems},
        placers=specs,
        seeds=range(seeds),
        limits_of_placer=chosen_limits(specs, limits),
        limits=limits,
    )
    experiment = comparison.experiment({}, lambda _: Page([]))
    progress = PlainProgress(None if quiet else sys.stderr)
    comparison.check_user_classes()
    with (
        TemporaryDirectory(prefix="placeto-") as path,
        experiment_folder(Path(path), experiment, force=False) as folder,
    ):
        report, error = comparison.conduct(experiment, folder, progress, jobs=jobs)
    failures = [placer.error for problem in report.problems for placer in problem.placers]
    if error and (isinstance(error, StoppedRunError) or not any(failures)):
        raise error
    return report


def _check_problems(problems: Any) -> None:
    candidates = problems.values() if isinstance(problems, Mapping) else [problems]
    wrong = [problem for problem in candidates if not isinstance(problem, PlacementProblem)]
    if wrong or not isinstance(problems, Mapping):
        kind = type([*wrong, problems][0]).__name__
        raise InputError(f"problems: expected problems of `read_problem` by name, got {kind}")


@dataclass(frozen=True)
class Describe:
    """Describes a problem before it is placed."""

    kind: ClassVar[str] = CASE

    problem: Problem
    graph: Graph
    modules: tuple[str, ...] = ()  # of a user's own evaluator, whose files are part of the key

    def run(self, workspace: Workspace, watch: Watch) -> TrialRecord:
        """Return the problem with its sizes and its lower bound."""
        evaluator = evaluator_spec(self.problem.evaluator)
        watch.update(f"{self.graph.label}: lower bound ...")
        problem = workspace.problem(self.graph)
        return msgspec.structs.replace(
            self.problem,
            devices=list(problem.cluster.device_names),
            gpus=sum(not device.is_cpu for device in problem.cluster.devices),
            ops=problem.graph.num_ops,
            groups=problem.num_groups,
            lower_bound=evaluator.lower_bound(problem),
            least_excess=least_excess(problem) if evaluator.simulates else 0,
        )


def chosen_limits(
    placers: Mapping[str, PlacerSpec],
    limits: Limits,
    rnn_max_evaluations: int | None = None,
    *,
    full: bool = False,
) -> dict[str, Limits]:
    """Return the limits of each placer: those of all, with its own number of evaluations."""
    limits_of_placer = {
        name: spec.with_default(limits, full=full) for name, spec in placers.items()
    }
    if rnn_max_evaluations and "rnn" in placers:
        limits_of_placer["rnn"] = Limits(rnn_max_evaluations, limits.seconds)
    return limits_of_placer


@dataclass(frozen=True)
class Comparison:
    """Placers on problems, with their limits."""

    problems: Sequence[Problem]
    makers: Mapping[str, Callable[[], PlacementProblem]]  # of the problems, by name
    placers: Mapping[str, PlacerSpec]  # by name
    seeds: Sequence[int]  # of placers that draw at random
    limits_of_placer: Mapping[str, Limits]  # see `chosen_limits`
    # Of placers that train, by name, if not their usual ones
    settings: Mapping[str, Settings | RnnSettings] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)  # of all placers

    @cached_property
    def evaluators(self) -> dict[str, EvaluatorSpec]:
        """The evaluators of the problems, by name."""
        return {problem.evaluator: evaluator_spec(problem.evaluator) for problem in self.problems}

    @property
    def budgets(self) -> dict[str, int | None]:
        """The number of evaluations of each placer; None for one that ends otherwise."""
        return {
            name: self.limits_of_placer[name].max_evaluations
            if spec.trains or (spec.searches and not self.limits_of_placer[name].seconds)
            else None
            for name, spec in self.placers.items()
        }

    @property
    def trials(self) -> list[Trial]:
        """All trials, the quickest placers first, as in `PLACERS`."""
        trials = [self._describing_trial(problem) for problem in self.problems]
        for (name, spec), problem in product(self.placers.items(), self.problems):
            described = self._describing_trial(problem).name  # which `news` shows
            for seed in self.seeds if spec.random else [None]:
                task = self._placing_task(name, problem, seed)
                trial = placing_trial(task, name, Graph(problem.stem), seed, described)
                trials.append(
                    replace(
                        trial,
                        title=f"{problem.title}, {name}",
                        # Times on a CPU that the problem lacks may be unknown.
                        may_fail=name == CPU,
                        is_long=spec.trains,
                    )
                )
        return trials

    def check_user_classes(self) -> None:
        """Make a user's own placers and evaluators once: wrong arguments fail at the start.

        One that refuses some problems, but not all, fails in the trials of these.
        """
        make_problem = cache(lambda name: self.makers[name]())  # each once at most

        def try_problems(
            make: Callable[..., object], names: Iterable[str], *limits: object
        ) -> None:
            errors = []
            for name in names:
                try:
                    make(make_problem(name), *limits)
                except ValueError as error:
                    errors.append(error)
                else:
                    return
            raise errors[0]

        for name, spec in self.placers.items():
            if spec.modules:
                try_problems(spec.make, self.makers, self.limits_of_placer[name], None)
        for name, evaluator in self.evaluators.items():
            if evaluator.modules:
                stems = [problem.stem for problem in self.problems if problem.evaluator == name]
                try_problems(evaluator.make, stems, 1)

    def experiment(self, options: Mapping[str, Any], page: Callable[[Results], Page]) -> Experiment:
        """Return the experiment, with more options for its page."""
        return Experiment(
            name="compare",
            title="Comparison",
            options={
                "evaluators": list(self.evaluators),
                "limits": {
                    "max_evaluations": self.limits.max_evaluations,
                    "seconds": self.limits.seconds,
                },
                "budgets": self.budgets,
                **options,
            },
            problems=self.makers,
            trials=self.trials,
            page=page,
            news=self.news,
        )

    def news(self, results: Results, trial: Trial) -> tuple[TextTable, str]:
        """Return the table of the problem of a finished trial, and a line."""
        record = results.records[trial.name]
        report = next(report for report in self.reports(results) if report.stem == trial.graph)
        line = f"{counted(report.ops, 'op')} in {counted(report.groups, 'group')}"
        if isinstance(record, Placed):
            cost = runtime_text(record, report.unit)
            line = f"{trial.placer}: {cost}, {clock(record.seconds)}"
        return placer_table(report), f"{report.title}: {line}"

    def conduct(
        self,
        experiment: Experiment,
        folder: ExperimentFolder,
        progress: Progress,
        *,
        jobs: int,
        resumable: bool = False,
    ) -> tuple[ComparisonReport, RunError | None]:
        """Run the trials that are left; return the content of ``results.json``, and what failed."""
        failed = None
        try:
            conduct(experiment, folder, progress, jobs=jobs, resumable=resumable)
        except RunError as error:
            failed = error
        reports = self.reports(folder.results)
        document = ComparisonReport(
            seeds=len(self.seeds),
            max_evaluations=self.limits.max_evaluations,
            seconds=self.limits.seconds,
            budgets=self.budgets,
            problems=reports,
            profiles=profiles(reports),
        )
        return document, failed

    def reports(self, results: Results) -> list[Problem]:
        """Return each problem that was begun with the runs of its placers."""
        records = [results.find(CASE, problem.stem, 0) for problem in self.problems]
        return [
            msgspec.structs.replace(record, placers=self._runs_of_placers(results, record.stem))
            for record in records
            if isinstance(record, Problem)
        ]

    def _describing_trial(self, problem: Problem) -> Trial:
        graph, modules = Graph(problem.stem), self.evaluators[problem.evaluator].modules
        task = Describe(problem, graph, modules)
        return replace(placing_trial(task, CASE, graph, None), title=problem.title)

    def _placing_task(self, name: str, problem: Problem, seed: int | None) -> PlaceByName:
        return PlaceByName(
            label=name,
            graph=Graph(problem.stem),
            seed=seed,
            name=name,
            settings=self.settings.get(name),
            evaluator=problem.evaluator,
            limits=self.limits_of_placer[name],
            modules=(*self.placers[name].modules, *self.evaluators[problem.evaluator].modules),
        )

    def _runs_of_placers(self, results: Results, problem: str) -> list[Runs]:
        """Return the runs of each placer that took part."""
        runs_of_placers = []
        for name, spec in self.placers.items():
            seeds = self.seeds if spec.random else [0]
            records = [results.find(name, problem, seed) for seed in seeds]
            errors = [record.error for record in records if isinstance(record, Failed)]
            evaluations = self.budgets[name] or 0
            is_below = name in OF_PAPER and evaluations < (spec.full_evaluations or 0)
            runs = Runs(
                name=name,
                title=spec.title,
                searches=spec.searches,
                runs=[record for record in records if isinstance(record, Placed)],
                error=errors[0] if errors else None,
                failed=len(errors),
                seeds=len(seeds),
                below=evaluations if is_below else None,
            )
            if runs.runs or errors:
                runs_of_placers.append(runs)
        return runs_of_placers


def comparison_page(
    summary: Sequence[str],
    reports: Sequence[Problem],
    draw: Callable[[Problem], Picture],
    fitted: Mapping[str, Collection[str]] | None = None,
) -> Page:
    """Return the page of a comparison: tables, and of each problem its placers and curves."""
    sections = list(summary)
    for report in reports:
        table = placer_table(report, (fitted or {}).get(report.stem, ()))
        sections += [f"## {table.title}", replace(table, title="").markdown()]
        errors = [f"- {placer.title}: {placer.error}" for placer in report.placers if placer.error]
        if errors:
            sections.append("\n".join(errors))
        sections.append(f"![Learning curves]({report.stem}.png)")
    return Page(sections, {f"{report.stem}.png": draw(report) for report in reports})
