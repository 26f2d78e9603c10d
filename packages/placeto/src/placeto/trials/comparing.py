"""Every placer on some problems, for ``placeto compare`` and the experiments with all placers."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import ClassVar

import msgspec
import numpy as np

from placeto.outputs import Picture
from placeto.placing.evaluators import STEP, EvaluatorSpec, evaluator_spec
from placeto.placing.placers import NARROW_RNN, Budget, PlacerSpec
from placeto.placing.watching import Limits
from placeto.progress import clock
from placeto.texts import TextTable, counted
from placeto.trials.comparison import (
    CPU,
    ComparisonReport,
    micro_batch_table,
    placer_table,
    problem_parts,
    profiles,
    runtime_text,
)
from placeto.trials.placing_tasks import Place, PlaceByName
from placeto.trials.records import Failed, Placed, Problem, Record, Runs
from placeto.trials.trials import Graph, News, Page, Results, Task, Trial, Watch, Workspace, placing
from placeto_baselines import RnnSettings, least_excess
from placeto_graphs import PlacementProblem
from placeto_policy import Settings

CASE = "case"


@dataclass(frozen=True)
class DescribeCase:
    """Describes a problem before it is placed."""

    kind: ClassVar[str] = CASE

    source: str  # name of the model or graph
    cluster: str  # name of the devices
    graph: Graph
    evaluator: str = STEP.name
    modules: tuple[str, ...] = ()  # of a user's own evaluator, whose files are part of the key

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return its sizes and its lower bound."""
        evaluator = evaluator_spec(self.evaluator)
        watch.update(f"{self.graph.label}: lower bound ...")
        problem = workspace.problem(self.graph)
        return Problem(
            source=self.source,
            cluster=self.cluster,
            devices=list(problem.cluster.device_names),
            gpus=sum(not device.is_cpu for device in problem.cluster.devices),
            ops=problem.graph.num_ops,
            groups=problem.num_groups,
            lower_bound=evaluator.lower_bound(problem),
            least_excess=least_excess(problem) if evaluator.simulates else 0,
            evaluator=evaluator.name,
            objective=evaluator.objective,
            unit=evaluator.unit,
        )


@dataclass(frozen=True)
class Case:
    """A problem to compare on."""

    source: str
    cluster: str  # name of the devices
    name: str  # name of the problem in the folder
    make: Callable[[], PlacementProblem]  # makes the problem
    step: str = ""  # unique name of the step without micro-batching
    micro_batches: int = 1  # number of micro-batches of the step
    evaluator: EvaluatorSpec = STEP  # prices its placements


def told_apart(cases: Sequence[Case]) -> list[Case]:
    """Return cases whose sources have the names of their files, if their names are not unique.

    Profiles of PipeDream are all called ``graph.txt``.
    """
    shown = Counter((case.source, case.cluster) for case in cases)
    return [
        replace(case, source=f"{case.source} ({case.step})")
        if shown[case.source, case.cluster] > 1
        else case
        for case in cases
    ]


def chosen_budgets(
    placers: Mapping[str, PlacerSpec],
    evaluations: int | None = None,
    rnn_evaluations: int | None = None,
    *,
    full: bool = False,
    seconds: float | None = None,
) -> dict[str, int | None]:
    """Return the number of evaluations of each placer; None for one without such a number."""
    budgets = {
        name: evaluations or (full and spec.full_budget) or spec.budget
        if spec.trains or (spec.searches and not seconds)
        else None
        for name, spec in placers.items()
    }
    if rnn_evaluations and "rnn" in budgets:
        budgets["rnn"] = rnn_evaluations
    return budgets


@dataclass(frozen=True)
class Comparison:
    """Placers on problems, with their budgets."""

    cases: Sequence[Case]
    placers: Mapping[str, PlacerSpec]  # placers by name
    seeds: Sequence[int]  # of placers that draw at random
    budgets: Mapping[str, int | None]  # see `chosen_budgets`
    settings: Settings = field(default_factory=Settings)
    rnn_settings: RnnSettings = field(default_factory=lambda: RnnSettings(**NARROW_RNN))
    limits: Limits = field(default_factory=Limits)  # at which each placer is stopped

    @property
    def evaluators(self) -> list[EvaluatorSpec]:
        """Evaluators of the problems, each once."""
        return list(dict.fromkeys(case.evaluator for case in self.cases))

    @property
    def problems(self) -> dict[str, Callable[[], PlacementProblem]]:
        """Functions that make the problems, by name."""
        return {case.name: case.make for case in self.cases}

    @property
    def trials(self) -> list[Trial]:
        """All trials, the quickest placers first, as in `PLACERS`."""
        trials = [self._describing(case) for case in self.cases]
        for name, spec in self.placers.items():
            seeds = self.seeds if spec.random else [None]
            trials += [
                self.trial(case, self._placing(name, case, seed), name, seed)
                for case in self.cases
                for seed in seeds
            ]
        return trials

    def try_own(self) -> None:
        """Make a user's own placers and evaluators once: wrong arguments fail at the start.

        One that refuses some problems, but not all, fails in the trials of these.
        """
        problems = {case.name: cache(case.make) for case in self.cases}  # each is made once at most
        for name, spec in self.placers.items():
            if spec.modules:
                budget = Budget(self.budgets[name] or 0, self.limits.seconds)
                _try_on_one(problems.values(), lambda problem: spec.make(problem, budget))  # noqa: B023
        for evaluator in self.evaluators:
            if evaluator.modules:
                its = [problems[case.name] for case in self.cases if case.evaluator == evaluator]
                _try_on_one(its, lambda problem: evaluator.make(problem, 1))  # noqa: B023

    def trial(self, case: Case, task: Task, placer: str, seed: int | None) -> Trial:
        """Return a trial on a problem, after its description, which `news` shows.

        If it fails, the others run all the same.
        """
        trial = placing(task, placer, Graph(case.name), seed, self._describing(case).name)
        return replace(trial, may_fail=True)

    def news(self, results: Results, trial: Trial) -> News:
        """Return the line of a finished trial, and the table of its problem."""
        record = results.records[trial.name]
        placer = trial.placer
        case = next(case for case in self.cases if case.name == trial.graph)
        report = self._report(case, results)
        line = f"{counted(report.ops, 'op')} in {counted(report.groups, 'group')}"
        if isinstance(record, Failed):
            line = f"{placer}: {record.error}"
        elif isinstance(record, Placed):
            line = f"{placer}: {runtime_text(record, report.unit)}, {clock(record.seconds)}"
        return News(f"{case.source} on {case.cluster}: {line}", placer_table(report))

    def reports(self, results: Results) -> dict[str, Problem]:
        """Return the report of each problem that was begun, by its name, in SI units."""
        begun = [case for case in self.cases if results.find(CASE, case.name, 0)]
        return {case.name: self._report(case, results) for case in begun}

    def document(self, results: Results) -> ComparisonReport:
        """Return the content of ``results.json``."""
        reports = list(self.reports(results).values())
        return ComparisonReport(
            seeds=len(self.seeds),
            max_evaluations=self.limits.evaluations,
            seconds=self.limits.seconds,
            budgets=self.budgets,
            problems=reports,
            profiles=profiles(reports),
        )

    def speed_ups(self, results: Results) -> list[TextTable]:
        """Return the table of the speed-ups of micro-batches, if it has rows."""
        reports = self.reports(results)
        table = micro_batch_table(
            [
                (case.step, case.micro_batches, reports[case.name])
                for case in self.cases
                if case.name in reports
            ]
        )
        divided = any(case.micro_batches > 1 for case in self.cases)
        return [table] if divided and table.rows else []

    def best(self, results: Results, case: Case, name: str) -> Placed | None:
        """Return a placer's best run on a problem, if one succeeded."""
        return min(self._runs(results, case, name).runs, key=_cost, default=None)

    def _describing(self, case: Case) -> Trial:
        graph, evaluator = Graph(case.name), case.evaluator
        described = DescribeCase(
            case.source, case.cluster, graph, evaluator.name, evaluator.modules
        )
        return placing(described, CASE, graph, None)

    def _placing(self, name: str, case: Case, seed: int | None) -> Place:
        budget = self.budgets[name]
        settings: Settings | RnnSettings | None = None
        if name == "placeto":
            settings = self.settings
        elif name == "rnn":
            settings = replace(self.rnn_settings, evaluations=budget or 1)
        return PlaceByName(
            label=name,
            graph=Graph(case.name),
            seed=seed,
            budget=budget,
            name=name,
            settings=settings,
            evaluator=case.evaluator.name,
            limits=self.limits,
            modules=(*self.placers[name].modules, *case.evaluator.modules),
        )

    def _report(self, case: Case, results: Results) -> Problem:
        known = results.record(Problem, CASE, case.name, 0)
        placers = [self._runs(results, case, name) for name in self.placers]
        took_part = [one for one in placers if one.runs or one.error]
        return msgspec.structs.replace(known, placers=took_part)

    def _runs(self, results: Results, case: Case, name: str) -> Runs:
        spec = self.placers[name]
        seeds = self.seeds if spec.random else [0]
        found = [results.find(name, case.name, seed) for seed in seeds]
        errors = [record.error for record in found if isinstance(record, Failed)]
        return Runs(
            name=name,
            title=spec.title,
            searches=spec.searches,
            runs=[record for record in found if isinstance(record, Placed)],
            error=next(iter(errors), None),
            failed=len(errors),
            seeds=len(seeds),
        )


def _try_on_one(
    problems: Iterable[Callable[[], PlacementProblem]],
    make: Callable[[PlacementProblem], object],
) -> None:
    """Make something for the first problem that it accepts; its first error if it accepts none."""
    errors: list[ValueError] = []
    for problem in problems:
        try:
            make(problem())
        except ValueError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def comparison_page(
    table: Sequence[str],
    reports: Mapping[str, Problem],
    draw: Callable[[Problem], Picture],
    fitted: Mapping[str, Collection[str]] | None = None,
) -> Page:
    """Return the page of a comparison."""
    marks = fitted or {}
    figures = {f"{name}.png": draw(report) for name, report in reports.items()}
    parts = [
        problem_parts(report, f"{name}.png", marks.get(name, ()))
        for name, report in reports.items()
    ]
    return Page([*table, *chain(*parts)], figures, failures(reports.values()))


def failures(reports: Iterable[Problem]) -> list[str]:
    """Return a line for each placer that failed, but for CPU only, whose times may be unknown."""
    return [
        failure(report, placer.name, placer.error)
        for report in reports
        for placer in report.placers
        if placer.error and placer.name != CPU
    ]


def failure(problem: Case | Problem, placer: str, error: str) -> str:
    """Return the line with the error of a placer."""
    return f"{problem.source} on {problem.cluster}, {placer}: {error}"


def _cost(run: Placed) -> tuple[bool, float]:
    return not run.fits, np.inf if run.cost is None else run.cost
