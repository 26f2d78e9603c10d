"""Every scheme on the same problem with the same evaluator, as a report in SI units."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Literal

import msgspec
import numpy as np

from placeto.problems.making import compute_times
from placeto.texts import seconds_text
from placeto.trials import curves
from placeto.trials.records import CaseReport, Placed
from placeto_graphs import PlacementProblem, parse_cluster

CPU = "cpu"


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
    return median(
        [getattr(run, field) for run in scheme.runs if run.fits and run.runtime is not None]
    )


def evaluations_until(scheme: SchemeReport, runtime: float) -> list[float]:
    """Return the placements that each run sampled until it was as fast, of those that were."""
    found = [curves.evaluations_until(run.curve, runtime) for run in scheme.runs]
    return [count for count in found if count is not None]


def median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing, or if one of the values is."""
    return float(np.median(values)) if values else nan


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
