"""From a PyTorch model to a step that can be run on several devices."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.execution.traced_step import TracedStep
from placeto_capture.tracing.capture import LossFunction, OptimizerFactory, trace_step
from placeto_capture.tracing.patches import Target
from placeto_capture.tracing.replay import example_values
from placeto_capture.tracing.trace import Placeholder, View
from placeto_graphs import ExecutableStep

GRADIENT = ".grad"  # ends the names of gradients among the results of a trace


def executable_step(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
    target: Target = "gpu",
    mask_fraction: float | None = None,
    values: Mapping[str, torch.Tensor] | None = None,
    results: Collection[str] | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
    shared_memory: bool = True,
) -> ExecutableStep:
    """Return one step of a model that can be run on several devices, op by op.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. A run works on
    copies: neither the model nor the step changes. What the optimizer computes from the number of
    the step is that of the second one, as when the step is captured.

    Parameters
    ----------
    model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction
        As for `placeto_workloads.capture`. Tensors on the meta device get random values from
        ``seed`` where they hold floating-point numbers, else zeros.
    values
        Values to begin with, by name, in place of those of the model, such as the optimizer's state
        (``"layer.weight.exp_avg"``), which is zero otherwise.
    results
        Names of the results that are wanted beside weights, buffers and optimizer state: ``"loss"``
        and gradients (``"layer.weight.grad"``), or outputs (``"output.0"``). They outlive their
        last reader. By default all but gradients.
    seed
        Of what is drawn: an op draws what it draws after ``torch.manual_seed(seed + n)``, with n
        the number of the draw, on whatever device and in whatever order it runs.
    threads_per_device
        How many threads work on one op on each ``"cpu:N"``.
    shared_memory
        Whether all ``"cpu:N"`` see the same memory. Otherwise what one sends the other is copied,
        as it is between GPUs.

    Raises
    ------
    CaptureError
        As `placeto_workloads.capture` does, and when there is no such value or result.

    Examples
    --------
    >>> import numpy as np
    >>> step = executable_step(torch.nn.Linear(4, 2), torch.ones(8, 4), mode="inference")
    >>> run = step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    >>> with run.worker(0):
    ...     held = [run.run(op) for op in range(step.graph.num_ops)]
    >>> run.results()["output.0"].shape
    torch.Size([8, 2])
    """
    if threads_per_device < 1:
        raise CaptureError(f"threads_per_device: expected at least 1, got {threads_per_device}")
    trace = trace_step(model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction)
    given = dict(values or {})
    known = {
        name
        for placeholder in trace.placeholders
        for name in (*placeholder.tensors, *placeholder.state)
    }
    _check_names("values", given, known)
    if results is None:
        results = [name for name in trace.results if not name.endswith(GRADIENT)]
    _check_names("results", results, set(trace.results))
    by_default = example_values(torch.Generator().manual_seed(seed))

    def value_of(placeholder: Placeholder, name: str, view: View) -> torch.Tensor:
        return given[name].detach() if name in given else by_default(placeholder, name, view)

    return TracedStep(
        trace,
        value_of,
        results=results,
        seed=seed,
        threads_per_device=threads_per_device,
        shared_memory=shared_memory,
    )


def _check_names(what: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise CaptureError(f"{what}: expected names of this step, got {name!r}")
