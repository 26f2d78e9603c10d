"""What the bound sees of devices that are too few, and of the transfers that more of them take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baseline_problems import cluster, op_graph, problem_of, random_problems
from placeto_baselines import exhaustive_search
from placeto_baselines.bounds import fork_join
from placeto_baselines.bounds.fork_join import LARGEST_REGION, LEVELS, region_lags, relax_ops
from placeto_baselines.bounds.lower_bound import fork_join_bound
from placeto_baselines.bounds.paths import longest_paths
from placeto_graphs import Grouping, PlacementProblem, colocate, grouping_of_labels
from plain_evaluator import PlainEvaluator


def bound_of(problem: PlacementProblem) -> float:
    return fork_join_bound(problem, longest_paths(problem))


def least_runtime(problem: PlacementProblem) -> float:
    return exhaustive_search(problem, PlainEvaluator(problem)).runtime


def fork_and_join(branches: int, seconds: float, size: int, devices: int) -> PlacementProblem:
    """Return one op, branches of one op, and one op that joins them; a byte takes a second."""
    join = branches + 1
    edges = [(0, op) for op in range(1, join)] + [(op, join) for op in range(1, join)]
    graph = op_graph(join + 1, edges, tensor_bytes=np.full(join + 1, size))
    times = np.full((join + 1, devices), seconds)
    times[[0, join]] = 1.0
    return problem_of(graph, cluster(["k80"] * devices), times)


@pytest.mark.parametrize(
    ("problem", "seconds"),
    [
        # Three branches of 2 s: one after the other, as a transfer there and back takes 10 s.
        (fork_and_join(3, 2.0, 5, 2), 1 + 6 + 1),
        # Four branches of 5 s; a transfer takes 1 s of both devices, or 2 s of one: (20 + 2) / 2.
        (fork_and_join(4, 5.0, 1, 2), 1 + 11 + 1),
        # Two branches, together (10 + 4) / 2 s on the devices of the fork and of the join.
        (fork_and_join(2, 5.0, 2, 2), 1 + 5 + 2 + 1),
    ],
)
def test_a_region_takes_one_device_or_transfers(problem: PlacementProblem, seconds: float) -> None:
    assert bound_of(problem) == pytest.approx(seconds)
    assert least_runtime(problem) == seconds


def test_what_must_run_late_does_not_fill_the_devices_early() -> None:
    # After an op of 4 s four of 1 s: two devices are at work for 8 s, but no sooner than from 4 s.
    graph = op_graph(5, [(0, op) for op in range(1, 5)], tensor_bytes=np.zeros(5, int))
    seconds = np.tile([[4.0], [1.0], [1.0], [1.0], [1.0]], (1, 2))
    problem = problem_of(graph, cluster(["k80", "k80"]), seconds)
    assert bound_of(problem) == pytest.approx(6.0)
    assert least_runtime(problem) == 6.0


def test_the_ops_of_a_group_wait_for_each_other() -> None:
    graph = op_graph(4, [(0, 1), (0, 2), (0, 3)], tensor_bytes=np.zeros(4, int))
    alone = problem_of(graph, cluster(["k80", "k80", "k80"]), np.ones((4, 3)))
    assert bound_of(alone) == pytest.approx(2.0)
    together = PlacementProblem(
        graph=graph,
        cluster=alone.cluster,
        compute_time=alone.compute_time,
        grouping=Grouping(
            group_of=np.array([0, 1, 1, 1], np.int32), group_names=("fork", "branches")
        ),
    )
    assert bound_of(together) == pytest.approx(4.0)
    assert least_runtime(together) == 4.0


def test_a_slow_device_takes_its_share_only() -> None:
    # A fork, 12 branches of 1 s, or 5 s on the other device: 10 and 2 of them, until 10 s.
    branches = 12
    graph = op_graph(
        branches + 1, [(0, op) for op in range(1, branches + 1)], tensor_bytes=[0] * (branches + 1)
    )
    seconds = np.tile([1.0, 5.0], (branches + 1, 1))
    problem = problem_of(graph, cluster(["k80", "cpu"]), seconds)
    assert bound_of(problem) == pytest.approx(1 + 10)


def test_ops_that_take_no_time_come_after_those_that_they_read() -> None:
    problem = problem_of(op_graph(3, [(2, 1), (1, 0)]), cluster(["k80"] * 2), np.zeros((3, 2)))
    by_index = Grouping(group_of=np.arange(3, dtype=np.int32), group_names=("op0", "op1", "op2"))
    problem = replace(problem, grouping=by_index)
    ops = relax_ops(problem, longest_paths(problem))
    assert ops.offsets.tolist() == [0, 0, 1, 2]
    assert ops.producers.tolist() == [0, 1]
    assert ops.group.tolist() == [2, 1, 0]


def test_a_region_of_ops_that_only_wait_needs_no_transfer() -> None:
    # As the fork and join above, but with waits for tensors: 20 s of work on two devices.
    join = 5
    waits = [(op, 0) for op in range(1, join)] + [(join, op) for op in range(1, join)]
    graph = op_graph(join + 1, [], waits=np.array(waits, np.int32))
    seconds = np.tile(np.array([1.0, 5.0, 5.0, 5.0, 5.0, 1.0])[:, None], (1, 2))
    problem = problem_of(graph, cluster(["k80", "k80"], bandwidth=1e-3), seconds)
    assert bound_of(problem) == pytest.approx(1 + 10 + 1)
    assert least_runtime(problem) == 12.0


def test_lags_tell_one_device_from_two() -> None:
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=np.array([4, 7, 1]))
    problem = problem_of(graph, cluster(["k80", "k80"], overhead=0.5), np.ones((3, 2)))
    ops = relax_ops(problem, longest_paths(problem))
    lags = region_lags(ops, 3, LARGEST_REGION, LEVELS)
    assert lags.together[0, 1] == 0.5
    assert lags.apart[0, 1] == 4.0
    assert lags.together[0, 2] == 0.5 + 1 + 0.5
    assert lags.apart[0, 2] == 4 + 1 + 0.5
    one_group = PlacementProblem(
        graph=graph,
        cluster=problem.cluster,
        compute_time=problem.compute_time,
        grouping=Grouping(group_of=np.array([0, 1, 0], np.int32), group_names=("ends", "middle")),
    )
    ops = relax_ops(one_group, longest_paths(one_group))
    assert region_lags(ops, 3, LARGEST_REGION, LEVELS).apart[0, 2] == np.inf


@pytest.mark.parametrize("band", [2, 3, 5])
def test_regions_that_are_too_far_apart_bring_less_but_no_wrong_bound(
    band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    for problem in random_problems(30):
        ops = relax_ops(problem, longest_paths(problem))
        near = region_lags(ops, band, LARGEST_REGION, LEVELS)
        far = region_lags(ops, problem.graph.num_ops + band, LARGEST_REGION, LEVELS)
        known = near.together >= 0
        compared += int(known.sum())
        assert np.array_equal(near.together[known], far.together[:, :band][known])
    assert compared > 20
    monkeypatch.setattr(fork_join, "BAND", band)
    assert bound_of(fork_and_join(4, 5.0, 1, 2)) < 13.0


def test_waiting_for_a_device_may_take_longer_than_going_elsewhere_and_back() -> None:
    # After each op its device rests for 2 s; transfers take no time.
    graph = op_graph(3, [(0, 1), (1, 2)], tensor_bytes=np.zeros(3, int))
    chain = problem_of(graph, cluster(["k80", "k80"], overhead=2.0), np.ones((3, 2)))
    assert bound_of(chain) == pytest.approx(3.0)
    ops = relax_ops(chain, longest_paths(chain))
    assert region_lags(ops, 3, LARGEST_REGION, LEVELS).together[0, 2] == 1.0


@st.composite
def whole_second_problems(draw: st.DrawFn) -> PlacementProblem:
    """Draw up to six ops of whole seconds, and bytes of which each takes a second."""
    num_ops = draw(st.integers(1, 6))
    pairs = [(maker, reader) for reader in range(num_ops) for maker in range(reader)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    small = st.integers(0, 4)
    sizes = draw(st.lists(small, min_size=num_ops, max_size=num_ops))
    seconds = draw(st.lists(small, min_size=num_ops, max_size=num_ops))
    devices = draw(st.integers(1, 3))
    waits = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5)) if pairs else []
    graph = op_graph(
        num_ops,
        edges,
        tensor_bytes=np.array(sizes),
        waits=np.array(waits, np.int32).reshape(-1, 2)[:, ::-1],
    )
    grouping = colocate(graph, rules=())
    if draw(st.booleans()):
        labels = draw(st.lists(st.integers(0, 2), min_size=num_ops, max_size=num_ops))
        grouping = grouping_of_labels(graph, np.array(labels))
    return PlacementProblem(
        graph=graph,
        cluster=cluster(["k80"] * devices, overhead=float(draw(st.integers(0, 1)))),
        compute_time=np.tile(np.array(seconds, float)[:, None], (1, devices)),
        grouping=grouping,
    )


@given(whole_second_problems())
def test_the_optimum_of_any_small_problem_is_no_less(problem: PlacementProblem) -> None:
    assert bound_of(problem) * (1 - 1e-9) <= least_runtime(problem)
