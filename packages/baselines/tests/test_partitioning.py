import itertools
import multiprocessing
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from baseline_problems import cluster, op_graph, problem_of, slow_on_the_cpu, two_chains
from placeto_baselines import BaselineError, MetisPlacer, ScotchPlacer
from placeto_baselines.devices import speeds
from placeto_baselines.partitioning import (
    TOTAL_TRAFFIC,
    TOTAL_WORK,
    WeightedGraph,
    architecture_file,
    metis_parts,
    scotch_map,
    weighted_graph,
    whole_distances,
    whole_speeds,
)
from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    GroupGraph,
    Grouping,
    PlacementProblem,
)
from plain_evaluator import PlainEvaluator

PLACERS = [ScotchPlacer, MetisPlacer]


def cliques(count: int, size: int, links: list[tuple[int, int]]) -> GroupGraph:
    """Return cliques of nodes of a second each, and links between single nodes of theirs."""
    edges = [
        (size * clique + first, size * clique + second)
        for clique in range(count)
        for first, second in itertools.combinations(range(size), 2)
    ]
    edges = sorted([*edges, *links])
    return GroupGraph(
        compute_time=np.ones((count * size, 2)),
        output_bytes=np.zeros(count * size, np.int64),
        parameter_bytes=np.zeros(count * size, np.int64),
        edges=np.array(edges, np.int32),
        edge_bytes=np.full(len(edges), 1000),
    )


def two_cliques(tensor_bytes: int = 1, seconds: float = 1.0) -> PlacementProblem:
    """Return two cliques of five ops, joined by one edge, on two GPUs."""
    graph = cliques(2, 5, [(4, 5)])
    return problem_of(
        op_graph(10, list(map(tuple, graph.edges)), tensor_bytes=np.full(10, tensor_bytes)),
        cluster(["k80", "k80"]),
        np.full((10, 2), seconds),
    )


def assert_cliques_are_apart(placement: NDArray[np.int32]) -> None:
    assert len(set(placement[:5])) == len(set(placement[5:])) == 1
    assert placement[0] != placement[9]


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("tensor_bytes", "seconds"), [(1, 1.0), (10**15, 1e-9), (0, 1e9), (3, 1e-300)]
)
def test_the_one_edge_between_two_cliques_is_cut(
    placer: Any, seed: int, tensor_bytes: int, seconds: float
) -> None:
    problem = two_cliques(tensor_bytes, seconds)
    result = placer().place(problem, PlainEvaluator(problem), seed=seed)
    assert_cliques_are_apart(result.placement)


@pytest.mark.parametrize("placer", PLACERS)
def test_ops_vote_for_their_groups(placer: Any) -> None:
    ops = two_cliques()
    problem = PlacementProblem(
        graph=ops.graph,
        cluster=ops.cluster,
        compute_time=ops.compute_time,
        # The third group has two ops of the first clique and one of the second.
        grouping=Grouping(
            group_of=np.array([0, 0, 0, 2, 2, 2, 1, 1, 1, 1], np.int32), group_names=("a", "b", "c")
        ),
    )
    placement = placer(nodes="ops").place(problem, PlainEvaluator(problem)).placement
    assert placement[0] == placement[2] != placement[1]


@pytest.mark.parametrize("placer", PLACERS)
def test_a_faster_device_gets_more_work(placer: Any) -> None:
    problem = problem_of(op_graph(40, []), cluster(["k80", "v100"]), np.tile([3.0, 1.0], (40, 1)))
    placement = placer().place(problem, PlainEvaluator(problem)).placement
    assert np.bincount(placement).tolist() == pytest.approx([10, 30], abs=1)


@pytest.mark.parametrize("placer", PLACERS)
def test_the_imbalance_is_kept(placer: Any) -> None:
    generator = np.random.default_rng(0)
    edges = sorted({(int(a), int(b)) for a, b in generator.integers(0, 200, (600, 2)) if a < b})
    problem = problem_of(
        op_graph(200, edges, tensor_bytes=generator.integers(1, 1000, 200)),
        cluster(["k80"] * 4),
        np.tile(generator.random((200, 1)), (1, 4)),
    )
    work = problem.compute_time[:, 0]
    largest = []
    for imbalance in (0.02, 0.3):
        placement = placer(imbalance=imbalance).place(problem, PlainEvaluator(problem)).placement
        loads = np.bincount(placement, work, minlength=4)
        assert loads.max() <= work.sum() / 4 * (1 + imbalance) + work.max()
        largest.append(loads.max())
    assert largest[0] < largest[1]


@pytest.mark.parametrize("placer", PLACERS)
def test_cpus_get_work_only_on_demand(placer: Any) -> None:
    problem = problem_of(op_graph(30, []), cluster(["cpu", "k80", "k80"]), np.ones((30, 3)))
    used = set(placer().place(problem, PlainEvaluator(problem)).placement)
    assert used == {1, 2}
    everywhere = placer(only_accelerators=False).place(problem, PlainEvaluator(problem))
    assert set(everywhere.placement) == {0, 1, 2}


@pytest.mark.parametrize("nodes", ["groups", "ops"])
@pytest.mark.parametrize("placer", PLACERS)
def test_a_cpu_without_a_part_does_not_weigh(placer: Any, nodes: str) -> None:
    problem = slow_on_the_cpu([1.0] * 8, slow=7)
    result = placer(nodes=nodes).place(problem, PlainEvaluator(problem))
    assert np.bincount(result.placement).tolist() == [0, 4, 4]


def test_a_slow_device_that_gets_little_weighs_little() -> None:
    # The V100s are ten times as fast as the CPU, but for one op, where they are sixty times.
    seconds = np.tile([10.0, 1.0, 1.0], (12, 1))
    seconds[0, 0] = 60.0
    graph = weighted_graph(graph_of(seconds, [], []))
    assert graph.work[0] / graph.work[1] == pytest.approx(1.1, abs=0.1)
    exact = weighted_graph(graph_of(np.outer([1.0, 3.0], [10.0, 1.0, 1.0]), [], []))
    assert exact.work.tolist() == [TOTAL_WORK // 4, TOTAL_WORK // 4 * 3]


def test_scotch_keeps_traffic_off_slow_links() -> None:
    # Two pairs of GPUs, a fast link within a pair. Four cliques in a ring, with one edge between
    # neighbours in it, two of them heavy: those pairs of cliques belong on a pair of GPUs.
    graph = cliques(4, 6, [(5, 6), (11, 12), (17, 18), (0, 23)])
    heavy = {(5, 6), (17, 18)}
    edge_bytes = [50_000 if tuple(edge) in heavy else 10_000 for edge in graph.edges.tolist()]
    heavier = GroupGraph(
        compute_time=graph.compute_time,
        output_bytes=graph.output_bytes,
        parameter_bytes=graph.parameter_bytes,
        edges=graph.edges,
        edge_bytes=np.array(edge_bytes),
    )
    near = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    on = Cluster(
        devices=cluster(["k80"] * 4).devices,
        bandwidth=np.where(near, 100.0, 1.0),
        latency=np.zeros((4, 4)),
    )
    distances = whole_distances(on, np.arange(4), tensor_bytes=1.0)
    assert distances[0].tolist() == [1, 100, 10_000, 10_000]
    for seed in range(5):
        parts = scotch_map(weighted_graph(heavier), np.ones(4, int), distances, 0.01, seed)
        assert {frozenset(parts[:12] // 2), frozenset(parts[12:] // 2)} == {
            frozenset({0}),
            frozenset({1}),
        }


def test_the_architecture_file_by_hand() -> None:
    distances = np.array([[1, 2, 3], [2, 1, 4], [3, 4, 1]])
    assert architecture_file(np.array([7, 8, 9]), distances) == (
        "deco\n0\n3 5\n0 7 4\n1 8 5\n2 9 3\n2\n3 4\n"
    )


def test_speeds_and_distances_are_whole_numbers() -> None:
    seconds = np.array([[4.0, 1.0, 2.0], [4.0, 1.0, 2.0], [np.inf, 9.0, 1.0]])
    assert whole_speeds(speeds(seconds)).tolist() == [250, 1000, 500]
    assert whole_speeds(speeds(np.ones((2, 3)))).tolist() == [1, 1, 1]
    assert whole_speeds(speeds(np.zeros((2, 3)))).tolist() == [1, 1, 1]
    assert whole_distances(cluster(["k80"] * 2), np.arange(2), 5.0).tolist() == [[1, 1], [1, 1]]
    assert whole_distances(cluster(["k80"]), np.arange(1), 5.0).tolist() == [[1]]
    latency = np.array([[0.0, 1.0, 3.0], [3.0, 0.0, 1.0], [5.0, 3.0, 0.0]])
    on = replace(cluster(["k80"] * 3, bandwidth=np.inf), latency=latency)
    assert whole_distances(on, np.arange(3), 1.0)[0].tolist() == [1, 100, 200]  # the mean of both


def graph_of(compute_time: Any, edges: list[tuple[int, int]], edge_bytes: list[int]) -> GroupGraph:
    count = len(compute_time)
    return GroupGraph(
        compute_time=compute_time,
        output_bytes=np.zeros(count, np.int64),
        parameter_bytes=np.zeros(count, np.int64),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        edge_bytes=np.array(edge_bytes, np.int64),
    )


def test_weights_are_exact_where_they_can_be_and_never_overflow() -> None:
    small = weighted_graph(graph_of([[1.0], [3.0], [0.0]], [(0, 1), (1, 2)], [12345, 0]))
    assert small.offsets.tolist() == [0, 1, 3, 4]
    assert small.neighbours.tolist() == [1, 0, 2, 1]
    assert small.work.tolist() == [TOTAL_WORK // 4, TOTAL_WORK // 4 * 3, 0]
    assert small.traffic.tolist() == [12345, 12345, 1, 1]
    large = weighted_graph(graph_of([[1e300], [1e300], [1e290]], [(0, 1), (1, 2)], [2**61, 2**61]))
    assert large.work.tolist() == [TOTAL_WORK // 2, TOTAL_WORK // 2, 0]
    assert large.traffic.tolist() == [TOTAL_TRAFFIC // 2] * 4
    alone = weighted_graph(graph_of([[0.0], [0.0]], [], []))
    assert alone.work.tolist() == [TOTAL_WORK // 2] * 2


def mapped_by_scotch(seed: int) -> list[int]:
    generator = np.random.default_rng(0)
    edges = sorted({(int(a), int(b)) for a, b in generator.integers(0, 800, (2400, 2)) if a < b})
    sizes = generator.integers(1, 10**6, len(edges)).tolist()
    graph = weighted_graph(graph_of(generator.random((800, 1)), edges, sizes))
    parts = scotch_map(graph, np.ones(4, int), np.ones((4, 4), int), 0.05, seed)
    return [int(part) for part in parts]


def test_a_seed_gives_one_mapping_in_every_process() -> None:
    here = mapped_by_scotch(3)
    assert mapped_by_scotch(3) == here
    with multiprocessing.get_context("spawn").Pool(1) as other:
        assert other.apply(mapped_by_scotch, (3,)) == here
    assert len({tuple(mapped_by_scotch(seed)) for seed in range(6)}) > 1


class RuntimesSeen(PlainEvaluator):
    """Keeps the runtime of everything that was evaluated, in order."""

    def __init__(self, problem: PlacementProblem) -> None:
        super().__init__(problem)
        self.runtimes: list[float] = []

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        batch = super().evaluate(placements)
        self.runtimes += batch.runtime.tolist()
        return batch


def test_scotch_keeps_the_better_of_its_two_strategies() -> None:
    generator = np.random.default_rng(0)
    edges = sorted({(int(a), int(b)) for a, b in generator.integers(0, 300, (900, 2)) if a < b})
    graph = op_graph(300, edges, tensor_bytes=generator.integers(1, 10**6, 300))
    on = cluster(["k80"] * 4, bandwidth=1e8)
    problem = problem_of(graph, on, np.tile(generator.random((300, 1)), (1, 4)))
    differ = set()
    for seed in range(4):
        seen = RuntimesSeen(problem)
        result = ScotchPlacer().place(problem, seen, seed=seed)
        assert len(seen.runtimes) == result.evaluations == 2
        assert result.runtime == min(seen.runtimes)
        differ.add(np.sign(seen.runtimes[1] - seen.runtimes[0]))
    assert {-1.0, 1.0} <= differ  # neither strategy is always the better one


def test_metis_does_not_cut_fewer_nodes_than_devices() -> None:
    graph = WeightedGraph(*(np.array(row) for row in ([0, 0, 0], [], [1, 1], [])))
    assert metis_parts(graph, np.array([0.2, 0.5, 0.3]), 0.05, 0).tolist() == [1, 2]


@pytest.mark.parametrize("placer", [ScotchPlacer(), MetisPlacer()])
def test_a_missing_library_is_named_with_its_extra(
    placer: ScotchPlacer | MetisPlacer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"py{placer.name}"
    message = f"{module} is not installed: pip install 'placeto-baselines[{placer.name}]'"
    monkeypatch.setitem(sys.modules, module, None)
    problem = two_chains()
    with pytest.raises(BaselineError, match=f"^{re.escape(message)}$"):
        placer.place(problem, PlainEvaluator(problem))


@pytest.mark.parametrize("placer", PLACERS)
def test_a_wrong_setting_is_named(placer: Any) -> None:
    with pytest.raises(BaselineError, match="imbalance: expected at least 0"):
        placer(imbalance=-0.1)
    with pytest.raises(BaselineError, match="nodes: expected 'groups' or 'ops', got 'layers'"):
        placer(nodes="layers")
