"""The peak memory of a step on one device is that of PyTorch on a CPU."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from live_memory import peak_bytes, peak_bytes_of_loop
from memory_loops import LOOPS
from memory_steps import STEPS, UPDATES, perceptron
from torch.optim import AdamW

from placeto_capture import Target, capture, capture_function
from placeto_graphs import OpGraph, PlacementProblem, colocate, micro_batched, parse_cluster
from placeto_simulator import Simulator

QUEUES = "fifo", "backward-first"  # as the paper has it, and as the host of PyTorch does


@cache
def measured_peak(name: str) -> int:
    if name in LOOPS:
        return peak_bytes_of_loop(LOOPS[name])
    return peak_bytes({**STEPS, **UPDATES}[name])


@cache
def captured(name: str) -> OpGraph:
    if name in LOOPS:
        loop = LOOPS[name]()
        return capture_function(
            loop.step, loop.modules, loop.optimizers, example_inputs=loop.batch, target="cpu"
        )
    step = {**STEPS, **UPDATES}[name]
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
    graph = captured(name)
    problem = PlacementProblem(
        graph=graph,
        cluster=replace(parse_cluster("1xcpu"), queue=queue),
        compute_time=np.ones((graph.num_ops, 1)),
        grouping=colocate(graph),
    )
    placement = np.zeros((1, problem.num_groups), np.int32)
    return int(Simulator(problem).evaluate(placement).peak_memory[0, 0])


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


@pytest.mark.parametrize("name", UPDATES)
def test_memory_of_updates_is_that_of_their_implementation(name: str) -> None:
    found = simulated_peak(name, "fifo")
    assert found == pytest.approx(measured_peak(name), rel=UPDATES[name].within)


def test_updates_on_a_gpu_are_of_all_weights_at_once_by_default() -> None:
    model, batch, _ = perceptron(8, 8, 8, rows=8)

    def graph(target: Target, foreach: bool | None) -> OpGraph:
        return capture(model, batch, optimizer=partial(AdamW, foreach=foreach), target=target)

    assert graph("gpu", None) == graph("gpu", True) != graph("gpu", False)
    assert graph("cpu", None) == graph("cpu", False) != graph("cpu", True)
