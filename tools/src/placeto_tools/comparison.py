"""Every scheme on the same problem with the same evaluator, as a report in SI units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines import lower_bound
from placeto_graphs import PlacementProblem
from placeto_graphs import PlacementResult
from placeto_graphs import parse_cluster
from placeto_tools.errors import WRONG_INPUT
from placeto_tools.errors import exit_code
from placeto_tools.errors import one_line
from placeto_tools.placements import run_placer
from placeto_tools.placers import SCHEMES
from placeto_tools.placers import make_placer
from placeto_tools.problems import compute_times
from placeto_tools.progress import Progress
from placeto_tools.progress import clock
from placeto_tools.tables import seconds_text

Report = dict[str, Any]
NEAR_BEST = 0.01  # of the best runtime: a search that is as near has found it
CPU = "cpu"


@dataclass(frozen=True, eq=False)
class Case:
    """A problem to compare on.

    Attributes
    ----------
    source : text
        What was placed.
    cluster : text
        On what, in short.
    problem : `PlacementProblem`
        The problem.
    """

    source: str
    cluster: str
    problem: PlacementProblem


@dataclass(frozen=True)
class Effort:
    """How much the schemes may do.

    Attributes
    ----------
    seeds : int
        How many seeds a scheme runs with that draws at random.
    budget : int or None
        How many placements each search samples; by default its own.
    rnn_budget : int or None
        The same for the recurrent policy, which takes far longer for each.
    """

    seeds: int = 1
    budget: int | None = None
    rnn_budget: int | None = None

    def budget_of(self, name: str) -> int | None:
        """Return how many placements a scheme samples; None for one that does not search."""
        own = SCHEMES[name].budget
        if own is None:
            return None
        return (self.rnn_budget if name == "rnn" else None) or self.budget or own


def case_report(case: Case) -> Report:
    """Return what is known of a problem before any scheme has placed it."""
    return {
        "source": case.source,
        "cluster": case.cluster,
        "devices": list(case.problem.cluster.device_names),
        "gpus": sum(device.kind != CPU for device in case.problem.cluster.devices),
        "ops": case.problem.graph.num_ops,
        "groups": case.problem.num_groups,
        "lower_bound": lower_bound(case.problem),
        "schemes": [],
    }


def scheme_report(
    case: Case, name: str, effort: Effort, progress: Progress
) -> tuple[Report, PlacementResult | None]:
    """Place a problem with one scheme, and return its report and the best result.

    A scheme that fails has its error in the report; the others go on.

    Parameters
    ----------
    case
        The problem.
    name
        Of the scheme.
    effort
        How much it may do.
    progress
        Shows how far it is.
    """
    scheme = SCHEMES[name]
    report: Report = {"name": name, "title": scheme.title, "runs": [], "error": None}
    label = f"{case.source} on {case.cluster}: {name}"
    best: PlacementResult | None = None
    budget = effort.budget_of(name)
    try:
        problem = _problem_of(case.problem, name)
        for seed in range(effort.seeds if scheme.random else 1):
            placer = make_placer(name, problem, budget)
            result = run_placer(
                placer, problem, progress, seed=seed, budget=budget, label=f"{label}, seed {seed}"
            )
            run = run_report(problem, result, seed)
            report["runs"].append(run)
            if best is None or _cost(run) < _cost(run_report(problem, best, seed)):
                best = result
            progress.say(f"{label}: {runtime_text(run)}, {clock(result.seconds)}")
    except ValueError as error:
        if exit_code(error) != WRONG_INPUT:  # of no package of ours, so a mistake in the code
            raise
        report["error"] = one_line(error)
        progress.say(f"{label}: {report['error']}")
    return report, best


def run_report(problem: PlacementProblem, result: PlacementResult, seed: int) -> Report:
    """Return what one run of a scheme came to."""
    return {
        "seed": seed,
        "runtime": _finite(result.runtime),
        "fits": result.fits(problem.cluster),
        "peak_memory": result.peak_memory.tolist(),
        "evaluations": result.evaluations,
        "evaluations_to_best": evaluations_to_best(result.curve),
        "seconds": result.seconds,
        "curve": [[int(count), _finite(best)] for count, best in result.curve.tolist()],
    }


def evaluations_to_best(curve: NDArray[np.float64]) -> int:
    """Return how many placements a search sampled until it was within 1 % of its own best.

    Parameters
    ----------
    curve : float64[K, 2]
        Rows of (placements sampled so far, best runtime so far in seconds).

    Returns
    -------
    int
        The placements of the first row from which on all are near the last. (A curve rises where
        the best so far did not fit the memory, and a slower one that does took its place.)

    Examples
    --------
    >>> evaluations_to_best(np.array([[1, 3.0], [10, 2.0], [50, 1.005], [90, 1.0]]))
    50
    """
    if not len(curve):
        return 0
    last = curve[-1, 1]
    far = np.abs(curve[:, 1] - last) > NEAR_BEST * last
    row = int(np.flatnonzero(far).max(initial=-1)) + 1
    return int(curve[min(row, len(curve) - 1), 0])


def runtime_text(run: Report) -> str:
    """Return a run's runtime for people: OOM where the memory does not suffice."""
    if run["runtime"] is None:
        return "cannot run"
    return seconds_text(run["runtime"]) if run["fits"] else "OOM"


def typical_runtime(scheme: Report | None) -> float | None:
    """Return the median runtime of the runs that fit the memory, or None if none does."""
    return _median(scheme, "runtime")


def typical_evaluations(scheme: Report | None) -> float | None:
    """Return the median of the placements that a scheme sampled to get near its best."""
    return _median(scheme, "evaluations_to_best")


def typical_seconds(scheme: Report | None) -> float | None:
    """Return the median of the seconds that a scheme took, whether its placements fit or not."""
    runs: Sequence[Report] = scheme["runs"] if scheme else ()
    return float(np.median([run["seconds"] for run in runs])) if runs else None


def evaluations_until(scheme: Report | None, runtime: float | None) -> float | None:
    """Return the median of the placements that a scheme sampled until it was as fast.

    None if one of its runs never was.

    Examples
    --------
    >>> runs = [{"curve": [[1, 3.0], [10, 2.0]]}, {"curve": [[1, 2.5], [20, 1.0]]}]
    >>> evaluations_until({"runs": runs}, 2.0)
    15.0
    """
    runs: Sequence[Report] = scheme["runs"] if scheme else ()
    if runtime is None or not runs:
        return None
    counts = [
        next((count for count, best in run["curve"] if best is not None and best <= runtime), None)
        for run in runs
    ]
    known = [count for count in counts if count is not None]
    return float(np.median(known)) if len(known) == len(counts) else None


def reduction(scheme: float | None, other: float | None) -> float | None:
    """Return by which part a runtime is below another one."""
    return None if scheme is None or other is None else 1 - scheme / other


def find_scheme(problem: Report, name: str) -> Report | None:
    """Return the report of one scheme on a problem, if it took part."""
    return next((scheme for scheme in problem["schemes"] if scheme["name"] == name), None)


def has_cpu(problem: PlacementProblem) -> bool:
    """Return whether one of the devices is a CPU."""
    return any(device.kind == CPU for device in problem.cluster.devices)


def _problem_of(problem: PlacementProblem, name: str) -> PlacementProblem:
    """Return what a scheme places: for CPU only the same groups on a CPU, if there is none."""
    if name != CPU or has_cpu(problem):
        return problem
    cluster = parse_cluster(f"1x{CPU}")
    return PlacementProblem(
        graph=problem.graph,
        cluster=cluster,
        compute_time=compute_times(problem.graph, cluster),
        grouping=problem.grouping,
    )


def _median(scheme: Report | None, field: str) -> float | None:
    runs: Sequence[Report] = scheme["runs"] if scheme else ()
    values = [run[field] for run in runs if run["fits"] and run["runtime"] is not None]
    return float(np.median(values)) if values else None


def _cost(run: Report) -> tuple[bool, float]:
    return not run["fits"], np.inf if run["runtime"] is None else run["runtime"]


def _finite(seconds: float) -> float | None:
    return seconds if np.isfinite(seconds) else None
