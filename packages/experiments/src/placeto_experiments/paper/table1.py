"""``placeto experiment table1``: the six rows of the paper's table 1."""

from collections.abc import Callable, Mapping, Sequence
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
    ABBREVIATIONS,
    MEDIANS,
    NEVER,
    NOTHING,
    ProblemReport,
    paper_table,
    typical,
)
from placeto.trials.placing_tasks import PlaceByName
from placeto.trials.records import Failed, Placed
from placeto.trials.trials import Experiment, Graph, Page, Results, Trial, Workspace
from placeto_experiments.paper.placers import (
    LOCAL_SEARCH,
    MULTILEVEL,
    PLACEMENTS_AS_PUBLISHED,
    PRETRAINED,
)
from placeto_experiments.paper.plan import Plan
from placeto_experiments.paper.problem_makers import source_maker
from placeto_experiments.paper.published import SOURCE, TABLE_1, PaperRow
from placeto_experiments.paper.statistics import Summary
from placeto_experiments.paper.wording import count_text, duration_text, markdown_table
from placeto_graphs import PlacementProblem
from placeto_tools.plots.curves import comparison_figure

# In the order of the paper's rows. It gives both rows of NMT one name, but the one on 4 GPUs is
# slower than that on 2 with either policy, so that a larger model is taken for it here.
ROWS = (
    ("inception-v3", 2),
    ("inception-v3", 4),
    ("nmt-2", 2),
    ("nmt-4", 4),
    ("nasnet", 2),
    ("nasnet", 4),
)
PLACETOS = {
    "paper": "paper configuration",
    "placeto": "default configuration",
    PRETRAINED: "bundled policy",
}
SEARCHES = ("paper", "placeto", PRETRAINED, "rnn", LOCAL_SEARCH, MULTILEVEL)
FINER = "multilevel-finer"
OF_GRANULARITY = (*PLACETOS, LOCAL_SEARCH, MULTILEVEL, FINER)


@dataclass(frozen=True, kw_only=True)
class PlaceFiner(PlaceByName):
    """Places in the finest groups that a search takes, in place of the paper's number of them."""

    def problem(self, workspace: Workspace) -> PlacementProblem:
        """Return the same problem at a finer level."""
        return search_problem(workspace.problem(self.graph))


def table1(plan: Plan) -> Experiment:
    """Return the experiment: every placer on every row."""
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
    budgets["paper"] = PLACEMENTS_AS_PUBLISHED * evaluations
    comparison = Comparison(cases, PLACERS, plan.seeds, budgets, plan.settings, plan.rnn_settings)
    return Experiment(
        name="table1",
        title=f"Table 1 of {SOURCE}",
        options={"budgets": budgets},
        problems=comparison.problems,
        trials=[*comparison.trials, *_finer(comparison)],
        page=lambda results: _page(comparison, results),
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


def _page(comparison: Comparison, results: Results) -> Page:
    reports = comparison.reports(results)
    papers = dict(zip((case.name for case in comparison.cases), TABLE_1, strict=True))
    tables = {title: paper_table(list(reports.values()), name) for name, title in PLACETOS.items()}
    rows = []
    for number, name in enumerate(reports):
        rows.append(["paper", *_paper_cells(papers[name])])
        rows += [[title, *table.rows[number]] for title, table in tables.items()]
    parts = [
        TextTable("", ["", *tables["default configuration"].columns], rows).markdown(),
        f"{MEDIANS} {ABBREVIATIONS} The paper's seconds were measured on hardware; it has no "
        "column of seconds of search, nor the last one. Paper configuration: the paper's method "
        "with its hyperparameters; bundled policy: the pretrained one, which was not trained on "
        "the graph. Placements that searches may sample: "
        f"{_budgets(comparison)}.",
        *_parts_of_episodes(_episode_table(reports, papers, comparison.budgets)),
        *_parts_of_searches(comparison, results),
    ]
    page = comparison_page(parts, reports, comparison_figure)
    return replace(page, failures=[*page.failures, *_finer_failures(comparison, results)])


def _finer_failures(comparison: Comparison, results: Results) -> list[str]:
    """Return why rows are missing where the number of groups is told, a line each."""
    found = [
        (case, results.find(FINER, case.name, seed))
        for case in comparison.cases
        for seed in comparison.seeds
    ]
    return [
        failure(case, FINER, record.error) for case, record in found if isinstance(record, Failed)
    ]


def _paper_cells(row: PaperRow) -> list[str]:
    runtimes = [row.cpu, row.single, row.expert, row.scotch, row.placeto, row.rnn]
    cells = ["OOM" if seconds is None else f"{seconds:g}" for seconds in runtimes]
    return [
        row.model,
        *cells[:2],
        str(row.num_gpus),
        *cells[2:],
        f"{row.placeto_placements:,}",
        f"{row.rnn_placements:,}",
        "",
        "",
        share_text(row.reduction),
        f"{row.speed_up:.2f}",
        "",
    ]


def _episode_table(
    reports: Mapping[str, ProblemReport],
    papers: Mapping[str, PaperRow],
    budgets: Mapping[str, int | None],
) -> str:
    """Return placements counted as the paper's numbers are understood: one for each episode."""

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
            "row": str,
            ">paper, Placeto": lambda name: f"{papers[name].placeto_placements:,}",
            ">paper, RNN": lambda name: f"{papers[name].rnn_placements:,}",
            ">paper, factor": lambda name: f"{papers[name].speed_up:.2f}",
            ">paper configuration, episodes": lambda name: count_text(episodes(name)),
            ">RNN": lambda name: count_text(until(name, "rnn")),
            ">factor": lambda name: ratio(until(name, "rnn") / episodes(name)),
            ">of budgets": lambda name: ratio(of_budgets(name)),
        },
    )


def _parts_of_episodes(table: str) -> list[str]:
    return [
        "## Placements in episodes",
        table,
        "An episode of the published method evaluates a placement for each group. Its workers run "
        "one episode each before the policy changes, so that the paper's 1,600 placements would be "
        "no more than two changes, were they all that are evaluated. Here they are taken for those "
        "of whole episodes; of the RNN, which has no others, all are counted. Until each was "
        "within 1 % of its own best, which for the published method may be on the way of an "
        "episode; medians over the seeds. Both learn less and less to the end of their budgets, "
        "and come near their best late, however long these are: the factor follows that of the "
        "budgets. When each is as fast as the other, which is a fairer question, is below.",
    ]


def _parts_of_searches(comparison: Comparison, results: Results) -> list[str]:
    """Return what searches come to beside each other, on the rows that all of them have placed."""
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
        "## When searches are as fast as others at their best",
        _reaching_table(summary),
        "On which part of the rows and seeds the search of the row came to be as fast as that of "
        "the column, with the same seed, ever was; after how many placements and seconds (medians "
        "of all, never if half of them never were; seconds are taken to run evenly with "
        f"placements, which those of the bundled policy do not). Rows: {', '.join(names)}.",
        "## What the number of groups is worth",
        _granularity_table(summary, groups),
        "Memory-penalised runtimes, means over the seeds, in brackets the least and the most of "
        "them. All are in the groups of the paper's method but for those from coarse to fine in "
        "finer groups, which have as many placements as those in the paper's groups.",
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
            if (
                search == PRETRAINED
            ):  # a rollout counts as one placement, a round of coordinate descent as many
                return after
            return f"{after}, {duration_text(seconds)}"

        return cell

    columns = {f">as fast as {PLACERS[name].title}": as_fast_as(name) for name in SEARCHES}
    return markdown_table(SEARCHES, {"search": lambda name: PLACERS[name].title, **columns})


def _granularity_table(summary: Summary, groups: Sequence[int]) -> str:
    def cost(placer: str) -> Callable[[Summary], str]:
        return lambda row: row.mean_cost(placer).text(seconds_text)

    rows = [Summary(summary.results, [name], summary.seeds) for name in summary.graphs]
    finer = dict(zip(summary.graphs, groups, strict=True))
    return markdown_table(
        rows,
        {
            "row": lambda row: row.graphs[0],
            **{f">{PLACERS[name].title}": cost(name) for name in OF_GRANULARITY[:-1]},
            ">finer groups": lambda row: f"{finer[row.graphs[0]]:,}",
            ">multilevel search in these": cost(FINER),
            ">gain": lambda row: share_text(1 - row.mean_ratio(FINER, MULTILEVEL).mean),
        },
    )
