"""The choice between a split and fewer devices: the verdict on a search, and its table."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import SIMULATION_ERROR, fits
from placeto.placing.evaluators import EvaluatorSpec
from placeto.texts import TextTable, bytes_text
from placeto_baselines import Choice
from placeto_baselines.placement_trials import rank_of_result
from placeto_baselines.search.subsets import ALONE, BALANCED, CHAIN, IN_ORDER, SEARCHED
from placeto_graphs import PlacementProblem, PlacementResult

LEAST_GAIN = 0.01  # a split that gains less is not worth it


def chosen(
    problem: PlacementProblem, result: PlacementResult, choices: list[Choice]
) -> PlacementResult:
    """Return the best placement of a search and its choices, or a device alone as good as it."""
    cost = partial(rank_of_result, problem)
    best = min([result, *(choice.result for choice in choices)], key=cost)
    alone = [choice.result for choice in choices if choice.kind == ALONE]
    fitting = [result for result in alone if result.fits(problem.cluster)]
    single = min(fitting, key=cost, default=best)
    if single.runtime - best.runtime <= LEAST_GAIN * abs(best.runtime):
        best = single
    counts = {name: getattr(result, name) for name in ("evaluations", "seconds", "curve")}
    return replace(best, **counts)


def worth_telling(problem: PlacementProblem, choices: list[Choice]) -> list[Choice]:
    """Return choices, without a chain of layers that a device alone or several in order beat."""
    simple = [choice for choice in choices if choice.kind in (ALONE, IN_ORDER, BALANCED)]
    best_rank = min(
        (rank_of_result(problem, choice.result) for choice in simple), default=(True, math.inf)
    )
    return [
        choice
        for choice in choices
        if choice.kind != CHAIN or rank_of_result(problem, choice.result) <= best_rank
    ]


def choices_report(
    problem: PlacementProblem, result: PlacementResult, choices: list[Choice]
) -> list[dict[str, object]]:
    """Return each choice worth telling with its cost, also as a multiple of the result's."""
    names = problem.cluster.device_names
    return [
        {
            "how": choice.kind,
            "devices": [names[device] for device in choice.devices],
            "runtime": choice.result.runtime,
            "relative": choice.result.runtime / result.runtime if result.runtime else math.nan,
            "fits": fits(problem, choice.result.peak_memory),
        }
        for choice in worth_telling(problem, choices)
    ]


def used_devices(problem: PlacementProblem, placement: NDArray[np.int32]) -> list[str]:
    """Return the names of the devices that a placement uses."""
    return [problem.cluster.device_names[device] for device in np.unique(placement)]


def choices_table(
    problem: PlacementProblem,
    result: PlacementResult,
    choices: list[Choice],
    evaluator: EvaluatorSpec,
) -> TextTable:
    """Return the costs of choices worth telling as a table."""
    names = problem.cluster.device_names
    rows = []
    for choice in worth_telling(problem, choices):
        devices = "+".join(names[device] for device in choice.devices)
        label = {
            ALONE: f"{devices} alone",
            IN_ORDER: "in order of memory",
            BALANCED: "equal weights",
            CHAIN: "best chain of layers",
            SEARCHED: devices,
        }
        lack = choice.result.peak_memory - problem.cluster.memory_bytes
        fullest = int(lack.argmax())
        lacking = f"out of memory: {names[fullest]} lacks {bytes_text(lack[fullest])}"
        lacking = lacking if lack[fullest] > 0 else ""
        compared = result.runtime and not lacking
        relative = f"{choice.result.runtime / result.runtime:.2f}x" if compared else ""
        name = label.get(choice.kind, choice.kind)
        rows.append([name, evaluator.text(choice.result.runtime), relative, lacking])
    return TextTable("Alternatives:", ["devices", f">{evaluator.objective}", ">relative", ""], rows)


def verdict(problem: PlacementProblem, result: PlacementResult, choices: list[Choice]) -> str:
    """Return a sentence with the devices that a placement uses, and whether the split pays."""
    *others, last = used_devices(problem, result.placement)
    if not others:
        runs = np.isfinite(problem.group_graph.compute_time).any(axis=0)
        could_split = runs.sum() > 1 and result.fits(problem.cluster)
        does_not_pay = f", as no split is {100 * LEAST_GAIN:.0f} % faster"
        return f"Uses {last} alone{does_not_pay if could_split else ''}."
    split = f"Uses {', '.join(others)} and {last}"
    alone = [
        choice for choice in choices if choice.kind == ALONE and choice.result.fits(problem.cluster)
    ]
    if not alone or not result.runtime:
        return f"{split}."
    best = min(alone, key=lambda choice: choice.result.runtime)
    gain = best.result.runtime / result.runtime - 1
    if gain >= SIMULATION_ERROR:
        return f"{split}."
    name = problem.cluster.device_names[best.devices[0]]
    faster = f"{100 * gain:.0f} % faster than {name} alone"
    return f"{split}: {faster}, within the accuracy of the simulation."
