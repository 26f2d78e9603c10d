"""The loops of grouping that NumPy cannot express, compiled."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.compilation import called_by_compiled, compiled

NOTHING = -1


@called_by_compiled
def sift_down(queue: NDArray[np.int64], known_cost: NDArray[np.int64], size: int) -> int:
    """Move the first group of a binary heap to where it belongs, by its cost, then its number."""
    group, place = queue[0], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        other = child + 1
        if other < size and (known_cost[queue[other]], queue[other]) < (
            known_cost[queue[child]],
            queue[child],
        ):
            child = other
        if (known_cost[group], group) < (known_cost[queue[child]], queue[child]):
            break
        queue[place] = queue[child]
        place = child
    queue[place] = group
    return place


@called_by_compiled
def joined_heap(first: int, second: int, left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Join two skew heaps, each given by its first edge; return the first edge of the whole."""
    if min(first, second) == NOTHING:
        return max(first, second)
    first, second = min(first, second), max(first, second)
    root = first
    while True:
        below = right[first]
        right[first] = left[first]
        if below == NOTHING:
            left[first] = second
            return root
        left[first] = min(below, second)
        first, second = min(below, second), max(below, second)


@called_by_compiled
def present_group(group: int, merged_into: NDArray[np.int64]) -> int:
    """Return the group that a group is part of by now."""
    while merged_into[group] != group:
        merged_into[group] = merged_into[merged_into[group]]
        group = merged_into[group]
    return group


@called_by_compiled
def neighbour_of(
    group: int,
    ends: NDArray[np.int64],
    root: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    merged_into: NDArray[np.int64],
) -> int:
    """Return the neighbour that a group would join; edges within the group leave its heaps."""
    for direction in range(2):
        while root[direction, group] != NOTHING:
            edge = root[direction, group]
            neighbour = present_group(ends[direction, edge], merged_into)
            if neighbour != group:
                return neighbour
            root[direction, group] = joined_heap(
                left[direction, edge], right[direction, edge], left[direction], right[direction]
            )
    return NOTHING


@compiled
def merge_cheapest(
    cost: NDArray[np.int64],
    known_cost: NDArray[np.int64],
    queue: NDArray[np.int64],
    ends: NDArray[np.int64],
    root: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    merged_into: NDArray[np.int64],
    merges: NDArray[np.int64],
    min_cost: int,
) -> int:
    """Merge the cheapest group into a neighbour, up to M times; return how often.

    An edge is its place in the order of priority, so that the first edge of a heap is next. The
    heaps of edges are skew heaps (Sleator and Tarjan 1986). The first direction has the edges that
    groups send along, the second those that they read from.

    Parameters
    ----------
    cost
        int64[G], of each group; grows as it takes in others.
    known_cost, queue
        int64[G], a copy of it, and the groups by it, from the cheapest on. They become a binary
        heap, in which a group stands by the cost that it had when it last came to the front.
    ends
        int64[2, E], the neighbour at the end of each edge, in both directions.
    root, left, right
        int64[2, G], int64[2, E] and int64[2, E], the first edge of the heap of each group, and the
        children of each edge; -1 if there is none.
    merged_into
        int64[G], the group that each was merged into, which may have been merged itself.
    merges
        int64[M, 2], filled with a group and the neighbour that it is merged into, in order.
    min_cost
        Cost from which on a group stays.
    """
    size, count = len(queue), 0
    waiting = NOTHING  # a group without neighbours, for the next one of that kind
    while count < len(merges) and size > 0 and known_cost[queue[0]] < min_cost:
        group = queue[0]
        if merged_into[group] != group or group == waiting:
            size -= 1
            queue[0] = queue[size]
            sift_down(queue, known_cost, size)
            continue
        if known_cost[group] < cost[group]:
            known_cost[group] = cost[group]
            sift_down(queue, known_cost, size)
            continue
        neighbour = neighbour_of(group, ends, root, left, right, merged_into)
        if neighbour == NOTHING and waiting == NOTHING:
            waiting = group
            continue
        if neighbour == NOTHING:
            group, neighbour, waiting = waiting, group, NOTHING
        merges[count, 0] = group
        merges[count, 1] = neighbour
        count += 1
        merged_into[group] = neighbour
        cost[neighbour] += cost[group]
        for direction in range(2):
            root[direction, neighbour] = joined_heap(
                root[direction, group],
                root[direction, neighbour],
                left[direction],
                right[direction],
            )
    return count


@compiled
def spread(
    is_reached: NDArray[np.bool_],
    passes_on: NDArray[np.bool_],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
) -> int:
    """Reach the targets of edges whose sources are reached, in order; return how many edges lead.

    ``is_reached`` bool[V] is filled in. Targets that do not pass it on are not reached.
    """
    count = 0
    for edge in range(len(sources)):
        if is_reached[sources[edge]] and passes_on[targets[edge]]:
            is_reached[targets[edge]] = True
            count += 1
    return count
