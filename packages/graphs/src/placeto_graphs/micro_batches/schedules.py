"""Schedules of pipelines, as waits between the micro-batches of a step."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, check_one_of
from placeto_graphs.grouping.reachability import reached
from placeto_graphs.schema.op_graph import Phase
from placeto_graphs.schema.problem import PlacementProblem

SCHEDULES = GPIPE, ONE_F_ONE_B = ("gpipe", "1f1b")
"""The names of schedules."""


def scheduled(
    problem: PlacementProblem, schedule: str, placement: NDArray[np.int32]
) -> PlacementProblem:
    """Return the problem of a step in micro-batches with the waits of a schedule.

    - ``"gpipe"`` (Huang et al. 2019): the backward pass begins after all of the forward pass.
    - ``"1f1b"`` (Narayanan et al. 2019): the forward pass of micro-batch j on stage s of k, from 0,
      waits for the backward pass of j - (k - s) there, so that it holds at most k - s of them. The
      stages are those of the placement, see `device_and_group_stages`. Another placement of the
      same problem has other stages, and so other waits.

    Parameters
    ----------
    problem
        Problem of a step in micro-batches (`micro_batched_problem`).
    schedule
        One of ``SCHEDULES``.
    placement : int32[G]
        The device of each group.

    Raises
    ------
    GraphError
        If there is no such schedule, or the step is not in micro-batches.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> graph = from_networkx(nx.DiGraph([("a", "b"), ("b", "c")]))
    >>> graph = replace(graph, phases=[0, 0, 1])
    >>> step = PlacementProblem(
    ...     graph=graph, cluster=parse_cluster("1xk80"), compute_time=[[1]] * 3
    ... )
    >>> whole = scheduled(micro_batched_problem(step, 2), "gpipe", np.zeros(3, np.int32)).graph
    >>> [(whole.op_names[op], whole.op_names[before]) for op, before in whole.waits]
    [('c@0', 'b@1'), ('c@1', 'b@1')]
    """
    check_one_of("schedule", schedule, SCHEDULES)
    graph, micro_batch = problem.graph, problem.graph.micro_batch.astype(np.int64)
    count = int(micro_batch.max(initial=-1)) + 1
    if count < 2:
        raise GraphError("schedule: expected a step in micro-batches (--micro-batches), got none")
    predecessor, successor = graph.precedences.T
    works = problem.compute_time.max(axis=1) > 0
    is_input = ~works & (np.bincount(successor, minlength=graph.num_ops) == 0)
    reached_from_batch = reached(graph, micro_batch >= 0, waits=graph.waits)
    joins = (micro_batch < 0) & reached_from_batch  # all micro-batches
    in_turn = (micro_batch >= 0) & ~reached(graph, joins, waits=graph.waits)
    forward = in_turn & (graph.phases == Phase.FORWARD)
    before_forward = reached(graph, forward, waits=graph.waits, backwards=True)  # gradients in it
    backward = in_turn & (graph.phases == Phase.BACKWARD) & ~before_forward
    forward &= ~is_input
    if schedule == GPIPE:
        stage = np.zeros(graph.num_ops, np.int64)
        rules = [(backward, forward, count - 1 - micro_batch)]
    else:
        stage = device_and_group_stages(problem, placement)[1][problem.grouping.group_of]
        max_in_flight = int(stage.max()) + 1 - stage  # micro-batches of a stage
        rules = [(forward, backward, -max_in_flight)]
        in_forward = forward[predecessor] & forward[successor]
        in_one_batch = micro_batch[predecessor] == micro_batch[successor]
        goes_back = stage[predecessor] > stage[successor]
        if not (in_forward & in_one_batch & goes_back).any():  # else they would wait in circles
            rules.append((backward, forward, max_in_flight - 1))
    slot = stage * count + micro_batch  # of an op: its stage and micro-batch
    in_one_slot = slot[predecessor] == slot[successor]
    rows = [graph.waits]
    for waiting, awaited, offset in rules:
        last = np.full(slot.max() + 1, -1)
        ends = graph.topological_order[(awaited & works)[graph.topological_order]]
        last[slot[ends]] = ends  # of several the last one
        is_first = waiting.copy()
        follows = waiting[predecessor] & waiting[successor] & in_one_slot
        is_first[successor[follows]] = False
        awaited_batch = micro_batch + offset
        ops = np.flatnonzero(is_first & (awaited_batch >= 0) & (awaited_batch < count))
        rows.append(np.stack([ops, last[slot[ops] + offset[ops]]], axis=1))
    waits = np.unique(np.concatenate(rows), axis=0).astype(np.int32)
    return replace(problem, graph=replace(graph, waits=waits[waits[:, 1] >= 0]))


def device_and_group_stages(
    problem: PlacementProblem, placement: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the stage of a pipeline that each device and each group is in, counted from 0.

    Devices are in the order of the forward pass: by the mean position of their time in it. Groups
    are in the order in which they begin, and as much of their time is in a stage as its device has.
    In a chain the stage of a group is that of its device, as it is without forward ops; a group out
    of order is in the stage of its neighbours. A device without forward ops has the stage -1.

    Parameters
    ----------
    problem
        Problem with G groups and D devices.
    placement : int32[G]
        The device of each group.

    Returns
    -------
    int64[D]
        The stage of each device.
    int64[G]
        The stage of each group.

    Raises
    ------
    GraphError
        When the placement is none of the problem.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> chain = PlacementProblem(
    ...     graph=from_networkx(nx.DiGraph([("a", "b"), ("b", "c")])),
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.ones((3, 2)),
    ... )
    >>> device_and_group_stages(chain, np.array([1, 0, 0]))
    (array([1, 0]), array([0, 1, 1]))
    """
    graph, devices, size = problem.graph, problem.expand(placement), problem.num_devices
    seconds = problem.compute_time[np.arange(graph.num_ops), devices]
    is_counted = (graph.phases == Phase.FORWARD) & (graph.micro_batch <= 0)
    ops = np.flatnonzero(is_counted & (seconds > 0))
    op_devices, groups = devices[ops], problem.grouping.group_of[ops]
    index = graph.topological_index[ops]
    load = np.bincount(op_devices, seconds[ops], size)
    moments = np.bincount(op_devices, seconds[ops] * index, size)
    mean = np.divide(moments, load, out=np.full(size, np.inf), where=load > 0)
    order = np.argsort(mean, kind="stable")
    stage_of_device = np.full(size, -1)
    stage_of_device[order] = np.where(load[order] > 0, np.arange(size), -1)
    first = np.full(problem.num_groups, graph.num_ops)
    np.minimum.at(first, groups, index)
    rank = np.argsort(first, kind="stable")[: len(np.unique(groups))]
    done = np.cumsum(np.bincount(groups, seconds[ops], problem.num_groups)[rank])
    middle = (done + np.append(0.0, done[:-1])) / 2
    ends = np.cumsum(load[order][load[order] > 0])[:-1]
    stage_of_group = np.maximum(stage_of_device[placement], 0)
    stage_of_group[rank] = np.searchsorted(ends, middle, side="right")
    return stage_of_device, stage_of_group
