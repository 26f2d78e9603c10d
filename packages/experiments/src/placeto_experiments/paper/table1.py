"""``placeto experiment table1``: every placer on the six problems of the paper's table 1."""

from collections.abc import Collection, Mapping, Sequence
from math import isnan, nan

from placeto.placing.placers import PLACERS, placer_spec
from placeto.texts import share_text
from placeto.trials.comparison import Comparison, chosen_limits, comparison_page
from placeto.trials.records import Placed, Problem
from placeto.trials.tables import (
    FITTED_MARK,
    MEDIANS,
    NOTHING,
    SEARCH_COLUMNS,
    TABLE_1,
    runtime_table,
    search_table,
    typical,
)
from placeto.trials.trials import Experiment, Page, Results
from placeto_baselines import Limits
from placeto_experiments.paper.pages import (
    Summary,
    count_text,
    paragraphs,
    reaching_tables,
    table,
)
from placeto_experiments.paper.plan import PAPER_EVALUATIONS, Plan, source_maker
from placeto_experiments.paper.published import FITTED, PAPER_TABLE_1, SOURCE, PaperRow
from placeto_tools.plots.steps import comparison_figure

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
SEARCHES = ("paper", "placeto", "pretrained", "rnn", "local-search", "multilevel")
SEARCHED = ("paper", "placeto", "pretrained", "rnn")
# Of the placers that train, on Inception-V3 and two GPUs; a slow core takes twice as long.
SECONDS_OF_EVALUATION = {"paper": 4.3e-4, "placeto": 7.2e-4, "rnn": 8.5e-3}
STEPS = 4  # of NMT at the scale smoke


def seconds_of_trainings(plan: Plan) -> float:
    """Return about how many CPU seconds the trainings take, from their budgets."""
    budgets = _budgets(plan)
    seconds_of_training = sum(
        (budgets[name] or 0) * seconds for name, seconds in SECONDS_OF_EVALUATION.items()
    )
    return seconds_of_training * len(ROWS) * len(plan.seeds)


def _budgets(plan: Plan) -> dict[str, int | None]:
    evaluations = plan.evaluations
    budgets = {
        name: limits.max_evaluations and min(limits.max_evaluations, evaluations)
        for name, limits in chosen_limits(PLACERS, Limits()).items()
    }
    budgets["placeto"], budgets["rnn"] = evaluations, plan.rnn_settings.evaluations
    return budgets | {"paper": PAPER_EVALUATIONS * evaluations}


def table1(plan: Plan, own_placers: Sequence[str]) -> Experiment:
    """Return the experiment, also with placers of a user's own."""
    problems = [
        Problem(stem=f"{model}-{gpus}xk80", source=model, cluster=f"{gpus}xk80")
        for model, gpus in ROWS
    ]
    makers = {
        problem.stem: source_maker(problem.source, plan, problem.cluster, steps=STEPS)
        for problem in problems
    }
    budgets = _budgets(plan) | dict.fromkeys(own_placers, plan.evaluations)
    comparison = Comparison(
        problems,
        makers,
        {**PLACERS, **{name: placer_spec(name) for name in own_placers}},
        plan.seeds,
        {name: Limits(budget, strict=False) for name, budget in budgets.items()},
        settings={
            "paper": plan.paper_preset,
            "placeto": plan.settings,
            "rnn": plan.rnn_settings,
        },
    )
    comparison.check_user_classes()
    return Experiment(
        name="table1",
        title=f"Table 1 of {SOURCE}",
        options={"budgets": budgets},
        problems=makers,
        trials=comparison.trials,
        page=lambda results: _page(comparison, results, plan),
        news=comparison.news,
    )


def _page(comparison: Comparison, results: Results, plan: Plan) -> Page:
    reports = {report.stem: report for report in comparison.reports(results)}
    papers = dict(
        zip((problem.stem for problem in comparison.problems), PAPER_TABLE_1, strict=True)
    )
    # Smaller models than those of the paper are not fitted to its times.
    fitted = {
        name: FITTED.get(report.source, ()) if not plan.is_smoke else ()
        for name, report in reports.items()
    }
    budgets = [(PLACERS[name].title, comparison.budgets[name]) for name in SEARCHES]
    page_paragraphs = paragraphs(
        "table1",
        runtimes=_runtime_table(reports, papers, fitted),
        medians=MEDIANS,
        evaluations=_search_tables(reports, papers),
        columns=SEARCH_COLUMNS,
        budgets=", ".join(f"{title} {budget:,}" for title, budget in budgets if budget),
        episodes=_episode_table(reports, papers, comparison.budgets),
        searches=_searches(comparison, results),
    )
    return comparison_page(page_paragraphs, list(reports.values()), comparison_figure, fitted)


def _runtime_table(
    reports: Mapping[str, Problem],
    papers: Mapping[str, PaperRow],
    fitted: Mapping[str, Collection[str]],
) -> str:
    """Return the runtimes of the paper and of the simulator, a row each for each problem."""
    simulated = runtime_table(list(reports.values()))
    rows = []
    for name, simulated_row in zip(reports, simulated.rows, strict=True):
        paper = papers[name].runtimes
        seconds = {
            placer: "OOM" if runtime is None else f"{runtime:g}"
            for placer, runtime in paper.items()
        }
        rows.append([papers[name].title, *(seconds.get(placer, "") for placer in TABLE_1)])
        marks = [FITTED_MARK if placer in fitted[name] else "" for placer in TABLE_1]
        rows.append([a + b for a, b in zip(simulated_row, ["", *marks], strict=True)])
    return table("|".join(simulated.columns), rows)


def _search_tables(reports: Mapping[str, Problem], papers: Mapping[str, PaperRow]) -> str:
    """Return evaluations and seconds, a table for each problem, with the rows of the paper."""
    sections = []
    for name, report in reports.items():
        row, simulated = papers[name], search_table([report], SEARCHED)
        reduction, factor = share_text(row.reduction), f"{row.speed_up:.2f}"
        placeto, rnn = f"{row.placeto_evaluations:,}", f"{row.rnn_evaluations:,}"
        rows: list[Sequence[str]] = [
            [row.title, "Placeto", f"{row.placeto:g}", reduction, placeto, factor, "", ""],
            [row.title, "RNN", f"{row.rnn:g}", "", rnn, "", "", ""],
            *simulated.rows,
        ]
        sections.append(table("|".join(simulated.columns), rows))
    return "\n\n".join(sections)


def _episode_table(
    reports: Mapping[str, Problem],
    papers: Mapping[str, PaperRow],
    budgets: Mapping[str, int | None],
) -> str:
    """Return episodes of the paper configuration and evaluations of the RNN."""

    def ratio(value: float) -> str:
        return NOTHING if isnan(value) else f"{value:.2f}"

    def row(name: str) -> list[str]:
        paper, report = papers[name], reports[name]
        rnn = typical(report.find("rnn"), "evaluations_to_best")
        episodes = typical(report.find("paper"), "evaluations_to_best") / report.groups
        of_budgets = (budgets["rnn"] or nan) / ((budgets["paper"] or nan) / report.groups)
        return [
            name,
            *(f"{paper.placeto_evaluations:,}", f"{paper.rnn_evaluations:,}"),
            *(f"{paper.speed_up:.2f}", count_text(episodes), count_text(rnn)),
            *(ratio(rnn / episodes), ratio(of_budgets)),
        ]

    return table(
        "problem|>paper, Placeto|>paper, RNN|>paper, RNN / Placeto|>episodes, paper configuration"
        "|>evaluations, RNN|>RNN / episodes|>the same of budgets",
        map(row, reports),
    )


def _searches(comparison: Comparison, results: Results) -> str:
    """Return the comparison of searches, on the problems that all of them have placed."""
    seeds = comparison.seeds

    def is_complete(stem: str) -> bool:
        records = [results.find(name, stem, seed) for name in SEARCHES for seed in seeds]
        return all(isinstance(record, Placed) for record in records)

    names = [problem.stem for problem in comparison.problems if is_complete(problem.stem)]

    if not names:
        return ""
    summary = Summary(results, names, seeds)
    titles = {name: PLACERS[name].title for name in SEARCHES}
    page_paragraphs = paragraphs(
        "table1-searches",
        reaching=reaching_tables(summary, SEARCHES, SEARCHES, titles),
        problems=", ".join(names),
    )
    return "\n\n".join(page_paragraphs)
