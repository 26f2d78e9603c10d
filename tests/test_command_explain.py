"""``placeto explain``."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from gpipe_pipelines import devices_without_overheads
from numpy.typing import NDArray

from command_runs import build_profile, fail, succeed, succeed_json
from placeto.placing.explanation import Wait, waits
from placeto_graphs import (
    PlacementProblem,
    from_networkx,
    load_problem,
    memory_penalised_runtime,
    save_placement,
)
from placeto_simulator import Simulator


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return build_profile(tmp_path)


def cost(problem: PlacementProblem, placement: NDArray[np.int32]) -> float:
    """The memory-penalised runtime of one placement, by the simulator alone."""
    batch = Simulator(problem).evaluate(placement[None])
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0])


def drawn(problem: PlacementProblem, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 2, problem.num_groups, np.int32)


def moved(placement: NDArray[np.int32], groups: int | list[int], device: int) -> NDArray[np.int32]:
    result = placement.copy()
    result[groups] = device
    return result


def test_every_group_has_the_cost_of_the_best_other_device(problem: Path, tmp_path: Path) -> None:
    read = load_problem(problem)
    placement = drawn(read, 0)
    save_placement(placement, read, tmp_path / "placement.json")
    report = succeed_json("explain", problem, tmp_path / "placement.json")
    assert report["cost"] == cost(read, placement)
    assert [row["group"] for row in report["groups"]] == list(read.grouping.group_names)
    for group, row in enumerate(report["groups"]):
        other = 1 - placement[group]
        assert row["best_elsewhere"] == read.cluster.device_names[other]
        assert row["cost_elsewhere"] == cost(read, moved(placement, group, other))
    simulated = succeed_json("simulate", problem, tmp_path / "placement.json")
    on_path = sum(row["critical_seconds"] for row in report["groups"])
    assert on_path == pytest.approx(simulated["critical_path"]["op_seconds"])
    text = succeed("explain", problem, tmp_path / "placement.json")
    assert "of 10 groups" in text
    assert "Idle devices" in text


def test_a_group_has_the_cost_of_each_device_alone_and_with_its_neighbours(
    problem: Path, tmp_path: Path
) -> None:
    read = load_problem(problem)
    placement = drawn(read, 1)
    save_placement(placement, read, tmp_path / "placement.json")
    group = 4
    name = read.grouping.group_names[group]
    undirected = nx.Graph(read.group_graph.edges.tolist())
    near = [group, *undirected[group]]
    report = succeed_json("explain", problem, tmp_path / "placement.json", name)
    assert report["device"] == read.cluster.device_names[placement[group]]
    for device, row in enumerate(report["devices"]):
        assert row["alone"] == cost(read, moved(placement, group, device))
        assert row["with_neighbours"] == cost(read, moved(placement, near, device))
    assert report["devices"][placement[group]]["alone"] == report["cost"]
    assert "with its neighbours" in succeed("explain", problem, tmp_path / "placement.json", name)


def test_the_group_whose_tensor_comes_last_is_waited_for() -> None:
    """b begins at 0, so device 1 waits from 2 on, until the tensor of a comes at 3 + 4."""
    ops = nx.DiGraph()
    ops.add_nodes_from("abcd")
    ops.add_weighted_edges_from([("a", "c", 4_000_000_000), ("b", "c", 8)], "bytes")
    problem = PlacementProblem(
        graph=from_networkx(ops),
        cluster=devices_without_overheads(2, 1e9),
        compute_time=np.array([3.0, 2.0, 1.0, 0.5])[:, None].repeat(2, axis=1),
    )
    timeline = Simulator(problem).timeline(np.array([0, 1, 1, 0], np.int32))
    assert timeline.runtime == 8.0
    assert waits(timeline) == [Wait("c", "a", ops=1, transferred=1, idle=5.0)]


def test_what_is_not_there_is_named(problem: Path) -> None:
    line = fail("explain", problem, "v100:0", "node44")
    assert "GROUP: expected a group of the problem, such as node0/parameters" in line
    assert "got 'node44'" in line
    assert "expected a placement file" in fail("explain", problem, "v100:9", "node0/parameters")
