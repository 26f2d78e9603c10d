"""What runs on several workers gives what one op after the other gives."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from numeric_step import NumericStep, expected_results, problems, random_problem, workers
from placeto_execution import EmptyStep, ExecutionError, Executor
from placeto_graphs import (
    Evaluator,
    ExecutableStep,
    PlacementProblem,
    StepOrder,
    StepRun,
    StepTimeline,
)

seeds = st.integers(0, 2**32 - 1)


def random_placement(problem: PlacementProblem, seed: int) -> NDArray[np.int32]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, problem.num_devices, problem.num_groups, np.int32)


def check_times(timeline: StepTimeline) -> None:
    """Check that each op and transfer starts after its inputs, and has its resource alone."""
    graph = timeline.problem.graph
    sent = {
        (tensor, destination): (start, end)
        for tensor, destination, start, end in zip(
            timeline.transfer_tensor.tolist(),
            timeline.transfer_destination.tolist(),
            timeline.transfer_start.tolist(),
            timeline.transfer_end.tolist(),
            strict=True,
        )
    }
    for tensor, op in graph.edges.tolist():
        producer = int(graph.tensor_producer[tensor])
        available = timeline.op_end[producer]
        if timeline.op_device[producer] != timeline.op_device[op]:
            start, end = sent[tensor, int(timeline.op_device[op])]
            assert start <= end
            available = end
        assert timeline.op_start[op] >= available
    for op, before in graph.waits.tolist():
        assert timeline.op_start[op] >= timeline.op_end[before]
    for resource, start, end in (
        (timeline.op_device, timeline.op_start, timeline.op_end),
        (timeline.transfer_link, timeline.transfer_start, timeline.transfer_end),
    ):
        for number in np.unique(resource):
            order = np.lexsort((end[resource == number], start[resource == number]))
            starts, ends = start[resource == number][order], end[resource == number][order]
            assert (ends[:-1] <= starts[1:]).all()


@settings(max_examples=40)
@given(problems, seeds)
def test_every_placement_computes_the_same(problem: PlacementProblem, seed: int) -> None:
    with Executor(
        problem,
        NumericStep(problem.graph),
        workers(problem.num_devices),
        emulate_links=True,
    ) as executor:
        executed = executor.execute(random_placement(problem, seed))
    assert executed.results() == expected_results(problem.graph)
    check_times(executed.timeline)


@settings(max_examples=40)
@given(problems, seeds)
def test_links_need_not_be_emulated(problem: PlacementProblem, seed: int) -> None:
    step = NumericStep(problem.graph)
    with Executor(problem, step, workers(problem.num_devices)) as executor:
        executed = executor.execute(random_placement(problem, seed))
    assert executed.results() == expected_results(problem.graph)


@settings(max_examples=40)
@given(problems, seeds)
def test_all_memory_is_given_back_but_what_is_held(problem: PlacementProblem, seed: int) -> None:
    step = NumericStep(problem.graph)
    with Executor(problem, step, workers(problem.num_devices), emulate_links=True) as executor:
        timeline = executor.execute(random_placement(problem, seed)).timeline
    graph = problem.graph
    home = timeline.op_device[graph.tensor_producer]
    for device in range(problem.num_devices):
        _, held = timeline.memory(device)
        assert held.min() >= 0
        kept = graph.held_tensors[home[graph.held_tensors] == device]
        assert held[-1] == graph.tensor_bytes[kept].sum()


@settings(max_examples=30)
@given(problems, seeds)
def test_a_measured_order_can_be_kept_again(problem: PlacementProblem, seed: int) -> None:
    placement, names = random_placement(problem, seed), workers(problem.num_devices)
    with Executor(problem, EmptyStep(problem.graph), names, pace=1.0) as executor:
        order = executor.execute(placement).timeline.order()
    with Executor(
        problem, EmptyStep(problem.graph), names, emulate_links=True, order_of=lambda _: order
    ) as executor:
        assert executor.execute(placement).timeline.order().ops == order.ops


@settings(max_examples=60)
@given(problems, seeds, seeds)
def test_an_order_is_kept_or_refused(problem: PlacementProblem, seed: int, swap: int) -> None:
    """Two neighbours of a good order change places: it runs, or it is said why it cannot."""
    placement, names = random_placement(problem, seed), workers(problem.num_devices)
    with Executor(problem, EmptyStep(problem.graph), names, pace=0.1) as executor:
        order = executor.execute(placement).timeline.order()
    sequences = [list(ops) for ops in order.ops]
    longest = max(sequences, key=len)
    place = swap % max(len(longest) - 1, 1)
    longest[place : place + 2] = reversed(longest[place : place + 2])
    other = StepOrder(ops=tuple(map(tuple, sequences)), transfers=order.transfers)
    with Executor(problem, NumericStep(problem.graph), names, order_of=lambda _: other) as executor:
        try:
            executed = executor.execute(placement)
        except ExecutionError as error:
            assert str(error).startswith("order: expected one that runs each op after its inputs")
        else:
            assert executed.timeline.order().ops == other.ops
            assert executed.results() == expected_results(problem.graph)


def test_an_order_of_another_placement_is_refused() -> None:
    problem = random_problem(0, 10, 2, "fifo")
    names = workers(2)
    placement = np.array([0, 1] * 5, np.int32)
    with Executor(problem, EmptyStep(problem.graph), names, pace=0.1) as executor:
        order = executor.execute(placement).timeline.order()
    with (
        Executor(problem, EmptyStep(problem.graph), names, order_of=lambda _: order) as executor,
        pytest.raises(
            ExecutionError,
            match=r"^order.ops\[0\]: expected each of the 5 of this placement once, got 5, 0 of",
        ),
    ):
        executor.execute(1 - placement)


def test_one_device_runs_ops_first_in_first_out() -> None:
    problem = random_problem(3, 25, 1, "fifo")
    with Executor(problem, EmptyStep(problem.graph), workers(1)) as executor:
        order = executor.execute(np.zeros(25, np.int32)).timeline.order()
    assert order.ops[0] == tuple(first_in_first_out(problem))


def first_in_first_out(problem: PlacementProblem) -> Sequence[int]:
    graph = problem.graph
    missing = [len(graph.inputs_of_op[op]) for op in range(graph.num_ops)]
    for waiter, _ in graph.waits.tolist():
        missing[waiter] += 1
    queue = [op for op in range(graph.num_ops) if not missing[op]]
    for op in queue:
        readers = [
            reader
            for tensor in graph.tensors_of_op[op].tolist()
            for reader in graph.consumers_of_tensor[tensor].tolist()
        ]
        for later in (*readers, *graph.waiters_of_op[op].tolist()):
            missing[later] -= 1
            if not missing[later]:
                queue.append(later)
    return queue


def test_it_is_an_evaluator() -> None:
    problem = random_problem(1, 12, 2, "fifo")
    with Executor(problem, EmptyStep(problem.graph), workers(2), repeats=3) as executor:
        assert isinstance(executor, Evaluator)
        found = executor.evaluate(np.stack([random_placement(problem, seed) for seed in range(4)]))
    assert found.runtime.shape == (4,)
    assert (found.runtime > 0).all()
    assert found.peak_memory.shape == (4, 2)


def test_steps_meet_the_protocols() -> None:
    graph = random_problem(1, 12, 2, "fifo").graph
    for step in (EmptyStep(graph), NumericStep(graph)):
        assert isinstance(step, ExecutableStep)
        assert isinstance(step.begin(["cpu:0"], np.zeros(12, np.int32)), StepRun)


def test_threads_end_with_the_executor() -> None:
    problem = random_problem(1, 12, 3, "fifo")
    before = threading.active_count()
    with Executor(problem, EmptyStep(problem.graph), workers(3)) as executor:
        executor.execute(np.zeros(12, np.int32))
        assert threading.active_count() == before + 3
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["cpu:0"], r"^devices: expected 2, as many as the cluster has, got 1$"),
        (["cpu:0", "tpu:1"], r"^devices\[1\]: expected cpu:NUMBER or cuda:NUMBER, got 'tpu:1'$"),
        (["cpu", "cpu:1"], r"^devices\[0\]: expected cpu:NUMBER or cuda:NUMBER, got 'cpu'$"),
        (["cpu:0", "cpu:0"], r"^devices\[1\]: expected each device once, got 'cpu:0'$"),
    ],
)
def test_devices_that_cannot_be(names: list[str], line: str) -> None:
    problem = random_problem(1, 12, 2, "fifo")
    with pytest.raises(ExecutionError, match=line):
        Executor(problem, EmptyStep(problem.graph), names)


def test_numbers_that_cannot_be() -> None:
    problem = random_problem(1, 12, 2, "fifo")
    step = EmptyStep(problem.graph)
    with pytest.raises(ExecutionError, match=r"^pace: expected a number above 0, got 0$"):
        Executor(problem, step, workers(2), pace=0)
    with pytest.raises(ExecutionError, match=r"^repeats: expected at least 1, got 0$"):
        Executor(problem, step, workers(2), repeats=0)


def test_a_step_of_another_graph_is_refused() -> None:
    problem, other = random_problem(1, 12, 2, "fifo"), random_problem(2, 12, 2, "fifo")
    with pytest.raises(ExecutionError, match=r"^step: expected one of the problem's graph"):
        Executor(problem, EmptyStep(other.graph), workers(2))


def test_a_placement_for_other_devices_is_refused() -> None:
    problem = random_problem(1, 12, 2, "fifo")
    with (
        Executor(problem, EmptyStep(problem.graph), workers(2)) as executor,
        pytest.raises(ExecutionError, match=r"^placement\[3\]: expected .* from 0 to 1, got 2$"),
    ):
        executor.execute(np.array([0, 0, 0, 2] + [0] * 8, np.int32))
