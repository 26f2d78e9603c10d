"""Random topological orders of a graph."""

import numpy as np

from placeto_graphs import OpGraph


def random_order(graph: OpGraph, seed: int) -> list[int]:
    """Return the ops in an order in which only the graph's edges and waits say what comes first."""
    generator = np.random.default_rng(seed)
    befores = [*graph.edge_producers.tolist(), *graph.waits[:, 1].tolist()]
    afters = [*graph.edge_consumers.tolist(), *graph.waits[:, 0].tolist()]
    missing = np.bincount(afters, minlength=graph.num_ops)
    readers: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for before, after in zip(befores, afters, strict=True):
        readers[before].append(after)
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
