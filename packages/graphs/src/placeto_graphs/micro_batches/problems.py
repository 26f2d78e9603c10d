"""Placement problems of steps in micro-batches."""

from dataclasses import replace

import numpy as np

from placeto_graphs.micro_batches.assembly import repeated_graph, repeated_grouping, repeated_times
from placeto_graphs.micro_batches.division import one_micro_batch
from placeto_graphs.micro_batches.layout import layout_of
from placeto_graphs.micro_batches.roles import checked_count, ops_of_batch
from placeto_graphs.schema.cluster import BACKWARD_FIRST
from placeto_graphs.schema.problem import PlacementProblem


def micro_batched_problem(problem: PlacementProblem, num_micro_batches: int) -> PlacementProblem:
    """Return the problem of placing the same step in m micro-batches.

    The graph becomes `micro_batched`, the groups become `micro_batched_grouping`: a placement has
    as many entries as before, at every level of a hierarchy. A copy takes an m-th part of the time
    of its op on each device; for sums of gradients it is as in `micro_batched`. Devices run
    backward ops first, and the earliest micro-batch of them (`Cluster.queue`), as executors of
    pipelines do: first in, first out starts all micro-batches before it finishes one, and takes up
    to twice as long.

    Parameters
    ----------
    problem
        The problem of the undivided step.
    num_micro_batches
        The number m of micro-batches, >= 1; with 1 the problem is the same.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx, parse_cluster
    >>> graph = from_networkx(nx.DiGraph([("images", "layer")]))
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.array([[0.0, 0.0], [4.0, 8.0]]),
    ...     grouping=colocate(graph, rules=()),
    ... )
    >>> micro_batched_problem(problem, 4)
    PlacementProblem(ops=8, groups=2, devices=2)
    >>> micro_batched_problem(problem, 4).compute_time[-1]
    array([1., 2.])
    >>> micro_batched_problem(problem, 4).cluster.queue
    'backward-first'
    """
    count = checked_count(num_micro_batches)
    parts = np.where(ops_of_batch(problem.graph), count, 1)
    part = replace(
        problem,
        graph=one_micro_batch(problem.graph, count),
        compute_time=problem.compute_time / parts[:, None],
    )
    return repeat_micro_batch_problem(part, count)


def repeat_micro_batch_problem(
    problem: PlacementProblem, num_micro_batches: int
) -> PlacementProblem:
    """Return the problem of placing a step in m micro-batches, each of which a problem describes.

    As `micro_batched_problem`, but nothing is divided: graph and times are those of a step with
    an m-th part of the batch.

    Parameters
    ----------
    problem
        The problem of a step that has one micro-batch as its batch.
    num_micro_batches
        The number m of micro-batches, >= 1; with 1 the problem is the same.

    Raises
    ------
    GraphError
        When the number is not an integer >= 1.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx, parse_cluster
    >>> graph = from_networkx(nx.DiGraph([("images", "layer")]))
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.array([[0.0, 0.0], [1.0, 2.0]]),
    ...     grouping=colocate(graph, rules=()),
    ... )
    >>> repeat_micro_batch_problem(problem, 4).compute_time.sum(axis=0)
    array([4., 8.])
    """
    count = checked_count(num_micro_batches)
    if count == 1:
        return problem
    layout = layout_of(problem.graph, count)
    hierarchy = None
    if problem.hierarchy is not None:
        hierarchy = tuple(
            repeated_grouping(problem.graph, level, layout) for level in problem.hierarchy
        )
    return PlacementProblem(
        graph=repeated_graph(problem.graph, layout),
        cluster=replace(problem.cluster, queue=BACKWARD_FIRST),
        compute_time=repeated_times(problem.graph, problem.compute_time, layout),
        grouping=repeated_grouping(problem.graph, problem.grouping, layout),
        hierarchy=hierarchy,
    )
