"""Placements of pipelines that run by a schedule, whose waits depend on the stages."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.layers import layers_of_groups
from placeto.placing.choices import Choice, chosen, evaluated
from placeto.placing.own import PLACER_PLUGINS, is_own
from placeto.placing.placements import PlacedProblem, PlaceSettings, place_problem
from placeto.placing.placers import PLACERS
from placeto.placing.searching import chain_placement
from placeto.progress import Progress
from placeto_baselines import LayerChain
from placeto_graphs import (
    SCHEDULES,
    Phase,
    PlacementProblem,
    PlacementResult,
    load_placement_of_any_level,
    pipeline_stages,
    scheduled,
)

EVALUATIONS_OF_START = 100
GPIPE = SCHEDULES[0]  # whose waits are the same for all placements


def place_scheduled(
    problem: PlacementProblem, schedule: str | None, settings: PlaceSettings, progress: Progress
) -> PlacedProblem:
    """Place a problem as `place_problem` does, by a schedule if it is a step in micro-batches.

    The search has the waits of one chain of layers; what it found then gets those of its own
    stages. Ctrl-C then leaves out choices.
    """
    if schedule is None:
        return place_problem(problem, settings, progress)
    progress.update("chain of layers ...")
    chain = LayerChain(problem, settings.evaluator.make(problem, 1), layers_of_groups(problem)[0])
    start = chain_placement(chain, range(problem.num_devices), EVALUATIONS_OF_START)
    if start is None:  # each group on the first device that can run it
        start = np.isfinite(problem.group_graph.compute_time).argmax(axis=1).astype(np.int32)
    placed = place_problem(scheduled(problem, schedule, start), settings, progress)
    free = replace(placed.problem, graph=problem.graph)

    def priced(result: PlacementResult) -> PlacementResult:
        own = scheduled(free, schedule, result.placement)
        costs = evaluated(settings.evaluator.make(own, 1), result.placement)
        return replace(result, runtime=costs.runtime, peak_memory=costs.peak_memory)

    progress.update("schedule of each choice ...")
    found = priced(placed.result)
    choices: list[Choice] = []
    with suppress(KeyboardInterrupt):  # the search has its result
        for choice in placed.choices:
            choices += [replace(choice, result=priced(choice.result))]
    best = chosen(free, found, choices)
    return replace(
        placed,
        problem=scheduled(free, schedule, best.placement),
        result=best,
        bound=placed.bound if schedule == GPIPE else 0.0,  # with the waits of other stages
        choices=choices,
    )


def resolve_placement(
    text: str, problem: PlacementProblem, progress: Progress, schedule: str | None = None
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Return the placement that a user named, int32[G], and the problem at its level and schedule.

    The text is a placement file, a device, or a placer that trains no policy. A file may be of any
    level of the problem, or op by op.
    """
    names = problem.cluster.device_names
    if Path(text).is_file() or text.endswith(".json"):
        problem, placement = load_placement_of_any_level(text, problem)
    elif text in names:
        placement = np.full(problem.num_groups, names.index(text), np.int32)
    elif text in PLACERS and PLACERS[text].trains:
        raise InputError(
            f"{text}: trains a policy, which takes minutes: give the file that "
            f"`placeto place PROBLEM --placer {text} -o FILE` writes"
        )
    elif text in PLACERS or is_own(text, PLACER_PLUGINS):
        placed = place_scheduled(problem, schedule, PlaceSettings(placer=text), progress)
        return placed.problem, placed.result.placement
    else:
        raise InputError(
            f"{text}: expected a placement file, a device ({', '.join(names)}) or a placer "
            f"({', '.join(name for name, spec in PLACERS.items() if not spec.trains)})"
        )
    return scheduled(problem, schedule, placement) if schedule else problem, placement


def sent_back_text(problem: PlacementProblem, placement: NDArray[np.int32]) -> str:
    """Return that a stage of a pipeline sends forward tensors to an earlier one; else nothing."""
    graph, number = problem.graph, problem.graph.micro_batch
    if number.max() < 1:
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
