"""Topological order of a directed graph."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.topology.compressed_rows import compress_rows


class CycleError(ValueError):
    """The graph has a cycle; ``nodes`` are its nodes in order."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"the nodes {nodes} form a cycle")
        self.nodes = nodes


def topological_order(
    num_nodes: int, sources: NDArray[np.integer], destinations: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return the topological order that takes, at each step, the ready node with the lowest index.

    Where every edge already runs from a lower to a higher index, that is the order of the indices,
    and no search is needed: graphs that were recorded as they ran are of this kind.

    Parameters
    ----------
    num_nodes
        The number V of nodes.
    sources, destinations : int[E]
        The two ends of each edge.

    Returns
    -------
    int32[V]
        The nodes in order, read-only.

    Raises
    ------
    CycleError
        When there is no such order.
    """
    if bool(np.all(sources < destinations)):
        order = np.arange(num_nodes, dtype=np.int32)
    else:
        # Numba takes half a second to import, which only this case needs.
        from placeto_graphs.topology.kernels import lowest_ready_first  # noqa: PLC0415

        rows = compress_rows(num_nodes, sources, destinations)
        order = lowest_ready_first(rows.offsets, rows.values)
        if len(order) < num_nodes:
            raise CycleError(_find_cycle(num_nodes, sources, destinations, order))
    order.flags.writeable = False
    return order


def _find_cycle(
    num_nodes: int,
    sources: NDArray[np.integer],
    destinations: NDArray[np.integer],
    ordered: NDArray[np.int32],
) -> list[int]:
    stuck = np.ones(num_nodes, np.bool_)
    stuck[ordered] = False
    within = stuck[sources] & stuck[destinations]
    # Every stuck node waits for another stuck one, so walking backwards comes round.
    waits_for = np.full(num_nodes, -1, np.int64)
    waits_for[destinations[within]] = sources[within]
    node = int(np.argmax(stuck))
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(seen)
        node = int(waits_for[node])
    cycle = list(seen)[seen[node] :][::-1]
    lowest = cycle.index(min(cycle))
    return cycle[lowest:] + cycle[:lowest]
