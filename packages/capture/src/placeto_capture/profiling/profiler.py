"""Measures each op of a captured graph."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.capture import LossFunction, OptimizerFactory, trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.prepared_calls import prepared
from placeto_capture.tracing.replay import Memory, example_values
from placeto_capture.tracing.trace import Call, Trace, Updates


def profile(
    model: nn.Module,
    example_inputs: Any,
    device: str | torch.device = "cpu",
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
    target: Target = "gpu",
    updates: Updates = "after-backward",
    warmup: int = 2,
    repeats: int = 7,
    seed: int = 0,
    autocast: torch.dtype | None = None,
) -> NDArray[np.float64]:
    """Return how long each op of a captured graph takes on a torch device.

    The ops run for real, one at a time, in the order of the captured step. Each runs several times
    in a row. The update of a weight runs as the ops that the optimizer has without a fused kernel.
    A tensor is made when it is first needed and freed after its last use. So memory holds no more
    than the step needs, and one copy of the tensors that an in-place op changes.

    Parameters
    ----------
    model, example_inputs, loss_fn, optimizer, mode, target, autocast, updates
        As for `capture`. Tensors on the meta device get random values from ``seed`` where they hold
        floating-point numbers, else zeros.
    device
        Device to run on, such as ``"cpu"`` or ``"cuda:0"``. On a GPU, CUDA events measure.
    warmup, repeats
        Number of runs of an op before it is measured, and of those measured; the median counts.
    seed
        Seed of values that are not given.

    Returns
    -------
    float64[V]
        Seconds of each op of ``capture(model, example_inputs, ...)``; 0 for parameters, buffers,
        inputs, barriers and frees.

    Raises
    ------
    CaptureError
        If the model cannot be captured, the device is not there, or an op does not run on it.

    Examples
    --------
    >>> import dataclasses
    >>> import torch
    >>> from placeto_capture import capture, profile
    >>> model, inputs = torch.nn.Linear(4, 2), torch.ones(8, 4)
    >>> graph, seconds = capture(model, inputs), profile(model, inputs, "cpu")
    >>> graph = dataclasses.replace(graph, measured_time={"cpu": seconds})
    >>> dict(zip(graph.op_names, seconds > 0))["aten.addmm"]
    np.True_
    """
    if warmup < 0 or repeats < 1:
        raise CaptureError(
            f"repeats: expected at least 1 after at least 0 to warm up, got {repeats} and {warmup}"
        )
    place = checked_device(device)
    trace = trace_step(
        model, example_inputs, loss_fn, optimizer, mode, target, autocast=autocast, updates=updates
    )
    return measured_times(trace, place, warmup=warmup, repeats=repeats, seed=seed)


def measured_times(
    trace: Trace, device: torch.device, *, warmup: int, repeats: int, seed: int
) -> NDArray[np.float64]:
    """Return float64[V], the seconds of each op of a trace on a device."""
    seconds = np.zeros(len(trace.ops))
    memory = Memory(trace, device, example_values(torch.Generator().manual_seed(seed)))
    gpus = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        for op, call in enumerate(trace.ops):
            if isinstance(call, Call):
                try:
                    for part in call.single_calls:
                        seconds[op] += _measure(part, memory, device, warmup, repeats)
                    memory.finish(call)
                except Exception as error:
                    message = " ".join(str(error).split())
                    raise CaptureError(
                        f"{call.scope or 'model'}: {call.function} on {device}: {message}"
                    ) from error
    return seconds


def _measure(call: Call, memory: Memory, device: torch.device, warmup: int, repeats: int) -> float:
    ready = prepared(call, memory.slots)
    args, kwargs = ready.arguments(memory)
    written = memory.written(call)
    before = [values.clone() for values in written]
    result: list[Any] = [None]

    def restore() -> None:
        result[0] = None  # the memory of the last run is free for the next
        for values, values_before in zip(written, before, strict=True):
            values.copy_(values_before)

    def run() -> None:
        result[0] = call.function(*args, **kwargs)

    seconds = median_seconds(run, device, warmup, repeats, before=restore)
    memory.keep(ready, result[0])
    return seconds


def checked_device(device: str | torch.device) -> torch.device:
    """Return a device that torch can compute on."""
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        message = " ".join(str(error).split())
        raise CaptureError(
            f"device: expected one that torch can use, got {device!r}: {message}"
        ) from error
    if place.type == "meta":
        raise CaptureError("device: expected one that computes, got 'meta'")
    return place


Run = Callable[[], object]


def seconds_of(run: Run, device: torch.device) -> float:
    """Return the seconds that a run takes on a device, all of its work included.

    On a GPU they are those between two CUDA events around it. The time in which the processor
    prepares the work counts only if the GPU waits for it.
    """
    if device.type == "cuda":
        return _seconds_of_events(run, device)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_seconds(
    run: Run, device: torch.device, warmup: int, repeats: int, before: Run | None = None
) -> float:
    """Return the median of several runs, after some that do not count; ``before`` precedes each."""
    taken = []
    for _ in range(warmup + repeats):
        if before is not None:
            before()
        taken.append(seconds_of(run, device))
    return statistics.median(taken[warmup:])


def _seconds_of_events(run: Run, device: torch.device) -> float:
    with torch.cuda.device(device):
        new_event: Callable[..., Any] = torch.cuda.Event
        start, end = new_event(enable_timing=True), new_event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
