"""What is partitioned: the groups themselves, or the ops, which then vote for their group."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import mean_seconds, repaired
from placeto_baselines.errors import BaselineError
from placeto_graphs import GroupGraph, Grouping, PlacementProblem, group_graph

Nodes = Literal["groups", "ops"]


def check_nodes(nodes: Nodes) -> None:
    """Refuse what is neither groups nor ops."""
    if nodes not in {"groups", "ops"}:
        raise BaselineError(f"nodes: expected 'groups' or 'ops', got {nodes!r}")


def graph_of_nodes(problem: PlacementProblem, nodes: Nodes) -> GroupGraph:
    """Return the graph whose nodes are the groups, or the ops."""
    if nodes == "groups":
        return problem.group_graph
    ops = np.arange(problem.graph.num_ops, dtype=np.int32)
    each_alone = Grouping(group_of=ops, group_names=problem.graph.op_names)
    return group_graph(problem.graph, each_alone, problem.compute_time)


def placement_of_parts(
    problem: PlacementProblem, nodes: Nodes, device_of_node: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return int32[G], the placement that a partition of the nodes means.

    A group of ops goes to the device to which most of its work was mapped, and of several to the
    first; a group goes to where it runs fastest if it cannot run there.
    """
    if nodes == "groups":
        return repaired(problem, device_of_node)
    seconds = mean_seconds(problem.compute_time)
    # Ops without work vote, too, where nobody else does.
    votes = np.zeros((problem.num_groups, problem.num_devices))
    least = np.finfo(np.float64).tiny
    np.add.at(votes, (problem.grouping.group_of, device_of_node), seconds + least)
    return repaired(problem, votes.argmax(axis=1))
