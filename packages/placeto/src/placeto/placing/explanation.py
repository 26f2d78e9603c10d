"""Reasons for the device of a group: its costs on other devices, and waits for other groups."""

from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.placing.costs import costs
from placeto_graphs import Evaluator, PlacementProblem
from placeto_simulator import Timeline


@dataclass(frozen=True)
class Alternative:
    """The cost of a group on a device, in seconds; None where the device cannot run it."""

    device: str
    alone: float | None  # with the group there and all others where they are
    with_neighbours: float | None  # with all groups there, too, that share tensors with it


@dataclass(frozen=True)
class Wait:
    """Idle time of a device before ops of one group, until another group let them start."""

    group: str  # that waited
    for_group: str  # whose tensor arrived last, or whose op was done last
    ops: int  # number of ops that waited
    transferred: int  # number of them whose tensor arrived over a link
    ordered: int  # number of them that waited for an op to be done, and for no tensor of it
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
    """Return the waits of groups for others while their device was idle, longest first.

    The idle time right before an op counts for the group of the op that it waited for last:
    until a tensor of that op arrived, or, in the order of the step or of a schedule, until it was
    done.
    """
    problem, graph, device_of = timeline.problem, timeline.problem.graph, timeline.op_device
    earlier_op, op = graph.precedences.T
    is_tensor = np.arange(len(op)) < graph.num_edges
    arrived = np.zeros((graph.num_tensors, problem.num_devices))
    arrived[timeline.transfer_tensor, timeline.transfer_destination] = timeline.transfer_end
    moved = is_tensor & (device_of[earlier_op] != device_of[op])
    time = timeline.op_end[earlier_op]
    time[moved] = arrived[graph.edges[moved[: graph.num_edges], 0], device_of[op[moved]]]
    order = np.lexsort((-np.arange(len(op)), time, op))
    last = order[np.diff(op[order], append=-1) != 0]  # the first that came last, of each op
    idle = _idle_before(timeline)[op[last]]
    pairs = problem.grouping.group_of[np.stack([op, earlier_op])[:, last]]
    between = (pairs[0] != pairs[1]) & (idle > 0)
    unique_pairs, pair = np.unique(pairs[:, between], axis=1, return_inverse=True)
    names = problem.grouping.group_names
    waited = idle > 0, moved[last], ~is_tensor[last], idle
    sums = np.stack([np.bincount(pair.ravel(), values[between]) for values in waited], axis=1)
    listed = [
        Wait(names[group], names[for_group], int(ops), int(transferred), int(ordered), seconds)
        for (group, for_group), (ops, transferred, ordered, seconds) in zip(
            unique_pairs.T.tolist(), sums.tolist(), strict=True
        )
    ]
    return sorted(listed, key=lambda wait: -wait.idle)


def _idle_before(timeline: Timeline) -> NDArray[np.float64]:
    """Return float64[V], how long the device of each op stood idle before it, in seconds."""
    op_before = timeline.op_before
    overheads = np.array([device.op_overhead for device in timeline.problem.cluster.devices])
    durations = timeline.op_end - timeline.op_start
    free = timeline.op_end + np.where(durations > 0, overheads[timeline.op_device], 0.0)
    free_before = np.where(op_before >= 0, free[op_before], 0.0)
    # Sums in another order than the simulator's may differ in the last digits.
    gap = timeline.op_start - free_before
    return np.where(gap > 1e-12 * max(timeline.runtime, 0.0), gap, 0.0)
