"""Reports of a comparison in SI units, and their tables, such as table 1 of the paper."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isinf, isnan, nan
from pathlib import Path
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
    seconds_text,
    share_text,
)
from placeto.training.folder import LOG
from placeto.trials.records import Curve, Placed, Problem, Runs, evaluations_until

RESULTS = "results.json"
CPU = "cpu"
FITTED_MARK = " *f*"  # behind a runtime that is fitted to a published one
NOTHING = "–"  # noqa: RUF001 (an en dash, as in printed tables)
NEVER = "never"
ROUNDING = 1e-9  # as a fraction of a cost: sums in another order are equal
WITHIN = (1.0, 1.01, 1.05, 1.1, 1.25, 1.5)  # factors of the best
MEDIANS = (
    "Numbers are medians over the seeds. If some runs do not fit the memory, they are medians of "
    "the runs that fit, and the cell has their number. OOM: a device has too little memory. "
    "*Of the best*: ratio to the lowest median of all placers, in which a run that does not fit, "
    "or fails, counts as infinite."
)
SEARCH_COLUMNS = (
    "*Evaluations*: until the search was within 1 % of its own best. *Reduction*: how much lower "
    "the runtime is than the RNN's. *RNN / placer*: evaluations of the RNN over those of the "
    "placer. *CPU seconds*: of the whole search. *As fast as the RNN*: evaluations until the "
    "placer was as fast as the RNN at its best; never, if half of the runs never were."
)
Curves = dict[str, list[NDArray[np.float64]]]  # [K, 2] of each seed
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
    columns = ["placer", f">{problem.objective}", ">over seeds", ">of the best", ">of lower bound"]
    columns += [">peak memory", ">evaluations", ">CPU seconds"]
    if bound:
        of_best = _text(bound / (best or nan), "{:.3f}", "")
        cost = cost_text(bound, problem.unit)
        rows.append(["lower bound", cost, "", of_best, "1.00", "", "", ""])
    else:
        for cells in (columns, *rows):
            del cells[4]
    title = f"{problem.title}: {counted(problem.ops, 'op')}, {counted(problem.groups, 'group')}"
    runs = [run for placer in _competing(problem) for run in placer.runs]
    if problem.least_excess:
        title += f"; {misfit_text(problem.least_excess, problem.groups)}"
    elif runs and not any(run.fits for run in runs):
        title += "; no placement that fits was found"
    return TextTable(title, columns, rows)


def profiles(problems: Sequence[Problem]) -> list[Profile]:
    """Return the ratio of each placer to the best on each problem."""
    titles = {placer.name: placer.title for problem in problems for placer in _competing(problem)}
    costs_of_problems = [_costs(problem) for problem in problems]
    best = [_lowest(costs) for costs in costs_of_problems]
    num_counted = len(best) - int(np.isnan(best).sum())
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
        mean = _geometric_mean(known_ratios)
        profiles_of_placers.append(
            Profile(name=name, title=title, ratios=ratios, mean_ratio=mean, within=within)
        )
    return profiles_of_placers


def profile_table(profiles: Sequence[Profile]) -> TextTable:
    """Return the profiles of placers as a table."""
    by_problem = list(zip(*(profile.ratios for profile in profiles), strict=True))
    count = sum(any(ratio is not None for ratio in ratios) for ratios in by_problem)
    num_left_out = len(by_problem) - count
    left_out = f" ({num_left_out} more, with no placement known that fits, left out)"
    return TextTable(
        f"Ratio to the best placer, geometric mean over {counted(count, 'problem')}"
        f"{left_out if num_left_out else ''}, and the share of problems within a factor "
        "of the best",
        ["placer", ">ratio", *(f">{factor:.2f}" for factor in WITHIN)],
        [
            [profile.title, _mean_text(profile, count), *map(share_text, profile.within.values())]
            for profile in profiles
        ],
    )


def micro_batch_table(problems: Sequence[Problem]) -> TextTable:
    """Return the speed-up of each placer over one device without micro-batching."""
    titles = {
        placer.name: placer.title
        for problem in problems
        for placer in problem.placers
        if placer.name not in {CPU, "single"}
    }
    # By step and devices, and then by number of micro-batches
    problems_of_step: dict[tuple[str, str], dict[int, Problem]] = {}
    for problem in problems:
        by_count = problems_of_step.setdefault((problem.step, problem.cluster), {})
        by_count[problem.micro_batches] = problem
    rows = []
    for step_and_devices, by_count in problems_of_step.items():
        run = by_count[1].find("single").best if 1 in by_count else None
        if run is None or run.runtime is None:
            continue
        single = seconds_text(run.runtime) + ("" if run.fits else " (OOM)")
        for count, problem in sorted(by_count.items()):
            cells = []
            for placer in map(problem.find, titles):
                speed_up = run.runtime / (typical(placer, "runtime") or nan)
                cells.append(_text(speed_up, "{:.2f}", "OOM" if placer.runs else NOTHING))
            rows.append([*step_and_devices, str(count), single, *cells])
    columns = ["model", "devices", ">micro-batches", ">single GPU, 1 micro-batch"]
    columns += [f">{title}" for title in titles.values()]
    return TextTable("Speed-up over a single GPU without micro-batching", columns, rows)


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


def _mean_text(profile: Profile, num_problems: int) -> str:
    """Return the mean of a placer, and with an infinite one the mean where it fits."""
    fitting = [ratio for ratio in profile.ratios if ratio is not None and ratio < inf]
    mean = _geometric_mean(fitting)
    text = "" if mean is None else f"{mean:.3f}"
    if mean is not None and len(fitting) < num_problems:
        text += f" on {len(fitting)} of {num_problems}"
    if profile.mean_ratio is None:
        return NOTHING
    if profile.mean_ratio < inf:
        return text
    return f"infinite ({text})" if text else "infinite"


def _median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing, or if one of the values is."""
    return float(np.median(values)) if values else nan


def _search_row(problem: Problem, name: str) -> list[str]:
    placer, rnn = problem.find(name), problem.find("rnn")
    evaluations = typical(placer, "evaluations_to_best")
    rnn_evaluations = typical(rnn, "evaluations_to_best")
    rnn_runtime = typical(rnn, "runtime")
    until_as_fast = [
        evaluations_until(run.curve, rnn_runtime) if run.fits else inf for run in placer.runs
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


def _placer_row(problem: Problem, placer: Runs, best: float) -> list[str]:
    runs, unit = placer.runs, problem.unit
    if not runs:
        return [placer.title, NOTHING, *[""] * 6]
    runtime = typical(placer, "runtime")
    placed = [run for run in runs if run.fits]
    fitting = [run.runtime for run in placed if run.runtime is not None]
    fitting_runs = _those_that_fit(placer)
    over_seeds = [fitting_runs] if fitting_runs else []
    done = len(runs) + placer.failed
    if placer.failed:
        over_seeds.append(f"{placer.failed} of {done} failed")
    if placer.below:
        over_seeds.append(f"budget below the paper's: {placer.below:,}")
    if done < placer.seeds:
        over_seeds.append(f"{done} of {placer.seeds} seeds")
    if len(fitting) > 1:
        over_seeds.insert(0, f"{cost_text(min(fitting), unit)} to {cost_text(max(fitting), unit)}")
    evaluations = _median([run.evaluations for run in runs])
    ratio = _ratio(_cost_over_seeds(placer), best)
    return [
        placer.title,
        runtime_text(runs[0]) if isnan(runtime) else cost_text(runtime, unit),
        ", ".join(over_seeds),
        f"{ratio:.3f}" if ratio is not None and ratio < inf else "",
        _text(runtime / (problem.lower_bound or nan), "{:.2f}", ""),
        bytes_text(int(_median([max(run.peak_memory) for run in placed or runs]))),
        f"{evaluations:,.0f}",
        f"{_median([run.seconds for run in runs]):.2f}",
    ]
