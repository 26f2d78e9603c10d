"""Directed graphs as plain arrays: rows of neighbours (CSR), and the order of the nodes."""

import graphlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """N rows of different lengths, one after the other in ``values`` (compressed sparse rows)."""

    offsets: NDArray[np.int32]  # [N + 1], start of each row; the last entry is the end
    values: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def compress_rows(
    num_rows: int, keys: NDArray[np.integer], values: NDArray[np.integer]
) -> CompressedRows:
    """Sort values into rows by their keys, keeping their order within a row.

    Parameters
    ----------
    num_rows
        Number N of rows.
    keys : int[K]
        Row of each value, from 0 to N - 1.
    values : int[K]
        Values, kept as int32.

    Examples
    --------
    >>> rows = compress_rows(3, np.array([2, 0, 2]), np.array([7, 8, 9]))
    >>> [row.tolist() for row in rows]
    [[8], [], [7, 9]]
    """
    sizes = np.bincount(keys, minlength=num_rows)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    in_rows = values[np.argsort(keys, kind="stable")].astype(np.int32)
    for array in (offsets, in_rows):
        array.flags.writeable = False
    return CompressedRows(offsets, in_rows)


class CycleError(ValueError):
    """The graph has a cycle; ``nodes`` are its nodes in order, the lowest one first."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"the nodes {nodes} form a cycle")
        self.nodes = nodes


def topological_order(
    num_nodes: int, sources: NDArray[np.integer], destinations: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return the topological order that takes, at each step, the ready node with the lowest index.

    If every edge already runs from a lower to a higher index, it is the order of the indices,
    without a search. Recorded graphs are of this kind. A graph with a cycle raises a `CycleError`.
    """
    if (sources < destinations).all():
        order = np.arange(num_nodes, dtype=np.int32)
    else:
        order = _lowest_ready_first(num_nodes, sources, destinations)
        if len(order) < num_nodes:
            raise CycleError(_a_cycle(sources, destinations))
    order.flags.writeable = False
    return order


def _lowest_ready_first(
    num_nodes: int, sources: NDArray[np.integer], destinations: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Order nodes by Kahn's algorithm with a heap; a cycle leaves its nodes out."""
    successors = compress_rows(num_nodes, sources, destinations)
    missing = np.bincount(destinations, minlength=num_nodes).tolist()
    ready = [node for node in range(num_nodes) if missing[node] == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for successor in successors[node].tolist():
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, successor)
    return np.array(order, np.int32)


def _a_cycle(sources: NDArray[np.integer], destinations: NDArray[np.integer]) -> list[int]:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        sorter.add(destination, source)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        nodes: list[int] = error.args[1][1:]
    lowest = nodes.index(min(nodes))
    return nodes[lowest:] + nodes[:lowest]
