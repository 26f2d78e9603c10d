"""What runs on several devices gives what one op after the other gives, with either interpreter."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import numeric_step
from host_streams import host_streams
from numeric_step import (
    NumericDevice,
    NumericStep,
    cpus,
    expected_results,
    problems,
    random_problem,
)
from placeto_execution import ExecutionError, Executor, compile_step, processes
from placeto_execution.devices import check_device_names
from placeto_execution.programs import Message, topological_schedule
from placeto_execution.records import timeline_of
from placeto_execution.shared_messages import EmulatedLinks
from placeto_execution.streams import StreamedDevices
from placeto_graphs import DeviceStep, Evaluator, ExecutableStep, PlacementProblem, StepTimeline

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "devices: .* share cores")
        yield
    assert not multiprocessing.active_children()


def random_placement(problem: PlacementProblem, seed: int) -> NDArray[np.int32]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, problem.num_devices, problem.num_groups, np.int32)


def check_timeline(timeline: StepTimeline) -> None:
    """Check that each op runs after its inputs, alone on its device, and that memory is freed."""
    graph = timeline.problem.graph
    transfers = zip(
        timeline.transfer_tensor.tolist(),
        timeline.transfer_destination.tolist(),
        timeline.transfer_start.tolist(),
        timeline.transfer_end.tolist(),
        strict=True,
    )
    sent = {(tensor, destination): times for tensor, destination, *times in transfers}
    for tensor, op in graph.edges.tolist():
        producer = int(graph.tensor_producer[tensor])
        available = timeline.op_end[producer]
        if timeline.op_device[producer] != timeline.op_device[op]:
            start, end = sent[tensor, int(timeline.op_device[op])]
            assert available <= start <= end
            available = end
        assert timeline.op_start[op] >= available
    for op, predecessor in graph.waits.tolist():
        assert timeline.op_start[op] >= timeline.op_end[predecessor]
    for device in range(timeline.problem.num_devices):
        ops = np.flatnonzero(timeline.op_device == device)
        ops = ops[np.lexsort((timeline.op_end[ops], timeline.op_start[ops]))]
        assert (timeline.op_end[ops][:-1] <= timeline.op_start[ops][1:]).all()
        _, memory = timeline.memory(device)
        assert memory.min() >= 0
        home = timeline.op_device[graph.tensor_producer]
        held_tensors = graph.held_tensors[home[graph.held_tensors] == device]
        assert memory[-1] == graph.tensor_bytes[held_tensors].sum()


@settings(max_examples=12)
@given(problems, seeds, st.booleans())
def test_processes_compute_what_one_device_computes(
    problem: PlacementProblem, seed: int, is_emulated: bool
) -> None:
    emulated = problem.cluster if is_emulated else None
    step, names = NumericStep(problem.graph), cpus(problem.num_devices)
    with Executor(problem, step, names, emulated_links=emulated) as executor:
        for _ in range(2):
            executed = executor.execute(random_placement(problem, seed))
            assert executed.results() == expected_results(problem.graph)
            check_timeline(executed.timeline)


@settings(max_examples=40)
@given(problems, seeds, st.lists(st.sampled_from(["cuda", "cuda", "cpu"]), min_size=4, max_size=4))
def test_gpus_and_processes_beside_them_compute_the_same(
    problem: PlacementProblem, seed: int, kinds: list[str]
) -> None:
    schedule = topological_schedule(problem, random_placement(problem, seed))
    program, step = compile_step(schedule), NumericStep(problem.graph)
    names = [f"{kind}:{index}" for index, kind in enumerate(kinds[: problem.num_devices])]
    with host_streams():
        devices = StreamedDevices(step, program, names, schedule.op_device)
        for _ in range(2):
            records, start = devices.run(step.feed())
            assert devices.pieces(problem.graph.op_names) == expected_results(problem.graph)
            check_timeline(timeline_of(problem, schedule.op_device, program, records, start))
        devices.close()


def test_emulated_links_take_their_time() -> None:
    """A link has each tensor of 400,000 bytes for 0.04 s, and rests; it arrives 0.03 s later."""
    problem = random_problem(5, 12, 2, "fifo")
    devices = tuple(replace(device, transfer_overhead=0.02) for device in problem.cluster.devices)
    slow = replace(
        problem.cluster,
        devices=devices,
        bandwidth=np.full((2, 2), 1e7),
        latency=np.full((2, 2), 0.03),
    )
    placement = np.array([0, 1] * 6, np.int32)
    with Executor(problem, NumericStep(problem.graph), cpus(2), emulated_links=slow) as executor:
        timeline = executor.execute(placement).timeline
    for link in np.unique(timeline.transfer_link):
        is_on_link = timeline.transfer_link == link
        start, end = (
            np.sort(timeline.transfer_start[is_on_link]),
            np.sort(timeline.transfer_end[is_on_link]),
        )
        assert len(start) > 1
        assert (end - start >= 0.07 - 1e-6).all()
        assert (np.diff(start) >= 0.06 - 1e-6).all()
    links, message = EmulatedLinks(slow), Message(0, 0, 0, 1, int(slow.link[0, 1]))
    reserved = [links.reserve(message, 400_000, ready) for ready in (1.0, 1.0, 2.0)]
    assert np.allclose(reserved, [(1.0, 1.07), (1.06, 1.13), (2.0, 2.07)], rtol=0, atol=1e-9)


class SilentDevice(NumericDevice):
    """Has tensors of which no byte is sent."""

    def buffers(self, tensor: int, destination: int) -> list[torch.Tensor]:
        return [torch.empty(0) for _ in super().buffers(tensor, destination)]

    def expect(self, tensor: int) -> tuple[list[torch.Tensor], int]:
        buffers, num_bytes = super().expect(tensor)
        return [torch.empty(0) for _ in buffers], num_bytes


def test_a_tensor_without_bytes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what comes first, and that other messages need not say it."""
    monkeypatch.setattr(numeric_step, "NumericDevice", SilentDevice)
    problem = random_problem(3, 25, 2, "fifo")
    step = NumericStep(problem.graph, lambda method, _: time.sleep(2e-3 * (method == "run")))
    with Executor(problem, step, cpus(2), emulated_links=problem.cluster) as executor:
        check_timeline(executor.execute(random_placement(problem, 0)).timeline)


def test_a_step_begins_when_its_first_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEAD", -1.0)  # seconds by which all are late
    problem = random_problem(3, 25, 2, "fifo")
    with Executor(problem, NumericStep(problem.graph), cpus(2)) as executor:
        timeline = executor.execute(random_placement(problem, 0)).timeline
    assert timeline.op_start.min() >= 0.0
    assert timeline.op_start.min() < 0.5


def test_ops_run_in_the_order_of_the_schedule() -> None:
    problem = random_problem(3, 25, 2, "fifo")
    placement = random_placement(problem, 0)
    scheduled = topological_schedule(problem, placement)
    step = NumericStep(problem.graph)
    with Executor(problem, step, cpus(2), schedule=lambda _: scheduled) as executor:
        timeline = executor.execute(placement).timeline
    for device in range(2):
        is_on_device = timeline.op_device == device
        expected = np.argsort(scheduled.op_start[is_on_device])
        assert np.array_equal(np.argsort(timeline.op_start[is_on_device]), expected)


def test_the_protocols_are_met() -> None:
    problem = random_problem(1, 12, 2, "fifo")
    step = NumericStep(problem.graph)
    assert isinstance(step, ExecutableStep)
    assert isinstance(step.on_device(0, ["cpu:0"], np.zeros(12, np.int32)), DeviceStep)
    with Executor(problem, step, cpus(2)) as executor:
        assert isinstance(executor, Evaluator)
        evaluated = executor.evaluate(
            np.stack([random_placement(problem, seed) for seed in range(3)])
        )
    assert evaluated.runtime.shape == (3,)
    assert (evaluated.runtime > 0).all()
    assert evaluated.peak_memory.shape == (3, 2)


def test_processes_end_with_the_executor_and_not_for_a_result_that_is_not_there() -> None:
    problem = random_problem(1, 12, 3, "fifo")
    with Executor(problem, NumericStep(problem.graph), cpus(3)) as executor:
        first = executor.execute(np.zeros(12, np.int32))
        children = multiprocessing.active_children()
        assert len(children) == 3
        with pytest.raises(ExecutionError, match=r"^results: expected names of this step, got 'x'"):
            first.results(["op0", "x"])
        assert first.results(["op0"]) == {"op0": expected_results(problem.graph)["op0"]}
        assert multiprocessing.active_children() == children
        executor.execute(np.ones(12, np.int32))
        assert len(multiprocessing.active_children()) == 3
        with pytest.raises(ExecutionError, match=r"^results: expected to be asked for before the"):
            first.results()
    assert not multiprocessing.active_children()


def test_an_executor_that_nothing_holds_leaves_no_process_and_no_file() -> None:
    problem = random_problem(1, 12, 2, "fifo")
    files = os.listdir("/proc/self/fd")
    executed = Executor(problem, NumericStep(problem.graph), cpus(2)).execute(
        np.zeros(12, np.int32)
    )
    assert executed.results() == expected_results(problem.graph)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        child = os.fork()
    if not child:  # it has a copy of the executor, which it drops
        del executed
        os._exit(0)
    os.waitpid(child, 0)
    assert executed.results() == expected_results(problem.graph)
    del executed
    assert not multiprocessing.active_children()
    assert os.listdir("/proc/self/fd") == files


@pytest.mark.parametrize(
    ("cores", "threads", "names", "sharing"),
    [
        ({4, 7}, 1, ["cpu:0", "cpu:1"], ""),
        ({4, 7}, 1, ["cpu:0", "cuda:2"], ""),
        ({4, 7}, 1, ["cpu:0", "cpu:2"], "cpu:0, cpu:2"),
        ({4, 7}, 1, ["cpu:0", "cpu:1", "cpu:3"], "cpu:1, cpu:3"),
        ({4, 7}, 2, ["cpu:0", "cpu:1"], "cpu:0, cpu:1"),
        ({4, 7}, 3, ["cpu:0", "cuda:1"], ""),
        ({2, 4, 6, 8, 9}, 2, ["cpu:0", "cpu:1", "cpu:2"], "cpu:0, cpu:2"),
        ({2, 4, 6, 8}, 2, ["cpu:0", "cpu:1"], ""),
    ],
)
def test_processes_that_share_a_core_are_warned_of(
    cores: set[int],
    threads: int,
    names: list[str],
    sharing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_device_names(names, len(names), threads)
    cores_text = f"share cores, as this process may use {len(cores)}"
    expected = [f"devices: {sharing} {cores_text}"] if sharing else []
    assert [str(warning.message).partition(", so")[0] for warning in caught] == expected


PROBLEM, OTHER = random_problem(1, 12, 2, "fifo"), random_problem(2, 12, 2, "fifo")


@pytest.mark.parametrize(
    ("names", "options", "line"),
    [
        (["cpu:0"], {}, r"^devices: expected 2, as many as the cluster has, got 1$"),
        (["cpu:0", "tpu:1"], {}, r"^devices\[1\]: expected cpu:NUMBER or cuda:NUMBER, got 'tpu:1"),
        (["cpu", "cpu:1"], {}, r"^devices\[0\]: expected cpu:NUMBER or cuda:NUMBER, got 'cpu'$"),
        (["cpu:0", "cpu:0"], {}, r"^devices\[1\]: expected each device once, got 'cpu:0'$"),
        (["cpu:0", "cuda:99"], {}, r"^devices: no cuda:99$"),
        (cpus(2), {"step": NumericStep(OTHER.graph)}, r"^step: expected one of the problem's"),
        (["cuda:0", "cpu:0"], {"emulated_links": PROBLEM.cluster}, "^emulated_links: .* a GPU"),
    ],
)
def test_what_an_executor_cannot_have(names: list[str], options: dict[str, Any], line: str) -> None:
    with pytest.raises(ExecutionError, match=line):
        Executor(PROBLEM, devices=names, **{"step": NumericStep(PROBLEM.graph), **options})


def test_a_placement_for_other_devices_is_refused() -> None:
    with (
        Executor(PROBLEM, NumericStep(PROBLEM.graph), cpus(2)) as executor,
        pytest.raises(ExecutionError, match=r"^placement\[3\]: expected .* from 0 to 1, got 2$"),
    ):
        executor.execute(np.array([0, 0, 0, 2] + [0] * 8, np.int32))
