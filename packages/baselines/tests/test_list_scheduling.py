from dataclasses import replace

import numpy as np
import pytest

from baseline_problems import cluster, gpus, op_graph, problem_of, random_problems, slow_on_the_cpu
from placeto_baselines import CriticalPathPlacer, Heft, MEtf, MSct, MTopo
from placeto_baselines.devices import accelerated, allowed_devices
from placeto_baselines.scheduling.baechi import favourite_children, with_favourites
from placeto_baselines.scheduling.list_schedulers import ListScheduler
from placeto_baselines.scheduling.timetable import TaskGraph, Timetable
from placeto_graphs import PlacementProblem
from plain_evaluator import PlainEvaluator

SCHEDULERS: list[ListScheduler] = [Heft(), CriticalPathPlacer(), MEtf(), MSct()]
every_scheduler = pytest.mark.parametrize("placer", SCHEDULERS, ids=lambda placer: placer.name)
N = np.inf  # seconds where an op cannot run


def tasks_of(problem: PlacementProblem) -> TaskGraph:
    return TaskGraph(problem, allowed_devices(problem))


def check_schedule(problem: PlacementProblem, schedule: Timetable) -> None:
    """Groups stay together, devices do one op at a time, and ops wait for their inputs."""
    graph, on = problem.graph, problem.cluster
    assert schedule.device.tolist() == problem.expand(schedule.placement).tolist()
    seconds = problem.compute_time[np.arange(graph.num_ops), schedule.device]
    assert schedule.finish == pytest.approx(schedule.start + seconds)
    for device in range(problem.num_devices):
        ops = np.flatnonzero((schedule.device == device) & (seconds > 0))
        ops = ops[np.argsort(schedule.start[ops])]
        assert (schedule.start[ops][1:] >= schedule.finish[ops][:-1] - 1e-12).all()
    for tensor, reader in graph.edges.tolist():
        maker, size = graph.tensor_producer[tensor], graph.tensor_bytes[tensor]
        source, target = schedule.device[maker], schedule.device[reader]
        sent = on.latency[source, target] + size / on.bandwidth[source, target]
        assert schedule.start[reader] >= schedule.finish[maker] + sent - 1e-12
    for op, earlier_op in graph.waits.tolist():
        assert schedule.start[op] >= schedule.finish[earlier_op] - 1e-12


@every_scheduler
def test_schedules_keep_to_devices_and_inputs(placer: ListScheduler) -> None:
    for problem in random_problems(100):
        check_schedule(problem, placer.schedule(problem))


def test_the_textbook_example_of_heft() -> None:
    # Topcuoglu, Hariri, Wu (2002): costs of ten tasks on three processors, and edges with theirs.
    seconds = [
        [14, 13, 11, 13, 12, 13, 7, 5, 18, 21],
        [16, 19, 13, 8, 13, 16, 15, 11, 12, 7],
        [9, 18, 19, 17, 10, 9, 11, 14, 20, 16],
    ]
    edges = "1-2-18 1-3-12 1-4-9 1-5-11 1-6-14 2-8-19 2-9-16 3-7-23 4-8-27 4-9-23 5-9-13 6-8-15"
    edges += " 7-10-17 8-10-11 9-10-13"
    makers, readers, sizes = np.array([edge.split("-") for edge in edges.split()], int).T
    graph = op_graph(
        10, list(enumerate(readers - 1)), tensor_producer=makers - 1, tensor_bytes=sizes
    )
    problem = problem_of(graph, cluster(["p1", "p2", "p3"]), np.array(seconds, float).T)
    # The ranks that the paper gives, rounded to three places, and the schedule that it draws.
    expected = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert tasks_of(problem).upward_rank() == pytest.approx(expected, abs=1e-3)
    schedule = Heft().schedule(problem)
    assert (schedule.device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert schedule.finish.tolist() == [9, 40, 28, 26, 38, 42, 49, 62, 68, 80]


BY_HAND = {
    "gradients after what is between, not with their layer as one block in time": (
        gpus([1] * 4, [(0, 1), (1, 2), (2, 3)], groups=[0, 1, 1, 0], phases=[0, 0, 1, 1]),
        [0.0, 1.0, 2.0, 3.0],
        [0, 0, 0, 0],
    ),
    "a group where its first op is, though op 2 could start on the other GPU": (
        gpus([3, 2, 1], [(0, 1)], groups=[0, 0, 0], tensor_bytes=[9, 1, 1]),
        [0.0, 3.0, 5.0],
        [0, 0, 0],
    ),
    "waits without a transfer; op 1 takes no time, but is no weight": (
        gpus([[2, N], [N, 0], [3, N]], waits=[[1, 0], [2, 1]], bandwidth=0.01),
        [0.0, 2.0, 2.0],
        [0, 1, 0],
    ),
    "the transfer counts where a tensor is sent, too": (
        gpus([[2, N], [N, 0]], [(0, 1)], waits=[[1, 0]], bandwidth=0.01),
        [0.0, 102.0],
        [0, 1],
    ),
    "the longest path leads over waits; by its own seconds op 0 would be the last": (
        gpus([1, 1.5, 1.5, 3], waits=[[3, 0]]),
        [0.0, 0.0, 1.5, 1.0],
        [0, 1, 1, 0],
    ),
    "weights go with who reads them": (
        gpus([0, 0, 1, 1], [(0, 2), (1, 3)], parameter_bytes=[5, 5, 0, 0]),
        [0.0, 0.0, 0.0, 0.0],
        [0, 1, 0, 1],
    ),
}


@every_scheduler
@pytest.mark.parametrize(("problem", "start", "device"), BY_HAND.values(), ids=BY_HAND)
def test_a_schedule_by_hand(
    placer: ListScheduler, problem: PlacementProblem, start: list[float], device: list[int]
) -> None:
    schedule = placer.schedule(problem)
    assert (schedule.start.tolist(), schedule.device.tolist()) == (start, device)


@pytest.mark.parametrize("placer", SCHEDULERS[1:], ids=lambda placer: placer.name)
def test_a_cpu_that_gets_nothing_ranks_nothing(placer: ListScheduler) -> None:
    # The longest first: 3 s and 1 s on one GPU, 2 s and 2 s on the other. The op of 1 s comes first
    # where the 60 s of the CPU count, and the step then takes 5 s.
    schedule = placer.schedule(slow_on_the_cpu([1.0, 3.0, 2.0, 2.0], slow=0))
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


def test_pairs_whose_bytes_are_free_leave_the_transfers_of_others() -> None:
    """Of six pairs of three devices, two are free, and four take 5 s for a byte."""
    between = np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0], [5.0, 5.0, 0.0]])
    with np.errstate(divide="ignore"):
        on = replace(cluster(["k80"] * 3), bandwidth=1 / between)
    graph = op_graph(3, [(0, 2), (1, 2)], tensor_bytes=np.array([3, 0, 0]))
    tasks = tasks_of(problem_of(graph, on, np.ones((3, 3))))
    assert tasks.successors == [[(2, 10.0)], [(2, 0.0)], []]
    assert tasks.upward_rank().tolist() == [12.0, 2.0, 1.0]


def test_the_critical_path_goes_first() -> None:
    # The long chain 0, 2, 3 gets the faster device, though op 1 comes before its end.
    problem = gpus([[2, 1]] * 4, [(0, 2), (2, 3)])
    assert CriticalPathPlacer().schedule(problem).device.tolist() == [1, 0, 1, 1]


def test_heft_inserts_ops_into_gaps() -> None:
    # Ops 2 and 4 come last by their ranks, and fit before op 1, which waits for op 3.
    seconds = [[2, N], [5, N], [1, N], [N, 1], [1, N]]
    problem = gpus(seconds, [(3, 1), (0, 1)], tensor_bytes=[0, 0, 0, 4, 0])
    assert Heft().schedule(problem).start.tolist() == [0.0, 5.0, 2.0, 0.0, 3.0]
    # Op 1 is too short to count at 5 s, and leaves the time around it whole.
    short = gpus([[N, 5], [1e-20, N], [N, 9], [6, N]], [(0, 1), (1, 2)], tensor_bytes=[0] * 4)
    assert Heft().schedule(short).start.tolist() == [0.0, 5.0, 5.0, 0.0]


@pytest.mark.parametrize(
    ("memory", "placement"),
    [(100, [0, 0, 0, 1]), (25, [0, 0, 1, 1]), (10, [0, 1, 0, 1]), (9, [0, 1, 0, 1])],
)
def test_m_topo_fills_up_to_the_mean_and_one_group(memory: int, placement: list[int]) -> None:
    # Four groups of ten bytes each on two GPUs; the CPU would hold them all.
    graph = op_graph(4, [], parameter_bytes=np.full(4, 10), tensor_bytes=np.zeros(4, int))
    on = cluster(["k80", "k80", "cpu"], memory=memory)
    on = replace(on, devices=(*on.devices[:2], replace(on.devices[2], memory_bytes=10**9)))
    problem = problem_of(graph, on, np.tile([1.0, 1.0, 9.0], (4, 1)))
    result = MTopo().place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == placement
    assert result.fits(problem.cluster) == (memory >= 25)


@pytest.mark.parametrize("placer", [MEtf(), MSct()], ids=lambda placer: placer.name)
@pytest.mark.parametrize(
    ("memory", "placement"), [(25, [0, 0, 1]), (99, [0, 0, 0]), (9, [0, 1, 0])]
)
def test_memory_constrains_the_earliest_task_first(
    placer: ListScheduler, memory: int, placement: list[int]
) -> None:
    problem = gpus([1] * 3, [(0, 1), (1, 2)], parameter_bytes=[10] * 3, memory=memory)
    result = placer.place(problem, PlainEvaluator(problem))
    assert result.placement.tolist() == placement
    assert result.fits(problem.cluster) == (memory > 9)


@pytest.mark.parametrize(("held_tensors", "devices"), [([], [0, 0, 0]), ([0, 1], [0, 0, 1])])
def test_outputs_are_given_back_when_their_group_is_done_unless_they_are_held(
    held_tensors: list[int], devices: list[int]
) -> None:
    edges = [(0, 1), (1, 2)]
    problem = gpus([1] * 3, edges, tensor_bytes=[10] * 3, held_tensors=held_tensors, memory=25)
    assert MEtf().schedule(problem).device.tolist() == devices


def test_earliest_task_first_takes_the_earliest_start_then_the_longest_work() -> None:
    # Ops 1 and 2 have most work from them on. When op 1 is done, op 3 could start where it ran, as
    # early as op 0, but has more work; so op 0 comes last, where op 2 ran.
    schedule = MEtf().schedule(gpus([1, 2, 6, 5], [(1, 3)], tensor_bytes=[1, 4, 1, 1]))
    assert schedule.start.tolist() == [6.0, 0.0, 0.0, 2.0]
    assert schedule.device.tolist() == [1, 0, 1, 0]


def test_the_favourite_child_is_the_one_that_is_dear_to_send_to() -> None:
    problem = gpus(
        [1] * 4, [(0, 1), (1, 2), (2, 3)], tensor_producer=[0, 0, 0], tensor_bytes=[2, 9, 4]
    )
    assert favourite_children(tasks_of(problem)) == [2, -1, -1, -1]


def test_favourites_are_one_child_of_one_parent() -> None:
    for problem in random_problems(60):
        tasks = tasks_of(problem)
        pairs = [pair for pair in enumerate(favourite_children(tasks)) if pair[1] >= 0]
        assert len({child for _, child in pairs}) == len(pairs)
        for task, child in pairs:
            assert child in {reader for reader, _ in tasks.successors[task]}


def a_child_worth_waiting_for(size: int) -> PlacementProblem:
    """Ops 0 and 1 make what op 3 reads, op 2 what op 1 reads, and op 4 reads op 0's other output.

    Op 0 takes 2 s on the first GPU, ops 2 and 1 take 2.5 s and 0.5 s on the second one. Two bytes
    take a second: that is what op 0's output takes to op 4, and ``size / 2`` s to op 3.
    """
    return gpus(
        [[2, N], [N, 0.5], [N, 2.5], [4, 4], [5, 5]],
        [(0, 3), (1, 4), (2, 1), (3, 3)],
        tensor_producer=[0, 0, 2, 1],
        tensor_bytes=[size, 2, 2, 1],
        bandwidth=2.0,
    )


def test_a_device_waits_for_a_favourite_child_that_is_not_ready_yet() -> None:
    problem = a_child_worth_waiting_for(size=8)
    # Earliest first: op 4 starts on the first GPU as soon as op 0 is done, and is in the way of op
    # 3, whose input from op 0 is on the other one at 6.0.
    earliest = MEtf().schedule(problem)
    assert earliest.start.tolist() == [0.0, 2.5, 0.0, 6.0, 2.0]
    assert earliest.device.tolist() == [0, 1, 1, 1, 0]
    # Op 3 can start there at 3.5, before its input could be anywhere else, so that the GPU waits;
    # op 4's input can be anywhere from 3.0 on, and op 4 goes to the GPU that does not wait.
    waiting = MSct().schedule(problem)
    assert waiting.start.tolist() == [0.0, 2.5, 0.0, 3.5, 3.0]
    assert waiting.device.tolist() == [0, 1, 1, 0, 1]


def test_a_device_does_not_wait_longer_than_staying_saves() -> None:
    # What op 0 sends to op 3 could be anywhere at 2.5, and op 3 cannot start before 3.0.
    problem = a_child_worth_waiting_for(size=1)
    for favourite in ([-1] * 5, [3, -1, -1, -1, -1]):
        schedule = with_favourites(problem, tasks_of(problem), favourite)
        assert schedule.start.tolist() == [0.0, 2.5, 0.0, 3.0, 2.0]


def test_an_urgent_op_goes_before_the_child_that_is_waited_for() -> None:
    # When op 0 is done, its favourite child could start on its device; so could op 2, anywhere.
    graph = op_graph(3, [(0, 1)])
    problem = problem_of(graph, cluster(["k80"]), np.array([[1.0], [1.0], [0.5]]))
    tasks = tasks_of(problem)
    assert with_favourites(problem, tasks, [-1] * 3).start.tolist() == [0.0, 1.0, 2.0]
    assert with_favourites(problem, tasks, [1, -1, -1]).start.tolist() == [0.0, 1.5, 1.0]
