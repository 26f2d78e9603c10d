"""Times of ops on devices of this machine, measured in runs of whole steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeto_execution import Executor
from placeto_graphs import Cluster, ExecutableStep, PlacementProblem, parse_cluster

TRIMMED = 0.2  # of the runs, on either side


@dataclass(frozen=True)
class StepProfile:
    """Times of N runs of a step on one device.

    Attributes
    ----------
    op_seconds : float64[N, V]
        Seconds of each op in each run.
    runtimes : float64[N]
        Seconds of the runs: the ops, and the time between them.
    """

    op_seconds: NDArray[np.float64]
    runtimes: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """float64[V], the trimmed mean of each op; 0 for what computes nothing."""
        return trimmed_mean(self.op_seconds)

    @property
    def spread(self) -> float:
        """Distance of the quartiles of an op, as a fraction of its mean; weighted by means."""
        quartiles: NDArray[np.float64] = np.quantile(self.op_seconds, [0.25, 0.75], axis=0)
        total = float(self.seconds.sum())
        spread = float((quartiles[1] - quartiles[0]).sum())
        return spread / total if total else 0.0

    @property
    def between_ops(self) -> float:
        """Seconds from the end of an op to the start of the next, the median of the runs' means.

        Ops that compute nothing do not count: a simulated device is not busy after them either.
        """
        between = self.runtimes - self.op_seconds.sum(axis=1)
        return float(np.median(between) / max(1, np.count_nonzero(self.seconds) - 1))


def trimmed_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each column without its least and its greatest fifth.

    Examples
    --------
    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [4.0], [90.0]]))
    array([3.])
    """
    ordered = np.sort(values, axis=0)
    cut = int(len(values) * TRIMMED)
    mean: NDArray[np.float64] = ordered[cut : len(values) - cut].mean(axis=0)
    return mean


def profile_in_place(
    step: ExecutableStep,
    device: str,
    runs: int,
    report: Callable[[int], None] = lambda _: None,
) -> StepProfile:
    """Run a step with all ops on one device, and note how long each takes among the others."""
    sources = step.graph.bytes_accessed == 0  # what holds values is there before the step
    with executor_on(step, [device]) as executor:
        everything = np.zeros(executor.problem.num_groups, np.int32)
        timelines = executor.measure(everything, runs, report)
    return StepProfile(
        np.array([np.where(sources, 0.0, each.op_end - each.op_start) for each in timelines]),
        np.array([each.runtime for each in timelines]),
    )


def executor_on(step: ExecutableStep, devices: Sequence[str]) -> Executor:
    """Return an executor of a step for a problem whose times do not count."""
    problem = PlacementProblem(
        graph=step.graph,
        cluster=parse_cluster(f"{len(devices)}xcpu"),
        compute_time=np.zeros((step.graph.num_ops, len(devices))),
    )
    return Executor(problem, step, devices)


def with_measured_times(
    problem: PlacementProblem, profiles: dict[str, StepProfile]
) -> PlacementProblem:
    """Return a problem whose ops take what was measured on each kind of device."""
    measured = {kind: profile.seconds for kind, profile in profiles.items()}
    kinds = [device.kind for device in problem.cluster.devices]
    return replace(
        problem,
        graph=replace(problem.graph, measured_time={**problem.graph.measured_time, **measured}),
        compute_time=np.stack([measured[kind] for kind in kinds], axis=1),
    )


def with_overheads(cluster: Cluster, profiles: dict[str, StepProfile]) -> Cluster:
    """Return a cluster whose devices are busy after an op for as long as was measured."""
    devices = tuple(
        replace(device, op_overhead=profiles[device.kind].between_ops) for device in cluster.devices
    )
    return replace(cluster, devices=devices)
