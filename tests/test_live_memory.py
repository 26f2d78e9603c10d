"""The peak memory of a step on one device is that of PyTorch on a CPU."""

import gc
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.optim import AdamW
from torch.utils import _pytree as pytree

from live_storages import LiveStorages, peak_of_graph
from memory_loops import LOOPS, Loop
from memory_steps import STEPS, MemoryStep, perceptron, squares
from placeto_capture import Target, capture, capture_function
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    micro_batched,
    parse_cluster,
    repeat_micro_batch_problem,
)
from placeto_simulator import Simulator


def peak_bytes(step: MemoryStep) -> int:
    """Return the most bytes of tensors during a step, after one that makes the optimizer's state.

    The step is that of a training loop, which has the batch, the outputs and the loss in variables,
    or one of inference without gradients.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch, target = step.make()
        if not step.is_training:
            with torch.no_grad():
                model.eval()
                return _peak(lambda: model(*batch), [model.state_dict(), *batch])
        optimizer = step.optimizer([*model.parameters()])
        for group in optimizer.param_groups:
            group.update({name: False for name in ("foreach", "fused") if group.get(name) is None})

        def train() -> tuple[Any, torch.Tensor]:
            optimizer.zero_grad()
            for tensor in batch:
                tensor.grad = None
            outputs = model(*batch)
            loss = step.loss(outputs, target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return outputs, loss

        state = [dict(optimizer.state), model.state_dict(keep_vars=True)]
        return _peak(train, [*state, *batch, target])


def peak_bytes_of_loop(loop: Callable[[], Loop]) -> int:
    """Return the most bytes of tensors during a step of a loop, after one of before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        training_loop = loop()
        weights = [weight for module in training_loop.modules for weight in module.parameters()]
        return _peak(
            lambda: training_loop.step(*training_loop.batch),
            [weights, training_loop.batch, *map(vars, weights)],
        )


def _peak(run: Callable[[], object], tensors: list[Any]) -> int:
    """Return the most bytes while something runs a second time; it begins with some tensors."""
    gc.collect()
    gc.disable()
    try:
        live = LiveStorages(pytree.tree_leaves(tensors))
        with live:
            run()
            live.peak_bytes = 0
            _results = run()
    finally:
        gc.enable()
    return live.peak_bytes


QUEUES = "fifo", "backward-first"  # as the paper has it, and as the host of PyTorch does


@cache
def measured_peak(name: str) -> int:
    if name in LOOPS:
        return peak_bytes_of_loop(LOOPS[name])
    return peak_bytes(STEPS[name])


@cache
def captured(name: str) -> OpGraph:
    if name in LOOPS:
        loop = LOOPS[name]()
        return capture_function(
            loop.step, loop.modules, loop.optimizers, example_inputs=loop.batch, target="cpu"
        )
    step = STEPS[name]
    model, batch, target = step.make()
    return capture(
        model,
        batch,
        loss_fn=lambda outputs: step.loss(outputs, target),
        optimizer=step.optimizer,
        mode="training" if step.is_training else "inference",
        target="cpu",
    )


def simulated_peak(name: str, queue: str) -> int:
    return peak_of_graph(captured(name), queue)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("name", [*STEPS, *LOOPS])
def test_peak_memory_is_that_of_pytorch(name: str, queue: str) -> None:
    within = STEPS[name].within if name in STEPS else 0.02
    assert simulated_peak(name, queue) == pytest.approx(measured_peak(name), rel=within)


def test_gradients_of_the_step_before_are_there_once_for_all_micro_batches() -> None:
    graph = captured("gradients cleared in between")
    gradients = {name for name in graph.op_names if name.endswith(".grad")}
    assert gradients
    assert gradients < {*micro_batched(graph, 2).op_names}


def test_micro_batches_add_up_gradients_in_place() -> None:
    model, batch, target = perceptron(256, 256, 256, 256, rows=12)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    inputs, targets = torch.split(batch[0], 4), torch.split(target, 4)
    weights = dict(model.named_parameters())

    def accumulate(name: str, leaf: Any) -> None:
        """Add to a gradient in place, as autograd does where no mode watches it."""
        weight = weights[name]
        if weight.grad is None:
            weight.grad = leaf.grad
        else:
            weight.grad.add_(leaf.grad)
        leaf.grad = None

    def train() -> None:
        update = optimizer(weights.values())
        update.zero_grad()
        for micro_batch, expected in zip(inputs, targets, strict=True):
            leaves: dict[str, Any] = {
                name: weight.detach().requires_grad_() for name, weight in weights.items()
            }
            for name, leaf in leaves.items():
                leaf.register_post_accumulate_grad_hook(partial(accumulate, name))
            loss: Any = squares(functional_call(model, leaves, (micro_batch,)), expected)
            loss.backward()
        update.step()

    measured = _peak(train, [weights, batch, target])
    graph = capture(
        model,
        inputs[0],
        loss_fn=lambda outputs: squares(outputs, targets[0]),
        optimizer=optimizer,
        target="cpu",
    )
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("1xcpu"), compute_time=np.ones((graph.num_ops, 1))
    )
    whole = repeat_micro_batch_problem(problem, 3)
    placement = np.zeros((1, whole.num_groups), np.int32)
    simulated = int(Simulator(whole).evaluate(placement).peak_memory[0, 0])
    assert simulated == pytest.approx(measured, rel=0.02)  # a copy of a gradient is 14 % of it


def test_updates_on_a_gpu_are_of_all_weights_at_once_by_default() -> None:
    model, batch, _ = perceptron(8, 8, 8, rows=8)

    def graph(target: Target, foreach: bool | None) -> OpGraph:
        return capture(model, batch, optimizer=partial(AdamW, foreach=foreach), target=target)

    assert graph("gpu", None) == graph("gpu", True) != graph("gpu", False)
    assert graph("cpu", None) == graph("cpu", False) != graph("cpu", True)
