"""Ops read the bytes that they look at, and no others."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from capture_checks import comparison
from captured_models import CASES, Function, forward_pass
from eager_step import plain_kernels
from inplace_programs import InPlaceProgram, programs
from placeto_capture import capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec
from placeto_graphs import OpGraph
from replays import replay, replay_apart

FLOAT = 4


def read_bytes(graph: OpGraph, reader: str) -> dict[str, int]:
    """Return how many bytes an op reads of what each other op makes, by their names."""
    read: dict[str, int] = {}
    for tensor, consumer in graph.edges.tolist():
        if graph.op_names[consumer] == reader:
            maker = graph.op_names[graph.tensor_producer[tensor]]
            read[maker] = read.get(maker, 0) + int(graph.tensor_bytes[tensor])
    return read


def made_bytes(graph: OpGraph, maker: str) -> list[int]:
    """Return the bytes of the tensors of an op."""
    made: list[int] = graph.tensor_bytes[
        graph.tensor_producer == graph.op_names.index(maker)
    ].tolist()
    return made


def test_readers_of_chunks_read_a_chunk_each() -> None:
    def thirds(x: torch.Tensor) -> torch.Tensor:
        query, key, value = (x * 2).chunk(3, -1)
        return query.exp() + key.log() * value.sin()

    graph = forward_pass(thirds, torch.empty(5, 12))
    third = 5 * 4 * FLOAT
    assert made_bytes(graph, "aten.mul") == [third] * 3
    for reader in ("aten.exp", "aten.log", "aten.sin"):
        assert read_bytes(graph, reader) == {"aten.mul": third}
    assert read_bytes(graph, "aten.mul") == {"input.0": 3 * third}


def test_parts_that_the_same_ops_read_are_one_tensor() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        query, key, value = (x * 2).chunk(3, -1)
        attended: torch.Tensor = nn.functional.scaled_dot_product_attention(query, key, value)
        return attended

    graph = forward_pass(attention, torch.empty(2, 1, 5, 24))
    assert sum("attention" in op_type for op_type in graph.op_types) == 1
    assert made_bytes(graph, "aten.mul") == [2 * 5 * 24 * FLOAT]


def test_parts_that_overlap_are_sent_once() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        norm: torch.Tensor = torch.linalg.vector_norm(doubled)
        return doubled[:6].sum() + doubled[4:].mean() + norm

    graph = forward_pass(halves, torch.empty(10, 3))
    row = 3 * FLOAT
    assert made_bytes(graph, "aten.mul") == [4 * row, 2 * row, 4 * row]
    assert read_bytes(graph, "aten.sum") == {"aten.mul": 6 * row}
    assert read_bytes(graph, "aten.mean") == {"aten.mul": 6 * row}
    assert read_bytes(graph, "aten.linalg_vector_norm") == {"aten.mul": 10 * row}


def test_a_part_of_a_weight_is_a_part_of_a_copy_of_it() -> None:
    layer = nn.Linear(6, 12, bias=False)

    def of_layer(x: torch.Tensor) -> torch.Tensor:
        return (x @ layer.weight[:3].t()).sum() + (x @ layer.weight[3:].t()).sum()

    model = Function(of_layer)
    model.add_module("layer", layer)
    graph = capture(model, torch.empty(2, 6), mode="inference")
    assert made_bytes(graph, "layer.weight") == [3 * 6 * FLOAT, 9 * 6 * FLOAT]
    assert read_bytes(graph, "aten.mm")["layer.weight"] == 3 * 6 * FLOAT
    assert graph.parameter_bytes.sum() == 12 * 6 * FLOAT


STEPS, BATCH, UNITS = 6, 2, 5
SLICE = BATCH * UNITS * FLOAT


def unrolled(begin: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    outputs, hidden = begin(STEPS, BATCH, UNITS), x
    for step in range(STEPS):
        hidden = hidden.tanh()
        outputs[step] = hidden
    return outputs.exp()


@pytest.mark.parametrize("begin", [torch.empty, torch.zeros])
def test_writing_a_slice_in_each_step_makes_the_slices(
    begin: Callable[..., torch.Tensor],
) -> None:
    graph = forward_pass(partial(unrolled, begin), torch.empty(BATCH, UNITS))
    copies = ["aten.copy_", *(f"aten.copy__{step}" for step in range(2, STEPS + 1))]
    for copy in copies:
        assert sum(made_bytes(graph, copy)) == SLICE
        assert graph.bytes_accessed[graph.op_names.index(copy)] == 2 * SLICE
        read = read_bytes(graph, copy)
        assert sum(read.values()) == SLICE
        assert not {*read} & {*copies}  # one does not wait for the other
        assert read.get("aten.zeros", 0) == 0
    assert read_bytes(graph, "aten.exp") == dict.fromkeys(copies, SLICE)
    assert graph.tensor_bytes[graph.edges[:, 0]].sum() == (3 * STEPS) * SLICE


def test_what_is_not_wholly_overwritten_is_read_as_well() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        doubled[::3].zero_()
        return doubled[::2].exp()

    graph = forward_pass(writes, torch.empty(12))
    assert read_bytes(graph, "aten.zero_")["aten.mul"] > 0


@given(programs(), st.integers(0, 11))
def test_the_bytes_that_ops_send_each_other_are_all_they_need(
    program: InPlaceProgram, start: int
) -> None:
    inputs = torch.arange(12.0).reshape(3, 4) / 7
    shared = program.memory[start : start + 12].view(3, 4)
    trace = trace_step(StepSpec(program, (inputs, shared), mode="inference"))
    results = replay_apart(trace, {}, seed=0)
    with torch.no_grad():
        expected = program(inputs.clone(), shared)
    torch.testing.assert_close(results["output.0"], expected)
    torch.testing.assert_close(results["buffer"], program.buffer)
    torch.testing.assert_close(results["weight"], program.weight.data)


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_that_ops_of_a_training_step_send_are_all_they_need(name: str) -> None:
    step = comparison(name)
    with plain_kernels():
        apart = replay_apart(step.trace, step.before, seed=3)
        together = replay(step.trace, step.before, seed=3)
    assert "loss" in apart
    for value in apart:
        torch.testing.assert_close(apart[value], together[value], equal_nan=True)
