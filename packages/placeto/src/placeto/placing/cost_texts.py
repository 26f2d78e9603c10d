"""Texts about costs: memory that lacks, what needs less of it, and lower bounds."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import DOES_NOT_FIT, MAY_NOT_FIT, verdict_of_memory
from placeto.placing.evaluators import EvaluatorSpec
from placeto.texts import bytes_text, counted, seconds_text
from placeto_baselines import least_memory
from placeto_graphs import (
    DEFAULT_RULES,
    Cluster,
    Phase,
    PlacementProblem,
    PlacementResult,
    bytes_besides_tensors,
    micro_batched_problem,
    names_of_rules,
    scheduled,
)

MOST_SHOWN = 4  # devices in one line
MICRO_BATCHES = 8  # the most that are tried where nothing fits


def overflow_text(cluster: Cluster, peak_memory: Sequence[int] | NDArray[np.int64]) -> str:
    """Return which devices hold more than they have, to stand behind a runtime.

    If none does, it is those that leave less than PyTorch may need besides tensors; else nothing.
    """
    devices_and_peaks = [*zip(cluster.devices, peak_memory, strict=True)]
    over = [
        f"{device.name} needs {bytes_text(peak)} of {bytes_text(device.memory_bytes)}"
        for device, peak in devices_and_peaks
        if verdict_of_memory(device, peak) == DOES_NOT_FIT
    ]
    if over:
        return f", out of memory: {_first_devices(over)}"
    tight = [
        f"{device.name} has {bytes_text(device.memory_bytes - peak)} left"
        for device, peak in devices_and_peaks
        if verdict_of_memory(device, peak) == MAY_NOT_FIT
    ]
    if not tight:
        return ""
    besides = bytes_text(max(map(bytes_besides_tensors, cluster.devices)))
    return (
        f", may not fit: PyTorch needs up to {besides} besides tensors, and {_first_devices(tight)}"
    )


def _first_devices(texts: Sequence[str]) -> str:
    others_text = f" and {len(texts) - MOST_SHOWN} others" if len(texts) > MOST_SHOWN else ""
    return f"{', '.join(texts[:MOST_SHOWN])}{others_text}"


def bound_text(bound: float, least_excess: int, num_groups: int) -> str:
    """Return a text of what no placement of groups beats: a runtime, and memory if none fits."""
    if not least_excess:
        placements = f"no placement in {counted(num_groups, 'group')}"
        return f"{placements} is faster than {seconds_text(bound)}"
    return f"{misfit_text(least_excess, num_groups)}; none costs less than {seconds_text(bound)}"


def misfit_text(least_excess: int, num_groups: int) -> str:
    """Return a text that no placement of groups fits, and the least bytes that a device lacks."""
    groups, lacking = counted(num_groups, "group"), bytes_text(least_excess)
    return f"no placement in {groups} fits: a device lacks {lacking} or more"


def too_large_text(problem: PlacementProblem) -> str:
    """Return a text that names a group that fits no device; empty if there is none."""
    alone, memory = least_memory(problem), problem.cluster.memory_bytes
    lack = (alone - memory).min(axis=1)
    group, device = int(lack.argmax()), int(memory.argmax())
    if lack[group] <= 0:
        return ""
    return (
        f": group {problem.grouping.group_names[group]} alone needs "
        f"{bytes_text(alone[group, device])}, and {problem.cluster.device_names[device]} has the "
        f"most memory, {bytes_text(memory[device])}"
    )


def remedy_text(
    problem: PlacementProblem,
    result: PlacementResult,
    evaluator: EvaluatorSpec,
    divisor: Callable[[int], int],
) -> str:
    """Return what needs less memory than a placement that does not fit.

    A ``divisor`` of the batch, the largest up to a limit, is the number of micro-batches to try.
    """
    if not (problem.graph.phases == Phase.BACKWARD).any():
        return "; a smaller batch or context needs less memory"
    tried = ""
    if evaluator.simulates:
        if problem.graph.num_micro_batches > 1:
            option, changed_problem = (
                "--schedule 1f1b",
                scheduled(problem, "1f1b", result.placement),
            )
        else:
            num_micro_batches = divisor(MICRO_BATCHES)
            option, changed_problem = (
                f"--micro-batches {num_micro_batches}",
                micro_batched_problem(problem, num_micro_batches),
            )
        batch = evaluator.make(changed_problem, None).evaluate(result.placement[None])
        memory = problem.cluster.memory_bytes
        lacks = int((batch.peak_memory[0] - memory).max())
        lacked = int((result.peak_memory - memory).max())
        gain_text = "fits" if lacks <= 0 else f"lacks {bytes_text(lacked - lacks)} less"
        tried = f"with {option} this one {gain_text}; " if lacks < lacked else ""
    return f"; {tried}more micro-batches, a smaller batch or activation checkpointing need less"


def levels_hint(source: str, problem: PlacementProblem) -> str:
    """Return how to make a problem file with finer groups; an empty text if there are none."""
    is_divided = problem.graph.num_micro_batches > 1  # its groups follow no rules
    is_finest = problem.num_groups == problem.graph.num_ops  # rules would only merge ops
    if is_finest or is_divided or problem.rules is not None or problem.hierarchy is not None:
        return ""
    rules = " ".join(f"--rule {name}" for name in names_of_rules(DEFAULT_RULES) or ())
    return (
        f"{source} has no co-location rules, so a search stays at its {problem.num_groups:,} "
        f"groups; finer ones have faster placements: placeto build {source} {rules} -o FILE"
    )
