"""Compiled loops over edges."""

import heapq

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.compilation import compiled


@compiled
def lowest_ready_first(
    offsets: NDArray[np.int32], successors: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Order nodes by Kahn's algorithm with a heap; a cycle leaves its nodes out."""
    num_nodes = len(offsets) - 1
    missing = np.zeros(num_nodes, np.int32)
    for successor in successors:
        missing[successor] += 1
    ready = [np.int32(node) for node in range(num_nodes) if missing[node] == 0]
    order = np.empty(num_nodes, np.int32)
    count = 0
    while len(ready) > 0:
        node = heapq.heappop(ready)
        order[count] = node
        count += 1
        for position in range(offsets[node], offsets[node + 1]):
            successor = successors[position]
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, successor)
    return order[:count].copy()
