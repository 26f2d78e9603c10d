from dataclasses import astuple, replace

import numpy as np
import pytest

from baseline_problems import (
    cluster,
    op_graph,
    problem_of,
    random_problems,
    slow_on_the_cpu,
)
from placeto_baselines import CriticalPathPlacer, Heft, MEtf, MSct, MTopo
from placeto_baselines.devices import accelerated, allowed_devices
from placeto_baselines.scheduling.baechi import favourite_children, with_favourites
from placeto_baselines.scheduling.list_schedulers import ListScheduler
from placeto_baselines.scheduling.timetable import Gaps, Schedule, TaskGraph
from placeto_graphs import Cluster, Device, Grouping, PlacementProblem
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


def tasks_of(problem: PlacementProblem) -> TaskGraph:
    return TaskGraph(problem, allowed_devices(problem))


def check_schedule(problem: PlacementProblem, schedule: Schedule) -> None:
    """Groups stay together, devices do one op at a time, and ops wait for their inputs."""
    graph, on = problem.graph, problem.cluster
    assert schedule.device.tolist() == problem.expand(schedule.placement).tolist()
    seconds = problem.compute_time[np.arange(graph.num_ops), schedule.device]
    assert schedule.finish == pytest.approx(schedule.start + seconds)
    for device in range(problem.num_devices):
        here = np.flatnonzero((schedule.device == device) & (seconds > 0))
        here = here[np.argsort(schedule.start[here])]
        assert (schedule.start[here][1:] >= schedule.finish[here][:-1] - 1e-12).all()
    for tensor, reader in graph.edges.tolist():
        maker, size = graph.tensor_producer[tensor], graph.tensor_bytes[tensor]
        source, there = schedule.device[maker], schedule.device[reader]
        sent = on.latency[source, there] + size / on.bandwidth[source, there]
        assert schedule.start[reader] >= schedule.finish[maker] + sent - 1e-12
    for op, before in graph.waits.tolist():
        assert schedule.start[op] >= schedule.finish[before] - 1e-12


def test_the_textbook_example_of_heft() -> None:
    problem = textbook_problem()
    rank = tasks_of(problem).upward_rank()
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


@pytest.mark.parametrize(
    "placer", [CriticalPathPlacer(), MEtf(), MSct()], ids=lambda placer: placer.name
)
def test_a_cpu_that_gets_nothing_ranks_nothing(placer: ListScheduler) -> None:
    # The longest first: 3 s and 1 s on one GPU, 2 s and 2 s on the other. The op of 1 s comes first
    # where the 60 s of the CPU count, and the step then takes 5 s.
    schedule = placer.schedule(slow_on_the_cpu([1.0, 3.0, 2.0, 2.0], slow=0))
    assert schedule.makespan == 4.0
    assert schedule.start.tolist() == [3.0, 0.0, 0.0, 2.0]


def test_means_are_over_the_devices_that_groups_may_go_to() -> None:
    # A byte takes 1 s from GPU to GPU, 8 s from the CPU and 64 s to it.
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=np.array([2, 2, 2]))
    between = np.array([[1.0, 8.0, 8.0], [64.0, 1.0, 1.0], [64.0, 1.0, 1.0]])
    on = replace(cluster(["cpu", "k80", "k80"]), bandwidth=1 / between)
    seconds = np.array([[30.0, 1.0, 3.0], [30.0, 1.0, 1.0], [60.0, np.inf, np.inf]])
    problem = problem_of(graph, on, seconds)
    used = TaskGraph(problem, accelerated(problem))
    assert used.mean_seconds.tolist() == [2.0, 1.0, 60.0]
    assert used.successors == [[(1, 2.0)], [(2, 128.0)], []]
    assert used.upward_rank().tolist() == [193.0, 189.0, 60.0]
    every = tasks_of(problem)
    assert every.mean_seconds == pytest.approx([34 / 3, 32 / 3, 60.0])
    ((reader, sent),) = every.successors[0]
    assert reader == 1
    assert sent == pytest.approx(2 * (8 + 8 + 64 + 1 + 64 + 1) / 6)


def test_the_critical_path_goes_first() -> None:
    # The long chain 0, 2, 3 gets the faster device, though op 1 comes before its end.
    graph = op_graph(4, [(0, 2), (2, 3)])
    problem = problem_of(graph, cluster(["k80", "v100"]), np.tile([2.0, 1.0], (4, 1)))
    schedule = CriticalPathPlacer().schedule(problem)
    assert schedule.device.tolist() == [1, 0, 1, 1]
    assert schedule.makespan == 3.0


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


@pytest.mark.parametrize(("held", "devices"), [([], [0, 0, 0]), ([0, 1], [0, 0, 1])])
def test_outputs_are_given_back_when_their_group_is_done_unless_they_are_held(
    held: list[int], devices: list[int]
) -> None:
    ten = np.array([10, 10, 10])
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=ten, held_tensors=np.array(held, np.int32))
    on = cluster(["k80", "k80"], memory=25)
    schedule = MEtf().schedule(problem_of(graph, on, np.ones((3, 2))))
    assert schedule.device.tolist() == devices


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
    assert favourite_children(tasks_of(problem)) == [2, -1, -1, -1]


def test_favourites_are_one_child_of_one_parent() -> None:
    for problem in random_problems(60):
        tasks = tasks_of(problem)
        favourite = favourite_children(tasks)
        chosen = [child for child in favourite if child >= 0]
        assert len(set(chosen)) == len(chosen)
        for task, child in enumerate(favourite):
            assert child in {-1, *(reader for reader, _ in tasks.successors[task])}


def a_child_worth_waiting_for(size: int) -> PlacementProblem:
    """Ops 0 and 1 make what op 3 reads, op 2 what op 1 reads, and op 4 reads op 0's other output.

    Op 0 takes 2 s on the first GPU, ops 2 and 1 take 2.5 s and 0.5 s on the second one. Two bytes
    take a second: that is what op 0's output takes to op 4, and ``size / 2`` s to op 3.
    """
    graph = op_graph(
        5,
        [(0, 3), (1, 4), (2, 1), (3, 3)],
        tensor_producer=np.array([0, 0, 2, 1], np.int32),
        tensor_bytes=np.array([size, 2, 2, 1]),
    )
    seconds = np.array([2.0, 0.5, 2.5, 4.0, 5.0])[:, None] * np.ones(2)
    seconds[0, 1] = seconds[1, 0] = seconds[2, 0] = np.inf
    return problem_of(graph, cluster(["k80", "k80"], bandwidth=2.0), seconds)


def test_a_device_waits_for_a_favourite_child_that_is_not_ready_yet() -> None:
    problem = a_child_worth_waiting_for(size=8)
    # Earliest first: op 4 starts on the first GPU as soon as op 0 is done, and is in the way of op
    # 3, whose input from op 0 is on the other one at 6.0.
    earliest = MEtf().schedule(problem)
    assert earliest.start.tolist() == [0.0, 2.5, 0.0, 6.0, 2.0]
    assert earliest.device.tolist() == [0, 1, 1, 1, 0]
    assert earliest.makespan == 10.0
    # Op 3 can start there at 3.5, before its input could be anywhere else, so that the GPU waits;
    # op 4's input can be anywhere from 3.0 on, and op 4 goes to the GPU that does not wait.
    waiting = MSct().schedule(problem)
    assert waiting.start.tolist() == [0.0, 2.5, 0.0, 3.5, 3.0]
    assert waiting.device.tolist() == [0, 1, 1, 0, 1]
    assert waiting.makespan == 8.0


def test_a_device_does_not_wait_longer_than_staying_saves() -> None:
    # What op 0 sends to op 3 could be anywhere at 2.5, and op 3 cannot start before 3.0.
    problem = a_child_worth_waiting_for(size=1)
    tasks = tasks_of(problem)
    for favourite in ([-1] * 5, [3, -1, -1, -1, -1]):
        schedule = with_favourites(problem, tasks, favourite)
        assert schedule.start.tolist() == [0.0, 2.5, 0.0, 3.0, 2.0]


def test_an_urgent_op_goes_before_the_child_that_is_waited_for() -> None:
    # When op 0 is done, its favourite child could start on its device; so could op 2, anywhere.
    graph = op_graph(3, [(0, 1)])
    problem = problem_of(graph, cluster(["k80"]), np.array([[1.0], [1.0], [0.5]]))
    tasks = tasks_of(problem)
    assert with_favourites(problem, tasks, [-1] * 3).start.tolist() == [0.0, 1.0, 2.0]
    assert with_favourites(problem, tasks, [1, -1, -1]).start.tolist() == [0.0, 1.5, 1.0]


def forward_and_backward() -> PlacementProblem:
    """Two layers, each of which is one group with its gradient: 0 and 3 make one, 1 and 2 one."""
    graph = op_graph(4, [(0, 1), (1, 2), (2, 3)], phases=np.array([0, 0, 1, 1], np.int8))
    return PlacementProblem(
        graph=graph,
        cluster=cluster(["k80", "k80"]),
        compute_time=np.ones((4, 2)),
        grouping=Grouping(group_of=np.array([0, 1, 1, 0], np.int32), group_names=("a", "b")),
    )


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_gradients_are_scheduled_after_what_is_between(placer: ListScheduler) -> None:
    # As one block in time the first layer would be done before the second one starts.
    schedule = placer.schedule(forward_and_backward())
    assert schedule.start.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_a_group_stays_where_its_first_op_was_placed(placer: ListScheduler) -> None:
    # Op 2 could start on the second GPU at 1.0; its group is on the first one, which has op 1.
    graph = op_graph(3, [(0, 1)], tensor_bytes=np.array([9, 1, 1]))
    problem = PlacementProblem(
        graph=graph,
        cluster=cluster(["k80", "k80"]),
        compute_time=np.array([[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]),
        grouping=Grouping(group_of=np.array([0, 0, 0], np.int32), group_names=("all",)),
    )
    schedule = placer.schedule(problem)
    assert schedule.device.tolist() == [0, 0, 0]
    assert schedule.makespan == 6.0


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_an_op_waits_for_another_without_a_transfer(placer: ListScheduler) -> None:
    # Op 1 can run on the second GPU only, and op 2 on the first; a byte takes 100 s. Op 1 takes no
    # time and reads nothing, but it is no weight that is there from the beginning.
    graph = op_graph(3, [], waits=np.array([[1, 0], [2, 1]], np.int32))
    seconds = np.array([[2.0, np.inf], [np.inf, 0.0], [3.0, np.inf]])
    on = cluster(["k80", "k80"], bandwidth=0.01)
    schedule = placer.schedule(problem_of(graph, on, seconds))
    assert schedule.start.tolist() == [0.0, 2.0, 2.0]
    # Where a tensor is sent, too, its transfer is what counts.
    both = op_graph(2, [(0, 1)], waits=np.array([[1, 0]], np.int32))
    sent = problem_of(both, on, seconds[:2])
    assert placer.schedule(sent).start.tolist() == [0.0, 102.0]


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_the_longest_path_leads_over_waits(placer: ListScheduler) -> None:
    # Op 0 and what waits for it take 4 s; by its own seconds op 0 would be the last.
    graph = op_graph(4, [], waits=np.array([[3, 0]], np.int32))
    seconds = np.tile(np.array([1.0, 1.5, 1.5, 3.0])[:, None], (1, 2))
    schedule = placer.schedule(problem_of(graph, cluster(["k80", "k80"]), seconds))
    assert schedule.start.tolist() == [0.0, 0.0, 1.5, 1.0]


@pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
def test_weights_do_not_place_their_groups_but_who_reads_them(placer: ListScheduler) -> None:
    # Two weights, each with its reader: both weights could be on the first GPU at no time.
    graph = op_graph(4, [(0, 2), (1, 3)], parameter_bytes=np.array([5, 5, 0, 0]))
    seconds = np.array([0.0, 0.0, 1.0, 1.0])[:, None] * np.ones(2)
    schedule = placer.schedule(problem_of(graph, cluster(["k80", "k80"]), seconds))
    assert schedule.placement.tolist() == [0, 1, 0, 1]
    assert schedule.makespan == 1.0


def test_gaps_are_the_times_without_work() -> None:
    # Against every moment of a short day, in steps of one.
    generator = np.random.default_rng(4)
    for _ in range(50):
        gaps, busy = Gaps(), np.zeros(200, bool)
        for _ in range(12):
            earliest, length = generator.integers(0, 60), int(generator.integers(1, 8))
            start = int(gaps.first(float(earliest), float(length)))
            free = [at for at in range(earliest, 150) if not busy[at : at + length].any()]
            assert start == free[0]
            gaps.take(float(start), float(start + length))
            busy[start : start + length] = True
