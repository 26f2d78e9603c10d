"""The timeline of what devices have noted, and the time between ops, by hand."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from placeto_execution import compile_step
from placeto_execution.measuring import StepProfile
from placeto_execution.programs import topological_schedule
from placeto_execution.records import Record, timeline_of
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster


def test_a_transfer_has_both_copies_and_its_source_the_tensor_until_it_has_left() -> None:
    graph = from_networkx(nx.path_graph(2, create_using=nx.DiGraph))
    graph = replace(graph, workspace_bytes=np.array([40, 0]))
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xcpu"), compute_time=np.zeros((2, 2))
    )
    op_device = np.array([0, 1], np.int32)
    program = compile_step(topological_schedule(problem, op_device))
    source = Record(
        ops=[(0, 11.0, 12.0)],
        sent=[(0, 12.5)],
        left=[(0, 14.0)],
        made=[(11.0, 8)],
        freed=[(0, 12.5, 8)],
    )
    reader = Record(
        ops=[(1, 15.0, 16.0)], taken=[(0, 14.75, 15.0)], made=[(13.0, 8)], freed=[(0, 16.0, 8)]
    )
    timeline = timeline_of(problem, op_device, program, [source, reader], origin=10.0)
    assert (timeline.op_start.tolist(), timeline.op_end.tolist()) == ([1.0, 5.0], [2.0, 6.0])
    assert timeline.transfer_start.tolist() == [2.5]
    assert timeline.transfer_end.tolist() == [4.25]
    assert [each.tolist() for each in timeline.memory(0)] == [[0, 1, 2, 4], [0, 48, 8, 0]]
    assert [each.tolist() for each in timeline.memory(1)] == [[0, 3, 6], [0, 8, 0]]
    assert timeline.peak_memory.tolist() == [48, 8]


def test_the_time_between_ops_is_shared_by_those_that_compute() -> None:
    """Four ops of which one computes nothing: 3 s of ops and twice 0.5 s between them."""
    seconds = np.array([[0.0, 1.0, 1.0, 1.0]] * 3)
    profile = StepProfile(op_seconds=seconds, runtimes=np.full(3, 4.0))
    assert profile.between_ops == pytest.approx(0.5)
