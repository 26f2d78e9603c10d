"""Graphs in several granularities, on which one policy trains."""

from pathlib import Path

import networkx as nx
import numpy as np

from placeto.problems.making import read_to_train_on
from placeto_graphs import (
    PlacementProblem,
    colocate,
    from_networkx,
    load_problem,
    parse_cluster,
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
            graph=graph,
            cluster=parse_cluster("2xk80"),
            compute_time=np.ones((10, 2)),
            grouping=colocate(graph, rules=()),
        ),
        path,
    )
    usual, fewer = read_to_train_on([str(path)], 3).values()
    assert usual == load_problem(path)
    assert (usual.num_groups, fewer.num_groups) == (10, 7)
    merged = np.stack([usual.grouping.group_of, fewer.grouping.group_of])
    assert np.unique(merged, axis=1).shape[1] == 10  # each of the ten is in one of the seven
