"""Weights that are held in fewer bytes than their dtype has, and those of experts."""

import pytest
import torch
from torch import nn

from placeto_capture import CaptureError, capture, executable_step
from placeto_graphs import OpGraph

BLOCKS_OF_32 = 18  # bytes of 32 weights of 4 bits with a scale of 16 bits


def op(graph: OpGraph, op_type: str) -> int:
    return graph.op_types.index(op_type)


def test_a_product_reads_the_bytes_that_its_weight_is_held_in() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 96, bias=False, dtype=torch.bfloat16))
        rows = torch.empty(2, 64, dtype=torch.bfloat16)
    num_bytes = 96 * (64 // 32) * BLOCKS_OF_32
    graph = capture(model, rows, mode="inference", parameter_bytes={"0.weight": num_bytes})
    product, weight = op(graph, "aten.mm"), op(graph, "parameter")
    assert graph.bytes_accessed[product] == num_bytes + 2 * 64 * 2 + 2 * 96 * 2
    assert graph.flops[product] == 2 * 2 * 64 * 96
    assert graph.dtype[product] == "bfloat16"
    assert graph.parameter_bytes[weight] == num_bytes
    assert graph.tensor_bytes[graph.tensor_producer == weight].tolist() == [num_bytes]


def test_rows_that_are_picked_of_a_weight_are_as_narrow_as_it() -> None:
    table = nn.Embedding(10, 64, device="meta")
    words = torch.zeros(3, dtype=torch.int64, device="meta")
    graph = capture(table, words, mode="inference", parameter_bytes={"weight": 10 * 64})
    picked = op(graph, "aten.embedding")
    assert graph.bytes_accessed[picked] == 3 * 8 + 3 * 64 + 3 * 64 * 4


def test_what_cannot_be_held_so_is_refused() -> None:
    model, rows = nn.Linear(4, 2), torch.ones(3, 4)
    with pytest.raises(CaptureError, match=r"^parameter_bytes: expected names .*, got 'bais'"):
        capture(model, rows, mode="inference", parameter_bytes={"bais": 4})
    with pytest.raises(
        CaptureError, match=r"^parameter_bytes: expected at least 1 for bias, got 0"
    ):
        capture(model, rows, mode="inference", parameter_bytes={"bias": 0})


def test_a_step_that_runs_has_the_graph_of_its_capture() -> None:
    model, rows = nn.Linear(4, 2), torch.ones(3, 4)
    held = {"weight": 5}
    graph = capture(model, rows, mode="inference", parameter_bytes=held)
    step = executable_step(model, rows, mode="inference", parameter_bytes=held)
    assert step.graph == graph
