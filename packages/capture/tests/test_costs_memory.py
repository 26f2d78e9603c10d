"""The bytes that a step keeps from its forward for its backward."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from placeto_capture import capture
from placeto_capture.costs.memory import activation_bytes
from placeto_graphs import OpGraph

FLOAT = 4


@st.composite
def graphs_in_order(draw: st.DrawFn) -> OpGraph:
    """Return a random graph whose ops read only what ops before them make."""
    num_ops = draw(st.integers(2, 12))
    count = draw(st.integers(0, 12))
    producers = draw(st.lists(st.integers(0, num_ops - 2), min_size=count, max_size=count))
    reads = {
        (tensor, draw(st.integers(producer + 1, num_ops - 1)))
        for tensor, producer in enumerate(producers)
        for _ in range(draw(st.integers(0, 3)))
    }
    numbers = st.integers(0, 100)
    fields: dict[str, Any] = {
        "op_names": [f"op{op}" for op in range(num_ops)],
        "op_types": ["op"] * num_ops,
        "scopes": [""] * num_ops,
        "phases": sorted(draw(st.lists(st.integers(0, 2), min_size=num_ops, max_size=num_ops))),
        "flops": np.zeros(num_ops),
        "bytes_accessed": np.zeros(num_ops),
        "parameter_bytes": [draw(numbers) if draw(st.booleans()) else 0 for _ in range(num_ops)],
        "workspace_bytes": draw(st.lists(numbers, min_size=num_ops, max_size=num_ops)),
        "colocation": [-1] * num_ops,
        "tensor_producer": producers,
        "tensor_bytes": [draw(numbers) for _ in producers],
        "edges": sorted(reads),
    }
    return OpGraph(**fields)


@given(graphs_in_order())
def test_activations_are_what_the_backward_reads_of_the_forward(graph: OpGraph) -> None:
    total = 0
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        phases = graph.phases[graph.consumers_of_tensor[tensor]]
        if graph.phases[producer] == 0 and 1 in phases and graph.parameter_bytes[producer] == 0:
            total += int(graph.tensor_bytes[tensor])
    assert activation_bytes(graph) == total


def test_the_activations_of_a_small_network() -> None:
    """The input (for the weights of the first layer), what tanh makes, and the loss are kept."""
    network = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 3, bias=False))
    graph = capture(network, torch.zeros(8, 10), loss_fn=lambda outputs: outputs.sum())
    assert activation_bytes(graph) == FLOAT * (8 * (10 + 20) + 1)
