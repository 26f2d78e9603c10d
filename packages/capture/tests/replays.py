"""Steps that run on real tensors, in any order that their graphs allow."""

from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
import torch

from placeto_capture.tracing.replay import Slots, StorageMemory
from placeto_capture.tracing.trace import Call, Trace
from placeto_graphs import OpGraph


def replay(
    trace: Trace,
    values: Mapping[str, torch.Tensor],
    *,
    order: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Run a traced step in an order of its ops; values that `capture` was given are known already.

    Returned are the results of the trace, and weights, buffers and optimizer state after the step.
    """

    views = dict(trace.results)
    memory = StorageMemory(torch.device("cpu"), trace.storage_bytes, Slots())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for source in trace.placeholders:
            tensors = {**source.tensors, **source.state}
            views |= tensors if source.is_resident else {}
            for name, view in tensors.items():
                value = values[name] if name in values else source.values[name]
                memory.tensor(view).copy_(value.detach())
        for op in range(len(trace.ops)) if order is None else order:
            call = trace.ops[op]
            if isinstance(call, Call):
                memory.run(call, seed)
        return {name: memory.tensor(view).clone() for name, view in views.items()}


def order_of(graph: OpGraph) -> nx.DiGraph:
    """Return which op comes before which, by edges and waits."""
    order = nx.DiGraph()
    order.add_nodes_from(range(graph.num_ops))
    order.add_edges_from(
        zip(graph.edge_producers.tolist(), graph.edge_consumers.tolist(), strict=True)
    )
    order.add_edges_from((earlier, op) for op, earlier in graph.waits.tolist())
    return order


def random_order(graph: OpGraph, seed: int) -> list[int]:
    """Return the ops in an order in which only the graph's edges and waits say what comes first."""
    chance = np.random.default_rng(seed).random(graph.num_ops)
    return list(nx.lexicographical_topological_sort(order_of(graph), chance.__getitem__))
