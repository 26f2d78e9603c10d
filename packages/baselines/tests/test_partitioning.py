import ctypes
import itertools
import multiprocessing
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baseline_problems import cluster, gpus, op_graph, problem_of, slow_on_the_cpu, two_chains
from placeto_baselines import BaselineError, MetisPlacer, ScotchPlacer
from placeto_baselines.devices import speeds
from placeto_baselines.partitioning import (
    TOTAL_TRAFFIC,
    TOTAL_WORK,
    architecture_file,
    scotch_map,
    weighted_graph,
    whole_distances,
    whole_speeds,
)
from placeto_graphs import GroupGraph, Grouping, PlacementProblem
from plain_evaluator import PlainEvaluator

Edges = list[tuple[int, int]]
both_placers = pytest.mark.parametrize("placer", [ScotchPlacer, MetisPlacer])


def graph_of(compute_time: Any, edges: Edges, edge_bytes: list[int]) -> GroupGraph:
    zeros = np.zeros(len(compute_time), np.int64)
    return GroupGraph(
        compute_time=compute_time,
        output_bytes=zeros,
        parameter_bytes=zeros,
        edges=np.array(edges, np.int32).reshape(-1, 2),
        edge_bytes=np.array(edge_bytes, np.int64),
    )


def cliques(count: int, size: int, links: Edges) -> Edges:
    """Return the edges of cliques of nodes, and links between single nodes of theirs."""
    inside = [
        (size * clique + first, size * clique + second)
        for clique in range(count)
        for first, second in itertools.combinations(range(size), 2)
    ]
    return sorted([*inside, *links])


def random_edges(count: int) -> Edges:
    pairs = np.random.default_rng(0).integers(0, count, (3 * count, 2)).tolist()
    return sorted({(first, second) for first, second in pairs if first < second})


def two_cliques(tensor_bytes: int = 1, seconds: float = 1.0) -> PlacementProblem:
    """Return two cliques of five ops, joined by one edge, on two GPUs."""
    return gpus([seconds] * 10, cliques(2, 5, [(4, 5)]), tensor_bytes=[tensor_bytes] * 10)


def placed(placer: Any, problem: PlacementProblem, seed: int = 0) -> list[int]:
    placement: list[int] = placer.place(problem, PlainEvaluator(problem), seed=seed).placement
    return placement


@both_placers
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("tensor_bytes", "seconds"), [(1, 1.0), (10**15, 1e-9), (0, 1e9), (3, 1e-300)]
)
def test_the_one_edge_between_two_cliques_is_cut(
    placer: Any, seed: int, tensor_bytes: int, seconds: float
) -> None:
    placement = placed(placer(), two_cliques(tensor_bytes, seconds), seed)
    assert len(set(placement[:5])) == len(set(placement[5:])) == 1
    assert placement[0] != placement[9]


@both_placers
def test_ops_vote_for_their_groups(placer: Any) -> None:
    # The third group has two ops of the first clique and one of the second.
    group_of = np.array([0, 0, 0, 2, 2, 2, 1, 1, 1, 1], np.int32)
    grouping = Grouping(group_of=group_of, group_names=("a", "b", "c"))
    placement = placed(placer(nodes="ops"), replace(two_cliques(), grouping=grouping))
    assert placement[0] == placement[2] != placement[1]


@both_placers
def test_a_faster_device_gets_more_work(placer: Any) -> None:
    problem = gpus([[3, 1]] * 40)
    assert np.bincount(placed(placer(), problem)).tolist() == pytest.approx([10, 30], abs=1)


@both_placers
def test_the_imbalance_is_kept(placer: Any) -> None:
    generator = np.random.default_rng(1)
    sizes, work = generator.integers(1, 1000, 200), generator.random(200)
    problem = gpus(work, random_edges(200), count=4, tensor_bytes=sizes)
    largest = []
    for imbalance in (0.02, 0.3):
        loads = np.bincount(placed(placer(imbalance=imbalance), problem), work, minlength=4)
        assert loads.max() <= work.sum() / 4 * (1 + imbalance) + work.max()
        largest.append(loads.max())
    assert largest[0] < largest[1]


@both_placers
def test_cpus_get_work_only_on_demand_and_do_not_weigh_without_a_part(placer: Any) -> None:
    problem = problem_of(op_graph(30, []), cluster(["cpu", "k80", "k80"]), np.ones((30, 3)))
    assert set(placed(placer(), problem)) == {1, 2}
    assert set(placed(placer(only_accelerators=False), problem)) == {0, 1, 2}
    for nodes in ("groups", "ops"):
        slow = slow_on_the_cpu([1.0] * 8, slow=7)
        assert np.bincount(placed(placer(nodes=nodes), slow)).tolist() == [0, 4, 4]


def test_a_slow_device_that_gets_little_weighs_little() -> None:
    # The V100s are ten times as fast as the CPU, but for one op, where they are sixty times.
    seconds = np.tile([10.0, 1.0, 1.0], (12, 1))
    seconds[0, 0] = 60.0
    work = weighted_graph(graph_of(seconds, [], [])).work
    assert work[0] / work[1] == pytest.approx(1.1, abs=0.1)
    exact = weighted_graph(graph_of(np.outer([1.0, 3.0], [10.0, 1.0, 1.0]), [], []))
    assert exact.work.tolist() == [TOTAL_WORK // 4, TOTAL_WORK // 4 * 3]


def test_scotch_keeps_traffic_off_slow_links() -> None:
    # Two pairs of GPUs, a fast link within a pair. Four cliques in a ring, with one edge between
    # neighbours in it, two of them heavy: those pairs of cliques belong on a pair of GPUs.
    edges = cliques(4, 6, [(5, 6), (11, 12), (17, 18), (0, 23)])
    sizes = [50_000 if edge in {(5, 6), (17, 18)} else 10_000 for edge in edges]
    graph = weighted_graph(graph_of(np.ones((24, 2)), edges, sizes))
    near = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    on = replace(cluster(["k80"] * 4), bandwidth=np.where(near, 100.0, 1.0))
    distances = whole_distances(on, np.arange(4), tensor_bytes=1.0)
    assert distances[0].tolist() == [1, 100, 10_000, 10_000]
    for seed in range(5):
        pairs = scotch_map(graph, np.ones(4, int), distances, 0.01, seed) // 2
        assert pairs[:12].tolist() == [pairs[0]] * 12
        assert pairs[12:].tolist() == [1 - pairs[0]] * 12


def test_the_architecture_file_by_hand() -> None:
    distances = np.array([[1, 2, 3], [2, 1, 4], [3, 4, 1]])
    assert architecture_file(np.array([7, 8, 9]), distances) == (
        "deco\n0\n3 5\n0 7 4\n1 8 5\n2 9 3\n2\n3 4\n"
    )


def test_speeds_and_distances_are_whole_numbers() -> None:
    seconds = np.array([[4.0, 1.0, 2.0], [4.0, 1.0, 2.0], [np.inf, 9.0, 1.0]])
    assert whole_speeds(speeds(seconds)).tolist() == [250, 1000, 500]
    for equal in (np.ones((2, 3)), np.zeros((2, 3))):
        assert whole_speeds(speeds(equal)).tolist() == [1, 1, 1]
    for count in (1, 2):
        on = cluster(["k80"] * count)
        assert whole_distances(on, np.arange(count), 5.0).tolist() == np.ones((count,) * 2).tolist()
    latency = np.array([[0.0, 1.0, 3.0], [3.0, 0.0, 1.0], [5.0, 3.0, 0.0]])
    on = replace(cluster(["k80"] * 3, bandwidth=np.inf), latency=latency)
    assert whole_distances(on, np.arange(3), 1.0)[0].tolist() == [1, 100, 200]  # the mean of both


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
    generator, edges = np.random.default_rng(0), random_edges(800)
    sizes = generator.integers(1, 10**6, len(edges)).tolist()
    graph = weighted_graph(graph_of(generator.random((800, 1)), edges, sizes))
    mapping: list[int] = scotch_map(
        graph, np.ones(4, int), np.ones((4, 4), int), 0.05, seed
    ).tolist()
    return mapping


def test_a_seed_gives_one_mapping_in_every_process() -> None:
    mapping = mapped_by_scotch(3)
    assert mapped_by_scotch(3) == mapping
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(mapped_by_scotch, (3,)) == mapping
    assert len({tuple(mapped_by_scotch(seed)) for seed in range(6)}) > 1


def test_scotch_keeps_the_better_of_its_two_strategies() -> None:
    generator = np.random.default_rng(1)
    sizes, work = generator.integers(1, 10**6, 300), generator.random(300)
    problem = gpus(work, random_edges(300), count=4, bandwidth=1e8, tensor_bytes=sizes)
    differ = set()
    for seed in range(4):
        evaluator = PlainEvaluator(problem)
        result = ScotchPlacer().place(problem, evaluator, seed=seed)
        default, quality = (runtime for runtime, _ in evaluator.known.values())
        assert result.evaluations == 2
        assert result.runtime == min(default, quality)
        differ.add(np.sign(quality - default))
    assert {-1.0, 1.0} <= differ  # neither strategy is always the better one


def test_metis_does_not_cut_fewer_nodes_than_devices() -> None:
    assert list(placed(MetisPlacer(), gpus([[5, 2, 10 / 3]] * 2))) == [1, 2]


def test_metis_prints_nothing_about_devices_that_get_no_node(
    capfd: pytest.CaptureFixture[str],
) -> None:
    edges = [(node, node + 1) for node in range(7)]
    placed(MetisPlacer(), gpus([1000.0] + [1.0] * 7, edges, count=4))
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


@both_placers
def test_a_missing_library_is_named_with_its_extra(
    placer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"py{placer.name}"
    message = f"{module} is not installed: pip install 'placeto-baselines[{placer.name}]'"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BaselineError, match=f"^{re.escape(message)}$"):
        placed(placer(), two_chains())


@both_placers
def test_a_wrong_setting_is_named(placer: Any) -> None:
    with pytest.raises(BaselineError, match="imbalance: expected at least 0"):
        placer(imbalance=-0.1)
    with pytest.raises(BaselineError, match="nodes: expected 'groups' or 'ops', got 'layers'"):
        placer(nodes="layers")
