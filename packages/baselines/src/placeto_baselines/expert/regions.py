"""Parallel branches of a graph: what lies between a fork and the join behind it."""

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Phase, PlacementProblem

NOWHERE = -1
ENTRY, EXIT = "entry", "exit"


def forward_graph(problem: PlacementProblem) -> nx.DiGraph:
    """Return the groups and the edges between them over which forward ops send tensors."""
    graph, group_of = problem.graph, problem.grouping.group_of
    is_forward = graph.phases == Phase.FORWARD
    both = is_forward[graph.edge_producers] & is_forward[graph.edge_consumers]
    pairs = np.stack([group_of[graph.edge_producers[both]], group_of[graph.edge_consumers[both]]])
    joined = {(min(pair), max(pair)) for pair in pairs.T.tolist()}
    result = nx.DiGraph()
    result.add_nodes_from(sorted(set(group_of[is_forward].tolist())))
    # The graph of groups says which of two comes first.
    for source, reader in problem.group_graph.edges.tolist():
        if (min(source, reader), max(source, reader)) in joined:
            result.add_edge(source, reader)
    return result


def parallel_branches(graph: nx.DiGraph) -> list[list[set[int]]]:
    """Return the fork-join regions of a graph, each as its parallel branches.

    A fork is a node with several successors, its join the first node that all paths from it pass
    (its immediate post-dominator), and its branches the parts into which the nodes between the two
    fall. A region has two branches or more. Regions within a branch of another are part of that
    branch; of regions that overlap the first counts. Separate parts of a graph are branches, too.

    Parameters
    ----------
    graph
        A directed graph without cycles.

    Examples
    --------
    >>> diamond = nx.DiGraph([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])
    >>> parallel_branches(diamond)
    [[{1}, {2}]]
    """
    closed = nx.DiGraph(graph.edges)
    closed.add_nodes_from(graph)
    closed.add_edges_from([(ENTRY, node) for node in graph if graph.in_degree(node) == 0])
    closed.add_edges_from([(node, EXIT) for node in graph if graph.out_degree(node) == 0])
    if not len(graph):
        return []
    join_of = nx.immediate_dominators(closed.reverse(copy=False), EXIT)
    taken: set[int] = set()
    regions = []
    for fork in nx.topological_sort(closed):
        if fork in taken or closed.out_degree(fork) < 2:
            continue
        join = join_of[fork]
        between = nx.descendants(closed, fork) & nx.ancestors(closed, join)
        branches = list(nx.weakly_connected_components(closed.subgraph(between)))
        if len(branches) > 1 and not between & taken:
            regions.append(sorted(branches, key=min))
            taken |= between
    return regions


def devices_by_regions(problem: PlacementProblem, num_devices: int) -> NDArray[np.int64]:
    """Return int64[G], a device for each group, or -1 for those that go with their neighbours.

    The branches of each region go to the devices in turn, and what joins them, the trunk, to the
    first. Groups that read nothing, such as weights, and those of other phases are left open.
    """
    graph = forward_graph(problem)
    device_of = np.full(problem.num_groups, NOWHERE)
    trunk = [group for group in graph if graph.in_degree(group) > 0]
    device_of[trunk] = 0
    for branches in parallel_branches(graph):
        for turn, branch in enumerate(branches):
            device_of[list(branch)] = turn % num_devices
    return device_of
