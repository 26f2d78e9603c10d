"""Every placer on some problems: what ``placeto compare`` and the experiment ``table1`` share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import ClassVar

import msgspec
import numpy as np

from placeto.errors import WRONG_INPUT, exit_code, one_line
from placeto.outputs import Picture
from placeto.placing.placers import NARROW_RNN, PLACERS
from placeto.progress import clock
from placeto.texts import TextTable
from placeto.trials.comparison import (
    CPU,
    ProblemReport,
    SchemeReport,
    runtime_text,
)
from placeto.trials.comparison_tables import micro_batch_table, problem_parts, scheme_table
from placeto.trials.experiment import News, Page
from placeto.trials.placing_tasks import (
    Place,
    PlaceByName,
    PlaceOptimized,
    PlaceRnnOptimized,
)
from placeto.trials.records import CaseReport, Described, Failed, Placed, Record
from placeto.trials.trials import Graph, Results, Task, Trial, Watch, Workspace, placing
from placeto_baselines import RnnSettings, lower_bound
from placeto_graphs import PlacementProblem
from placeto_policy import Settings

CASE = "case"


@dataclass(frozen=True)
class DescribeCase:
    """Says what is known of a problem before it is placed."""

    kind: ClassVar[str] = CASE

    source: str  # what is placed
    cluster: str  # on what, in short
    graph: Graph

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return its sizes and its lower bound."""
        watch.update(f"{self.graph.label}: lower bound ...")
        problem = workspace.problem(self.graph)
        case = CaseReport(
            source=self.source,
            cluster=self.cluster,
            devices=list(problem.cluster.device_names),
            gpus=sum(device.kind != CPU for device in problem.cluster.devices),
            ops=problem.graph.num_ops,
            groups=problem.num_groups,
            lower_bound=lower_bound(problem),
        )
        return Described(scheme=CASE, graph=self.graph.label, seed=None, case=case)


@dataclass(frozen=True)
class PlaceIfPossible:
    """Places, or says why a placer cannot: the others go on."""

    task: Place

    @property
    def kind(self) -> str:
        """That of the placing."""
        return self.task.kind

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return what came of it, or why nothing did."""
        try:
            return self.task.run(workspace, watch)
        except ValueError as error:
            if exit_code(error) != WRONG_INPUT:  # of no package of ours, so a mistake in the code
                raise
            return Failed(**self.task.labels(), error=one_line(error))


@dataclass(frozen=True)
class Case:
    """A problem to compare on."""

    source: str
    cluster: str  # name of the devices
    name: str  # name of the problem in the folder
    make: Callable[[], PlacementProblem]  # makes the problem
    step: str = ""  # name of the undivided step, which no other has
    micro_batches: int = 1  # number of micro-batches of the step


@dataclass(frozen=True)
class Effort:
    """How much the placers may do."""

    seeds: Sequence[int]  # with which a placer runs that draws at random
    # Number of placements that each samples, by placer; None for one that does not search
    budgets: Mapping[str, int | None]
    settings: Settings
    rnn_settings: RnnSettings  # those of the RNN, with its budget

    def task(self, name: str, graph: Graph, seed: int | None) -> Place:
        """Return how a scheme places a problem."""
        trained: dict[str, Callable[..., Place]] = {
            "placeto": partial(PlaceOptimized, settings=self.settings),
            "rnn": partial(PlaceRnnOptimized, settings=self.rnn_settings),
        }
        make = trained.get(name, partial(PlaceByName, name=name))
        return make(scheme=name, graph=graph, seed=seed, budget=self.budgets[name])


def chosen_effort(seeds: int, budget: int | None, rnn_budget: int | None, *, full: bool) -> Effort:
    """Return how much the placers may do in a comparison.

    Parameters
    ----------
    seeds
        Number of seeds.
    budget
        Number of placements that each search samples; by default its own.
    rnn_budget
        The same for the RNN alone.
    full
        Whether their own are all that they have, instead of what takes minutes.
    """
    budgets = {
        name: scheme.budget and (budget or (not full and scheme.short_budget) or scheme.budget)
        for name, scheme in PLACERS.items()
    }
    rnn = budgets["rnn"] = rnn_budget or budgets["rnn"] or 1
    return Effort(range(seeds), budgets, Settings(), RnnSettings(evaluations=rnn, **NARROW_RNN))


@dataclass(frozen=True)
class Comparison:
    """Some schemes on some problems."""

    cases: Sequence[Case]
    schemes: Sequence[str]
    effort: Effort  # how much they may do

    @property
    def problems(self) -> dict[str, Callable[[], PlacementProblem]]:
        """By name, what makes each problem."""
        return {case.name: case.make for case in self.cases}

    @property
    def trials(self) -> list[Trial]:
        """All that is to do: first what takes milliseconds, as `PLACERS` has it."""
        trials = [self.describing(case) for case in self.cases]
        for name in self.schemes:
            for case in self.cases:
                for seed in self.effort.seeds if PLACERS[name].random else [None]:
                    task = PlaceIfPossible(self.effort.task(name, Graph(case.name), seed))
                    trials.append(self.placing(case, task, name, seed))
        return trials

    def describing(self, case: Case) -> Trial:
        """Return the trial that says what is known of a problem."""
        graph = Graph(case.name)
        return placing(DescribeCase(case.source, case.cluster, graph), CASE, graph, None)

    def placing(self, case: Case, task: Task, scheme: str, seed: int | None) -> Trial:
        """Return a trial on a problem, which comes after the description that `news` shows."""
        return placing(task, scheme, Graph(case.name), seed, self.describing(case).name)

    def news(self, results: Results, record: Record) -> News:
        """Return the line of a finished trial, and the table of its problem."""
        case = next(case for case in self.cases if case.name == record.graph)
        report = self._report(case, results)
        place = f"{case.source} on {case.cluster}"
        if isinstance(record, Failed):
            line = f"{place}: {record.scheme}: {record.error}"
        elif isinstance(record, Placed):
            line = f"{place}: {record.scheme}: {runtime_text(record)}, {clock(record.seconds)}"
        else:
            line = f"{place}: {report.ops:,} ops in {report.groups} groups"
        return News(line, scheme_table(report))

    def reports(self, results: Results) -> dict[str, ProblemReport]:
        """Return what is known of each problem that was begun, by its name, in SI units."""
        begun = [case for case in self.cases if results.find(CASE, case.name, 0)]
        return {case.name: self._report(case, results) for case in begun}

    def speed_ups(self, results: Results) -> list[TextTable]:
        """Return the table of what micro-batches gain, if there is something to tell."""
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
        """Return a scheme's best run on a problem, if one succeeded."""
        return min(self._runs(results, case, name).runs, key=_cost, default=None)

    def _report(self, case: Case, results: Results) -> ProblemReport:
        known = results.record(Described, CASE, case.name, 0).case
        schemes = [self._runs(results, case, name) for name in self.schemes]
        begun = [scheme for scheme in schemes if scheme.runs or scheme.error]
        return ProblemReport(**msgspec.structs.asdict(known), schemes=begun)

    def _runs(self, results: Results, case: Case, name: str) -> SchemeReport:
        seeds = self.effort.seeds if PLACERS[name].random else [0]
        found = [results.find(name, case.name, seed) for seed in seeds]
        return SchemeReport(
            name=name,
            title=PLACERS[name].title,
            runs=[record for record in found if isinstance(record, Placed)],
            error=next((record.error for record in found if isinstance(record, Failed)), None),
        )


def comparison_page(
    table: Sequence[str],
    reports: Mapping[str, ProblemReport],
    draw: Callable[[ProblemReport], Picture],
) -> Page:
    """Return the page of a comparison.

    Parameters
    ----------
    table
        The paper's table, and what is said of it.
    reports
        By the name of each problem, what schemes came to.
    draw
        Draws the learning curves of the searches on a problem.
    """
    figures = {f"{name}.png": draw(report) for name, report in reports.items()}
    parts = [problem_parts(report, f"{name}.png") for name, report in reports.items()]
    return Page([*table, *chain(*parts)], figures, failures(reports.values()))


def failures(reports: Iterable[ProblemReport]) -> list[str]:
    """Return why schemes are missing, a line each. That a CPU's times are not known is none."""
    return [
        failure(report, scheme.name, scheme.error)
        for report in reports
        for scheme in report.schemes
        if scheme.error and scheme.name != CPU
    ]


def failure(problem: Case | ProblemReport, scheme: str, error: str) -> str:
    """Return the line that says why a scheme is missing."""
    return f"{problem.source} on {problem.cluster}, {scheme}: {error}"


def _cost(run: Placed) -> tuple[bool, float]:
    return not run.fits, np.inf if run.runtime is None else run.runtime
