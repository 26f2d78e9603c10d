"""Measured steps of a placement, with the simulated one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem, StepTimeline

Report = dict[str, Any]


@dataclass(frozen=True)
class MeasuredSteps:
    """N runs of one placement, with the simulated step.

    Attributes
    ----------
    simulated : `StepTimeline`
        Step as the simulator predicts it.
    timelines : N of `StepTimeline`
        Runs, as `Executor.measure` returns them.
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
        return np.median([each.op_end - each.op_start for each in self.timelines], axis=0)

    @property
    def typical(self) -> StepTimeline:
        """The run whose runtime is nearest to the median."""
        return self.timelines[int(np.abs(self.runtimes - self.runtime).argmin())]


def steps_report(measured: MeasuredSteps, num_ops: int = 10) -> Report:
    """Return measured and simulated values, in SI units."""
    problem, simulated = measured.simulated.problem, measured.simulated
    low, high = np.quantile(measured.runtimes, [0.25, 0.75]).tolist()
    return {
        "steps": len(measured.timelines),
        "measured_runtime": measured.runtime,
        "measured_quartiles": [low, high],
        "simulated_runtime": simulated.runtime,
        "error": _error(simulated.runtime, measured.runtime),
        "devices": _device_reports(measured),
        "links": _link_reports(measured),
        "ops": _op_reports(problem, measured, num_ops),
    }


def _error(simulated: float, measured: float) -> float:
    """Return by what share of the measured value the simulated one is larger."""
    return simulated / measured - 1 if measured else 0.0


def _median(values: list[NDArray[Any]]) -> list[float]:
    medians: list[float] = np.median(values, axis=0).tolist()
    return medians


def _device_reports(measured: MeasuredSteps) -> list[Report]:
    busy = _median([timeline.device_busy for timeline in measured.timelines])
    peak = np.max([timeline.peak_memory for timeline in measured.timelines], axis=0).tolist()
    simulated = measured.simulated
    return [
        {
            "device": name,
            "ops": int((simulated.op_device == device).sum()),
            "measured_busy": busy[device],
            "simulated_busy": float(simulated.device_busy[device]),
            "measured_peak_memory": peak[device],
            "simulated_peak_memory": int(simulated.peak_memory[device]),
        }
        for device, name in enumerate(simulated.problem.cluster.device_names)
    ]


def _link_reports(measured: MeasuredSteps) -> list[Report]:
    busy = _median([timeline.link_busy for timeline in measured.timelines])
    simulated = measured.simulated
    return [
        {
            "link": name,
            "transfers": int((simulated.transfer_link == link).sum()),
            "measured_busy": busy[link],
            "simulated_busy": float(simulated.link_busy[link]),
        }
        for link, name in enumerate(simulated.problem.cluster.link_names)
    ]


def _op_reports(problem: PlacementProblem, measured: MeasuredSteps, count: int) -> list[Report]:
    simulated = measured.simulated.op_end - measured.simulated.op_start
    seconds = measured.op_seconds
    most = np.argsort(-np.abs(seconds - simulated), kind="stable")[:count]
    names = problem.cluster.device_names
    return [
        {
            "op": problem.graph.op_names[op],
            "device": names[measured.simulated.op_device[op]],
            "measured": float(seconds[op]),
            "simulated": float(simulated[op]),
        }
        for op in most.tolist()
    ]
