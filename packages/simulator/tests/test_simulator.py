import copy
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from numpy.typing import NDArray

import plain_simulator
from placeto_graphs import Cluster
from placeto_graphs import Device
from placeto_graphs import Evaluator
from placeto_graphs import Grouping
from placeto_graphs import OpGraph
from placeto_graphs import PlacementProblem
from placeto_graphs import SchedulingEvaluator
from placeto_simulator import SimulationError
from placeto_simulator import Simulator
from placeto_simulator.benchmark_problems import random_layered_problem
from placeto_simulator.benchmark_problems import random_placements
from simulated_problems import placed_problems

Placed = tuple[PlacementProblem, NDArray[np.int32]]


@settings(max_examples=1000)
@given(placed_problems())
def test_runtime_and_peak_memory_are_exactly_those_of_the_plain_simulator(placed: Placed) -> None:
    problem, placements = placed
    found = Simulator(problem, num_threads=1).evaluate(placements)
    for row, placement in enumerate(placements.tolist()):
        run = plain_simulator.simulate(problem, placement)
        assert found.runtime[row] == run.runtime
        assert found.peak_memory[row].tolist() == run.peak_memory


@given(placed_problems())
def test_a_schedule_is_when_the_ops_of_each_group_run_in_the_plain_simulator(
    placed: Placed,
) -> None:
    problem, placements = placed
    simulator = Simulator(problem, num_threads=2)
    schedule, batch = simulator.schedule(placements), simulator.evaluate(placements)
    assert (schedule.runtime == batch.runtime).all()
    assert (schedule.peak_memory == batch.peak_memory).all()
    for row, placement in enumerate(placements.tolist()):
        run = plain_simulator.simulate(problem, placement)
        for group in range(problem.num_groups):
            ops = np.flatnonzero(problem.grouping.group_of == group)
            assert schedule.start[row, group] == min(run.starts[op] for op in ops)
            assert schedule.end[row, group] == max(run.ends[op] for op in ops)


@given(placed_problems())
def test_a_batch_is_its_placements_one_by_one_with_any_number_of_threads(placed: Placed) -> None:
    problem, placements = placed
    batch = Simulator(problem, num_threads=3).evaluate(placements)
    alone = Simulator(problem, num_threads=1)
    for row in range(len(placements)):
        single = alone.evaluate(placements[row : row + 1])
        assert single.runtime[0] == batch.runtime[row]
        assert single.peak_memory[0].tolist() == batch.peak_memory[row].tolist()


@given(placed_problems())
def test_no_placement_beats_its_work_or_its_longest_chain(placed: Placed) -> None:
    problem, placements = placed
    graph = problem.graph
    runtime = Simulator(problem, num_threads=1).evaluate(placements).runtime
    for row, placement in enumerate(placements):
        devices = problem.expand(placement)
        seconds = problem.compute_time[np.arange(graph.num_ops), devices]
        busiest = max(seconds[devices == device].sum() for device in range(problem.num_devices))
        ends = np.zeros(graph.num_ops)
        for op in graph.topological_order:
            makers = graph.tensor_producer[graph.inputs_of_op[op]]
            ends[op] = ends[makers].max(initial=0.0) + seconds[op]
        assert runtime[row] >= max(busiest, ends.max()) * (1 - 1e-12)


@given(placed_problems())
def test_times_scaled_by_a_power_of_two_scale_the_runtime_exactly(placed: Placed) -> None:
    problem, placements = placed
    cluster = problem.cluster
    slower = PlacementProblem(
        graph=problem.graph,
        cluster=Cluster(
            devices=tuple(
                Device(d.name, d.kind, d.memory_bytes, d.op_overhead * 8, d.transfer_overhead * 8)
                for d in cluster.devices
            ),
            bandwidth=cluster.bandwidth / 8,
            latency=cluster.latency * 8,
        ),
        compute_time=problem.compute_time * 8,
        grouping=problem.grouping,
    )
    fast, slow = (Simulator(each, num_threads=1).evaluate(placements) for each in (problem, slower))
    assert slow.runtime.tolist() == (fast.runtime * 8).tolist()
    assert slow.peak_memory.tolist() == fast.peak_memory.tolist()


@pytest.mark.parametrize("num_devices", [2, 3, 5])
def test_where_nothing_ties_other_labels_of_equal_devices_change_nothing(num_devices: int) -> None:
    generator = np.random.default_rng(num_devices)
    problem = random_layered_problem(200, num_devices, 200, generator)
    placements = random_placements(problem, 20, generator)
    label = generator.permutation(num_devices).astype(np.int32)
    simulator = Simulator(problem, num_threads=1)
    found, relabelled = simulator.evaluate(placements), simulator.evaluate(label[placements])
    assert relabelled.runtime.tolist() == found.runtime.tolist()
    assert relabelled.peak_memory[:, label].tolist() == found.peak_memory.tolist()


@given(placed_problems())
def test_runtimes_alone_are_those_of_a_whole_evaluation(placed: Placed) -> None:
    problem, placements = placed
    simulator = Simulator(problem, num_threads=2)
    runtimes = simulator.runtimes(placements)
    assert runtimes.tolist() == simulator.evaluate(placements).runtime.tolist()


@given(placed_problems())
def test_no_placement_beats_its_work_spread_over_all_devices(placed: Placed) -> None:
    problem, placements = placed
    fastest = problem.compute_time.min(axis=1).sum() / problem.num_devices
    runtimes = Simulator(problem, num_threads=1).runtimes(placements)
    assert (runtimes >= fastest * (1 - 1e-12)).all()


def two_chains(**changes: Any) -> PlacementProblem:
    """Two chains of two ops of a second each, on two devices with a slow link."""
    graph = OpGraph(
        op_names=("a1", "b1", "a2", "b2"),
        op_types=("op",) * 4,
        scopes=("",) * 4,
        phases=np.zeros(4, np.int8),
        flops=np.zeros(4),
        bytes_accessed=np.zeros(4),
        parameter_bytes=np.array([0, 1000, 0, 0]),
        workspace_bytes=np.array([0, 0, 7, 0]),
        colocation=np.full(4, -1, np.int32),
        tensor_producer=np.array([0, 1], np.int32),
        tensor_bytes=np.array([10, 20]),
        edges=np.array([[0, 2], [1, 3]], np.int32),
    )
    fields: dict[str, Any] = {
        "graph": graph,
        "cluster": Cluster(
            devices=tuple(Device(f"gpu:{number}", "gpu", 10**9, 0.25, 0.5) for number in (0, 1)),
            bandwidth=np.full((2, 2), 10.0),
            latency=np.full((2, 2), 0.125),
        ),
        "compute_time": np.ones((4, 2)),
        "grouping": Grouping(group_of=np.arange(4, dtype=np.int32), group_names=graph.op_names),
    }
    return PlacementProblem(**(fields | changes))


def test_a_run_by_hand() -> None:
    found = Simulator(two_chains()).evaluate(
        np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]], np.int32)
    )
    # On one device four ops and three overheads; on two, two ops and one overhead each.
    # Split in the middle: a1, 0.125 s and 1 s for its 10 bytes, then b1's copy, which the bus can
    # take from 1 + 1.125 + 0.5 s on and which takes 2.125 s, then b2.
    assert found.runtime.tolist() == [4.75, 2.25, 1 + 1.125 + 0.5 + 2.125 + 1]
    # b1 owns 1000 bytes, in which its output lives; a1's output is 10 bytes, a2 needs 7 more.
    # A copy takes memory, also where the original takes none: b1's 20 bytes arrive while a2 runs.
    assert found.peak_memory.tolist() == [[1017, 0], [17, 1000], [1010, 37]]


def test_a_simulator_is_an_evaluator() -> None:
    simulator: Evaluator = Simulator(two_chains())
    assert isinstance(simulator, Evaluator)
    assert isinstance(simulator, SchedulingEvaluator)
    assert simulator.problem.num_groups == 4


def test_an_empty_batch_has_no_results() -> None:
    found = Simulator(two_chains()).evaluate(np.empty((0, 4), np.int32))
    assert found.runtime.shape == (0,)
    assert found.peak_memory.shape == (0, 2)


def test_one_simulator_serves_several_threads() -> None:
    generator = np.random.default_rng(0)
    placements = generator.integers(0, 2, (200, 4)).astype(np.int32)
    simulator = Simulator(two_chains(), num_threads=2)
    expected = simulator.evaluate(placements)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: simulator.evaluate(placements), range(20)):
            assert found == expected


def test_a_copy_simulates_the_same() -> None:
    placements = np.array([[0, 1, 1, 0]], np.int32)
    simulator = Simulator(two_chains(), num_threads=2)
    assert copy.deepcopy(simulator).evaluate(placements) == simulator.evaluate(placements)


def test_a_graph_of_sixty_four_devices() -> None:
    count = 64
    cluster = Cluster(
        devices=tuple(Device(f"gpu:{number}", "gpu", 10**9, 0.0, 0.0) for number in range(count)),
        bandwidth=np.full((count, count), 1.0),
        latency=np.zeros((count, count)),
    )
    problem = two_chains(cluster=cluster, compute_time=np.ones((4, count)))
    placement = np.array([[63, 1, 63, 40]], np.int32)
    assert Simulator(problem).evaluate(placement).runtime.tolist() == [22.0]


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([0, 1, 0, 1], "placements: expected shape (any, 4), got (4,)"),
        ([[0, 1, 0]], "placements: expected shape (any, 4), got (1, 3)"),
        ([[0.0, 1.0, 0.0, 1.0]], "placements: expected integers, got float64"),
        ([[True, False, True, True]], "placements: expected integers, got bool"),
        (
            [[0, 1, 0, 1], [0, 2, 0, 0]],
            "placements[1, 1]: expected a device from 0 to 1 for group 'b1', got 2",
        ),
        ([[0, 1, -1, 1]], "placements[0, 2]: expected a device from 0 to 1 for group 'a2', got -1"),
    ],
)
def test_a_wrong_placement_is_named(placements: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=re.escape(message)):
        Simulator(two_chains()).evaluate(placements)


def test_an_op_without_compute_time_on_its_device_is_named() -> None:
    compute_time = np.ones((4, 2))
    compute_time[2, 1] = np.inf
    simulator = Simulator(two_chains(compute_time=compute_time))
    assert simulator.evaluate(np.array([[1, 1, 0, 1]])).runtime[0] > 0
    with pytest.raises(SimulationError, match=re.escape("group 'a2', got 1 ('gpu:1')")):
        simulator.evaluate(np.array([[0, 0, 0, 0], [0, 0, 1, 0]]))


def test_a_simulator_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="num_threads: expected at least 1, got 0"):
        Simulator(two_chains(), num_threads=0)
