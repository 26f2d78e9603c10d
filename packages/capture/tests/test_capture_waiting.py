"""What an op waits for, where no tensor says that it comes later."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from captured_models import CASES, Function, Net, case
from placeto_capture import capture, capture_function
from placeto_graphs import OpGraph, Phase
from replays import order_of


def writes(accesses: list[tuple[int, int, bool]]) -> nn.Module:
    """Return what reads and writes some tensors in an order that is given."""

    def forward(net: Any, inputs: torch.Tensor) -> Any:
        tensors = [net.weight * 1, *(inputs + shift for shift in range(3))]
        with torch.no_grad():
            for target, source, in_place in accesses:
                if in_place:
                    tensors[target] += tensors[source]
                else:
                    tensors[target] = tensors[target] + tensors[source]
        return sum(tensors[1:], tensors[0])

    return Net(forward, weight=nn.Parameter(torch.ones(2)))


ACCESSES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans()), min_size=4, max_size=12
)
BY_WAY_OF_OTHERS = [(2, 1, False), (3, 2, False), (1, 3, True)]


@settings(max_examples=15, deadline=None)
@given(accesses=ACCESSES)
@example(accesses=BY_WAY_OF_OTHERS)
def test_a_wait_is_one_that_no_other_path_implies(accesses: list[tuple[int, int, bool]]) -> None:
    graph = capture(writes(accesses), torch.ones(2))
    order = order_of(graph)
    for op, earlier in graph.waits.tolist():
        order.remove_edge(earlier, op)
        assert not nx.has_path(order, earlier, op)
        order.add_edge(earlier, op)


SGD = partial(torch.optim.SGD, lr=0.1)


def clipped(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return an optimizer that clips gradients first, as training loops do."""
    weights = list(parameters)
    optimizer = torch.optim.Adam(weights)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=False)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def ops_of(graph: OpGraph, phase: Phase) -> set[int]:
    return set(np.flatnonzero(graph.phases == phase).tolist())


@pytest.mark.parametrize("optimizer", [SGD, clipped])
@pytest.mark.parametrize("name", CASES)
def test_a_step_goes_forward_then_backward_then_updates(name: str, optimizer: Any) -> None:
    example = case(name)
    graph = capture(example.model, example.inputs, optimizer=optimizer)
    order = order_of(graph)
    backward = ops_of(graph, Phase.BACKWARD)
    (first,) = (op for op in backward if graph.op_types[op] == "aten.ones_like")
    assert backward - {first} <= nx.descendants(order, first)
    assert first - 1 in nx.ancestors(order, first)  # what makes the loss
    for op in ops_of(graph, Phase.UPDATE):
        assert backward <= nx.ancestors(order, op)


def test_updates_as_ready_are_ordered_by_tensors_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    graph = capture(model, torch.empty(2, 3), optimizer=SGD, updates="as-ready")
    assert not len(graph.waits)
    assert not len(graph.held_tensors)
    assert "placeto.barrier" not in graph.op_types
    update = graph.op_names.index("1.bias/aten.add_")
    assert len(nx.ancestors(order_of(graph), update)) < update - 1
    assert (graph.workspace_bytes == 0).all()


def test_gradient_ops_of_saved_values_alone_wait_for_the_gradient() -> None:
    def cubes(inputs: torch.Tensor) -> torch.Tensor:
        return torch.exp(inputs.pow(3))

    inputs = torch.ones(3, requires_grad=True)
    graph = capture(Function(cubes), inputs, optimizer=lambda _: SGD([torch.ones(1)]))
    power = graph.op_names.index("aten.pow_2")
    assert graph.phases[power] == Phase.BACKWARD
    (earlier,) = graph.waits[graph.waits[:, 0] == power, 1]
    assert graph.op_names[earlier] == "aten.mul"  # of the gradient and the exponential


def test_a_backward_pass_waits_for_the_one_right_before_it() -> None:
    def step(inputs: torch.Tensor) -> None:
        outputs = model(inputs)
        mean = outputs.mean()
        outputs.sum().backward(retain_graph=True)
        mean.backward()

    model = nn.Linear(4, 4)
    graph = capture_function(step, model, example_inputs=torch.ones(2, 4))
    _, second = (op for op, kind in enumerate(graph.op_types) if kind == "aten.ones_like")
    assert second - 1 in nx.ancestors(order_of(graph), second)  # the last op of the first one


def held_ops(graph: OpGraph) -> set[str]:
    return {graph.op_names[op] for op in graph.tensor_producer[graph.held_tensors]}


def test_what_a_training_loop_holds_stays_until_the_end() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    target = torch.empty(2, 5)

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        return (outputs - target).abs().mean()

    of_step = {"input.0", "1/aten.relu"}
    assert held_ops(capture(model, torch.empty(2, 3), mode="inference")) == of_step
    of_step |= {"loss.constant", "loss/aten.mean", "0/aten.mm", "0/aten.sum"}
    # Adam on a GPU has what it computes of all weights at once.
    of_step |= {"0.weight/placeto.update", "0.bias/placeto.update"}
    assert held_ops(capture(model, torch.empty(2, 3), loss_fn=loss)) == of_step


def test_what_an_error_has_left_is_not_held() -> None:
    def stops(inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.tanh()
        raise ArithmeticError(str(hidden.shape))

    stopping = Function(stops)

    def goes(inputs: torch.Tensor) -> torch.Tensor:
        try:
            inputs = stopping(inputs)
        except ArithmeticError:
            inputs = inputs.sin()
        return inputs.cos()

    graph = capture(Function(goes), torch.ones(3), mode="inference")
    assert held_ops(graph) == {"input.0", "aten.cos"}


def test_what_a_step_has_in_variables_and_lists_is_held() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    optimizer, outputs_of_layer = SGD(model.parameters()), []
    model[1].register_forward_hook(lambda _module, _inputs, output: outputs_of_layer.append(output))

    def step(inputs: torch.Tensor) -> None:
        for _ in range(2):
            outputs = model(inputs).exp()
            outputs_of_layer[:] = outputs_of_layer[-1:]
            outputs.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    graph = capture_function(
        step, model, optimizer, example_inputs=torch.ones(2, 4), changed_objects=[outputs_of_layer]
    )
    gradients = {"0/aten.mm_2", "0/aten.sum_2", "2/aten.mm_4", "2/aten.sum_2"}
    assert held_ops(graph) == {"input.0", "1/aten.tanh_2", "loss/aten.exp_2", *gradients}
