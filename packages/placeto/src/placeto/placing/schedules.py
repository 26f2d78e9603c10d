"""Placements of pipelines that run by a schedule, whose waits depend on the stages."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto.placing.choices import best_of
from placeto.placing.placements import PlacedProblem, PlaceSettings, place_problem
from placeto.progress import Progress
from placeto_graphs import (
    SCHEDULES,
    Phase,
    PlacementProblem,
    PlacementResult,
    micro_batch_of,
    pipeline_stages,
    scheduled,
)

GPIPE = SCHEDULES[0]  # whose waits are the same for all placements


def place_scheduled(
    problem: PlacementProblem, schedule: str | None, settings: PlaceSettings, progress: Progress
) -> PlacedProblem:
    """Place a problem as `place_problem` does, by a schedule if it is a step in micro-batches.

    The search prices all placements with the waits of `balanced_stages`. The result and the other
    choices then get the waits of their own stages, and the best of them is taken.
    """
    if schedule is None:
        return place_problem(problem, settings, progress)
    start = scheduled(problem, schedule, balanced_stages(problem))
    placed = place_problem(start, settings, progress)
    free = replace(placed.problem, graph=problem.graph)

    def priced(result: PlacementResult) -> PlacementResult:
        own = settings.evaluator.make(scheduled(free, schedule, result.placement), 1)
        batch = own.evaluate(result.placement[None])
        return replace(result, runtime=float(batch.runtime[0]), peak_memory=batch.peak_memory[0])

    choices = [replace(choice, result=priced(choice.result)) for choice in placed.choices]
    best = best_of(free, [priced(placed.result), *(choice.result for choice in choices)])
    return replace(
        placed,
        problem=scheduled(free, schedule, best.placement),
        result=replace(
            placed.result,
            placement=best.placement,
            runtime=best.runtime,
            peak_memory=best.peak_memory,
        ),
        bound=placed.bound if schedule == GPIPE else 0.0,  # with the waits of other stages
        choices=choices,
    )


def balanced_stages(problem: PlacementProblem) -> NDArray[np.int32]:
    """Return a chain of stages that take equally long, int32[G], on accelerators in their order."""
    graph = problem.graph
    devices = list(problem.cluster.accelerators) or list(range(problem.num_devices))
    forward = np.flatnonzero(graph.phases == Phase.FORWARD)
    position = np.full(problem.num_groups, graph.num_ops)
    groups = problem.grouping.group_of[forward]
    np.minimum.at(position, groups, graph.topological_index[forward])
    order = np.argsort(position, kind="stable")
    seconds = problem.group_graph.compute_time[:, devices]
    work = np.where(np.isfinite(seconds), seconds, 0.0)
    ends = np.cumsum(1 / np.maximum(work.sum(axis=0), 1e-99))
    done = np.cumsum(work[order].mean(axis=1))
    middle = (done - work[order].mean(axis=1) / 2) / max(done[-1], 1e-99)
    found = np.empty(problem.num_groups, np.int32)
    found[order] = np.array(devices)[np.searchsorted(ends[:-1] / ends[-1], middle)]
    runs = np.isfinite(problem.group_graph.compute_time)
    here = runs[np.arange(problem.num_groups), found]
    return np.where(here, found, runs.argmax(axis=1)).astype(np.int32)


def sent_back_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return that a stage of a pipeline sends forward tensors to an earlier one; else nothing."""
    graph, number = problem.graph, micro_batch_of(problem.graph)
    if number.max(initial=0) < 1:
        return ""
    devices = problem.expand(placement)
    stages = pipeline_stages(problem, placement)[0][devices]
    made, read = graph.edge_producers, graph.edge_consumers
    works = problem.compute_time[np.arange(graph.num_ops), devices] > 0
    is_forward = (graph.phases == Phase.FORWARD) & (number == 0) & works
    back = is_forward[made] & is_forward[read] & (stages[made] > stages[read])
    if not back.any():
        return ""
    names, first = problem.cluster.device_names, int(np.flatnonzero(back)[0])
    op, reader = made[first], read[first]
    return (
        f"{names[devices[op]]} sends forward tensors back to {names[devices[reader]]}, an earlier "
        f"stage ({graph.op_names[op]}): each micro-batch crosses the pipeline once more"
    )
