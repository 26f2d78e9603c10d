"""How long something takes on a torch device."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[], object]


def seconds_of(run: Run, device: torch.device) -> float:
    """Return the seconds that a run takes on a device, all of its work included.

    On a GPU they are those between two CUDA events around it, so the time in which the processor
    prepares the work counts only where the GPU waits for it.
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
