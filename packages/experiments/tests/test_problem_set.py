"""The problem set: no model in two parts, one problem of a name, steps as models have them."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_capture.costs.memory import activation_bytes
from placeto_experiments.problem_set import problem_set, problem_set_graphs
from placeto_experiments.problem_set.problems import Part, random_cluster, with_drawn_memory
from placeto_experiments.problem_set.random_steps import SHAPES, random_step
from placeto_graphs import Phase, parse_cluster
from placeto_workloads import MODELS, WorkloadError
from placeto_workloads.families.family import PAPER_FAMILIES, family

PARTS: tuple[Part, ...] = ("training", "validation", "test")
any_shape, any_seed = st.sampled_from(list(SHAPES)), st.integers(0, 10**6)


def test_no_name_is_in_two_parts() -> None:
    graphs = [graph for part in PARTS for graph in problem_set_graphs(part)]
    assert len({graph.name for graph in graphs}) == len(graphs)


def test_no_random_step_is_another_one_under_a_second_name() -> None:
    steps = [
        graph.build()
        for part in PARTS
        for graph in problem_set_graphs(part)[: 8 * len(SHAPES)]  # the random ones stand first
    ]
    drawn = {(step.flops.tobytes(), step.edges.tobytes()) for step in steps}
    assert len(drawn) == len(steps) == 3 * 8 * len(SHAPES)


def test_what_the_paper_evaluates_on_is_in_the_test_part_alone() -> None:
    test = {graph.name for graph in problem_set_graphs("test")}
    others = {graph.name for part in PARTS[:2] for graph in problem_set_graphs(part)}
    assert {*MODELS} <= test
    for name in PAPER_FAMILIES:
        assert {member.name for member in family(name).test} <= test
        assert {member.name for member in family(name).training} <= others


@settings(deadline=None, max_examples=40)
@given(any_shape, any_seed)
def test_random_steps_go_forward_and_come_back(shape: str, seed: int) -> None:
    graph = random_step(shape, seed)
    layers = graph.colocation.max() + 1
    forward = np.array([name.startswith("forward") for name in graph.op_names])
    backward = graph.phases == Phase.BACKWARD
    update = graph.phases == Phase.UPDATE
    assert forward.sum() == backward.sum() == layers
    assert update.sum() == (graph.parameter_bytes > 0).sum()
    np.testing.assert_allclose(
        graph.flops[backward][np.argsort(graph.colocation[backward])],
        2 * graph.flops[forward][np.argsort(graph.colocation[forward])],
    )
    ops = nx.DiGraph()
    ops.add_nodes_from(range(graph.num_ops))
    ops.add_edges_from(
        zip(graph.edge_producers.tolist(), graph.edge_consumers.tolist(), strict=True)
    )
    assert nx.is_directed_acyclic_graph(ops)
    waits = nx.transitive_closure_dag(ops)
    op_of_name = {name: op for op, name in enumerate(graph.op_names)}
    for layer in range(layers):
        assert waits.has_edge(op_of_name[f"forward.{layer}"], op_of_name[f"backward.{layer}"])


@settings(deadline=None, max_examples=40)
@given(any_shape, any_seed)
def test_layers_are_read_by_higher_ones(shape: str, seed: int) -> None:
    count, readers = SHAPES[shape](np.random.default_rng(seed))
    assert len(set(readers)) == len(readers)
    assert all(0 <= layer < reader < count for layer, reader in readers)
    touched = {layer for pair in readers for layer in pair}
    assert touched == set(range(count))


def test_a_name_gives_one_problem() -> None:
    for part in PARTS:
        first, again = problem_set(part)[3].problem(), problem_set(part)[3].problem()
        assert np.array_equal(first.compute_time, again.compute_time)
        assert np.array_equal(first.grouping.group_of, again.grouping.group_of)
        assert first.cluster.device_names == again.cluster.device_names
        assert first.cluster.devices == again.cluster.devices


def test_variants_of_a_graph_are_on_different_clusters() -> None:
    problems = [entry.problem() for entry in problem_set("test", variants=6)[:6]]
    assert len({problem.cluster.device_names for problem in problems}) > 2


@settings(deadline=None, max_examples=50)
@given(any_seed)
def test_clusters_have_two_to_eight_devices_of_one_or_two_kinds(seed: int) -> None:
    cluster = random_cluster(np.random.default_rng(seed))
    kinds = {device.kind for device in cluster.devices}
    assert 2 <= len(cluster.devices) <= 8
    assert len(kinds) <= 2
    assert kinds != {"cpu"}


def test_scarce_memory_holds_what_a_step_keeps_on_all_gpus_but_not_on_one() -> None:
    graph = random_step("chain", 0)
    kept = int(graph.parameter_bytes.sum()) + activation_bytes(graph)
    plain = parse_cluster("1xcpu+3xv100")
    drawn = [with_drawn_memory(plain, graph, np.random.default_rng(seed)) for seed in range(40)]
    scarce = [cluster for cluster in drawn if cluster.devices != plain.devices]
    assert 4 < len(scarce) < 20
    for cluster in scarce:
        gpus = [device.memory_bytes for device in cluster.devices if device.kind == "v100"]
        assert max(gpus) < kept < sum(gpus)
        assert cluster.devices[0] == plain.devices[0]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(WorkloadError, match="part: expected one of training, validation, test"):
        problem_set("train")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="variants: expected at least 1, got 0"):
        problem_set("test", variants=0)
    with pytest.raises(WorkloadError, match="shape: expected one of chain, layered"):
        random_step("tree", 0)
