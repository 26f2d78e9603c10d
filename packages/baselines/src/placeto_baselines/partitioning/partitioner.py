"""Placers that partition a graph: the weighted graph that they take, and what parts mean."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import majority, repaired, work_of
from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.trials import Trials
from placeto_graphs import (
    Cluster,
    Evaluator,
    GroupGraph,
    Grouping,
    PlacementProblem,
    PlacementResult,
    group_graph,
)

Nodes = Literal["groups", "ops"]
# Sums of weights. Scotch 7.0.13 puts all nodes on one device when its loads sum to 2**32 or more,
# also where its integers have 64 bits; METIS takes each edge twice, and may have 32. A weight is
# off by half a unit at the most.
TOTAL_WORK = 2**30
TOTAL_TRAFFIC = 2**29


class Partitioner:
    """Base of the placers that cut a graph into a part for each device."""

    least_imbalance = 0.0

    def __init__(
        self, imbalance: float = 0.05, nodes: Nodes = "groups", *, only_accelerators: bool = True
    ) -> None:
        check_at_least("imbalance", imbalance, self.least_imbalance)
        if nodes not in {"groups", "ops"}:
            raise BaselineError(f"nodes: expected 'groups' or 'ops', got {nodes!r}")
        self.imbalance = imbalance
        self.nodes = nodes
        self.only_accelerators = only_accelerators

    def parts(
        self, graph: GroupGraph, cluster: Cluster, devices: NDArray[np.intp], seed: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield one or several int64[N], the position in ``devices`` of the device of each node.

        The ``graph`` has the compute times of these devices of the cluster only.
        """
        raise NotImplementedError

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the placement that the library finds with the random numbers of a seed."""
        trials = Trials(problem, evaluator)
        every_device = np.arange(problem.num_devices)
        devices = problem.cluster.accelerators if self.only_accelerators else every_device
        graph = graph_of_nodes(problem, self.nodes, devices)
        for parts in self.parts(graph, problem.cluster, devices, seed):
            trials.evaluate(placement_of_parts(problem, self.nodes, devices, parts)[None])
        return trials.result()


def graph_of_nodes(
    problem: PlacementProblem, nodes: Nodes, devices: NDArray[np.intp]
) -> GroupGraph:
    """Return the graph whose nodes are the groups, or the ops, on some of the devices."""
    if nodes == "groups":
        groups = problem.group_graph
        return replace(groups, compute_time=groups.compute_time[:, devices])
    ops = np.arange(problem.graph.num_ops, dtype=np.int32)
    each_alone = Grouping(group_of=ops, group_names=problem.graph.op_names)
    return group_graph(problem.graph, each_alone, problem.compute_time[:, devices])


def placement_of_parts(
    problem: PlacementProblem, nodes: Nodes, devices: NDArray[np.intp], parts: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return int32[G], the placement that a partition of the nodes over some devices means.

    If ops were mapped, a group goes to the device of most of its work. A group that cannot run on
    its device goes to its fastest one.
    """
    if nodes == "ops":
        parts = majority(problem, parts, devices)
    return repaired(problem, devices[parts])


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """N nodes and the M edges between them, each in both directions."""

    offsets: NDArray[np.int64]  # [N + 1], start of the neighbours of each node
    neighbours: NDArray[np.int64]  # [2 M]
    work: NDArray[np.int64]  # [N], weight of each node, in proportion to its seconds
    traffic: NDArray[np.int64]  # [2 M], weight of the edge to each neighbour, at least 1


def weighted_graph(graph: GroupGraph) -> WeightedGraph:
    """Return the graph that a partitioner sees.

    A node weighs its work on the devices of the graph, which are those that get a part (`work_of`).
    It weighs nothing if none of them can run it. An edge weighs its bytes. Work is scaled so that
    its sum is ``TOTAL_WORK``. Bytes are exact if their sum allows it, and otherwise scaled down to
    ``TOTAL_TRAFFIC``. An edge without bytes keeps the least weight. A graph without any work has
    nodes of equal weight.
    """
    seconds = work_of(graph.compute_time)
    if not seconds.any():
        seconds = np.ones(graph.num_groups)
    work = np.round(seconds * (TOTAL_WORK / seconds.sum())).astype(np.int64)
    total = float(graph.edge_bytes.sum(dtype=np.float64))
    fraction = min(1.0, TOTAL_TRAFFIC / total) if total else 1.0
    traffic = np.maximum(np.round(graph.edge_bytes * fraction), 1).astype(np.int64)
    ends = np.concatenate([graph.edges, graph.edges[:, ::-1]]).astype(np.int64)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    offsets = np.zeros(graph.num_groups + 1, np.int64)
    np.cumsum(np.bincount(ends[:, 0], minlength=graph.num_groups), out=offsets[1:])
    return WeightedGraph(offsets, ends[order, 1], work, np.tile(traffic, 2)[order])
