"""Measured steps: times of ops on one device, and runs of a placement with the simulated step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_execution.executor import Executor
from placeto_graphs import (
    Cluster,
    ExecutableStep,
    PlacementProblem,
    StepTimeline,
    parse_cluster,
)

Report = dict[str, Any]
TRIMMED = 0.2  # of the runs, on either side
NUM_REPORTED_OPS = 10  # those whose measured and simulated times differ most


@dataclass(frozen=True)
class StepProfile:
    """Times of N runs of a step of V ops on one device.

    Attributes
    ----------
    op_seconds : float64[N, V]
        Seconds of each op in each run.
    runtimes : float64[N]
        Seconds of the ops and of the time between them, in each run.
    """

    op_seconds: NDArray[np.float64]
    runtimes: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """float64[V], of each op the mean without its least and its greatest fifth.

        It is 0 for what computes nothing.
        """
        ordered = np.sort(self.op_seconds, axis=0)
        cut = int(len(ordered) * TRIMMED)
        mean: NDArray[np.float64] = ordered[cut : len(ordered) - cut].mean(axis=0)
        return mean

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


def profile_in_place(
    step: ExecutableStep,
    device: str,
    runs: int,
    report: Callable[[int], None] = lambda _: None,
) -> StepProfile:
    """Run a step with all ops on one device, and note how long each takes among the others.

    Parameters
    ----------
    step
        Step that runs.
    device
        Name of the device, such as ``"cpu:0"``.
    runs
        Number of runs that count.
    report
        Function that is called before each of them with the number of runs so far.
    """
    sources = step.graph.bytes_accessed == 0  # what holds values is there before the step
    with executor_on(step, [device]) as executor:
        everything = np.zeros(executor.problem.num_groups, np.int32)
        timelines = executor.measure(everything, runs, report)
    return StepProfile(
        np.array(
            [np.where(sources, 0.0, timeline.op_end - timeline.op_start) for timeline in timelines]
        ),
        np.array([timeline.runtime for timeline in timelines]),
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
    """Return a problem whose ops, and the time between them, are as measured on each kind."""
    measured = {kind: profile.seconds for kind, profile in profiles.items()}
    return replace(
        problem,
        graph=replace(problem.graph, measured_time={**problem.graph.measured_time, **measured}),
        cluster=with_overheads(problem.cluster, profiles),
        compute_time=np.stack(
            [measured[device.kind] for device in problem.cluster.devices], axis=1
        ),
    )


def with_overheads(cluster: Cluster, profiles: dict[str, StepProfile]) -> Cluster:
    """Return a cluster whose devices are busy after an op for as long as was measured."""
    devices = tuple(
        replace(device, op_overhead=profiles[device.kind].between_ops) for device in cluster.devices
    )
    return replace(cluster, devices=devices)


@dataclass(frozen=True)
class MeasuredSteps:
    """Runs of one placement, and the step as simulated.

    Attributes
    ----------
    simulated
        Timeline of the simulator.
    timelines
        Timelines of the runs, as `Executor.measure` returns them.
    """

    simulated: StepTimeline
    timelines: Sequence[StepTimeline]

    @property
    def runtimes(self) -> NDArray[np.float64]:
        """float64[N], seconds."""
        return np.array([timeline.runtime for timeline in self.timelines])

    @property
    def runtime(self) -> float:
        """The median of the runtimes."""
        return float(np.median(self.runtimes))

    @property
    def op_seconds(self) -> NDArray[np.float64]:
        """float64[V], the median of how long each op took."""
        return np.median(
            [timeline.op_end - timeline.op_start for timeline in self.timelines], axis=0
        )

    @property
    def typical(self) -> StepTimeline:
        """The run whose runtime is nearest to the median."""
        return self.timelines[int(np.abs(self.runtimes - self.runtime).argmin())]


def steps_report(measured: MeasuredSteps) -> Report:
    """Return measured and simulated values in SI units: of devices, links and some ops.

    Parameters
    ----------
    measured
        Runs of a placement.
    """
    simulated, runs = measured.simulated, measured.timelines
    cluster, op_device = simulated.problem.cluster, simulated.op_device
    runtime, seconds = measured.runtime, measured.op_seconds
    simulated_seconds = simulated.op_end - simulated.op_start
    device_busy = np.median([run.device_busy for run in runs], axis=0).tolist()
    link_busy = np.median([run.link_busy for run in runs], axis=0).tolist()
    peak = np.max([run.peak_memory for run in runs], axis=0).tolist()
    order = np.argsort(-np.abs(seconds - simulated_seconds), kind="stable")
    return {
        "steps": len(runs),
        "measured_runtime": runtime,
        "measured_quartiles": np.quantile(measured.runtimes, [0.25, 0.75]).tolist(),
        "simulated_runtime": simulated.runtime,
        "error": simulated.runtime / runtime - 1 if runtime else 0.0,
        "devices": [
            {
                "device": name,
                "ops": int((op_device == device).sum()),
                "measured_busy": device_busy[device],
                "simulated_busy": float(simulated.device_busy[device]),
                "measured_peak_memory": peak[device],
                "simulated_peak_memory": int(simulated.peak_memory[device]),
            }
            for device, name in enumerate(cluster.device_names)
        ],
        "links": [
            {
                "link": name,
                "transfers": int((simulated.transfer_link == link).sum()),
                "measured_busy": link_busy[link],
                "simulated_busy": float(simulated.link_busy[link]),
            }
            for link, name in enumerate(cluster.link_names)
        ],
        "ops": [
            {
                "op": simulated.problem.graph.op_names[op],
                "device": cluster.device_names[op_device[op]],
                "measured": float(seconds[op]),
                "simulated": float(simulated_seconds[op]),
            }
            for op in order[:NUM_REPORTED_OPS].tolist()
        ],
    }
