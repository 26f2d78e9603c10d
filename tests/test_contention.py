"""Ops that overlap with others are slower, by as much as they overlap."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_execution import ExecutionError
from placeto_execution.measuring import StepProfile
from placeto_experiments.paper import fidelity_tasks
from placeto_experiments.paper.fidelity_tasks import contended_timeline, overlaps, profile_beside
from placeto_graphs import ExecutableStep, PlacementProblem, StepTimeline, parse_cluster
from placeto_simulator import Simulator
from simulated_problems import random_problem


def simulate(problem: PlacementProblem, placement: np.ndarray) -> StepTimeline:
    return Simulator(problem, num_threads=1).timeline(placement)


def problem_on_two_devices(seed: int) -> tuple[PlacementProblem, np.ndarray]:
    generator = np.random.default_rng(seed)
    problem = random_problem(generator, max_devices=2)
    seconds = generator.uniform(0.0, 1.0, problem.graph.num_ops)
    problem = replace(
        problem,
        cluster=parse_cluster("2xv100"),
        compute_time=np.stack([seconds, seconds], axis=1),
    )
    return problem, generator.integers(0, 2, problem.num_groups, np.int32)


@given(st.integers(0, 2**32 - 1))
def test_overlaps_are_those_of_each_pair_of_ops(seed: int) -> None:
    problem, placement = problem_on_two_devices(seed)
    timeline = simulate(problem, placement)
    start, end = timeline.op_start, timeline.op_end
    for op, shared in enumerate(overlaps(timeline)):
        others = timeline.op_device != timeline.op_device[op]
        pairs = np.minimum(end[others], end[op]) - np.maximum(start[others], start[op])
        assert shared == pytest.approx(np.maximum(pairs, 0.0).sum(), abs=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_ops_take_what_their_overlaps_say(seed: int) -> None:
    problem, placement = problem_on_two_devices(seed)
    alone = problem.compute_time[:, 0]
    beside = 1.25 * alone
    timeline = contended_timeline(problem, beside, placement)
    seconds = timeline.op_end - timeline.op_start
    assert (seconds >= alone - 1e-9).all()
    assert (seconds <= beside + 1e-9).all()
    plain = simulate(problem, placement)
    same = contended_timeline(problem, alone, placement)
    assert np.array_equal(same.op_start, plain.op_start)
    one_device = np.zeros_like(placement)
    nothing_overlaps = contended_timeline(problem, beside, one_device)
    assert nothing_overlaps.runtime == Simulator(problem, num_threads=1).runtimes(one_device[None])


def test_three_devices_are_refused() -> None:
    problem, placement = problem_on_two_devices(0)
    three = replace(
        problem,
        cluster=parse_cluster("3xv100"),
        compute_time=np.ones((problem.graph.num_ops, 3)),
    )
    with pytest.raises(ValueError, match="expected two devices, got 3"):
        contended_timeline(three, np.ones(problem.graph.num_ops), placement)


def test_the_error_of_the_busy_device_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ExecutionError("cpu:1: out of memory")

    profile = StepProfile(np.ones((1, 1)), np.zeros(1))
    monkeypatch.setattr(fidelity_tasks, "executor_on", fail)
    monkeypatch.setattr(fidelity_tasks, "profile_in_place", lambda *_: profile)
    step = cast("ExecutableStep", None)
    with pytest.raises(ExecutionError, match="cpu:1: out of memory"):
        profile_beside(step, "cpu:0", "cpu:1", 1, np.random.default_rng(0))
