"""The compiled loop of merge-and-colocate, with the two structures that make it near-linear.

Edges are given in order of priority, so that the number of an edge is its priority. Each group
keeps its edges in a skew heap (Sleator and Tarjan 1986). Two heaps meld in amortised logarithmic
time, by relinking ``left`` and ``right``. A forest of parents with path halving maps each old group
to its present group.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.compilation import compiled

NONE = -1


@compiled
def merge_cheapest_groups(
    costs: NDArray[np.int64],
    sent: NDArray[np.int32],
    received: NDArray[np.int32],
    num_groups: int,
    min_cost: int,
) -> NDArray[np.int32]:
    """Merge the cheapest group into its neighbour until few, or only expensive ones, are left.

    Parameters
    ----------
    costs : int64[G]
        The cost of each group; the cost of a merged one is the sum.
    sent, received : int32[K, 2]
        Rows of (group, neighbour) in order of priority: the neighbours that a group joins, and
        those that it joins when it has none of the former.
    num_groups
        Number of groups at which merging ends.
    min_cost
        Cost from which on no group is merged.

    Returns
    -------
    int32[K, 2]
        Rows of (group, neighbour that it is merged into), in order.
    """
    merges = np.empty((len(costs), 2), np.int32)
    parent = np.arange(len(costs), dtype=np.int32)
    cost = costs.copy()
    sent_heap, sent_left, sent_right = edge_heaps(len(costs), sent)
    received_heap, received_left, received_right = edge_heaps(len(costs), received)
    cheapest = [(cost[group], group) for group in range(len(costs))]
    heapq.heapify(cheapest)
    left_over = len(costs)
    waiting = NONE  # a group without neighbours, for the next one of that kind
    while left_over > num_groups and len(cheapest) > 0:
        group_cost, group = heapq.heappop(cheapest)
        if group_cost >= min_cost:
            break
        if parent[group] != group or cost[group] != group_cost or group == waiting:
            continue  # it was merged, grew, or came to wait since it was put here
        neighbour = first_neighbour(group, parent, sent, sent_heap, sent_left, sent_right)
        if neighbour == NONE:
            neighbour = first_neighbour(
                group, parent, received, received_heap, received_left, received_right
            )
        if neighbour == NONE:
            if waiting == NONE:
                waiting = group
                continue
            group, neighbour, waiting = waiting, group, NONE
        merges[len(costs) - left_over] = group, neighbour
        parent[group] = neighbour
        cost[neighbour] += cost[group]
        sent_heap[neighbour] = meld(sent_heap[neighbour], sent_heap[group], sent_left, sent_right)
        received_heap[neighbour] = meld(
            received_heap[neighbour], received_heap[group], received_left, received_right
        )
        heapq.heappush(cheapest, (cost[neighbour], neighbour))
        left_over -= 1
    return merges[: len(costs) - left_over]


@compiled
def labels_after_merges(num_groups: int, merges: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32[G], the group that each group is merged into by rows of (group, neighbour)."""
    labels = np.arange(num_groups, dtype=np.int32)
    for merge in range(len(merges) - 1, -1, -1):  # where a neighbour ends up is known by then
        labels[merges[merge, 0]] = labels[merges[merge, 1]]
    return labels


@compiled
def edge_heaps(
    num_groups: int, edges: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the first edge of each group, and the links from each edge to its two children."""
    first = np.full(num_groups, NONE, np.int32)
    left = np.full(len(edges), NONE, np.int32)
    right = np.full(len(edges), NONE, np.int32)
    for edge in range(len(edges) - 1, -1, -1):
        group = edges[edge, 0]
        left[edge] = first[group]
        first[group] = edge
    return first, left, right


@compiled
def first_neighbour(
    group: int,
    parent: NDArray[np.int32],
    edges: NDArray[np.int32],
    heap: NDArray[np.int32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
) -> int:
    """Return the group at the other end of a group's first edge; edges within it are dropped."""
    edge = heap[group]
    while edge != NONE:
        neighbour = find(parent, edges[edge, 1])
        if neighbour != group:
            heap[group] = edge
            return neighbour
        edge = meld(left[edge], right[edge], left, right)
    heap[group] = NONE
    return NONE


@compiled
def find(parent: NDArray[np.int32], group: int) -> int:
    """Return the group that a group is merged into."""
    while parent[group] != group:
        parent[group] = parent[parent[group]]
        group = parent[group]
    return group


@compiled
def meld(one: int, other: int, left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """Meld two skew heaps and return the root."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    if other < one:
        one, other = other, one
    root = one
    while True:
        below = right[one]
        right[one] = left[one]
        if below == NONE:
            left[one] = other
            return root
        if other < below:
            below, other = other, below
        left[one] = below
        one = below
