"""How a step appears as a graph."""

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

from captured_models import CASES, Function, attention_block, case, forward_pass
from placeto_capture import capture
from placeto_graphs import OpGraph, Phase, colocate
from replays import order_of

SGD = partial(torch.optim.SGD, lr=0.1)
# A gradient op of a view has the scope of the view, and is with the op that made its storage.
NO_VIEWS_ACROSS_MODULES = ("perceptron", "unrolled LSTM cell", "attention block")


def index(graph: OpGraph, name: str) -> int:
    """Return the op of a name."""
    return graph.op_names.index(name)


def reads(graph: OpGraph, name: str) -> set[str]:
    """Return the names of the ops of whose tensors an op reads one."""
    op = index(graph, name)
    return {graph.op_names[p] for p in graph.edge_producers[graph.edge_consumers == op]}


def sizes(graph: OpGraph, name: str) -> list[int]:
    """Return the bytes of the tensors of an op."""
    num_bytes: list[int] = graph.tensor_bytes[graph.tensor_producer == index(graph, name)].tolist()
    return num_bytes


def ancestors(graph: OpGraph, name: str) -> set[str]:
    """Return the names of all ops that come before an op."""
    return {graph.op_names[op] for op in nx.ancestors(order_of(graph), index(graph, name))}


def test_views_are_part_of_the_op_that_made_their_storage() -> None:
    def looks(matrix: torch.Tensor) -> torch.Tensor:
        doubled = matrix * 2
        first, _ = doubled.t().reshape(2, 2, 3).detach().unbind()
        return first[:, 1:].expand(5, 2, 2).permute(2, 0, 1) + 1

    graph = forward_pass(looks, torch.empty(3, 4))
    assert graph.op_names == ("input.0", "aten.mul", "aten.add")
    assert reads(graph, "aten.add") == {"aten.mul"}
    assert sizes(graph, "aten.mul") == [48]


def test_readers_depend_on_the_last_write() -> None:
    def overwrites(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        total = doubled.sum()
        doubled[0].relu_()
        return doubled.mean() + total

    graph = forward_pass(overwrites, torch.empty(3, 4))
    assert reads(graph, "aten.relu_") >= {"aten.mul"}
    assert reads(graph, "aten.mean") == {"aten.relu_"}
    assert sizes(graph, "aten.relu_") == [48]
    # The sum has to see what was there before, so the write waits for it.
    assert "aten.sum" in ancestors(graph, "aten.relu_")
    assert sizes(graph, "aten.sum") == [4]


KINDS = ("weight", "bias")


def test_updates_take_no_further_memory_and_wait_for_those_who_read_the_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = partial(torch.optim.Adam, fused=True)
    graph = capture(model, torch.empty(2, 3), optimizer=optimizer, target="cpu")
    updates = {name for name in graph.op_names if name.endswith("placeto.update")}
    assert updates == {f"{layer}.{kind}/placeto.update" for layer in (0, 1) for kind in KINDS}
    for name in updates:
        assert sizes(graph, name) == [0] * 4  # weights, two moments, and the count of steps
    readers = {name for name in graph.op_names if "1.weight" in reads(graph, name)}
    gradient_of_input = next(
        n for n in readers if n.startswith("1/") and "mm" in n and "add" not in n
    )
    assert gradient_of_input in ancestors(graph, "1.weight/placeto.update")


def test_ops_that_write_a_buffer_are_where_it_is() -> None:
    graph = capture(nn.BatchNorm1d(4), torch.empty(6, 4))
    same = graph.colocation == graph.colocation[index(graph, "running_mean")]
    assert {graph.op_names[op] for op in np.flatnonzero(same)} == {
        "running_mean",
        "running_var",
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
    }
    assert graph.op_types[index(graph, "running_mean")] == "buffer"
    assert sizes(graph, "aten.native_batch_norm") == [96, 16, 16, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_with_ops_of_their_module_and_updates_with_weights(name: str) -> None:
    example = case(name)
    graph = capture(example.model, example.inputs)
    modules = {path for path, _ in example.model.named_modules()}
    assert set(graph.scopes) <= {*modules, "loss", "optimizer"}
    forward = np.flatnonzero(graph.phases == Phase.FORWARD)
    scopes_of_id: dict[int, set[str]] = {}
    for op in forward.tolist():
        scopes_of_id.setdefault(int(graph.colocation[op]), set()).add(graph.scopes[op])
    for op in np.flatnonzero(graph.phases == Phase.BACKWARD).tolist():
        if graph.op_types[op] == "aten.ones_like" and graph.colocation[op] < 0:
            continue  # the gradient of the loss itself belongs to no op
        scopes = scopes_of_id[int(graph.colocation[op])]
        assert graph.scopes[op] in scopes or name not in NO_VIEWS_ACROSS_MODULES

    barrier, *updates = np.flatnonzero(graph.phases == Phase.UPDATE).tolist()
    assert graph.op_types[barrier] == "placeto.barrier"
    assert graph.colocation[barrier] == graph.colocation[updates[0]]
    for op in updates:
        parameter = index(graph, graph.op_names[op].split("/")[0])
        assert graph.op_types[parameter] == "parameter"
        assert graph.colocation[op] == graph.colocation[parameter] >= 0
    assert (np.diff(graph.phases) >= 0).all()
    assert colocate(graph).num_groups < graph.num_ops


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(inputs)
        return inputs.abs() * inputs.abs()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (inputs,) = context.saved_tensors
        return torch.mul(2 * inputs, gradients[0])


def test_gradient_ops_of_users_functions_are_with_their_forward_ops() -> None:
    def squares(inputs: torch.Tensor) -> torch.Tensor:
        square: torch.Tensor = Square.apply(torch.sin(inputs))  # type: ignore[no-untyped-call]
        return torch.exp(square)

    inputs = torch.ones(3, requires_grad=True)
    graph = capture(Function(squares), inputs, optimizer=lambda _: SGD([torch.ones(1)]))
    of_square = graph.colocation[index(graph, "aten.mul")]
    named = [graph.op_names[op] for op in np.flatnonzero(graph.colocation == of_square)]
    assert named == ["aten.mul", "aten.mul_3", "aten.mul_4"]
    assert graph.op_types.count("aten.mul") == 5


def test_inference_is_the_forward_pass_alone() -> None:
    block = attention_block(8, dropout=0.5)
    graph = capture(block, torch.empty(2, 5, 8), mode="inference")
    assert (graph.phases == Phase.FORWARD).all()
    assert not any("bernoulli" in op_type for op_type in graph.op_types)
    assert (graph.colocation == -1).all()
    on_gpu = capture(block, torch.empty(2, 5, 8), target="gpu")
    on_cpu = capture(block, torch.empty(2, 5, 8), target="cpu")
    assert on_gpu.op_types.count("aten.native_dropout") == 2
    assert on_cpu.op_types.count("aten.bernoulli_") == 2


def test_submodules_may_be_in_evaluation_mode_during_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    model[1].eval()
    frozen = capture(model, torch.empty(2, 4))
    assert not any("dropout" in op_type for op_type in frozen.op_types)
    evaluating = capture(model.eval(), torch.empty(2, 4))
    assert any("dropout" in op_type for op_type in evaluating.op_types)


@pytest.mark.parametrize("name", ["LSTM", "attention block", "recomputed", "tied weights"])
def test_a_capture_says_the_same_each_time_and_on_the_meta_device(name: str) -> None:
    example = case(name)
    graph = capture(example.model, example.inputs)
    assert capture(example.model, example.inputs) == graph
    if name != "tied weights":  # torch unties them when it moves them
        on_meta = tuple(tensor.to("meta") for tensor in example.inputs)
        assert capture(example.model.to("meta"), on_meta) == graph


def test_the_callers_modes_change_nothing() -> None:
    model, inputs = nn.Linear(3, 2), torch.empty(4, 3)
    expected = capture(model, inputs)
    for mode in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with mode:
            assert capture(model, inputs) == expected


def test_a_model_with_an_inference_mode_has_the_ops_of_one_without() -> None:
    class Frozen(nn.Sequential):
        def forward(self, inputs: Any) -> Any:
            with torch.inference_mode():
                return super().forward(inputs)  # type: ignore[no-untyped-call]

    layers, inputs = (nn.Linear(4, 4), nn.RMSNorm(4), nn.SiLU(), nn.Dropout()), torch.ones(2, 4)
    expected = capture(nn.Sequential(*layers), inputs, mode="inference")
    assert capture(Frozen(*layers), inputs, mode="inference") == expected
