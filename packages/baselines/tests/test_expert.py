import re
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baseline_problems import cluster, op_graph, problem_of
from placeto_baselines import BaselineError, ExpertPlacer, ExpertScopes
from placeto_baselines.expert import parallel_branches
from placeto_graphs import Grouping, Phase, PlacementProblem
from plain_evaluator import PlainEvaluator

NMT = ExpertScopes(
    layer=r"(?:encoder|decoder)\.layers\.(\d+)", with_last_layer=r"decoder\.attention|softmax"
)
INCEPTION = ExpertScopes(branch=r"(Mixed_\w+)\.(branch\w+)")


def scoped(scopes: list[str], edges: list[tuple[int, int]], gpus: int) -> PlacementProblem:
    graph = op_graph(len(scopes), edges, scopes=scopes)
    return problem_of(graph, cluster(["cpu"] + ["k80"] * gpus), np.ones((len(scopes), gpus + 1)))


def placed(placer: ExpertPlacer, problem: PlacementProblem) -> list[int]:
    devices: list[int] = placer.place(problem, PlainEvaluator(problem)).placement.tolist()
    return devices


@pytest.mark.parametrize(
    ("gpus", "layers"), [(4, [1, 2, 3, 4]), (6, [1, 2, 3, 4]), (2, [1, 1, 2, 2])]
)
def test_layers_have_devices_of_their_own_or_stay_with_their_neighbours(
    gpus: int, layers: list[int]
) -> None:
    coders = [f"{coder}.layers.{layer}" for coder in ("encoder", "decoder") for layer in range(4)]
    scopes = ["embedding", *coders, "decoder.attention", "softmax", ""]
    expected = [1, *layers, *layers, layers[-1], layers[-1], layers[-1]]
    problem = scoped(scopes, [(op, op + 1) for op in range(11)], gpus)
    assert placed(ExpertPlacer(NMT), problem) == expected


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [101, 102, 103, 104], [0, 2, 4, 60]])
def test_layers_are_counted_in_their_order_wherever_their_numbers_begin(numbers: list[int]) -> None:
    scopes = [f"decoder.layers.{number}" for number in numbers]
    assert NMT.devices([*scopes, "softmax"], 2).tolist() == [0, 0, 1, 1, 1]
    assert NMT.devices([*reversed(scopes), "softmax"], 8).tolist() == [3, 2, 1, 0, 3]


def test_the_branches_of_each_module_go_round_the_devices() -> None:
    scopes = ["stem", "Mixed_5b.branch1x1", "Mixed_5b.branch3x3_1", "Mixed_5b.branch_pool", ""]
    scopes += ["Mixed_5c.branch_pool", "Mixed_5c.branch1x1"]
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (4, 5), (4, 6)]
    devices = placed(ExpertPlacer(INCEPTION), scoped(scopes, edges, gpus=2))
    assert [devices[op] for op in (1, 2, 3, 5, 6)] == [1, 2, 1, 1, 2]
    assert placed(ExpertPlacer(INCEPTION), scoped(scopes, edges, gpus=3))[1:4] == [1, 2, 3]


def test_a_group_goes_with_most_of_its_work() -> None:
    problem = scoped(["Mixed_a.branch1", "Mixed_a.branch2", "Mixed_a.branch2"], [], gpus=2)
    grouping = Grouping(group_of=np.zeros(3, np.int32), group_names=("all",))
    assert placed(ExpertPlacer(INCEPTION), replace(problem, grouping=grouping)) == [2]


@pytest.mark.parametrize("seed", range(40))
def test_groups_join_the_heaviest_neighbour_sweep_by_sweep(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pairs = generator.integers(0, 9, (12, 2)).tolist()
    layers = [0, 1, *generator.integers(0, 6, 7).tolist()]
    edges = sorted({(first, second) for first, second in pairs if first < second})
    tensor_bytes = generator.integers(1, 20, 9)
    scopes = [f"layers.{layer}" if layer < 2 else "" for layer in layers]
    graph = op_graph(9, edges, scopes=scopes, tensor_bytes=tensor_bytes)
    problem = problem_of(graph, cluster(["k80"] * 2), np.ones((9, 2)))
    device_of = {op: layer for op, layer in enumerate(layers) if layer < 2}
    heaviest_first = sorted(edges, key=lambda edge: (-tensor_bytes[edge[0]], edge))
    for _ in layers:
        for first, second in heaviest_first:
            for placed_op, open_op in ((first, second), (second, first)):
                if placed_op in device_of:
                    device_of.setdefault(open_op, device_of[placed_op])
    expected = [device_of.get(op, 0) for op in range(9)]
    placer = ExpertPlacer(ExpertScopes(layer=r"layers\.(\d+)"))
    assert placed(placer, problem) == expected


def test_what_is_not_named_goes_with_the_heaviest_neighbour() -> None:
    graph = op_graph(
        4,
        [(0, 1), (1, 2), (2, 3)],
        scopes=["encoder.layers.0", "", "encoder.layers.1", ""],
        tensor_bytes=np.array([5, 9, 1, 0]),
    )
    problem = problem_of(graph, cluster(["k80", "k80"]), np.ones((4, 2)))
    assert placed(ExpertPlacer(NMT), problem) == [0, 1, 1, 1]


def inception_like(training: bool) -> PlacementProblem:
    """A stem, a module of two branches of two ops each, and a head; each conv has a weight op.

    In training every forward op has a backward op, which reads its output, and the gradients go
    the other way.
    """
    forward = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5), (5, 6)]
    weights = [(7, 1), (8, 2), (9, 3), (10, 4)]
    num_forward = 11
    edges, phases = forward + weights, [Phase.FORWARD] * num_forward
    if training:
        edges += [(op, num_forward + op) for op in range(7)]
        edges += [(num_forward + reader, num_forward + maker) for maker, reader in forward]
        phases += [Phase.BACKWARD] * 7
    graph = op_graph(
        len(phases),
        edges,
        phases=np.array(phases, np.int8),
        tensor_bytes=np.array([100] * 7 + [5] * 4 + [1] * (len(phases) - num_forward)),
    )
    return problem_of(graph, cluster(["k80", "k80"]), np.ones((len(phases), 2)))


@pytest.mark.parametrize("training", [False, True])
def test_forks_and_joins_are_found_without_scopes(training: bool) -> None:
    problem = inception_like(training)
    placement = ExpertPlacer().place(problem, PlainEvaluator(problem)).placement
    devices = problem.expand(placement).tolist()
    assert devices[:7] == [0, 0, 1, 0, 1, 0, 0]
    assert devices[7:11] == [0, 1, 0, 1]
    assert devices[11:] == (devices[:7] if training else [])


def test_a_shortcut_is_no_branch_and_inner_forks_stay_in_theirs() -> None:
    residual = nx.DiGraph([(0, 1), (1, 2), (0, 2)])
    assert parallel_branches(residual) == []
    nested = nx.DiGraph([(0, 1), (0, 5), (1, 2), (1, 3), (2, 4), (3, 4), (4, 6), (5, 6)])
    assert parallel_branches(nested) == [[{1, 2, 3, 4}, {5}]]
    apart = nx.DiGraph([(0, 1), (2, 3)])
    assert parallel_branches(apart) == [[{0, 1}, {2, 3}]]
    assert parallel_branches(nx.DiGraph()) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_branches_are_disjoint_and_no_edge_joins_them(pairs: list[tuple[int, int]]) -> None:
    graph = nx.DiGraph((low, high) for low, high in map(sorted, pairs) if low != high)
    regions = parallel_branches(graph)
    members = [node for branches in regions for branch in branches for node in branch]
    assert len(set(members)) == len(members)
    for branches in regions:
        assert len(branches) > 1
        for branch in branches:
            nodes_of_others = set().union(*branches) - branch
            assert not any(reader in nodes_of_others for node in branch for reader in graph[node])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"branch": "(a"}, "branch: expected a regular expression, got '(a'"),
        ({"branch": "(a)b"}, "branch: expected 2 groups in '(a)b', got 1"),
        ({"layer": "a"}, "layer: expected 1 groups in 'a', got 0"),
        ({"layer": 3}, "layer: expected a regular expression, got 3"),
        ({"layer": r"layer\.(\w+)"}, "the number of a layer, got 'a' in 'layer.a'"),
    ],
)
def test_a_wrong_pattern_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=re.escape(message)):
        ExpertScopes(**fields).devices(["layer.a"], 2)
