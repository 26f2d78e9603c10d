from dataclasses import astuple

import numpy as np
import pytest

from baseline_problems import cluster
from baseline_problems import op_graph
from baseline_problems import problem_of
from baseline_problems import random_problems
from baseline_problems import two_chains
from placeto_baselines import CriticalPathPlacer
from placeto_baselines import Heft
from placeto_baselines import MEtf
from placeto_baselines import MSct
from placeto_baselines import MTopo
from placeto_baselines.scheduling.favourite_children import favourite_children
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.scheduled import ListScheduler
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import Cluster
from placeto_graphs import Device
from placeto_graphs import PlacementProblem
from plain_evaluator import PlainEvaluator

# The example of Topcuoglu, Hariri, Wu (2002): costs of ten tasks on three processors, and edges.
SECONDS = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
COMMUNICATION = {
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
    (4, 9): 23,
    (5, 9): 13,
    (6, 8): 15,
    (7, 10): 17,
    (8, 10): 11,
    (9, 10): 13,
}


SCHEDULERS: list[ListScheduler] = [Heft(), CriticalPathPlacer(), MEtf(), MSct()]


def textbook_problem() -> PlacementProblem:
    """Every edge is a tensor of its own, of as many bytes as its communication takes seconds."""
    edges = list(COMMUNICATION)
    graph = op_graph(
        10,
        [(tensor, reader - 1) for tensor, (_, reader) in enumerate(edges)],
        tensor_producer=np.array([maker - 1 for maker, _ in edges], np.int32),
        tensor_bytes=np.array(list(COMMUNICATION.values())),
    )
    return problem_of(graph, cluster(["p1", "p2", "p3"]), np.array(SECONDS, float))


def check_schedule(problem: PlacementProblem, schedule: Schedule) -> None:
    """Nothing overlaps on a device, and nothing starts before its inputs are there."""
    groups, on = problem.group_graph, problem.cluster
    for device in range(problem.num_devices):
        here = np.flatnonzero(schedule.device == device)
        here = here[np.lexsort((schedule.finish[here], schedule.start[here]))]
        assert (schedule.start[here][1:] >= schedule.finish[here][:-1]).all()
    for (maker, reader), size in zip(
        groups.edges.tolist(), groups.edge_bytes.tolist(), strict=True
    ):
        source, there = schedule.device[maker], schedule.device[reader]
        sent = on.latency[source, there] + size / on.bandwidth[source, there]
        assert schedule.start[reader] >= schedule.finish[maker] + sent - 1e-12


def test_the_textbook_example_of_heft() -> None:
    problem = textbook_problem()
    rank = TaskGraph(problem).upward_rank()
    # As the paper gives them, rounded to three places.
    expected = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert rank == pytest.approx(expected, abs=1e-3)
    schedule = Heft().schedule(problem)
    assert schedule.makespan == 80
    # The schedule that the paper draws.
    assert (schedule.device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert schedule.finish.tolist() == [9, 40, 28, 26, 38, 42, 49, 62, 68, 80]


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_schedules_keep_to_devices_and_inputs(placer: ListScheduler) -> None:
    for problem in random_problems(100):
        check_schedule(problem, placer.schedule(problem))


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_schedules_see_how_long_pairs_take_and_not_what_they_share(placer: ListScheduler) -> None:
    buses = random_problems(30)
    shared = random_problems(30, shared_links=True)
    for problem, other in zip(buses, shared, strict=True):
        schedule, again = placer.schedule(problem), placer.schedule(other)
        assert schedule.device.tolist() == again.device.tolist()
        assert schedule.finish.tolist() == again.finish.tolist()


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_two_chains_run_side_by_side(placer: ListScheduler) -> None:
    schedule = placer.schedule(two_chains())
    assert schedule.makespan == 1.0
    assert schedule.device[[0, 1]].tolist() == schedule.device[[2, 3]].tolist() == [1, 2]


def test_the_critical_path_goes_first() -> None:
    # The long chain 0, 2, 3 gets the faster device, though op 1 comes before its end.
    graph = op_graph(4, [(0, 2), (2, 3)])
    problem = problem_of(graph, cluster(["k80", "v100"]), np.tile([2.0, 1.0], (4, 1)))
    schedule = CriticalPathPlacer().schedule(problem)
    assert schedule.device.tolist() == [1, 0, 1, 1]
    assert schedule.makespan == 3.0


def test_a_gap_is_filled_by_heft() -> None:
    # Op 2 waits for op 0's tensor; op 1 has the lowest rank and fits before it on its device.
    graph = op_graph(3, [(0, 2)], tensor_bytes=np.array([5, 1, 1]))
    compute_time = np.array([[1.0, np.inf], [np.inf, 2.0], [np.inf, 4.0]])
    schedule = Heft().schedule(problem_of(graph, cluster(["k80", "k80"]), compute_time))
    assert schedule.start.tolist() == [0.0, 0.0, 6.0]


def four_alone(memory: int) -> PlacementProblem:
    """Four groups of ten bytes each on two GPUs; the CPU would hold them all."""
    graph = op_graph(4, [], parameter_bytes=np.full(4, 10), tensor_bytes=np.zeros(4, int))
    small, large = cluster(["k80", "k80"], memory=memory), cluster(["cpu"])
    on = cluster(["k80", "k80", "cpu"])
    devices = (*small.devices, Device("cpu:2", *astuple(large.devices[0])[1:]))
    return problem_of(
        graph,
        Cluster(devices=devices, bandwidth=on.bandwidth, latency=on.latency),
        np.tile([1.0, 1.0, 9.0], (4, 1)),
    )


@pytest.mark.parametrize(
    ("memory", "placement"),
    [(100, [0, 0, 0, 1]), (25, [0, 0, 1, 1]), (10, [0, 1, 0, 1]), (9, [0, 0, 0, 0])],
)
def test_m_topo_fills_up_to_the_mean_and_one_group(memory: int, placement: list[int]) -> None:
    problem = four_alone(memory)
    result = MTopo().place(problem, PlainEvaluator(problem))
    if memory == 9:
        assert not result.fits(problem.cluster)
    else:
        assert result.placement.tolist()[: len(placement)] == placement
    assert result.fits(problem.cluster) == (memory >= 25)


@pytest.mark.parametrize("placer", [MEtf(), MSct()], ids=lambda placer: placer.name)
def test_memory_constrains_the_earliest_task_first(placer: ListScheduler) -> None:
    # The first GPU is twice as large: alone it would only get every other group.
    graph = op_graph(3, [(0, 1), (1, 2)], parameter_bytes=np.array([10, 10, 10]))
    on = cluster(["k80", "k80"], memory=25)
    problem = problem_of(graph, on, np.ones((3, 2)))
    result = placer.place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == [0, 0, 1]
    assert result.fits(on)
    roomy = problem_of(graph, cluster(["k80", "k80"], memory=99), np.ones((3, 2)))
    assert placer.place(roomy, PlainEvaluator(roomy)).placement.tolist() == [0, 0, 0]
    full = problem_of(graph, cluster(["k80", "k80"], memory=9), np.ones((3, 2)))
    assert not placer.place(full, PlainEvaluator(full)).fits(full.cluster)


def test_outputs_that_have_been_read_are_given_back() -> None:
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=np.array([10, 10, 10]))
    on = cluster(["k80", "k80"], memory=25)
    schedule = MEtf().schedule(problem_of(graph, on, np.ones((3, 2))))
    assert schedule.device.tolist() == [0, 0, 0]


def test_earliest_task_first_takes_the_earliest_start_then_the_longest_work() -> None:
    # Ops 1 and 2 have most work from them on. When op 1 is done, op 3 could start where it ran, as
    # early as op 0, but has more work; so op 0 comes last, where op 2 ran.
    graph = op_graph(4, [(1, 3)], tensor_bytes=np.array([1, 4, 1, 1]))
    seconds = np.array([1.0, 2.0, 6.0, 5.0])[:, None] * np.ones(2)
    schedule = MEtf().schedule(problem_of(graph, cluster(["k80", "k80"]), seconds))
    assert schedule.start.tolist() == [6.0, 0.0, 0.0, 2.0]
    assert schedule.device.tolist() == [1, 0, 1, 0]


def test_the_favourite_child_is_the_one_that_is_dear_to_send_to() -> None:
    graph = op_graph(
        4,
        [(0, 1), (1, 2), (2, 3)],
        tensor_producer=np.array([0, 0, 0], np.int32),
        tensor_bytes=np.array([2, 9, 4]),
    )
    problem = problem_of(graph, cluster(["k80", "k80"]), np.ones((4, 2)))
    assert favourite_children(TaskGraph(problem)) == [2, -1, -1, -1]


def test_favourites_are_one_child_of_one_parent() -> None:
    for problem in random_problems(60):
        tasks = TaskGraph(problem)
        favourite = favourite_children(tasks)
        chosen = [child for child in favourite if child >= 0]
        assert len(set(chosen)) == len(chosen)
        for task, child in enumerate(favourite):
            assert child in {-1, *(reader for reader, _ in tasks.successors[task])}


def test_a_device_waits_for_the_favourite_child_of_its_last_task() -> None:
    # When op 0 is done, op 1's input is on its device, and op 3, which has more work, could start
    # on either. Earliest first puts op 3 before op 1; with the favourite child it goes elsewhere.
    graph = op_graph(4, [(0, 1)], tensor_bytes=np.array([10, 1, 1, 1]))
    seconds = np.array([1.0, 1.0, 1.0, 1.5])[:, None] * np.ones(2)
    seconds[2, 0] = np.inf
    problem = problem_of(graph, cluster(["k80", "k80"]), seconds)
    without, with_child = MEtf().schedule(problem), MSct().schedule(problem)
    assert with_child.device.tolist()[:2] == [0, 0]
    assert with_child.makespan <= without.makespan
