"""Slowdown of ops while another device is busy, and its effect on a step."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeto_execution.measuring import StepProfile, executor_on, profile_in_place
from placeto_graphs import ExecutableStep, PlacementProblem, StepTimeline
from placeto_simulator import Simulator

ROUNDS = 4  # after which the seconds of a step hardly change


def profile_beside(
    step: ExecutableStep, device: str, other: str, runs: int, generator: np.random.Generator
) -> StepProfile:
    """Run a step with all ops on one device, while another one runs that step again and again."""
    alone = profile_in_place(step, device, 1)
    profiles = []
    with _busy(step, other):
        for _ in range(runs):
            threading.Event().wait(generator.random() * float(alone.runtimes[0]))
            profiles.append(profile_in_place(step, device, 1))
    return StepProfile(
        np.concatenate([profile.op_seconds for profile in profiles]),
        np.concatenate([profile.runtimes for profile in profiles]),
    )


@contextmanager
def _busy(step: ExecutableStep, device: str) -> Iterator[None]:
    is_over = threading.Event()

    def work() -> None:
        with executor_on(step, [device]) as executor:
            placement = np.zeros(executor.problem.num_groups, np.int32)
            while not is_over.is_set():
                executor.execute(placement)

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            yield
        finally:
            is_over.set()
        worker.result()  # raises its error


def contended_timeline(
    problem: PlacementProblem, beside: NDArray[np.float64], placement: NDArray[np.int32]
) -> StepTimeline:
    """Simulate a step in which ops are slower while the other device is busy.

    An op takes ``a`` seconds alone, and ``b`` while the other device is busy. If it overlaps with
    others for ``o`` seconds, it takes ``a + o (1 - a / b)``. The overlaps are those of the last
    simulated step; in the first one nothing is slower.
    """
    if problem.num_devices != 2:
        raise ValueError(f"problem: expected two devices, got {problem.num_devices}")
    op_device = problem.expand(placement)
    alone = problem.compute_time[np.arange(len(op_device)), op_device]
    slowed = np.where(beside > alone, 1 - alone / np.maximum(beside, np.finfo(float).tiny), 0.0)
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    for _ in range(ROUNDS):
        seconds = alone + overlaps(timeline) * slowed
        costly = replace(problem, compute_time=np.stack([seconds, seconds], axis=1))
        timeline = Simulator(costly, num_threads=1).timeline(placement)
    return timeline


def overlaps(timeline: StepTimeline) -> NDArray[np.float64]:
    """Return float64[V], for how many seconds of each op the other one of two devices is busy."""
    shared = np.zeros(len(timeline.op_start))
    for device in range(2):
        here = timeline.op_device == device
        starts, ends = np.sort(timeline.op_start[~here]), np.sort(timeline.op_end[~here])
        if len(starts):  # ops of a device follow each other
            so_far = np.concatenate([[0.0], np.cumsum(ends - starts)])
            times = np.stack([starts, ends], axis=1).ravel()
            busy = np.stack([so_far[:-1], so_far[1:]], axis=1).ravel()
            own = (timeline.op_start[here], timeline.op_end[here])
            shared[here] = np.diff([np.interp(each, times, busy) for each in own], axis=0)[0]
    return shared
