import numpy as np
import pytest

from baseline_problems import cluster
from baseline_problems import op_graph
from baseline_problems import problem_of
from baseline_problems import random_problems
from baseline_problems import two_chains
from placeto_baselines import CriticalPathPlacer
from placeto_baselines import Heft
from placeto_baselines.scheduling.schedule import Schedule
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_graphs import PlacementProblem

# Topcuoglu, Hariri, Wu (2002), figure 2: costs of ten tasks on three processors, and edges.
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
    # Table 4 of the paper, rounded there to three places.
    expected = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert rank == pytest.approx(expected, abs=1e-3)
    schedule = Heft().schedule(problem)
    assert schedule.makespan == 80
    # Figure 3 (a) of the paper.
    assert (schedule.device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert schedule.finish.tolist() == [9, 40, 28, 26, 38, 42, 49, 62, 68, 80]


@pytest.mark.parametrize("placer", [Heft(), CriticalPathPlacer()], ids=lambda each: each.name)
def test_schedules_keep_to_devices_and_inputs(placer: Heft | CriticalPathPlacer) -> None:
    for problem in random_problems(100):
        check_schedule(problem, placer.schedule(problem))


@pytest.mark.parametrize("placer", [Heft(), CriticalPathPlacer()], ids=lambda each: each.name)
def test_two_chains_run_side_by_side(placer: Heft | CriticalPathPlacer) -> None:
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
