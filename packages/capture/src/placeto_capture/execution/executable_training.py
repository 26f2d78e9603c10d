"""From a PyTorch model to training on several devices."""

from typing import Any

import torch
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.execution.optimizer_numbers import OptimizerNumbers
from placeto_capture.execution.training import ExecutableTraining
from placeto_capture.tracing.capture import LossFunction, OptimizerFactory, trace_step
from placeto_capture.tracing.patches import Target


def executable_training(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    target: Target = "gpu",
    mask_fraction: float | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
    shared_memory: bool = True,
) -> ExecutableTraining:
    """Return a training step that can be run on several devices, op by op, batch after batch.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. The model stays
    as it is: the step has weights of its own. What the model computes in Python from values of its
    tensors, or from how often it has run, stays as it was when the step was captured.

    Parameters
    ----------
    model, example_inputs, loss_fn, optimizer, target, mask_fraction
        As for `placeto_workloads.capture`. The optimizer's schedule of learning rates, if any, is
        made for the ``optimizer`` of what is returned.
    seed, threads_per_device, shared_memory
        As for `placeto_workloads.executable_step`.

    Raises
    ------
    CaptureError
        As `placeto_workloads.capture` does; when the model has no weights that are trained, when
        some of them share memory, or when the optimizer is made for others.

    Examples
    --------
    >>> import numpy as np
    >>> model = torch.nn.Linear(4, 1)
    >>> step = executable_training(model, torch.ones(8, 4), optimizer=torch.optim.SGD)
    >>> everything = np.zeros(step.graph.num_ops, np.int32)
    >>> for batch in torch.ones(3, 8, 4):
    ...     step.load(batch)
    ...     run = step.begin(["cpu:0"], everything)
    ...     with run.worker(0):
    ...         held = [run.run(op) for op in range(step.graph.num_ops)]
    ...     loss = step.finish(run.results())
    >>> torch.equal(step.state()["weight"], model.weight)
    False
    """
    if threads_per_device < 1:
        raise CaptureError(f"threads_per_device: expected at least 1, got {threads_per_device}")
    factory = optimizer or torch.optim.Adam
    trace = trace_step(model, example_inputs, loss_fn, factory, "training", target, mask_fraction)
    weights = dict(model.named_parameters())
    return ExecutableTraining(
        trace,
        example_inputs,
        weights,
        OptimizerNumbers(factory, list(weights.values())),
        seed=seed,
        threads_per_device=threads_per_device,
        shared_memory=shared_memory,
    )
