"""Costs of placements, with a penalty for memory, and reasons for the device of a group."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.evaluators import EvaluatorSpec
from placeto.texts import bytes_text, seconds_text
from placeto_baselines import least_memory
from placeto_graphs import (
    DEFAULT_RULES,
    Cluster,
    EvaluationBatch,
    Evaluator,
    Phase,
    PlacementProblem,
    PlacementResult,
    memory_penalised_runtime,
    micro_batched_problem,
    names_of_rules,
    scheduled,
)
from placeto_simulator import Timeline

MOST_SHOWN = 4  # devices in one line
MICRO_BATCHES = 8  # that are tried where nothing fits
# Part of the runtime: the mean error of simulated steps with real links, see docs/fidelity.md.
SIMULATION_ERROR = 0.15


def costs(evaluator: Evaluator, placements: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return float64[B], the memory-penalised runtimes of int32[B, G] placements, in seconds."""
    memory = evaluator.problem.cluster.memory_bytes
    return memory_penalised_runtime(evaluator.evaluate(placements), memory)


def cost_of_result(problem: PlacementProblem, found: PlacementResult | Timeline) -> float:
    """Return what the placement of a search, or of a simulated step, costs."""
    batch = EvaluationBatch(
        runtime=np.array([found.runtime]), peak_memory=np.array([found.peak_memory])
    )
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0])


def rank_of_result(problem: PlacementProblem, found: PlacementResult) -> tuple[bool, float]:
    """Return whether a placement lacks memory, and what it costs; the least rank is the best."""
    return not found.fits(problem.cluster), cost_of_result(problem, found)


def fits(problem: PlacementProblem, peak_memory: Sequence[int] | NDArray[np.int64]) -> bool:
    """Return whether no device holds more bytes than it has."""
    return bool((np.asarray(peak_memory) <= problem.cluster.memory_bytes).all())


def overflow_text(cluster: Cluster, peak_memory: Sequence[int] | NDArray[np.int64]) -> str:
    """Return which devices hold more than they have, to stand behind a runtime; else nothing."""
    over = [
        f"{device.name} needs {bytes_text(peak)} of {bytes_text(device.memory_bytes)}"
        for device, peak in zip(cluster.devices, peak_memory, strict=True)
        if peak > device.memory_bytes
    ]
    more = f" and {len(over) - MOST_SHOWN} others" if len(over) > MOST_SHOWN else ""
    return f", out of memory: {', '.join(over[:MOST_SHOWN])}{more}" if over else ""


def bound_text(bound: float, least_excess: int, where: str = "") -> str:
    """Return a text of what no placement beats: a runtime, and memory if none fits."""
    if not least_excess:
        return f"no placement{where} is faster than {seconds_text(bound)}"
    return f"{misfit_text(least_excess, where)}; none costs less than {seconds_text(bound)}"


def misfit_text(least_excess: int, where: str = "") -> str:
    """Return a text that no placement fits, with the bytes that a device lacks at least."""
    return f"no placement{where} fits: a device lacks {bytes_text(least_excess)} or more"


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
    problem: PlacementProblem, result: PlacementResult, evaluator: EvaluatorSpec
) -> str:
    """Return what would need less memory than a placement that does not fit."""
    if not (problem.graph.phases == Phase.BACKWARD).any():
        return "; a smaller batch or context needs less memory"
    tried = ""
    is_divided = problem.graph.micro_batch.max() > 0
    if evaluator.simulates:
        if is_divided:
            option, other = "--schedule 1f1b", scheduled(problem, "1f1b", result.placement)
        else:
            option = f"--micro-batches {MICRO_BATCHES}"
            other = micro_batched_problem(problem, MICRO_BATCHES)
        peak = evaluator.make(other, None).evaluate(result.placement[None]).peak_memory[0]
        lacks, lacked = (
            int((each - problem.cluster.memory_bytes).max()) for each in (peak, result.peak_memory)
        )
        less = "fits" if lacks <= 0 else f"lacks {bytes_text(lacked - lacks)} less"
        tried = f"with {option} this one {less}; " if lacks < lacked else ""
    return f"; {tried}more micro-batches, a smaller batch or activation checkpointing need less"


def levels_hint(source: str, problem: PlacementProblem) -> str:
    """Return how to make a problem file with finer groups; an empty text if it has them."""
    in_micro_batches = problem.graph.micro_batch.max() >= 0  # its groups follow no rules
    if problem.rules is not None or problem.hierarchy is not None or in_micro_batches:
        return ""
    rules = " ".join(f"--rule {name}" for name in names_of_rules(DEFAULT_RULES) or ())
    return (
        f"{source} has no co-location rules, so a search stays at its {problem.num_groups:,} "
        f"groups; finer ones have faster placements: placeto build {source} {rules} -o FILE"
    )


@dataclass(frozen=True)
class Alternative:
    """The cost of a group on a device, in seconds; None where the device cannot run it."""

    device: str
    alone: float | None  # with the group there and all others where they are
    with_neighbours: float | None  # with all groups there, too, that share tensors with it


@dataclass(frozen=True)
class Wait:
    """Idle time of a device before ops of one group, until a tensor of another group arrived."""

    group: str  # that waited
    for_group: str  # whose tensor arrived last
    ops: int  # number of ops that waited
    transferred: int  # number of them whose tensor arrived over a link
    idle: float  # seconds for which the device of the group was idle right before them


@dataclass(frozen=True)
class GroupExplanation:
    """Reasons for the device of a group.

    Attributes
    ----------
    group, device : text
        The group, and where it is.
    runtime, cost : float
        Seconds of the whole step: simulated, and penalised for memory.
    critical_seconds : float
        Seconds for which ops of the group are on the critical path.
    ops : int
        Number of its ops.
    devices : `Alternative` of each device
        Its cost there.
    waits, waited_for : of `Wait`
        Waits of the group for others, and of others for it, the longest first.
    """

    group: str
    device: str
    runtime: float
    cost: float
    critical_seconds: float
    ops: int
    devices: tuple[Alternative, ...]
    waits: tuple[Wait, ...]
    waited_for: tuple[Wait, ...]


def explain_group(
    evaluator: Evaluator, placement: NDArray[np.int32], timeline: Timeline, group: int
) -> GroupExplanation:
    """Return the cost of a group on each device, its waits, and the waits of others for it."""
    problem = evaluator.problem
    name = problem.grouping.group_names[group]
    waited = waits(timeline)
    return GroupExplanation(
        group=name,
        device=problem.cluster.device_names[placement[group]],
        runtime=timeline.runtime,
        cost=float(costs(evaluator, placement[None])[0]),
        critical_seconds=float(seconds_on_path(timeline)[group]),
        ops=int((problem.grouping.group_of == group).sum()),
        devices=tuple(_alternatives(evaluator, placement, group)),
        waits=tuple(wait for wait in waited if wait.group == name),
        waited_for=tuple(wait for wait in waited if wait.for_group == name),
    )


def group_number(problem: PlacementProblem, name: str) -> int:
    """Return the number of a group; the error of an unknown name suggests similar ones."""
    names = problem.grouping.group_names
    if name not in names:
        near = ", ".join(get_close_matches(name, names)) or names[0]
        raise InputError(f"GROUP: expected a group of the problem, such as {near}, got {name!r}")
    return names.index(name)


def costs_elsewhere(evaluator: Evaluator, placement: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return float64[G, D], the cost of moving one group to a device; infinite if impossible."""
    possible = np.isfinite(evaluator.problem.group_graph.compute_time)
    groups, devices = np.nonzero(possible)
    moved = np.repeat(placement[None], len(groups), axis=0)
    moved[np.arange(len(groups)), groups] = devices
    result = np.full(possible.shape, np.inf)
    result[groups, devices] = costs(evaluator, moved)
    return result


def _alternatives(
    evaluator: Evaluator, placement: NDArray[np.int32], group: int
) -> list[Alternative]:
    problem = evaluator.problem
    possible = np.isfinite(problem.group_graph.compute_time)
    near = problem.group_graph.edges[(problem.group_graph.edges == group).any(axis=1)]
    near = near[near != group]  # the groups that share tensors with it
    devices = np.flatnonzero(possible[group])
    moved = np.repeat(placement[None], 2 * len(devices), axis=0)
    moved[:, group] = devices.repeat(2)
    for row, device in enumerate(devices.tolist()):
        moved[2 * row + 1, near[possible[near, device]]] = device
    pairs = dict(zip(devices.tolist(), costs(evaluator, moved).reshape(-1, 2), strict=True))
    return [
        Alternative(name, float(pairs[device][0]), float(pairs[device][1]))
        if device in pairs
        else Alternative(name, None, None)
        for device, name in enumerate(problem.cluster.device_names)
    ]


def seconds_on_path(timeline: Timeline) -> NDArray[np.float64]:
    """Return float64[G], the seconds for which ops of each group are on the critical path."""
    ops = [step for step in timeline.critical_path if step.kind == "op"]
    group_of = timeline.problem.grouping.group_of
    result = np.zeros(timeline.problem.num_groups)
    np.add.at(
        result, group_of[[step.index for step in ops]], [step.end - step.start for step in ops]
    )
    return result


def waits(timeline: Timeline) -> list[Wait]:
    """Return the waits of groups for tensors of others while their device was idle, longest first.

    The idle time right before an op counts for the group whose tensor arrived last.
    """
    problem, graph, device_of = timeline.problem, timeline.problem.graph, timeline.op_device
    made, read = graph.edge_producers, graph.edge_consumers
    moved = device_of[made] != device_of[read]
    arrived = np.zeros((graph.num_tensors, problem.num_devices))
    arrived[timeline.transfer_tensor, timeline.transfer_destination] = timeline.transfer_end
    time = np.where(moved, arrived[graph.edges[:, 0], device_of[read]], timeline.op_end[made])
    order = np.lexsort((-np.arange(len(read)), time, read))
    last = order[np.diff(read[order], append=-1) != 0]  # the first that came last, of each op
    idle = _idle_before(timeline)[read[last]]
    pairs = problem.grouping.group_of[np.stack([read, made])[:, last]]
    others = (pairs[0] != pairs[1]) & (idle > 0)
    found, pair = np.unique(pairs[:, others], axis=1, return_inverse=True)
    names = problem.grouping.group_names
    sums = [np.bincount(pair.ravel(), each[others]) for each in (idle > 0, moved[last], idle)]
    listed = [
        Wait(names[group], names[other], int(ops), int(transferred), seconds)
        for (group, other), ops, transferred, seconds in zip(
            found.T.tolist(), *(each.tolist() for each in sums), strict=True
        )
    ]
    return sorted(listed, key=lambda wait: -wait.idle)


def _idle_before(timeline: Timeline) -> NDArray[np.float64]:
    """Return float64[V], how long the device of each op stood idle before it, in seconds."""
    before = timeline.op_before
    overheads = np.array([device.op_overhead for device in timeline.problem.cluster.devices])
    taken = timeline.op_end - timeline.op_start
    free = timeline.op_end + np.where(taken > 0, overheads[timeline.op_device], 0.0)
    free_before = np.where(before >= 0, free[before], 0.0)
    # Sums in another order than the simulator's may differ in the last digits.
    gap = timeline.op_start - free_before
    return np.where(gap > 1e-12 * max(timeline.runtime, 0.0), gap, 0.0)
