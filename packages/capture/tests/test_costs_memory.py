from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from placeto_capture import capture
from placeto_capture.costs.memory import (
    activation_bytes,
    bytes_held_twice,
    gradient_term_bytes,
    peak_bytes,
)
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
def test_the_peak_is_the_most_that_any_op_finds_in_memory(graph: OpGraph) -> None:
    held = []
    for now in range(graph.num_ops):
        total = int(graph.workspace_bytes[now] + graph.parameter_bytes.sum())
        for tensor, producer in enumerate(graph.tensor_producer.tolist()):
            last = max([producer, *graph.consumers_of_tensor[tensor].tolist()])
            if producer <= now <= last and graph.parameter_bytes[producer] == 0:
                total += int(graph.tensor_bytes[tensor])
        held.append(total)
    assert peak_bytes(graph) == max(held)


class Program(nn.Module):
    """Changes what tanh makes."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.change(torch.tanh(values))


def program(change: Callable[[torch.Tensor], torch.Tensor]) -> OpGraph:
    return capture(Program(change), torch.empty(8, 100), mode="inference")


def test_an_op_that_works_in_place_holds_what_it_changes_twice() -> None:
    size = 8 * 100 * FLOAT
    in_place = program(lambda values: values.mul_(2).exp_())
    assert peak_bytes(in_place) == 2 * size
    assert bytes_held_twice(in_place) == 0  # the input and tanh are as much
    longer = program(lambda values: torch.cat([values, values]).mul_(2))
    assert peak_bytes(longer) == 4 * size
    assert bytes_held_twice(longer) == 4 * size - 3 * size
    assert bytes_held_twice(program(lambda values: torch.cat([values, values]).mul(2))) == 0


def test_what_is_overwritten_is_held_once() -> None:
    graph = program(lambda values: torch.cat([values, values]).zero_())
    assert peak_bytes(graph) == 3 * 8 * 100 * FLOAT
    assert bytes_held_twice(graph) == 0


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


class Unrolled(nn.Module):
    """Applies one layer several times."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.layer = nn.Linear(16, 16, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(self.steps):
            values = torch.tanh(self.layer(values))
        return values


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_each_step_of_an_unrolled_network_has_a_term_in_the_gradient(steps: int) -> None:
    graph = capture(Unrolled(steps), torch.zeros(4, 16))
    assert gradient_term_bytes(graph) == steps * 16 * 16 * FLOAT
