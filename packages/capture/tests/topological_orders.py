"""Random topological orders of a graph."""

import numpy as np

from placeto_graphs import OpGraph


def random_order(graph: OpGraph, seed: int) -> list[int]:
    """Return the ops in an order in which nothing but the graph's edges says what comes first."""
    generator = np.random.default_rng(seed)
    missing = np.bincount(graph.edge_consumers, minlength=graph.num_ops)
    readers: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for producer, consumer in zip(graph.edge_producers, graph.edge_consumers, strict=True):
        readers[producer].append(int(consumer))
    ready = np.flatnonzero(missing == 0).tolist()
    order = []
    while ready:
        op = ready.pop(generator.integers(len(ready)))
        order.append(op)
        for reader in readers[op]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return order
