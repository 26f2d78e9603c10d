"""A comparison as a report in SI units, and as tables, of which one is the paper's Table 1."""

from collections.abc import Mapping, Sequence
from math import isinf, isnan, nan
from typing import Literal

import msgspec
import numpy as np

from placeto.texts import TextTable, bytes_text, seconds_text
from placeto.trials.curves import evaluations_until
from placeto.trials.records import CaseReport, Placed

CPU = "cpu"
NOTHING = "–"  # noqa: RUF001 (an en dash, as in printed tables)
NEVER = "never"
ABBREVIATIONS = (
    "Medians over the seeds, on the simulator; where some runs do not fit the memory, of those "
    "that do, whose number is given. OOM: the memory of a device does not suffice. "
    "Placements: sampled until the search was within 1 % of its own best. Search: seconds of the "
    "whole search by the clock, on one core; other work beside makes them more. Reduction and "
    "speed-up: of Placeto over the RNN. In the last column: the placements that Placeto sampled "
    "until it was as fast as the RNN at its best, those that it only looked at included; never, if "
    "half of the runs never were."
)


class SchemeReport(msgspec.Struct, frozen=True):
    """The runs of a scheme that succeeded, and why one did not."""

    name: str
    title: str = ""
    runs: list[Placed] = []
    error: str | None = None


class ProblemReport(CaseReport, frozen=True, kw_only=True):
    """What is known of a problem, and what schemes came to."""

    schemes: list[SchemeReport]

    def find(self, name: str) -> SchemeReport:
        """Return the report of one scheme, which has no runs if it did not take part."""
        return next((scheme for scheme in self.schemes if scheme.name == name), SchemeReport(name))


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a comparison."""

    format: Literal["placeto-comparison"] = "placeto-comparison"
    version: Literal[2] = 2
    seeds: int
    budgets: Mapping[str, int | None]
    problems: Sequence[ProblemReport]


def runtime_text(run: Placed) -> str:
    """Return a run's runtime for people: OOM where the memory does not suffice."""
    if run.runtime is None:
        return "cannot run"
    return seconds_text(run.runtime) if run.fits else "OOM"


def typical(scheme: SchemeReport, field: str) -> float:
    """Return the median of a number of the runs that fit the memory; NaN if none does."""
    runs = [run for run in scheme.runs if run.fits and run.runtime is not None]
    return _median([getattr(run, field) for run in runs])


def paper_table(problems: Sequence[ProblemReport], scheme: str = "placeto") -> TextTable:
    """Return the table of Addanki et al. (2019), table 1: medians over the seeds, in seconds.

    ``scheme`` takes the place of Placeto.
    """
    columns = ["model", ">CPU only", ">single GPU", ">GPUs", ">expert", ">Scotch", ">Placeto"]
    columns += [">RNN", ">placements, Placeto", ">placements, RNN", ">search, Placeto"]
    columns += [">search, RNN", ">runtime reduction", ">speed-up factor"]
    return TextTable(
        "Runtime of one step in seconds, as in table 1 of Addanki et al. (2019)",
        [*columns, ">Placeto as fast as the RNN after"],
        [_paper_row(problem, scheme) for problem in problems],
    )


def scheme_table(problem: ProblemReport) -> TextTable:
    """Return every scheme on one problem, and the bound that none of them beats."""
    single, bound = typical(problem.find("single"), "runtime"), problem.lower_bound
    rows = [_scheme_row(scheme, single, bound) for scheme in problem.schemes]
    rows.append(["lower bound", seconds_text(bound), "", "", "1.00", "", "", "", ""])
    columns = ["scheme", ">runtime", ">over seeds", ">of single GPU", ">of lower bound"]
    return TextTable(
        f"{problem.source} on {problem.cluster}: {problem.ops:,} ops, {problem.groups} groups",
        [*columns, ">peak memory", ">placements", ">to within 1 %", ">search"],
        rows,
    )


def micro_batch_table(reports: Sequence[tuple[str, int, ProblemReport]]) -> TextTable:
    """Return how many times as fast as one device with the undivided step each placer is.

    With each report comes the name of its step, and its number of micro-batches. The runtime on one
    device is known also where its memory does not suffice. Steps and devices of which it is not
    known have no rows.
    """
    undivided = {
        (step, report.cluster): run
        for step, micro_batches, report in reports
        for run in report.find("single").runs
        if micro_batches == 1 and run.runtime is not None
    }
    titles = {
        scheme.name: scheme.title
        for _, _, report in reports
        for scheme in report.schemes
        if scheme.name not in {CPU, "single"}
    }
    places = list(dict.fromkeys((step, report.cluster) for step, _, report in reports))
    rows = []
    for step, micro_batches, report in sorted(
        reports, key=lambda each: (places.index((each[0], each[2].cluster)), each[1])
    ):
        run = undivided.get((step, report.cluster))
        if run is not None and run.runtime is not None:
            alone = seconds_text(run.runtime) + ("" if run.fits else " (OOM)")
            cells = [_speed_up(report.find(name), run.runtime) for name in titles]
            rows.append([step, report.cluster, str(micro_batches), alone, *cells])
    columns = ["model", "devices", ">micro-batches", ">single GPU, undivided"]
    columns += [f">{title}" for title in titles.values()]
    return TextTable("Speed-up over the undivided step on a single GPU", columns, rows)


def problem_parts(report: ProblemReport, picture: str) -> list[str]:
    """Return every scheme on one problem as parts of a Markdown page, with its learning curves."""
    table = scheme_table(report)
    parts = [f"## {table.title}", TextTable("", table.columns, table.rows).markdown()]
    missing = [f"- {s.title}: {s.error}" for s in report.schemes if s.error]
    if missing:
        parts.append("\n".join(missing))
    return [*parts, f"![Learning curves]({picture})"]


def _median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing, or if one of the values is."""
    return float(np.median(values)) if values else nan


def _paper_row(problem: ProblemReport, scheme: str) -> list[str]:
    placeto, rnn = problem.find(scheme), problem.find("rnn")
    ours, theirs = (typical(scheme, "evaluations_to_best") for scheme in (placeto, rnn))
    runtime = typical(rnn, "runtime")
    until = [evaluations_until(run.curve, runtime) for run in placeto.runs]
    return [
        problem.source,
        *(_runtime(problem.find(name)) for name in ("cpu", "single")),
        str(problem.gpus),
        *(_runtime(problem.find(name)) for name in ("expert", "scotch", scheme, "rnn")),
        *(_text(count, "{:,.0f}") for count in (ours, theirs)),
        *(_text(_median([run.seconds for run in s.runs]), "{:,.0f} s") for s in (placeto, rnn)),
        _text(100 * (1 - typical(placeto, "runtime") / runtime), "{:.1f} %"),
        _text(theirs / (ours or nan), "{:.2f}"),
        NOTHING if isnan(runtime) else _text(_median(until), "{:,.0f}"),
    ]


def _speed_up(scheme: SchemeReport, alone: float) -> str:
    runtime = typical(scheme, "runtime")
    return _text(alone / runtime, "{:.2f}", "OOM" if scheme.runs else NOTHING)


def _runtime(scheme: SchemeReport) -> str:
    known = runtime_text(scheme.runs[0]) if scheme.runs else NOTHING
    runtime = _text(typical(scheme, "runtime"), "{:#.4g}", known)
    some = _those_that_fit(scheme)
    return f"{runtime} ({some})" if some else runtime


def _those_that_fit(scheme: SchemeReport) -> str:
    """Return of how many runs the memory suffices; nothing if it does of all or of none."""
    count = sum(run.fits for run in scheme.runs)
    return f"{count} of {len(scheme.runs)} fit" if 0 < count < len(scheme.runs) else ""


def _text(number: float, form: str, nothing: str = NOTHING) -> str:
    if isinf(number):
        return NEVER
    return nothing if isnan(number) else form.format(number)


def _scheme_row(scheme: SchemeReport, single: float, bound: float) -> list[str]:
    runs = scheme.runs
    if not runs:
        return [scheme.title, NOTHING, *[""] * 7]
    runtime = typical(scheme, "runtime")
    placed = [run for run in runs if run.fits]
    fitting = [run.runtime for run in placed if run.runtime is not None]
    some = _those_that_fit(scheme)
    over_seeds = [some] if some else []
    if len(fitting) > 1:
        over_seeds.insert(0, f"{seconds_text(min(fitting))} to {seconds_text(max(fitting))}")
    evaluations = _median([run.evaluations for run in runs])
    near = typical(scheme, "evaluations_to_best") if evaluations > 1 else nan
    return [
        scheme.title,
        runtime_text(runs[0]) if isnan(runtime) else seconds_text(runtime),
        ", ".join(over_seeds),
        _text(100 * runtime / (single or nan), "{:.1f} %", ""),
        _text(runtime / (bound or nan), "{:.2f}", ""),
        bytes_text(int(_median([max(run.peak_memory) for run in placed or runs]))),
        f"{evaluations:,.0f}",
        _text(near, "{:,.0f}", ""),
        f"{_median([run.seconds for run in runs]):.1f} s",
    ]
