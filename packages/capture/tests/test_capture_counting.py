"""FLOPs and bytes of captured ops are those of the real run."""

import math

import numpy as np
import torch
from torch import nn

from captured_models import forward_pass
from placeto_capture import capture
from placeto_capture.tracing import functions
from placeto_graphs import OpGraph


def flops_of(graph: OpGraph, op_type: str) -> float:
    """Return the FLOPs of the one op of a type."""
    (op,) = (op for op, name in enumerate(graph.op_types) if name == op_type)
    return float(graph.flops[op])


def bytes_of(graph: OpGraph, op_type: str) -> float:
    """Return the bytes that the one op of a type reads and writes."""
    (op,) = (op for op, name in enumerate(graph.op_types) if name == op_type)
    return float(graph.bytes_accessed[op])


def test_functions_with_a_rule_of_their_own_exist() -> None:
    named = (
        *functions.ALLOCATIONS,
        *functions.MOVES,
        *functions.OVERWRITES,
        *functions.PICKS,
        *functions.UNDECLARED_WRITES,
        *functions.VECTOR_PRODUCTS,
    )
    missing = [name for name in named if not hasattr(torch.ops.aten, name.removeprefix("aten."))]
    assert missing == []


def test_ops_without_a_formula_count_each_element_once() -> None:
    graph = forward_pass(torch.tanh, torch.empty(3, 4, 5))
    assert flops_of(graph, "aten.tanh") == 60
    assert bytes_of(graph, "aten.tanh") == 2 * 60 * 4


def test_moving_data_takes_bytes_but_no_flops() -> None:
    def move(table: torch.Tensor) -> torch.Tensor:
        picked = table.index_select(0, torch.zeros(2, dtype=torch.long))
        return torch.cat([picked, picked.sum(0, keepdim=True)])

    graph = forward_pass(move, torch.empty(1000, 8))
    row = 8 * 4
    assert flops_of(graph, "aten.index_select") == flops_of(graph, "aten.cat") == 0
    assert bytes_of(graph, "aten.index_select") == 2 * (2 * row) + 2 * 8
    assert bytes_of(graph, "aten.cat") == 2 * (3 * row)
    assert flops_of(graph, "aten.sum") == 16
    assert bytes_of(graph, "aten.zeros") == 2 * 8


def test_an_expanded_tensor_is_read_once() -> None:
    graph = forward_pass(lambda row: row.expand(100, 8).clone(), torch.empty(1, 8))
    assert bytes_of(graph, "aten.clone") == 8 * 4 + 100 * 8 * 4


def test_a_product_with_a_vector_counts_multiplications_and_additions() -> None:
    graph = forward_pass(torch.mv, torch.empty(6, 7), torch.empty(7))
    assert flops_of(graph, "aten.mv") == 2 * 6 * 7


def test_weights_need_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20)  # 4 TiB
        batch = torch.empty(8, 2**20)
    graph = capture(model, batch)
    assert graph.parameter_bytes.max() == 3 * 4 * 2**40 + 4
    assert flops_of(graph, "aten.addmm") == math.prod((2, 8, 2**20, 2**20))


class ConvolutionAndAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = self.convolution(images).flatten(2).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(words, words, words)


def test_no_workspace_of_a_kernel_is_known_and_what_attention_keeps_is_a_tensor() -> None:
    graph = capture(ConvolutionAndAttention(), torch.empty(2, 3, 16, 16))
    assert {"aten.convolution", "aten.convolution_backward"} < set(graph.op_types)
    kinds = np.array(graph.op_types)
    assert set(kinds[graph.workspace_bytes > 0]) == {"placeto.update"}
    (op,) = (op for op, kind in enumerate(graph.op_types) if kind.endswith("attention_for_cpu"))
    made = graph.tensor_bytes[graph.tensor_producer == op].tolist()
    assert sorted(made) == [2 * 1 * 8 * 4, 2 * 1 * 8 * 144 * 4]  # a sum for each row, the result
