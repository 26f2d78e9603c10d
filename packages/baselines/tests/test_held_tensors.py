"""What all devices hold at one time, whatever the placement, and what the bound makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baseline_problems import cluster, op_graph, problem_of
from placeto_baselines import bound_parts, least_excess, lower_bound
from placeto_baselines.bounds.memory import most_held
from placeto_baselines.search.local_search import all_placements
from placeto_graphs import (
    OpGraph,
    PlacementProblem,
    colocate,
    grouping_of_labels,
    memory_penalised_runtime,
    micro_batched,
)
from plain_evaluator import PlainEvaluator

LAYERS = 4
LOSS, LAST_BACK, FIRST_BACK, WEIGHTS = 4, 5, 8, 9
STEP = np.arange(10) != WEIGHTS  # the ops that take time


def four_layers(**changes: object) -> OpGraph:
    """Return four layers of 10 bytes, a loss, backward ops that read layers, and weights of 8."""
    edges = [(layer, layer + 1) for layer in range(LAYERS)]
    edges += [(layer, FIRST_BACK - layer) for layer in range(LAYERS)]
    edges += [(op, op + 1) for op in range(LOSS, FIRST_BACK)] + [(WEIGHTS, 1)]
    sizes = np.array([10] * LAYERS + [2] * 5 + [8])
    return op_graph(10, edges, tensor_bytes=sizes, parameter_bytes=np.where(STEP, 0, 8), **changes)


def placed(graph: OpGraph, memory: int, **changes: float) -> PlacementProblem:
    """Return the problem of ops of a second each, but weights, on two devices."""
    on = cluster(["k80"] * 2, memory=memory, **({"bandwidth": np.inf} | changes))
    return problem_of(graph, on, np.where(STEP, 1.0, 0.0)[:, None].repeat(2, axis=1))


def least_penalty(problem: PlacementProblem) -> int:
    """Return the fewest bytes by which any placement exceeds a memory."""
    placements = np.concatenate(list(all_placements(problem)))
    peaks = PlainEvaluator(problem).evaluate(placements).peak_memory
    return int((peaks - problem.cluster.memory_bytes).max(axis=1).clip(min=0).min())


def best_cost(problem: PlacementProblem, scale: float) -> float:
    placements = np.concatenate(list(all_placements(problem)))
    batch = PlainEvaluator(problem).evaluate(placements)
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes, scale).min())


def test_most_is_held_when_the_last_layer_goes_backwards() -> None:
    # Then the layers, 2 bytes of the loss and 2 of its own.
    graph = four_layers()
    held = most_held(graph, STEP)
    assert held is not None
    assert held.op == LAST_BACK
    assert np.flatnonzero(held.tensors).tolist() == [0, 1, 2, 3, LOSS, LAST_BACK]
    assert held.num_bytes(graph) == 4 * 10 + 2 + 2
    roomy = four_layers(workspace_bytes=np.where(np.arange(10) == LOSS, 9, 0))
    held = most_held(roomy, STEP)
    assert held is not None
    assert (held.op, held.num_bytes(roomy)) == (LOSS, 4 * 10 + 2 + 9)


def test_what_all_devices_lack_together_is_paid_by_the_mean() -> None:
    # With the weights 52 bytes, of which two devices have 40: one lacks 6, after a path of 9 s.
    problem = placed(four_layers(), memory=20)
    assert least_excess(problem) == 6
    assert least_penalty(problem) == 12  # layers that are read on both devices are held on both
    parts = bound_parts(problem, scale=1.0)
    assert [parts["path"], parts["fork-join"]] == pytest.approx([9 + 6, 9 + 6])
    assert parts["split"] == pytest.approx(2 + 6)  # the first layer goes to its backward op
    assert lower_bound(problem, scale=1.0) == pytest.approx(9 + 6)
    # Half of an odd lack is rounded up, as no device lacks half a byte.
    odd = placed(four_layers(workspace_bytes=np.where(np.arange(10) == LAST_BACK, 1, 0)), memory=20)
    assert least_excess(odd) == 7
    assert least_excess(placed(four_layers(), memory=26)) == 0


def test_one_device_alone_lacks_what_it_holds_at_one_time() -> None:
    # Two devices have enough for 52 bytes, one has not: it lacks 22, or a transfer takes ages.
    problem = placed(four_layers(), memory=30, bandwidth=1e-9)
    assert least_excess(problem) == 0
    assert bound_parts(problem, scale=1.0)["split"] == pytest.approx(9 + 22)
    assert best_cost(problem, 1.0) == 31.0


def test_a_part_holds_no_tensors_of_others() -> None:
    # The second op runs while the first one's ten bytes are held, on the other device.
    waits = np.array([[1, 0], [2, 1]], np.int32)
    graph = op_graph(3, [(0, 2)], tensor_bytes=np.array([10, 5, 0]), waits=waits)
    on = cluster(["k80"] * 2, memory=10, bandwidth=1e-9)
    problem = problem_of(graph, on, np.ones((3, 2)))
    held = most_held(graph, np.ones(3, bool))
    assert held is not None
    assert (held.op, held.num_bytes(graph)) == (1, 15)
    assert best_cost(problem, 1.0) == 3.0
    assert lower_bound(problem, scale=1.0) == pytest.approx(3.0)


def test_an_op_that_may_take_no_time_holds_nothing() -> None:
    # The middle one has a workspace of 50 bytes while it runs, which it does not on one device.
    workspace = np.array([0, 50, 0])
    edges = [(0, 1), (0, 2), (1, 2)]
    graph = op_graph(3, edges, tensor_bytes=np.array([10, 10, 0]), workspace_bytes=workspace)
    on = cluster(["k80"] * 2, memory=20, bandwidth=np.inf)
    problem = problem_of(graph, on, np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    assert least_excess(problem) == least_penalty(problem) == 0


def test_an_op_whose_time_vanishes_beside_that_of_the_step_holds_nothing() -> None:
    # 1 + 1e-20 is 1 in float64: the second one ends when it starts.
    workspace = np.array([0, 50])
    graph = op_graph(2, [(0, 1)], tensor_bytes=np.array([10, 0]), workspace_bytes=workspace)
    on = cluster(["k80"] * 2, memory=20, bandwidth=np.inf)
    problem = problem_of(graph, on, np.array([[1.0, 1.0], [1e-20, 1e-20]]))
    assert least_excess(problem) == least_penalty(problem) == 0
    problem = problem_of(graph, on, np.array([[1.0, 1.0], [1e-9, 1e-9]]))
    assert least_excess(problem) == least_penalty(problem) == 40


def test_the_op_with_most_alive_in_order_may_hold_less() -> None:
    # The third op runs after the first two, but does not wait for them.
    graph = op_graph(
        4,
        [(0, 3), (1, 3)],
        tensor_bytes=np.array([10, 10, 1, 1]),
        workspace_bytes=np.array([0, 0, 5, 0]),
    )
    held = most_held(graph, np.ones(4, bool))
    assert held is not None
    assert (held.op, held.num_bytes(graph)) == (3, 21)


def test_held_tensors_stay_until_the_step_ends() -> None:
    graph = four_layers(
        held_tensors=np.array([0, 1, 2, 3, LOSS]),
        workspace_bytes=np.where(np.arange(10) == FIRST_BACK, 9, 0),
    )
    held = most_held(graph, STEP)
    assert held is not None
    assert held.op == FIRST_BACK
    assert held.num_bytes(graph) == 4 * 10 + 2 + 2 + 2 + 9


def test_ops_without_time_hold_nothing() -> None:
    graph = four_layers()
    assert most_held(graph, np.zeros(10, bool)) is None
    problem = problem_of(graph, cluster(["k80"] * 2, memory=1), np.zeros((10, 2)))
    assert least_excess(problem) == 7  # of the weights, which are on one device


@st.composite
def tight_problems(draw: st.DrawFn) -> PlacementProblem:
    """Draw up to five ops of whole seconds and bytes, with hardly enough memory for them."""
    num_ops = draw(st.integers(1, 5))
    pairs = [(maker, reader) for reader in range(num_ops) for maker in range(reader)]
    some_pairs = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    small = st.lists(st.integers(0, 4), min_size=num_ops, max_size=num_ops)
    graph = op_graph(
        num_ops,
        draw(some_pairs),
        tensor_bytes=np.array(draw(small)),
        parameter_bytes=np.array(draw(small)) * np.array(draw(small)) // 4,
        workspace_bytes=np.array(draw(small)) // 2,
        waits=np.array(draw(some_pairs), np.int32).reshape(-1, 2)[:, ::-1],
        held_tensors=np.array(draw(st.lists(st.integers(0, num_ops - 1), unique=True)), np.int32),
        phases=np.sort(draw(small)).clip(max=2).astype(np.int8),
    )
    if draw(st.booleans()):
        graph = micro_batched(graph, 2)
    devices = draw(st.integers(1, 3 if graph.num_ops < 8 else 2))
    labels = draw(st.lists(st.integers(0, 4), min_size=graph.num_ops, max_size=graph.num_ops))
    grouping = grouping_of_labels(graph, np.array(labels))
    if graph.num_ops <= 6 and draw(st.booleans()):
        grouping = colocate(graph, rules=())
    seconds = draw(st.lists(st.integers(0, 3), min_size=graph.num_ops, max_size=graph.num_ops))
    speed = np.array(
        draw(st.lists(st.sampled_from([1.0, 0.5]), min_size=devices, max_size=devices))
    )
    return PlacementProblem(
        graph=graph,
        cluster=cluster(
            ["k80"] * devices,
            memory=draw(st.integers(1, 12)),
            bandwidth=draw(st.sampled_from([1.0, 4.0, np.inf])),
            overhead=float(draw(st.integers(0, 1))),
        ),
        compute_time=np.array(seconds, float)[:, None] * np.array(speed),
        grouping=grouping,
    )


@given(tight_problems(), st.sampled_from([0.0, 0.5, 2.0]))
def test_no_placement_of_any_small_problem_beats_the_bound(
    problem: PlacementProblem, scale: float
) -> None:
    assert lower_bound(problem, scale=scale) <= best_cost(problem, scale)
    assert least_excess(problem) <= least_penalty(problem)
