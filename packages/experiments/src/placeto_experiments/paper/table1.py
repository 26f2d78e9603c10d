"""``placeto experiment table1``: every placer on the six problems of the paper's table 1."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan, nan

from placeto.placing.placements import search_problem
from placeto.placing.placers import PLACERS
from placeto.texts import TextTable, seconds_text, share_text
from placeto.trials.comparing import (
    Case,
    Comparison,
    chosen_budgets,
    comparison_page,
    failure,
)
from placeto.trials.comparison import (
    FITTED_MARK,
    MEDIANS,
    NEVER,
    NOTHING,
    SEARCH_COLUMNS,
    TABLE_1,
    runtime_table,
    search_table,
    typical,
)
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Failed, Placed, Problem
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial, Workspace
from placeto_experiments.paper.placers import (
    LOCAL_SEARCH,
    MULTILEVEL,
    PAPER_EVALUATIONS,
    PRETRAINED,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import source_maker
from placeto_experiments.paper.published import FITTED, FITTED_TEXT, PAPER_TABLE_1, SOURCE, PaperRow
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import count_text, duration_text, markdown_table
from placeto_graphs import PlacementProblem
from placeto_tools.plots.curves import comparison_figure

# In the order of the paper's rows. The paper gives both rows of NMT one name. The row of 4 GPUs is
# slower with either policy, so that it is taken as a larger model.
ROWS = (
    ("inception-v3", 2),
    ("inception-v3", 4),
    ("nmt-2", 2),
    ("nmt-4", 4),
    ("nasnet", 2),
    ("nasnet", 4),
)
SEARCHES = ("paper", "placeto", PRETRAINED, "rnn", LOCAL_SEARCH, MULTILEVEL)
RUNTIMES = {**TABLE_1, "paper": PLACERS["paper"].title}
SEARCHED = ("paper", "placeto", PRETRAINED, "rnn")
FINER = "multilevel-finer"
OF_GRANULARITY = ("paper", "placeto", PRETRAINED, LOCAL_SEARCH, MULTILEVEL, FINER)


@dataclass(frozen=True, kw_only=True)
class PlaceFiner(PlaceByName):
    """Places at the finest granularity of a search instead of the paper's."""

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the same problem at a finer level."""
        return search_problem(workspace.problem(self.graph))


def table1(plan: Plan) -> Experiment:
    """Return the experiment."""
    cases = [
        Case(model, cluster, f"{model}-{cluster}", source_maker(model, plan, cluster))
        for model, cluster in ((model, f"{num_gpus}xk80") for model, num_gpus in ROWS)
    ]
    evaluations = plan.scale.number("evaluations")
    budgets = {
        name: budget and min(budget, evaluations)
        for name, budget in chosen_budgets(PLACERS).items()
    }
    budgets["placeto"], budgets["rnn"] = evaluations, plan.rnn_settings.evaluations
    budgets["paper"] = PAPER_EVALUATIONS * evaluations
    comparison = Comparison(cases, PLACERS, plan.seeds, budgets, plan.settings, plan.rnn_settings)
    return Experiment(
        name="table1",
        title=f"Table 1 of {SOURCE}",
        options={"budgets": budgets},
        problems=comparison.problems,
        trials=[*comparison.trials, *_finer(comparison)],
        page=lambda results: _page(comparison, results, plan),
        news=comparison.news,
    )


def _finer(comparison: Comparison) -> list[Trial]:
    trials = []
    for case in comparison.cases:
        for seed in comparison.seeds:
            task = PlaceFiner(
                label=FINER,
                graph=Graph(case.name),
                seed=seed,
                name=MULTILEVEL,
                budget=comparison.budgets[MULTILEVEL],
            )
            trials.append(comparison.trial(case, task, FINER, seed))
    return trials


def _page(comparison: Comparison, results: Results, plan: Plan) -> Page:
    reports = comparison.reports(results)
    papers = dict(zip((case.name for case in comparison.cases), PAPER_TABLE_1, strict=True))
    # Smaller models than those of the paper are not fitted to its times.
    fitted = {
        name: FITTED.get(report.source, ()) if not plan.scale.sizes else ()
        for name, report in reports.items()
    }
    parts = [
        f"Seconds of a training step: simulated here, measured on hardware in {SOURCE}.",
        "## Runtimes",
        _runtime_table(reports, papers, fitted).markdown(),
        FITTED_TEXT,
        MEDIANS,
        "*Paper configuration*: the method of the paper with its hyperparameters, implemented "
        "here. *Default configuration*: the hyperparameters of `placeto train`.",
        "## Evaluations and seconds",
        _search_table(reports, papers).markdown(),
        SEARCH_COLUMNS,
        "*Placeto, pretrained* is the bundled pretrained policy, which was not trained on these "
        f"graphs. Evaluations that the others may use: {_budgets(comparison)}.",
        *_parts_of_episodes(_episode_table(reports, papers, comparison.budgets)),
        *_parts_of_searches(comparison, results),
    ]
    page = comparison_page(parts, reports, comparison_figure, fitted)
    return replace(page, failures=[*page.failures, *_finer_failures(comparison, results)])


def _finer_failures(comparison: Comparison, results: Results) -> list[str]:
    """Return a line for each search at the finer granularity that failed."""
    found = [
        (case, results.find(FINER, case.name, seed))
        for case in comparison.cases
        for seed in comparison.seeds
    ]
    return [
        failure(case, FINER, record.error) for case, record in found if isinstance(record, Failed)
    ]


def _runtime_table(
    reports: Mapping[str, Problem],
    papers: Mapping[str, PaperRow],
    fitted: Mapping[str, Collection[str]],
) -> TextTable:
    """Return the runtimes of the paper and of the simulator, a row each for each problem."""
    table = runtime_table(list(reports.values()), RUNTIMES)
    rows = []
    for name, found in zip(reports, table.rows, strict=True):
        row = papers[name]
        of_paper = {**row.runtimes, "paper": row.placeto}
        rows.append([row.title, *(_paper_seconds(of_paper, placer) for placer in RUNTIMES)])
        marks = [FITTED_MARK if placer in fitted[name] else "" for placer in RUNTIMES]
        rows.append([a + b for a, b in zip(found, ["", *marks], strict=True)])
    return TextTable("", table.columns, rows)


def _paper_seconds(runtimes: Mapping[str, float | None], placer: str) -> str:
    if placer not in runtimes:
        return ""
    seconds = runtimes[placer]
    return "OOM" if seconds is None else f"{seconds:g}"


def _search_table(reports: Mapping[str, Problem], papers: Mapping[str, PaperRow]) -> TextTable:
    """Return evaluations and seconds, with a row of the paper's Placeto and one of its RNN."""
    table = search_table(list(reports.values()), SEARCHED)
    rows: list[Sequence[str]] = []
    for number, name in enumerate(reports):
        row = papers[name]
        reduction, factor = share_text(row.reduction), f"{row.speed_up:.2f}"
        placeto, rnn = f"{row.placeto_evaluations:,}", f"{row.rnn_evaluations:,}"
        rows += [
            [row.title, "Placeto", f"{row.placeto:g}", reduction, placeto, factor, "", ""],
            [row.title, "RNN", f"{row.rnn:g}", "", rnn, "", "", ""],
            *table.rows[number * len(SEARCHED) : (number + 1) * len(SEARCHED)],
        ]
    return TextTable("", table.columns, rows)


def _episode_table(
    reports: Mapping[str, Problem],
    papers: Mapping[str, PaperRow],
    budgets: Mapping[str, int | None],
) -> str:
    """Return episodes of the paper configuration and evaluations of the RNN."""

    def until(name: str, placer: str) -> float:
        return typical(reports[name].find(placer), "evaluations_to_best")

    def episodes(name: str) -> float:
        return until(name, "paper") / reports[name].groups

    def of_budgets(name: str) -> float:
        published = (budgets["paper"] or nan) / reports[name].groups
        return (budgets["rnn"] or nan) / published

    def ratio(value: float) -> str:
        return NOTHING if isnan(value) else f"{value:.2f}"

    return markdown_table(
        reports,
        {
            "problem": str,
            ">paper, Placeto": lambda name: f"{papers[name].placeto_evaluations:,}",
            ">paper, RNN": lambda name: f"{papers[name].rnn_evaluations:,}",
            ">paper, factor": lambda name: f"{papers[name].speed_up:.2f}",
            ">episodes, paper configuration": lambda name: count_text(episodes(name)),
            ">evaluations, RNN": lambda name: count_text(until(name, "rnn")),
            ">factor": lambda name: ratio(until(name, "rnn") / episodes(name)),
            ">factor of budgets": lambda name: ratio(of_budgets(name)),
        },
    )


def _parts_of_episodes(table: str) -> list[str]:
    return [
        "## Evaluations in episodes",
        table,
        "An episode of the paper configuration evaluates a placement for each group. The policy "
        "changes after eight episodes. If the paper's 1,600 placements were all evaluations, its "
        "policy would have changed twice at most. So this table takes them as episodes. The RNN "
        "evaluates one placement in an episode.",
        "Numbers are medians over the seeds, until a placer was within 1 % of its own best. Both "
        "placers improve until their budgets end, so that the factor follows that of the budgets. "
        "The next section compares when one search is as fast as another.",
    ]


def _parts_of_searches(comparison: Comparison, results: Results) -> list[str]:
    """Return the comparison of searches, on the problems that all of them have placed."""
    seeds = comparison.seeds
    wanted = [(name, seed) for name in {*SEARCHES, *OF_GRANULARITY} for seed in seeds]
    names = [
        case.name
        for case in comparison.cases
        if all(isinstance(results.find(name, case.name, seed), Placed) for name, seed in wanted)
    ]
    if not names:
        return []
    summary = Summary(results, names, seeds)
    groups = [len(results.record(Placed, FINER, name, 0).placement) for name in names]
    return [
        "## When a search is as fast as another at its best",
        _reaching_table(summary),
        "A cell has the share of problems and seeds on which the search of its row was as fast as "
        "that of its column at its end, with the same seed. Then come the evaluations and CPU "
        "seconds until it was: medians of all runs, *never* if half of them never were. Seconds "
        "are taken as proportional to evaluations. They are not for the pretrained policy, whose "
        f"cells have none. Problems: {', '.join(names)}.",
        "## Effect of the number of groups",
        _granularity_table(summary, groups),
        "Memory-penalised runtimes: means over the seeds, with the least and the most in brackets. "
        "All searches have the groups of the paper's method, but for *multilevel search, finer*. "
        "That one has the second number of groups, and as many evaluations as multilevel search. "
        "*Gain*: how much lower its runtime is than that of multilevel search, on average.",
    ]


def _budgets(comparison: Comparison) -> str:
    budgets = {name: comparison.budgets[name] for name in SEARCHES}
    named = [f"{PLACERS[name].title} {budget:,}" for name, budget in budgets.items() if budget]
    return ", ".join(named)


def _reaching_table(summary: Summary) -> str:
    def as_fast_as(target: str) -> Callable[[str], str]:
        def cell(search: str) -> str:
            share, evaluations, seconds = summary.reached(search, target)
            if isinf(evaluations):
                return f"{share_text(share)}: {NEVER}"
            after = f"{share_text(share)}: {count_text(evaluations)}"
            # A rollout counts as one evaluation, a round of coordinate descent as many.
            return after if search == PRETRAINED else f"{after}, {duration_text(seconds)}"

        return cell

    columns = {f">as fast as {PLACERS[name].title}": as_fast_as(name) for name in SEARCHES}
    return markdown_table(SEARCHES, {"search": lambda name: PLACERS[name].title, **columns})


def _granularity_table(summary: Summary, groups: Sequence[int]) -> str:
    def cost(placer: str) -> Callable[[Summary], str]:
        return lambda row: row.mean_cost(placer).text(seconds_text)

    def problem(row: Summary) -> str:
        (name,) = row.graphs
        usual = len(row.results.record(Placed, MULTILEVEL, name, 0).placement)
        return f"{name}, {usual:,} and {finer[name]:,} groups"

    rows = [Summary(summary.results, [name], summary.seeds) for name in summary.graphs]
    finer = dict(zip(summary.graphs, groups, strict=True))
    return markdown_table(
        rows,
        {
            "problem": problem,
            **{f">{PLACERS[name].title}": cost(name) for name in OF_GRANULARITY[:-1]},
            ">multilevel search, finer": cost(FINER),
            ">gain": lambda row: share_text(1 - row.mean_ratio(FINER, MULTILEVEL).mean),
        },
    )
