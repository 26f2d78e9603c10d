"""Bounds of the runtime and of memory: by hand, and against all placements of small problems."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from baseline_problems import cluster, gpus, op_graph, problem_of, random_problems
from placeto_baselines import BaselineError, bound_parts, least_excess, lower_bound
from placeto_baselines.bounds.fork_join import (
    LARGEST_REGION,
    LEVELS,
    Lags,
    RelaxedOps,
    region_lags,
    relax_ops,
)
from placeto_baselines.bounds.memory import most_held
from placeto_baselines.bounds.work import longest_paths, work_programme
from placeto_baselines.search.local_search import all_placements
from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    OpGraph,
    PlacementProblem,
    grouping_of_labels,
    memory_penalised_runtime,
    micro_batched_problem,
    parse_cluster,
)
from placeto_simulator import Simulator
from plain_evaluator import PlainEvaluator

N = np.inf  # seconds where an op cannot run


def evaluated(evaluator: Evaluator) -> EvaluationBatch:
    """Return the costs of all placements."""
    return evaluator.evaluate(np.concatenate(list(all_placements(evaluator.problem))))


def best_cost(problem: PlacementProblem, scale: float = 2e-9) -> float:
    """Return the lowest memory-penalised runtime of all placements."""
    batch = evaluated(PlainEvaluator(problem))
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes, scale).min())


def least_penalty(problem: PlacementProblem, batch: EvaluationBatch | None = None) -> int:
    """Return the fewest bytes by which any placement exceeds a memory."""
    peaks = (batch or evaluated(PlainEvaluator(problem))).peak_memory
    return int((peaks - problem.cluster.memory_bytes).max(axis=1).clip(min=0).min())


def fork_and_join(branches: int, seconds: float, size: int) -> PlacementProblem:
    """Return one op, branches of one op, and one op that joins them, on two devices."""
    join = branches + 1
    edges = [(0, op) for op in range(1, join)] + [(op, join) for op in range(1, join)]
    return gpus([1.0, *[seconds] * branches, 1.0], edges, tensor_bytes=[size] * (join + 1))


FORK, MANY = [(0, 1), (0, 2), (0, 3)], [(0, op) for op in range(1, 13)]
THREE: dict[str, Any] = {"size": 0, "count": 3}
OPPOSITE = gpus([[1, N], [N, 1], [N, 1], [1, N]], [(0, 1), (2, 3)], tensor_bytes=[5, 1, 5, 1])
ONE_BUS: dict[str, Any] = {"link": np.array([[-1, 0], [0, -1]], np.int32), "link_names": ("bus",)}
IN_A_ROW: dict[str, Any] = {"waits": [[1, 0], [2, 1]], "overhead": 0.25, "bandwidth": 1e-3}
GIGABYTE = 10**9
LARGE: dict[str, Any] = {"parameter_bytes": [GIGABYTE] * 2, "memory": GIGABYTE * 3 // 2}
HELD_ONCE: dict[str, Any] = {"workspace_bytes": [0, GIGABYTE], "tensor_bytes": [GIGABYTE, 0]}
HELD_ONCE["bandwidth"] = 1e30
BY_HAND: dict[str, tuple[PlacementProblem, str, float, float]] = {
    "eight ops on the fast device, two on the other": (gpus([[1, 4]] * 10), "work", 8, 8),
    "overheads between ops, but not the last": (gpus([1] * 3, count=1, overhead=0.5), "work", 4, 4),
    "a path that must change devices": (
        gpus([[1, N], [N, 2], [3, N]], [(0, 1), (1, 2)], tensor_bytes=[5, 7, 1]),
        *("path", 1 + 5 + 2 + 7 + 3, 18),
    ),
    "ops of a group on one device, though each is faster on another": (
        gpus([[1, 3], [3, 1]] * 2, [(0, 1), (1, 2), (2, 3)], size=0, groups=[0] * 4),
        *("path", 8, 8),
    ),
    "transfers in opposite directions": (OPPOSITE, "path", 1 + 5 + 1, 7),
    "transfers in opposite directions that share a link": (
        replace(OPPOSITE, cluster=replace(OPPOSITE.cluster, **ONE_BUS)),
        *("path", 1 + 5 + 1, 1 + 5 + 5 + 1),
    ),
    "waits between devices": (gpus([[1, N, N], [N, 2, N], [N, N, 3]], **IN_A_ROW), "path", 6, 6),
    "waits on one device, with overheads": (gpus([1, 2, 3], count=1, **IN_A_ROW), "path", 6.5, 6.5),
    "parts that only wait": (gpus([1, 1], waits=[[1, 0]], bandwidth=1e-9, **LARGE), "split", 2, 2),
    # Together half a gigabyte too much, or 3 s of transfer.
    "scarce memory": (gpus([1, 1], [(0, 1)], tensor_bytes=[3, 1], **LARGE), "split", 3, 3),
    "memory that nothing saves": (gpus([1, 1], [(0, 1)], **HELD_ONCE), "path", 4, 4),
    # Three branches of 2 s: one after the other, as a transfer there and back takes 10 s.
    "branches on one device": (fork_and_join(3, 2, 5), "fork-join", 1 + 6 + 1, 8),
    # Four branches of 5 s; a transfer takes 1 s of both devices, or 2 s of one: (20 + 2) / 2.
    "branches on two devices": (fork_and_join(4, 5, 1), "fork-join", 1 + 11 + 1, 13),
    # Two branches, together (10 + 4) / 2 s on the devices of the fork and of the join.
    "branches with the fork and the join": (fork_and_join(2, 5, 2), "fork-join", 1 + 5 + 2 + 1, 9),
    # Two devices work for 8 s, but no sooner than after 4 s.
    "a long fork": (gpus([4, 1, 1, 1, 1], [*FORK, (0, 4)], size=0), "fork-join", 6, 6),
    "branches on devices of their own": (gpus([1] * 4, FORK, **THREE), "fork-join", 2, 2),
    "branches of one group": (gpus([1] * 4, FORK, groups=[0, 1, 1, 1], **THREE), "fork-join", 4, 4),
    "two of twelve on a slow device": (gpus([[1, 5]] * 13, MANY, size=0), "fork-join", 11, 11),
    "a region of ops that only wait needs no transfer": (
        gpus(
            [1, 5, 5, 5, 5, 1],
            waits=[(op, 0) for op in range(1, 5)] + [(5, op) for op in range(1, 5)],
            bandwidth=1e-3,
        ),
        *("fork-join", 12, 12),
    ),
    # After each op its device rests for 2 s; transfers take no time.
    "there and back": (gpus([1] * 3, [(0, 1), (1, 2)], size=0, overhead=2.0), "fork-join", 3, 4),
}


@pytest.mark.parametrize(("problem", "bound_name", "bound", "best"), BY_HAND.values(), ids=BY_HAND)
def test_a_bound_by_hand(
    problem: PlacementProblem, bound_name: str, bound: float, best: float
) -> None:
    assert bound_parts(problem)[bound_name] == pytest.approx(bound)
    assert lower_bound(problem) <= best
    if problem.num_groups < 12:
        assert best_cost(problem) == pytest.approx(best)


def test_a_scale_may_be_any_number_that_is_not_negative() -> None:
    problem = BY_HAND["scarce memory"][0]
    assert lower_bound(problem, scale=1e-6) == pytest.approx(5.0)
    for scale in (-1.0, np.inf, np.nan):
        message = f"scale: expected a number >= 0, got {scale}"
        with pytest.raises(BaselineError, match=re.escape(message)):
            lower_bound(problem, scale=scale)


@pytest.mark.parametrize("edges", [[], [(0, 2), (1, 3)]])
def test_a_graph_without_costs_is_bounded_by_nothing(edges: list[tuple[int, int]]) -> None:
    assert lower_bound(gpus([0] * 4, edges, size=0)) == 0.0


@pytest.mark.parametrize("overhead", [5e-324, 1e-310, 1e-30, 1e200])
def test_times_of_any_size_have_a_bound(overhead: float) -> None:
    for seconds in (0.0, 5e-324, 1.0):
        problem = gpus([seconds], overhead=overhead, parameter_bytes=[100], memory=50)
        assert lower_bound(problem, scale=1.0) == pytest.approx(seconds + 50.0)


def parts_of_the_optimum(problems: list[PlacementProblem]) -> NDArray[np.float64]:
    """Return the bounds of problems in parts of their optimum, which they may not pass."""
    fractions = []
    for index, problem in enumerate(problems):
        batch = evaluated(Simulator(problem, num_threads=1))
        scale = (2e-9, 2e-9, 0.0, 1e-6)[index % 4]
        best = memory_penalised_runtime(batch, problem.cluster.memory_bytes, scale).min()
        bound = lower_bound(problem, scale=scale)
        assert bound <= best
        assert least_excess(problem) <= least_penalty(problem, batch)
        fractions.append(bound / best if best else 1.0)
    return np.array(fractions)


@pytest.mark.slow
def test_no_placement_of_many_problems_beats_the_bound() -> None:
    problems = random_problems(600)
    fractions = parts_of_the_optimum(problems)
    # It would be of no use if it were far away: it is the optimum itself for many.
    assert fractions.mean() > 0.8
    assert (fractions > 1 - 1e-8).mean() > 0.3
    steps = [micro_batched_problem(problem, 2) for problem in problems[:100]]
    assert parts_of_the_optimum(steps).mean() > 0.8


def test_any_multipliers_give_a_bound() -> None:
    rng = np.random.default_rng(1)
    for problem in random_problems(40):
        programme = work_programme(problem, longest_paths(problem), scale=2e-9)
        multipliers, best = programme.solver_multipliers(), best_cost(problem)
        solved = programme.bound(*multipliers)
        for _ in range(20):
            noisy = [
                rng.lognormal(0, 2) * values * rng.random(values.shape) for values in multipliers
            ]
            bound = programme.bound(*noisy)
            assert bound <= best * (1 + 1e-9)
            assert bound <= solved + 1e-6 * abs(solved)


@pytest.mark.parametrize("memory", [10**9, 10**12])
def test_sets_of_groups_bound_many_groups_nearly_as_well(memory: int) -> None:
    """Of each speed there is a group; with little memory most of the cost is that of its lack."""
    generator = np.random.default_rng(3)
    graph = op_graph(600, [], parameter_bytes=generator.integers(10**6, 10**8, 600))
    seconds = generator.lognormal(0, 1, (600, 3)) * np.array([4.0, 1.0, 2.0])
    seconds[:50, 1] = np.inf
    problem = problem_of(graph, cluster(["cpu", "k80", "v100"], memory=memory), seconds)
    programme = work_programme(problem, longest_paths(problem), scale=2e-9)
    best = programme.bound(*programme.solver_multipliers())
    of_sets = programme.bound(*programme.multipliers_of_sets(120))
    assert 0.98 * best <= of_sets <= best * (1 + 1e-9)


LAYERS = 4
LOSS, LAST_BACK, FIRST_BACK, WEIGHTS = 4, 5, 8, 9
STEP = np.arange(10) != WEIGHTS  # the ops that take time


def four_layers(workspace: dict[int, int] | None = None, **changes: Any) -> OpGraph:
    """Return four layers of 10 bytes, a loss, backward ops that read layers, and weights of 8."""
    edges = [(layer, layer + 1) for layer in range(LAYERS)]
    edges += [(layer, FIRST_BACK - layer) for layer in range(LAYERS)]
    edges += [(op, op + 1) for op in range(LOSS, FIRST_BACK)] + [(WEIGHTS, 1)]
    sizes = np.array([10] * LAYERS + [2] * 5 + [8])
    return op_graph(
        10,
        edges,
        tensor_bytes=sizes,
        parameter_bytes=np.where(STEP, 0, 8),
        workspace_bytes=np.array([(workspace or {}).get(op, 0) for op in range(10)]),
        **changes,
    )


def placed(graph: OpGraph, memory: int, bandwidth: float = np.inf) -> PlacementProblem:
    """Return the problem of ops of a second each, but weights, on two devices."""
    on = cluster(["k80"] * 2, memory=memory, bandwidth=bandwidth)
    return problem_of(graph, on, np.where(STEP, 1.0, 0.0)[:, None].repeat(2, axis=1))


ALL_HELD = {"held_tensors": np.array([0, 1, 2, 3, LOSS])}


@pytest.mark.parametrize(
    ("graph", "op", "num_bytes"),
    [
        # When the last layer goes backwards: the layers, 2 bytes of the loss and 2 of its own.
        (four_layers(), LAST_BACK, 4 * 10 + 2 + 2),
        (four_layers({LOSS: 9}), LOSS, 4 * 10 + 2 + 9),
        (four_layers({FIRST_BACK: 9}, **ALL_HELD), FIRST_BACK, 4 * 10 + 2 + 2 + 2 + 9),
        # The third op runs after the first two, but does not wait for them.
        (
            op_graph(
                4,
                [(0, 3), (1, 3)],
                tensor_bytes=np.array([10, 10, 1, 1]),
                workspace_bytes=np.array([0, 0, 5, 0]),
            ),
            *(3, 21),
        ),
    ],
)
def test_the_op_during_which_most_is_held(graph: OpGraph, op: int, num_bytes: int) -> None:
    held_tensors = most_held(graph, STEP[: graph.num_ops])
    assert held_tensors is not None
    assert (held_tensors.op, held_tensors.num_bytes(graph)) == (op, num_bytes)


def test_what_all_devices_lack_together_is_paid_by_the_mean() -> None:
    # With the weights 52 bytes, of which two devices have 40: one lacks 6, after a path of 9 s.
    problem = placed(four_layers(), memory=20)
    assert least_excess(problem) == 6
    assert least_penalty(problem) == 12  # layers that are read on both devices are held on both
    bounds = bound_parts(problem, scale=1.0)
    assert [bounds["path"], bounds["fork-join"]] == pytest.approx([9 + 6, 9 + 6])
    assert bounds["split"] == pytest.approx(2 + 6)  # the first layer goes to its backward op
    assert lower_bound(problem, scale=1.0) == pytest.approx(9 + 6)
    # Half of an odd lack is rounded up, as no device lacks half a byte.
    assert least_excess(placed(four_layers({LAST_BACK: 1}), memory=20)) == 7
    assert least_excess(placed(four_layers(), memory=26)) == 0


def test_one_device_alone_lacks_what_it_holds_at_one_time() -> None:
    # Two devices have enough for 52 bytes, one has not: it lacks 22, or a transfer takes ages.
    problem = placed(four_layers(), memory=30, bandwidth=1e-9)
    assert least_excess(problem) == 0
    assert bound_parts(problem, scale=1.0)["split"] == pytest.approx(9 + 22)
    assert best_cost(problem, 1.0) == 31.0


def test_a_part_holds_no_tensors_of_others() -> None:
    # The second op runs while the first one's ten bytes are held, on the other device.
    waits = [[1, 0], [2, 1]]
    problem = gpus([1] * 3, [(0, 2)], tensor_bytes=[10, 5, 0], waits=waits, memory=10)
    problem = replace(problem, cluster=cluster(["k80"] * 2, memory=10, bandwidth=1e-9))
    held_tensors = most_held(problem.graph, np.ones(3, bool))
    assert held_tensors is not None
    assert (held_tensors.op, held_tensors.num_bytes(problem.graph)) == (1, 15)
    assert best_cost(problem, 1.0) == 3.0
    assert lower_bound(problem, scale=1.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "lacks"),
    [
        ([[1, 1], [1, 0], [1, 1]], 0),  # the middle one takes no time on one device
        ([[1, 1], [1e-20, 1e-20], [1, 1]], 0),  # 1 + 1e-20 is 1 in float64
        ([[1, 1], [1e-9, 1e-9], [1, 1]], 50),
    ],
)
def test_an_op_that_may_take_no_time_holds_nothing(seconds: Any, lacks: int) -> None:
    edges, workspace = [(0, 1), (0, 2), (1, 2)], [0, 50, 0]
    problem = gpus(
        seconds,
        edges,
        tensor_bytes=[10, 10, 0],
        workspace_bytes=workspace,
        memory=20,
        bandwidth=np.inf,
    )
    assert least_excess(problem) == least_penalty(problem) == lacks


def test_ops_without_time_hold_nothing() -> None:
    graph = four_layers()
    assert most_held(graph, np.zeros(10, bool)) is None
    problem = problem_of(graph, cluster(["k80"] * 2, memory=1), np.zeros((10, 2)))
    assert least_excess(problem) == 7  # of the weights, which are on one device


def lags_of(problem: PlacementProblem, band: int = 3) -> tuple[RelaxedOps, Lags]:
    ops = relax_ops(problem, longest_paths(problem))
    return ops, region_lags(ops, band, LARGEST_REGION, LEVELS)


def plain_ends(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[V, D], the earliest end of each op, one pair of devices after the other."""
    graph, links, group_of = problem.graph, problem.cluster, problem.grouping.group_of
    devices = range(problem.num_devices)
    runs = np.isfinite(problem.group_graph.compute_time)[group_of]
    end = np.where(runs, problem.compute_time, N)
    for op in graph.topological_order.tolist():
        tensors = graph.edges[graph.edges[:, 1] == op, 0]
        for device in devices:
            starts = [0.0]
            for maker, size in zip(
                graph.tensor_producer[tensors], graph.tensor_bytes[tensors], strict=True
            ):
                rest = links.devices[device].op_overhead * (problem.compute_time[maker, device] > 0)
                others = [source for source in devices if source != device]
                starts.append(
                    min(
                        end[maker, device] + rest,
                        *(
                            end[maker, source]
                            + links.latency[source, device]
                            + size / links.bandwidth[source, device]
                            for source in others * bool(group_of[maker] != group_of[op])
                        ),
                        N,
                    )
                )
            end[op, device] += max(starts)
    return end


def plain_tails(problem: PlacementProblem) -> NDArray[np.float64]:
    """Return float64[V, D], what follows after each op, one pair of devices after the other."""
    graph, links, group_of = problem.graph, problem.cluster, problem.grouping.group_of
    devices = range(problem.num_devices)
    runs = np.isfinite(problem.group_graph.compute_time)[group_of]
    seconds = np.where(runs, problem.compute_time, N)
    tail = np.where(runs, 0.0, N)
    for op in reversed(graph.topological_order.tolist()):
        for tensor, reader in graph.edges.tolist():
            if graph.tensor_producer[tensor] != op:
                continue
            for device in devices:
                rest = links.devices[device].op_overhead * (problem.compute_time[op, device] > 0)
                follows = [
                    seconds[reader, target]
                    + tail[reader, target]
                    + (
                        rest
                        if target == device
                        else links.latency[device, target]
                        + graph.tensor_bytes[tensor] / links.bandwidth[device, target]
                    )
                    for target in devices
                    if target == device or group_of[reader] != group_of[op]
                ]
                tail[op, device] = max(tail[op, device], min(follows))
    return tail


@pytest.mark.parametrize("spec", ["2x(3xk80)", "2xk80+2xv100", "1xcpu+3xk80"])
def test_longest_paths_are_those_over_all_pairs_of_devices(spec: str) -> None:
    generator = np.random.default_rng(0)
    links, kinds = parse_cluster(spec), {"k80": 2.0, "v100": 1.0, "cpu": 9.0}
    readers = np.repeat(np.arange(1, 30), 2)
    edges = np.unique(np.stack([generator.integers(0, readers), readers], 1), axis=0).tolist()
    sizes = generator.integers(0, 10**6, 30)
    graph = op_graph(30, edges, tensor_bytes=sizes)
    speed = np.array([kinds[device.kind] for device in links.devices])
    problem = replace(
        problem_of(graph, links, generator.choice([0.0, 1e-5, 1e-4], (30, 1)) * speed),
        grouping=grouping_of_labels(graph, generator.integers(0, 20, 30)),
    )
    paths = longest_paths(problem)
    assert paths.end == pytest.approx(plain_ends(problem))
    assert paths.tail == pytest.approx(plain_tails(problem))


def test_ops_that_take_no_time_come_after_those_that_they_read() -> None:
    ops, _ = lags_of(gpus([0] * 3, [(2, 1), (1, 0)], groups=[0, 1, 2]))
    assert ops.offsets.tolist() == [0, 0, 1, 2]
    assert ops.producers.tolist() == [0, 1]
    assert ops.group.tolist() == [2, 1, 0]


def test_lags_tell_one_device_from_two() -> None:
    chain: dict[str, Any] = {"edges": [(0, 1), (1, 2)], "tensor_bytes": [4, 7, 1]}
    _, lags = lags_of(gpus([1] * 3, overhead=0.5, **chain))
    assert lags.together[0, 1:].tolist() == [0.5, 0.5 + 1 + 0.5]
    assert lags.apart[0, 1:].tolist() == [4.0, 4 + 1 + 0.5]
    _, of_one_group = lags_of(gpus([1] * 3, overhead=0.5, groups=[0, 1, 0], **chain))
    assert of_one_group.apart[0, 2] == np.inf
    _, free = lags_of(BY_HAND["there and back"][0])
    assert free.together[0, 2] == 1.0
    # Apart, one device is 3 s from the join, and the other 1 s from the fork: (20 + 3 + 1) / 2.
    uneven = fork_and_join(4, 5, 1)
    graph = replace(uneven.graph, tensor_bytes=np.array([1, 3, 3, 3, 3, 0]))
    assert lags_of(replace(uneven, graph=graph), band=6)[1].apart[0, 5] == pytest.approx(12.0)
