"""A comparison as tables: the paper's Table 1, and every scheme on each problem."""

from collections.abc import Sequence

from placeto_tools.reports.comparison import ProblemReport
from placeto_tools.reports.comparison import SchemeReport
from placeto_tools.reports.comparison import evaluations_until
from placeto_tools.reports.comparison import reduction
from placeto_tools.reports.comparison import runtime_text
from placeto_tools.reports.comparison import typical_evaluations
from placeto_tools.reports.comparison import typical_runtime
from placeto_tools.reports.comparison import typical_seconds
from placeto_tools.tables import TextTable
from placeto_tools.tables import bytes_text
from placeto_tools.tables import seconds_text
from placeto_tools.tables import share_text

ABBREVIATIONS = (
    "Medians over the seeds, on the simulator. OOM: the memory of a device does not suffice. "
    "Placements: sampled until the search was within 1 % of its own best. Search: seconds of the "
    "whole search. Reduction and speed-up: of Placeto over the RNN. In the last column: the "
    "placements that Placeto sampled until it was as fast as the RNN at its best."
)
NOTHING = "–"  # noqa: RUF001 (an en dash, as in printed tables)


def paper_table(problems: Sequence[ProblemReport]) -> TextTable:
    """Return the table of Addanki et al. (2019), table 1: medians over the seeds, in seconds."""
    return TextTable(
        "Runtime of one step in seconds, as in table 1 of Addanki et al. (2019)",
        [
            "model",
            ">CPU only",
            ">single GPU",
            ">GPUs",
            ">expert",
            ">Scotch",
            ">Placeto",
            ">RNN",
            ">placements, Placeto",
            ">placements, RNN",
            ">search, Placeto",
            ">search, RNN",
            ">runtime reduction",
            ">speed-up factor",
            ">Placeto as fast as the RNN after",
        ],
        [_paper_row(problem) for problem in problems],
    )


def scheme_table(problem: ProblemReport) -> TextTable:
    """Return every scheme on one problem, and the bound that none of them beats."""
    single = typical_runtime(problem.find("single"))
    bound = problem.lower_bound
    rows = [_scheme_row(scheme, single, bound) for scheme in problem.schemes]
    rows.append(["lower bound", seconds_text(bound), "", "", "1.00", "", "", "", ""])
    return TextTable(
        f"{problem.source} on {problem.cluster}: {problem.ops:,} ops, {problem.groups} groups",
        [
            "scheme",
            ">runtime",
            ">over seeds",
            ">of single GPU",
            ">of lower bound",
            ">peak memory",
            ">placements",
            ">to within 1 %",
            ">search",
        ],
        rows,
    )


def problem_parts(report: ProblemReport, picture: str) -> list[str]:
    """Return every scheme on one problem as parts of a Markdown page.

    Parameters
    ----------
    report
        The report.
    picture
        The file of its learning curves, relative to the page.
    """
    table = scheme_table(report)
    parts = [f"## {table.title}", TextTable("", table.columns, table.rows).markdown()]
    missing = [f"- {s.title}: {s.error}" for s in report.schemes if s.error]
    if missing:
        parts.append("\n".join(missing))
    return [*parts, f"![Learning curves]({picture})"]


def _paper_row(problem: ProblemReport) -> list[str]:
    placeto, rnn = problem.find("placeto"), problem.find("rnn")
    ours, theirs = typical_evaluations(placeto), typical_evaluations(rnn)
    saved = reduction(typical_runtime(placeto), typical_runtime(rnn))
    as_fast = evaluations_until(placeto, typical_runtime(rnn))
    names = ("expert", "scotch", "placeto", "rnn")
    return [
        problem.source,
        _runtime(problem.find("cpu")),
        _runtime(problem.find("single")),
        str(problem.gpus),
        *(_runtime(problem.find(name)) for name in names),
        NOTHING if ours is None else f"{ours:,.0f}",
        NOTHING if theirs is None else f"{theirs:,.0f}",
        *(_seconds(typical_seconds(scheme)) for scheme in (placeto, rnn)),
        NOTHING if saved is None else share_text(saved),
        NOTHING if ours is None or theirs is None or not ours else f"{theirs / ours:.2f}",
        NOTHING if as_fast is None else f"{as_fast:,.0f}",
    ]


def _runtime(scheme: SchemeReport) -> str:
    if not scheme.runs:
        return NOTHING
    typical = typical_runtime(scheme)
    return runtime_text(scheme.runs[0]) if typical is None else f"{typical:#.4g}"


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:,.0f} s"


def _scheme_row(scheme: SchemeReport, single: float | None, bound: float) -> list[str]:
    runs = scheme.runs
    if not runs:
        return [scheme.title, NOTHING, *[""] * 7]
    typical = typical_runtime(scheme)
    near = typical_evaluations(scheme)
    fitting = [run.runtime for run in runs if run.fits and run.runtime is not None]
    searches = max(run.evaluations for run in runs) > 1
    return [
        scheme.title,
        runtime_text(runs[0]) if typical is None else seconds_text(typical),
        f"{seconds_text(min(fitting))} to {seconds_text(max(fitting))}" if len(fitting) > 1 else "",
        share_text(typical / single) if typical and single else "",
        f"{typical / bound:.2f}" if typical and bound else "",
        bytes_text(max(max(run.peak_memory) for run in runs)),
        f"{max(run.evaluations for run in runs):,}",
        f"{near:,.0f}" if near is not None and searches else "",
        f"{max(run.seconds for run in runs):.1f} s",
    ]
