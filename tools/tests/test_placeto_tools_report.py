"""The values of a page, which its script draws by these names."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
from placeto_simulator import Simulator
from placeto_tools.plots import COLOURS
from placeto_tools.reports.page import ReportedPlacement, problem_report


def test_a_page_has_the_ops_of_a_problem_and_when_each_ran() -> None:
    """An op of 1 s sends 2 GB for 2 s to an op of 4 s, where it arrives 0.5 s later."""
    ops = nx.DiGraph()
    ops.add_edge("sender", "reader", bytes=2_000_000_000)
    cluster = replace(
        parse_cluster("2xk80"), bandwidth=np.full((2, 2), 1e9), latency=np.full((2, 2), 0.5)
    )
    problem = PlacementProblem(
        graph=from_networkx(ops), cluster=cluster, compute_time=np.array([[1.0, 1.0], [4.0, 4.0]])
    )
    placement = np.array([0, 1], np.int32)
    reported = ReportedPlacement("split", problem, placement, evaluations=3, seconds=0.5)
    report = problem_report("two ops", problem, [reported])
    assert report["title"] == "two ops"
    assert [device["name"] for device in report["devices"]] == ["k80:0", "k80:1"]
    assert [device["colour"] for device in report["devices"]] == [*COLOURS[:2]]
    assert report["links"] == ["k80:0 bus", "k80:1 bus"]
    assert report["kinds"] == ["forward", "backward", "update", "transfer"]
    assert report["kind_colours"] == [*COLOURS[:4]]
    assert report["op_names"] == ["sender", "reader"]
    assert report["op_types"] == [*problem.graph.op_types]
    assert report["op_phases"].tolist() == [0, 0]
    assert report["tensor_bytes"][report["tensor_producers"] == 0].tolist() == [2_000_000_000]
    assert report["bounded_groups"] == 2
    (placer,) = report["placers"]
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    assert (placer["title"], placer["evaluations"], placer["seconds"]) == ("split", 3, 0.5)
    assert placer["fits"]
    assert placer["runtime"] == placer["cost"] == timeline.runtime
    assert placer["busy"] == pytest.approx([1.0, 4.0])
    assert placer["busy"] + placer["waiting"] == pytest.approx([timeline.runtime] * 2)
    assert placer["sending"] == pytest.approx([2.0, 0.0])
    step = placer["step"]
    assert step["op_device"].tolist() == [0, 1]
    assert step["op_end"] - step["op_start"] == pytest.approx([1.0, 4.0])
    assert step["transfer_end"] - step["transfer_start"] == pytest.approx([2.0])
    assert step["transfer_destination"].tolist() == [1]
    assert step["path_transfer_seconds"] == pytest.approx([2.5])
    assert step["group_devices"][-1] == [0, 1]
    assert step["group_seconds_on_path"][-1] == pytest.approx([1.0, 4.0])
