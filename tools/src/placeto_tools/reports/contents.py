"""Contents of a report: a problem, the placers that placed it, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import cost_of_result, fits
from placeto_graphs import Phase, PlacementProblem
from placeto_simulator import Simulator
from placeto_tools.plots.colours import colour
from placeto_tools.reports.levels import drawn_levels, level_report
from placeto_tools.reports.steps import step_report

Report = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Shown:
    """A placement that a report shows."""

    title: str
    problem: PlacementProblem  # at the level of the placement
    placement: NDArray[np.int32]  # [G], the device of each group
    # Of a search: rows of evaluations and the best runtime so far, and what it took in all.
    curve: Sequence[Sequence[float | None]] = field(default=())
    evaluations: int | None = None
    seconds: float | None = None


def problem_report(
    title: str, problem: PlacementProblem, bounds: dict[str, float], shown: Sequence[Shown]
) -> Report:
    """Return the report of one problem for a page: plain values in SI units."""
    levels = drawn_levels(problem)
    before: list[PlacementProblem | None] = [None, *levels[:-1]]
    shown_problems = {id(each.problem): each.problem for each in shown}
    simulators = {key: Simulator(one, num_threads=1) for key, one in shown_problems.items()}
    graph, cluster = problem.graph, problem.cluster
    return {
        "title": title,
        "bounds": bounds,
        "devices": [
            {"name": device.name, "memory_bytes": device.memory_bytes, "colour": colour(index)}
            for index, device in enumerate(cluster.devices)
        ],
        "links": list(cluster.link_names),
        "kinds": [*(phase.name.lower() for phase in Phase), "transfer"],
        "kind_colours": [colour(number) for number in range(len(Phase) + 1)],
        "op_names": list(graph.op_names),
        "op_types": list(graph.op_types),
        "op_phases": graph.phases,
        "tensor_producers": graph.tensor_producer,
        "tensor_bytes": graph.tensor_bytes,
        "levels": [level_report(*pair) for pair in zip(levels, before, strict=True)],
        "placers": [_placer_report(each, levels, simulators[id(each.problem)]) for each in shown],
    }


def _placer_report(shown: Shown, levels: list[PlacementProblem], simulator: Simulator) -> Report:
    timeline = simulator.timeline(shown.placement)
    return {
        "title": shown.title,
        "runtime": timeline.runtime,
        "cost": cost_of_result(shown.problem, timeline),
        "fits": fits(shown.problem, timeline.peak_memory),
        "peak_memory": timeline.peak_memory,
        "evaluations": shown.evaluations,
        "seconds": shown.seconds,
        "curve": [list(row) for row in shown.curve],
        "step": step_report(timeline, levels),
    }
