"""Reports of a comparison in SI units, and their tables, such as table 1 of the paper."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isinf, isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.outputs import decode_json, read_json
from placeto.placing.cost_texts import misfit_text
from placeto.texts import (
    SECONDS,
    TextTable,
    bytes_text,
    cost_text,
    counted,
    share_text,
)
from placeto.training.folder import LOG
from placeto.trials.records import Curve, Placed, Problem, Runs, evaluations_until
from placeto.trials.statistics import (
    critical_difference,
    friedman_probability,
    mean_interval,
    mean_ranks,
)

RESULTS = "results.json"
CPU = "cpu"
FITTED_MARK = " *f*"  # behind a runtime that is fitted to a published one
NOTHING = "–"  # noqa: RUF001 (an en dash, as in printed tables)
NEVER = "never"
ROUNDING = 1e-9  # as a fraction of a cost: sums in another order are equal
WITHIN = (1.0, 1.01, 1.05, 1.1, 1.25, 1.5)  # factors of the best
MEDIANS = (
    "Numbers are medians over the seeds; *mean ± sd* is the mean with the standard deviation "
    "relative to it. If some runs do not fit the memory, both are of the runs that fit. OOM: a "
    "device has too little memory. *Of the best*: ratio to the lowest median of all placers, in "
    "which a run that does not fit, or fails, counts as infinite. Learning curves are medians, in "
    "bands from the least to the most."
)
SEARCH_COLUMNS = (
    "*Evaluations*: until the search was within 1 % of its own best. *Reduction*: how much lower "
    "the runtime is than the RNN's. *RNN / placer*: evaluations of the RNN over those of the "
    "placer. *CPU seconds*: of the whole search. *As fast as the RNN*: evaluations until the "
    "placer was as fast as the RNN at its best; never, if half of the runs never were."
)
Curves = dict[str, list[NDArray[np.float64]]]  # [K, 2] of each seed
MAY_BE_EMPTY = (">mean ± sd", ">of lower bound")  # columns of one problem
TABLE_1 = {  # titles of the placers that table 1 of the paper is about, by name
    CPU: "CPU only",
    "single": "single GPU",
    "expert": "expert",
    "scotch": "Scotch",
    "rnn": "RNN",
    "placeto": "Placeto (default configuration)",
    "paper": "Placeto (paper configuration)",
}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios of a placer to the best of all placers, over the problems on which some placer fits.

    The cost on a problem is the median over the seeds, infinite for a run that does not fit. The
    shares within factors of the best are a performance profile (Dolan and Moré 2002).
    """

    name: str
    title: str
    # Ratio to the best on each problem: infinite (None in files) if it does not fit, None if
    # no placer fits or it has not placed yet
    ratios: list[float | None]
    mean_ratio: float | None  # geometric mean; infinite, or None, as ratios are
    # Of the problems where it fits: the geometric mean over problems and seeds, and the ends of its
    # bootstrap interval; None if there is no such problem
    interval: tuple[float, float, float] | None = None
    mean_rank: float | None = None  # over the problems that all placers have placed
    within: dict[str, float]  # by factor, the share of the problems


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``results.json``, the file of a comparison."""

    format: Literal["placeto-comparison"] = "placeto-comparison"
    version: Literal[5] = 5
    seeds: int
    max_evaluations: int | None  # evaluations after which each placer is stopped
    seconds: float | None  # CPU seconds after which each placer is stopped
    budgets: Mapping[str, int | None]
    problems: Sequence[Problem]
    profiles: Sequence[Profile]


def runtime_text(run: Placed, unit: str = SECONDS) -> str:
    """Return a run's runtime with its unit, or OOM if it does not fit the memory."""
    if run.runtime is None:
        return "cannot run"
    return cost_text(run.runtime, unit) if run.fits else "OOM"


def typical(placer: Runs, field: str) -> float:
    """Return the median of a number of the runs that fit the memory; NaN if none does."""
    runs = [run for run in placer.runs if run.fits and run.runtime is not None]
    return _median([getattr(run, field) for run in runs])


def runtime_table(problems: Sequence[Problem]) -> TextTable:
    """Return the runtimes of the placers of `TABLE_1`, a row for each problem."""
    return TextTable(
        "Simulated seconds of a step; those of Addanki et al. (2019): `placeto experiment table1`",
        ["problem", *(f">{title}" for title in TABLE_1.values())],
        [
            [problem.title, *(_runtime(problem.find(name)) for name in TABLE_1)]
            for problem in problems
        ],
    )


def search_table(
    problems: Sequence[Problem], placers: Sequence[str] = ("placeto", "rnn")
) -> TextTable:
    """Return evaluations and seconds of some placers, a row for each problem and placer."""
    return TextTable(
        "Search of these placements",
        [
            *("problem", "placer", ">runtime, s", ">reduction", ">evaluations", ">RNN / placer"),
            *(">CPU seconds", ">as fast as the RNN"),
        ],
        [_search_row(problem, name) for problem in problems for name in placers],
    )


def placer_table(problem: Problem, fitted: Collection[str] = ()) -> TextTable:
    """Return every placer on one problem, those in ``fitted`` with a mark, and the lower bound."""
    best, bound = _lowest(_costs(problem)), problem.lower_bound
    rows = [_placer_row(problem, placer, best) for placer in problem.placers]
    for placer, row in zip(problem.placers, rows, strict=True):
        row[1] += FITTED_MARK if placer.name in fitted else ""
    columns = ["placer", f">{problem.objective}", ">mean ± sd", ">of the best", ">of lower bound"]
    columns += [">peak memory", ">evaluations", ">CPU seconds"]
    if bound:
        of_best = _text(bound / (best or nan), "{:.3f}", "")
        cost = cost_text(bound, problem.unit)
        rows.append(["lower bound", cost, "", of_best, "1.00", "", "", ""])
    shown = [
        index
        for index, name in enumerate(columns)
        if name not in MAY_BE_EMPTY or any(row[index] for row in rows)
    ]
    title = f"{problem.title}: {counted(problem.ops, 'op')}, {counted(problem.groups, 'group')}"
    runs = [run for placer in _competing(problem) for run in placer.runs]
    if problem.least_excess:
        title += f"; {misfit_text(problem.least_excess, problem.groups)}"
    elif runs and not any(run.fits for run in runs):
        title += "; no placement that fits was found"
    remarks = [
        f"{placer.title}: {text}." for placer in problem.placers if (text := _remark(placer))
    ]
    cells = [[row[index] for index in shown] for row in (columns, *rows)]
    return TextTable(title, cells[0], cells[1:], remarks)


def profiles(problems: Sequence[Problem]) -> list[Profile]:
    """Return the ratio of each placer to the best on each problem."""
    titles = {placer.name: placer.title for problem in problems for placer in _competing(problem)}
    costs_of_problems = [_costs(problem) for problem in problems]
    best = [_lowest(costs) for costs in costs_of_problems]
    num_counted = len(best) - int(np.isnan(best).sum())
    names, placed = _placed_by_all(costs_of_problems)
    ranks = dict(zip(names, mean_ranks(placed).tolist(), strict=True)) if placed.size else {}
    profiles_of_placers = []
    for name, title in titles.items():
        ratios = [
            _ratio(costs.get(name, nan), lowest)
            for costs, lowest in zip(costs_of_problems, best, strict=True)
        ]
        known_ratios = [ratio for ratio in ratios if ratio is not None]
        within = {
            f"{factor:.2f}": sum(ratio <= factor for ratio in known_ratios) / max(num_counted, 1)
            for factor in WITHIN
        }
        ratios_of_seeds = [
            [run.runtime / lowest for run in problem.find(name).runs if run.fits and run.runtime]
            for problem, ratio, lowest in zip(problems, ratios, best, strict=True)
            if ratio is not None and lowest > 0 and ratio < inf
        ]
        profiles_of_placers.append(
            Profile(
                name=name,
                title=title,
                ratios=ratios,
                mean_ratio=_geometric_mean(known_ratios),
                interval=mean_interval(ratios_of_seeds) if ratios_of_seeds else None,
                mean_rank=ranks.get(name),
                within=within,
            )
        )
    return profiles_of_placers


def _placed_by_all(
    costs_of_problems: Sequence[Mapping[str, float]],
) -> tuple[list[str], NDArray[np.float64]]:
    """Return the placers of all problems, and float64[P, K], their costs where some fits.

    Problems that one of them has not placed yet are left out, too.
    """
    first = costs_of_problems[0] if costs_of_problems else {}
    names = [name for name in first if all(name in costs for costs in costs_of_problems)]
    rows = np.array([[costs[name] for name in names] for costs in costs_of_problems])
    placed = rows.reshape(len(costs_of_problems), len(names))
    return names, placed[~np.isnan(placed).any(axis=1) & np.isfinite(placed).any(axis=1)]


def rank_table(profiles: Sequence[Profile], problems: Sequence[Problem]) -> TextTable:
    """Return ratios to the best placer with their intervals, and mean ranks."""
    by_problem = list(zip(*(profile.ratios for profile in profiles), strict=True))
    count = sum(any(ratio is not None for ratio in ratios) for ratios in by_problem)
    rows = []
    for profile in profiles:
        fitting = [ratio for ratio in profile.ratios if ratio is not None and ratio < inf]
        cells = [f"{end:.3f}" for end in profile.interval or ()] or [NOTHING] * 3
        rank = NOTHING if profile.mean_rank is None else f"{profile.mean_rank:.2f}"
        rows.append([profile.title, *cells, rank, str(len(fitting))])
    remarks = [
        "Ratio to the best placer of each problem: geometric mean over the problems where the "
        "placer fits the memory, and the ends of its 95 % bootstrap interval over problems and "
        "seeds. Rank 1 is the best."
    ]
    left_out = len(by_problem) - count
    if left_out:
        remarks.append(f"{counted(left_out, 'problem')} without a placement that fits, left out.")
    _, placed = _placed_by_all([_costs(problem) for problem in problems])
    if len(placed) > 1 and placed.shape[1] > 1:
        difference = critical_difference(placed.shape[1], len(placed))
        text = f"Mean ranks over {len(placed)} problems that are less than {difference:.2f} apart "
        text += "do not differ significantly (test of Nemenyi, 5 %)."
        if placed.shape[1] > 2:
            text += f" Friedman's test of equal ranks: p = {friedman_probability(placed):.2g}."
        remarks.append(text)
    columns = ["placer", ">ratio", ">from", ">to", ">mean rank", ">fits"]
    title = f"Ratio to the best placer, and rank, over {counted(count, 'problem')}"
    return TextTable(title, columns, rows, remarks)


def profile_table(profiles: Sequence[Profile]) -> TextTable:
    """Return the performance profiles of placers as a table."""
    return TextTable(
        "Share of problems within a factor of the best placer",
        ["placer", *(f">{factor:.2f}" for factor in WITHIN)],
        [[profile.title, *map(share_text, profile.within.values())] for profile in profiles],
    )


def micro_batch_tables(problems: Sequence[Problem]) -> list[TextTable]:
    """Return the costs of placers by the number of micro-batches, a table for each step."""
    # By step and devices, and then by number of micro-batches
    problems_of_step: dict[tuple[str, str], dict[int, Problem]] = {}
    for problem in problems:
        by_count = problems_of_step.setdefault((problem.step, problem.cluster), {})
        by_count[problem.micro_batches] = problem
    tables = []
    for (step, cluster), by_count in problems_of_step.items():
        counts = sorted(by_count)
        if len(counts) < 2:
            continue
        titles = {
            placer.name: placer.title for count in counts for placer in by_count[count].placers
        }
        rows = [
            [title, *(_cost(by_count[count].find(name), by_count[count]) for count in counts)]
            for name, title in titles.items()
        ]
        bounds = [by_count[count].lower_bound for count in counts]
        units = [by_count[count].unit for count in counts]
        if any(bounds):
            rows.append(["lower bound", *map(cost_text, bounds, units)])
        tables.append(
            TextTable(
                f"{step} on {cluster}: {by_count[counts[0]].objective} by number of micro-batches",
                ["placer", *(f">{count}" for count in counts)],
                rows,
            )
        )
    return tables


def _cost(placer: Runs, problem: Problem) -> str:
    """Return the median cost of a placer on a problem, OOM, or a dash if it has not placed it."""
    cost = typical(placer, "runtime")
    if not isnan(cost):
        return cost_text(cost, problem.unit)
    return runtime_text(placer.runs[0], problem.unit) if placer.runs else NOTHING


def read_curves(folders: Sequence[Path]) -> Curves:
    """Return the curves of each placer or run in folders of `placeto compare` and `train`."""
    named_curves = [
        (folder, name, curves) for folder in folders for name, curves in _curves(folder)
    ]
    count = Counter(name for _, name, _ in named_curves)
    return {
        name if count[name] == 1 else f"{folder}: {name}": curves
        for folder, name, curves in named_curves
    }


def _curves(folder: Path) -> Iterator[tuple[str, list[NDArray[np.float64]]]]:
    results, log = folder / RESULTS, folder / LOG
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder of `placeto train` or `placeto compare`")
    if results.is_file():
        for problem in read_json(results, ComparisonReport, "`placeto compare`").problems:
            for placer in problem.placers:
                if placer.searches and placer.runs:
                    curves = [_array(run.curve) for run in placer.runs]
                    yield f"{placer.title}, {problem.title}", curves
    elif log.is_file():
        lines = log.read_bytes().splitlines()
        expected = f"{log}: expected what `placeto train` writes"
        rows = [decode_json(line, _Update, expected) for line in lines]
        if not rows:
            raise InputError(f"{log}: expected at least one update, got none")
        yield folder.name or str(folder), [_array([(r.evaluations, r.best_runtime) for r in rows])]
    else:
        raise InputError(f"{folder}: expected {RESULTS} or {LOG} in it, got neither")


class _Update(msgspec.Struct):
    evaluations: int
    best_runtime: float


def _array(rows: Curve) -> NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, 2)


def _competing(problem: Problem) -> list[Runs]:
    """Return the placers but CPU only, if that is placed on a CPU of its own."""
    return [placer for placer in problem.placers if problem.has_cpu or placer.name != CPU]


def _costs(problem: Problem) -> dict[str, float]:
    """Return the cost of each placer that competes by its name, see `_cost_over_seeds`."""
    return {placer.name: _cost_over_seeds(placer) for placer in _competing(problem)}


def _cost_over_seeds(placer: Runs) -> float:
    """Return the median over the seeds, or NaN; runs that do not fit or fail are infinite."""
    costs = [inf if run.runtime is None or not run.fits else run.runtime for run in placer.runs]
    return _median([*costs, *[inf] * placer.failed])


def _lowest(costs: Mapping[str, float]) -> float:
    """Return the lowest cost; NaN where no placement fits."""
    return min((cost for cost in costs.values() if cost < inf), default=nan)


def _ratio(cost: float, best: float) -> float | None:
    """Return the ratio of a cost to the best one; None if one of them is not known."""
    if isnan(cost) or isnan(best):
        return None
    if abs(cost - best) <= ROUNDING * best:
        return 1.0
    return cost / best if best > 0 else inf


def _geometric_mean(ratios: Sequence[float]) -> float | None:
    return float(np.exp(np.log(ratios).mean())) if ratios else None


def _median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing, or if one of the values is."""
    return float(np.median(values)) if values else nan


def _search_row(problem: Problem, name: str) -> list[str]:
    placer, rnn = problem.find(name), problem.find("rnn")
    evaluations = typical(placer, "evaluations_to_best")
    rnn_evaluations = typical(rnn, "evaluations_to_best")
    rnn_runtime = typical(rnn, "runtime")
    until_as_fast = [
        *(evaluations_until(run, rnn_runtime) for run in placer.runs),
        *[inf] * placer.failed,
    ]
    if name == "rnn":
        reduction = factor = as_fast = ""
    else:
        reduction = _text(100 * (1 - typical(placer, "runtime") / rnn_runtime), "{:.1f} %")
        factor = _text(rnn_evaluations / (evaluations or nan), "{:.2f}")
        as_fast = NOTHING if isnan(rnn_runtime) else _text(_median(until_as_fast), "{:,.0f}")
    return [
        problem.title,
        placer.title or name,
        _runtime(placer),
        reduction,
        _text(evaluations, "{:,.0f}"),
        factor,
        _text(_median([run.seconds for run in placer.runs]), "{:,.1f}"),
        as_fast,
    ]


def _runtime(placer: Runs) -> str:
    no_median = runtime_text(placer.runs[0]) if placer.runs else NOTHING
    runtime = _text(typical(placer, "runtime"), "{:#.4g}", no_median)
    fitting = _those_that_fit(placer)
    return f"{runtime} ({fitting})" if fitting else runtime


def _those_that_fit(placer: Runs) -> str:
    """Return the number of runs that fit the memory; empty for all or none."""
    count = sum(run.fits for run in placer.runs)
    return f"{count} of {len(placer.runs)} fit" if 0 < count < len(placer.runs) else ""


def _text(amount: float, form: str, nothing: str = NOTHING) -> str:
    if isinf(amount):
        return NEVER
    return nothing if isnan(amount) else form.format(amount)


def _remark(placer: Runs) -> str:
    """Return what else there is to know of a placer's runs; nothing if all are as usual."""
    done = len(placer.runs) + placer.failed
    remarks = [_those_that_fit(placer)]
    if placer.failed:
        remarks.append(f"{placer.failed} of {done} failed")
    if placer.below:
        remarks.append(f"fewer evaluations than in the paper: {placer.below:,}")
    if done < placer.seeds:
        remarks.append(f"{done} of {placer.seeds} seeds")
    return ", ".join(filter(None, remarks))


def _placer_row(problem: Problem, placer: Runs, best: float) -> list[str]:
    runs, unit = placer.runs, problem.unit
    if not runs:
        return [placer.title, NOTHING, *[""] * 6]
    placed = [run for run in runs if run.fits]
    fitting = [run.runtime for run in placed if run.runtime is not None]
    over_seeds = ""
    if len(fitting) > 1:
        mean = fmean(fitting)
        over_seeds = f"{cost_text(mean, unit)} ± {share_text(stdev(fitting) / (mean or 1.0))}"
    evaluations = _median([run.evaluations for run in runs])
    ratio = _ratio(_cost_over_seeds(placer), best)
    return [
        placer.title,
        _cost(placer, problem),
        over_seeds,
        f"{ratio:.3f}" if ratio is not None and ratio < inf else "",
        _text(typical(placer, "runtime") / (problem.lower_bound or nan), "{:.2f}", ""),
        bytes_text(int(_median([max(run.peak_memory) for run in placed or runs]))),
        f"{evaluations:,.0f}",
        f"{_median([run.seconds for run in runs]):.2f}",
    ]
