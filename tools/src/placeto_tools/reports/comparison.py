"""Every scheme on the same problem with the same evaluator, as a report in SI units."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_baselines import lower_bound
from placeto_graphs import PlacementProblem
from placeto_graphs import PlacementResult
from placeto_graphs import parse_cluster
from placeto_tools.problems.making import compute_times
from placeto_tools.tables import seconds_text

Report = dict[str, Any]
NEAR_BEST = 0.01  # of the best runtime: a search that is as near has found it
CPU = "cpu"


def case_report(source: str, cluster: str, problem: PlacementProblem) -> Report:
    """Return what is known of a problem before any scheme has placed it.

    Parameters
    ----------
    source
        What is placed.
    cluster
        On what, in short.
    problem
        The problem.
    """
    return {
        "source": source,
        "cluster": cluster,
        "devices": list(problem.cluster.device_names),
        "gpus": sum(device.kind != CPU for device in problem.cluster.devices),
        "ops": problem.graph.num_ops,
        "groups": problem.num_groups,
        "lower_bound": lower_bound(problem),
    }


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


def on_a_cpu(problem: PlacementProblem) -> PlacementProblem:
    """Return the same groups on a CPU alone, unless one of the devices is one."""
    if has_cpu(problem):
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


def _finite(seconds: float) -> float | None:
    return seconds if np.isfinite(seconds) else None
