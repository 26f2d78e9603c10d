"""What reports say of a simulated step."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from placeto.placing.reports import busy_receivers
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster
from placeto_simulator import Simulator


@pytest.mark.parametrize(("op_seconds", "is_named"), [(0.0, True), (2.4, True), (2.6, False)])
def test_a_device_is_named_that_receives_for_more_than_half_a_step(
    op_seconds: float, is_named: bool
) -> None:
    """Three tensors of 31.5 GB reach a device in a second, over a bus each; one takes three."""
    ops = nx.DiGraph()
    ops.add_edges_from(((sender, "reader") for sender in "abc"), bytes=31_500_000_000)
    problem = PlacementProblem(
        graph=from_networkx(ops),
        cluster=replace(parse_cluster("4xrtx3090"), bandwidth=np.full((4, 4), 31.5e9)),
        compute_time=np.full((4, 4), op_seconds),
    )
    device_of_group = {"a": 0, "b": 1, "c": 2, "reader": 3}
    placement = [device_of_group[name] for name in problem.grouping.group_names]
    timeline = Simulator(problem).timeline(np.array(placement, np.int32))
    assert timeline.runtime == pytest.approx(2 * op_seconds + 1, rel=1e-3)
    assert len(busy_receivers(timeline)) == is_named
