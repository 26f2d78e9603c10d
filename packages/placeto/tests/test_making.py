"""Problems from graphs, clusters and files, in several granularities and on a CPU alone."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from placeto.problems.making import read_problem, read_to_train_on
from placeto.trials.placing_tasks import on_a_cpu
from placeto_capture import cost_model
from placeto_graphs import (
    DEVICE_KINDS,
    PlacementProblem,
    from_networkx,
    load_problem,
    parse_cluster,
    save_cluster,
    save_graph,
    save_problem,
)


def test_a_graph_is_grouped_anew_by_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    ops = nx.DiGraph([(n, n + step) for n in range(150) for step in (1, 2) if n + step <= 150])
    nx.set_node_attributes(ops, {n: {"flops": 1e9, "op_type": "aten.mm"} for n in ops})
    save_graph(from_networkx(ops), path)  # all but the last but one are read twice
    found = read_to_train_on([str(path)], 3)
    assert list(found) == [str(path), f"{path} in 90 groups", f"{path} in 150 groups"]
    assert [problem.num_groups for problem in found.values()] == [128, 90, 150]
    graphs = [problem.graph for problem in found.values()]
    assert graphs[0] == graphs[1] == graphs[2]


def test_the_groups_of_a_problem_file_without_rules_are_merged_further(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    graph = from_networkx(nx.path_graph(10, nx.DiGraph))
    save_problem(
        PlacementProblem(
            graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((10, 2))
        ),
        path,
    )
    usual, fewer = read_to_train_on([str(path)], 3).values()
    assert usual == load_problem(path)
    assert (usual.num_groups, fewer.num_groups) == (10, 7)
    merged = np.stack([usual.grouping.group_of, fewer.grouping.group_of])
    assert np.unique(merged, axis=1).shape[1] == 10  # each of the ten is in one of the seven


@pytest.mark.parametrize(
    ("of_problem", "of_file", "expected"),
    [
        ("fifo", "fifo", "fifo"),
        ("fifo", "backward-first", "backward-first"),
        ("backward-first", "fifo", "backward-first"),
    ],
)
def test_devices_of_a_file_run_backward_ops_first_if_it_or_the_problem_says_so(
    tmp_path: Path, of_problem: str, of_file: str, expected: str
) -> None:
    graph = from_networkx(nx.path_graph(3, nx.DiGraph))
    problem = PlacementProblem(
        graph=replace(graph, measured_time={"k80": np.ones(3)}),
        cluster=replace(parse_cluster("2xk80"), queue=of_problem),
        compute_time=np.ones((3, 2)),
    )
    save_problem(problem, tmp_path / "problem.json")
    save_cluster(replace(parse_cluster("3xk80"), queue=of_file), tmp_path / "cluster.toml")
    found = read_problem(tmp_path / "problem.json", tmp_path / "cluster.toml")
    assert (found.num_devices, found.cluster.queue) == (3, expected)


def test_the_cpu_of_cpu_only_is_the_one_that_the_cluster_describes() -> None:
    graph = from_networkx(nx.DiGraph([("a", "b")]))
    graph = replace(graph, op_types=("aten.add", "aten.add"), bytes_accessed=np.full(2, 1e9))
    usual = DEVICE_KINDS["cpu"]
    described = replace(usual, memory_bytes=10**9, memory_bandwidth=2 * usual.memory_bandwidth)
    problem = PlacementProblem(
        graph=graph,
        cluster=replace(parse_cluster("2xk80"), kinds=(described,), queue="backward-first"),
        compute_time=np.ones((2, 2)),
    )
    alone = on_a_cpu(problem)
    assert [device.memory_bytes for device in alone.cluster.devices] == [10**9]
    assert (alone.cluster.kinds, alone.cluster.queue) == ((described,), "backward-first")
    work = alone.compute_time[:, 0] - usual.launch_overhead
    np.testing.assert_allclose(2 * work, cost_model(graph, "cpu") - usual.launch_overhead)
