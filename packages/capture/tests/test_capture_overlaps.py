"""Parameters, buffers, inputs and constants that share memory: what eager PyTorch computes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from capture_checks import check_replay, compared
from captured_models import Case, Net
from placeto_capture import CaptureError, capture
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.step_spec import StepSpec
from placeto_graphs import OpGraph
from replays import random_order, replay

ORDERS = range(3)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def numbers(count: int = 16) -> torch.Tensor:
    return torch.linspace(-1, 2, count)


def check_forward(model: nn.Module, inputs: tuple[Any, ...] = ()) -> OpGraph:
    """Compare replays in random orders with what the model does; return its graph."""
    trace = trace_step(StepSpec(model, inputs, mode="inference"))
    graph = op_graph_of(trace)
    replayed = [replay(trace, {}, order=random_order(graph, seed)) for seed in ORDERS]
    with torch.no_grad():
        output = model(*inputs)
    for results in replayed:
        torch.testing.assert_close(results["output.0"], output, equal_nan=True)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            torch.testing.assert_close(results[name], tensor.detach(), equal_nan=True)
    return graph


def write_part(model: Any) -> Any:
    model.part.add_(1)
    return torch.exp(model.whole)


def read_first(model: Any) -> Any:
    read = torch.exp(model.whole)
    model.part.add_(1)
    return read + model.whole


def readers_of(graph: OpGraph, name: str) -> set[str]:
    op = graph.op_names.index(name)
    return {graph.op_names[c] for c in graph.edge_consumers[graph.edge_producers == op].tolist()}


@pytest.mark.parametrize(
    "cut",
    [
        lambda whole: whole.view(4, 4)[:, 1::2],
        lambda whole: whole.view(4, 4).t()[1:3],
        lambda whole: whole[5],
        lambda whole: whole[:0],
        lambda whole: whole.view(torch.int32),
        lambda whole: whole.view(torch.uint8)[6:9],
        lambda whole: whole.view(torch.complex64)[2:5].conj(),
        lambda whole: torch._neg_view(whole[3:7]),
    ],
)
def test_parts_of_any_layout(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = numbers()
    check_forward(Net(write_part, whole=whole, part=cut(whole)))
    check_forward(Net(read_first, part=cut(whole), whole=whole))
    check_forward(Net(lambda _, whole, piece: piece.mul_(2).sum() + whole), (whole, cut(whole)))


def test_parts_that_do_not_overlap_are_ops_of_their_own() -> None:
    def write_left(model: Any) -> Any:
        model.left.mul_(3)
        return torch.exp(model.right)

    memory = numbers()
    graph = check_forward(Net(write_left, left=memory[:8], right=memory[8:]))
    assert graph.op_types == ("buffer", "buffer", "aten.mul_", "aten.exp")
    assert readers_of(graph, "aten.mul_") == set()


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.Adam])
def test_overlapping_weights_are_trained_as_in_pytorch(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    def scores(model: Any, inputs: torch.Tensor) -> Any:
        return inputs @ model.left @ model.right + model.shift

    memory = numbers(40)
    model = Net(
        scores,
        left=nn.Parameter(memory[:20].view(4, 5)),
        right=nn.Parameter(memory[10:30].view(4, 5).t()),
        shift=nn.Parameter(memory[32:36]),
    )
    step = compared(Case(model, (numbers(12).view(3, 4),)), optimizer)
    check_replay(step, num_orders=4)
    assert step.graph.op_types.count("parameter") == 2


@pytest.mark.parametrize("begin", [0, 1])  # the whole, or another view of it
def test_gradients_go_through_writes_into_a_part_and_through_parts(begin: int) -> None:
    def write(model: Any, whole: torch.Tensor, piece: torch.Tensor) -> Any:
        piece.copy_(torch.tanh(model.weight))
        return whole * model.row * model.weight.sum()

    def cut(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return whole[begin:] if begin else whole, whole[2:6]

    weight = nn.Parameter(numbers(4))
    model = Net(write, weight=weight, row=weight[1])
    trace = trace_step(StepSpec(model, cut(numbers(9)), optimizer=SGD))
    state = {"weight.momentum_buffer": torch.zeros(4)}
    orders = [random_order(op_graph_of(trace), seed) for seed in ORDERS]
    replayed = [replay(trace, state, order=order) for order in orders]
    model(*cut(numbers(9))).mean().backward()
    for results in replayed:
        torch.testing.assert_close(results["weight.grad"], weight.grad)


def test_what_only_the_model_keeps_overlaps_as_a_whole() -> None:
    def read(model: Any) -> Any:
        return torch.exp(model.kept[0]) + model.part

    memory = numbers()
    check_forward(Net(read, part=memory[6:10], kept=memory[7:10]))
    with pytest.raises(CaptureError, match=r"^constant: .* overlaps .*; register that as a buffer"):
        capture(Net(read, part=memory[6:10], kept=memory[4:12]), (), mode="inference")


def test_elements_that_do_not_begin_where_those_of_others_do_are_named() -> None:
    memory = bytearray(range(64))
    whole = torch.frombuffer(memory, dtype=torch.float32)
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=2, count=3)
    with pytest.raises(CaptureError, match=r"^(whole|part): expected a tensor that begins whole"):
        capture(Net(write_part, whole=whole, part=odd), (), mode="inference")
