"""What the protocols ask of evaluators and placers, what they return, and what is made of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from example_graphs import diamond_problem, refused
from placeto_graphs import (
    BestSoFar,
    EvaluationBatch,
    GraphError,
    Moves,
    PlacementProblem,
    PlacementResult,
    ScheduleBatch,
    memory_penalised_runtime,
    placement_ranks,
    plain_walk,
)
from placeto_graphs.testing import example_problem


def result(**changes: Any) -> PlacementResult:
    fields: dict[str, Any] = {
        "placement": [0, 1],
        "runtime": 0.25,
        "peak_memory": [60, 40],
        "evaluations": 2,
        "seconds": 0.001,
        "curve": [[1, 0.5], [2, 0.25]],
    }
    return PlacementResult(**(fields | changes))


class BusiestDevice:
    """Counts the groups of the fuller of two devices, and calls that seconds."""

    def __init__(self) -> None:
        self.problem = diamond_problem()
        self.asked: list[list[int]] = []

    def evaluate(self, placements: Any) -> EvaluationBatch:
        self.asked += placements.tolist()
        busy = np.stack([(placements == device).sum(axis=1) for device in (0, 1)], axis=1)
        return EvaluationBatch(runtime=busy.max(axis=1) * 1.0, peak_memory=busy)


def test_results_have_the_types_of_the_schema() -> None:
    converted = result(evaluations=np.int64(2), runtime=np.float32(0.25))
    assert converted == result()
    assert type(converted.evaluations) is int
    assert type(converted.runtime) is float
    assert converted.placement.dtype == np.int32


def test_a_result_says_whether_it_fits_the_memory() -> None:
    cluster = diamond_problem().cluster
    memory = [device.memory_bytes for device in cluster.devices]
    assert result(peak_memory=memory).fits(cluster)
    assert not result(peak_memory=[memory[0], memory[1] + 1]).fits(cluster)
    with pytest.raises(GraphError, match="cluster: expected 1 devices, got 2"):
        result(peak_memory=[1]).fits(cluster)


@pytest.mark.parametrize(
    ("peaks", "limit", "expected"),
    [
        ([[30, 12], [9, 9]], 10, [21.0, 2.0]),  # the largest excess counts
        ([[30, 12], [9, 9]], [40, 10], [3.0, 2.0]),  # devices may have limits of their own
        ([[30, 12], [9, 9]], np.inf, [1.0, 2.0]),
        ([[30, 12], [9, 9]], [np.inf, 10], [3.0, 2.0]),
        # Large whole limits are not rounded.
        ([[2**53 + 1], [0]], 2**53, [2.0, 2.0]),
        ([[2**53 + 1], [0]], np.array([2**53 + 1]), [1.0, 2.0]),
    ],
)
def test_a_limit_by_hand(peaks: Any, limit: Any, expected: list[float]) -> None:
    batch = EvaluationBatch(runtime=np.array([1.0, 2.0]), peak_memory=np.array(peaks))
    assert memory_penalised_runtime(batch, limit, scale=1.0).tolist() == expected
    usual = memory_penalised_runtime(batch, limit) - batch.runtime  # 2 s for each GB
    np.testing.assert_allclose(usual, 2e-9 * (np.array(expected) - batch.runtime))


def test_placements_that_fit_rank_first_and_those_that_cannot_run_last() -> None:
    peaks = np.array([[0, 15], [0, 10], [0, 10], [10, 11], [0, 0]])
    batch = EvaluationBatch(runtime=np.array([1.0, 9.0, 8.0, 4.0, np.inf]), peak_memory=peaks)
    # The device that lacks most counts: half as much again of 10, and a quarter of 8.
    ranks = placement_ranks(batch, [8, 10], penalty=2.0)
    assert ranks == [(True, 2.0), (False, 9.0), (False, 8.0), (True, 6.0), (True, np.inf)]
    assert sorted(range(5), key=ranks.__getitem__) == [2, 1, 0, 3, 4]
    usual = placement_ranks(batch, [8, 10])
    assert [cost for _, cost in usual] == [16.0, 9.0, 8.0, 34.0, np.inf]
    # One limit is that of every device, and infinity is none.
    assert placement_ranks(batch, 10, penalty=2.0)[0] == (True, 2.0)
    assert placement_ranks(batch, np.inf)[:2] == [(False, 1.0), (False, 9.0)]


RUNTIMES_AND_PEAKS = st.tuples(
    st.floats(1e-3, 1e3), st.lists(st.integers(0, 2**40), min_size=2, max_size=2)
)


@given(
    st.lists(RUNTIMES_AND_PEAKS, min_size=2, max_size=8),
    st.lists(st.integers(1, 2**40), min_size=2, max_size=2),
    st.integers(-20, 20),
    st.integers(0, 12),
)
def test_ranks_are_the_same_in_any_unit_of_time_and_memory(
    costs: list[tuple[float, list[int]]], memory: list[int], time_unit: int, memory_unit: int
) -> None:
    runtime = np.array([seconds for seconds, _ in costs])
    peaks = np.array([peak_bytes for _, peak_bytes in costs])
    limits, time_factor, memory_factor = np.array(memory), 2.0**time_unit, 2**memory_unit
    ranks = placement_ranks(EvaluationBatch(runtime=runtime, peak_memory=peaks), limits)
    scaled = EvaluationBatch(runtime=time_factor * runtime, peak_memory=memory_factor * peaks)
    expected = [(lacks, time_factor * cost) for lacks, cost in ranks]  # so the order is the same
    assert placement_ranks(scaled, memory_factor * limits) == expected


def moves(set_of: list[int], device: list[int], allowance: list[float], **changes: Any) -> Moves:
    """Return the moves of one walk with the sets {0}, {1}, {2}, {3} and {0, 1}."""
    fields: dict[str, Any] = {
        "set_of": [set_of],
        "device": [device],
        "allowance": [allowance],
        "first_member": [0, 1, 2, 3, 4, 6],
        "members": [0, 1, 2, 3, 0, 1],
    }
    return Moves(**(fields | changes))


def test_a_move_that_costs_too_much_goes_back_and_one_that_changes_nothing_is_not_tried() -> None:
    evaluator = BusiestDevice()
    start = np.zeros((1, 4), np.int32)
    walks = plain_walk(evaluator, start, moves([4, 0, 2, 2], [1, 1, 1, 0], [0.0, 9.0, 0.5, 0.0]))
    assert evaluator.asked == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    np.testing.assert_array_equal(walks.cost, [[4, 2, np.nan, 3, np.nan]])
    assert walks.placement.tolist() == [[1, 1, 0, 0]]
    assert walks.best_runtime.tolist() == [2]
    assert walks.evaluations == 3


def test_the_best_is_kept_when_a_walk_leaves_it() -> None:
    start = np.array([[0, 0, 1, 1]], np.int32)
    walks = plain_walk(BusiestDevice(), start, moves([0], [1], [1.0]))
    assert walks.placement.tolist() == [[1, 0, 1, 1]]
    assert walks.best_placement.tolist() == start.tolist()
    assert walks.best_peak_memory.tolist() == [[2, 2]]
    # From 4 s over 2 s, the best, to 3 s.
    start = np.zeros((1, 4), np.int32)
    worse = plain_walk(BusiestDevice(), start, moves([4, 2, 0], [1, 1, 1], [0.0, 1.0, 0.0]))
    assert worse.cost.tolist()[0][:3] == [4, 2, 3]
    assert worse.best_placement.tolist() == [[1, 1, 0, 0]]
    assert worse.best_runtime.tolist() == [2]
    assert worse.best_peak_memory.tolist() == [[2, 2]]
    start = np.array([[0, 0, 1, 1]], np.int32)
    equal = plain_walk(BusiestDevice(), start, moves([0, 2], [1, 0], [1.0, 0.0]))
    assert equal.placement.tolist() == [[1, 0, 0, 1]]
    assert equal.best_placement.tolist() == start.tolist()  # the first of several


def test_a_placement_that_fits_comes_before_a_faster_one_that_does_not() -> None:
    evaluator = BusiestDevice()
    devices = evaluator.problem.cluster.devices
    scarce = tuple(replace(device, memory_bytes=2) for device in devices)
    cluster = replace(evaluator.problem.cluster, devices=scarce)
    evaluator.problem = replace(evaluator.problem, cluster=cluster)
    evaluate = evaluator.evaluate
    # 2 groups on each device fit, and take 5 s more.
    evaluator.evaluate = lambda placements: replace(  # type: ignore[method-assign]
        evaluate(placements), runtime=evaluate(placements).runtime + 5.0 * (placements[:, 0] == 1)
    )
    start = np.array([[0, 0, 0, 1]], np.int32)
    tried = moves([0, 0], [1, 0], [99.0, 99.0])
    walks = plain_walk(evaluator, start, tried)
    assert walks.best_placement.tolist() == [[1, 0, 0, 1]]
    assert walks.placement.tolist() == start.tolist()
    # 3 s, and half of the memory again on device 0.
    np.testing.assert_array_equal(walks.cost, [[48, 7, 48]])
    cheap = plain_walk(evaluator, start, replace(tried, memory_penalty=0.5))
    np.testing.assert_array_equal(cheap.cost, [[3.75, 7, 3.75]])
    assert cheap.best_placement.tolist() == [[1, 0, 0, 1]]


class FullerDevice(BusiestDevice):
    """The same, and the groups on the fuller device are critical; of two that are full, on 0."""

    def critical_groups(self, placements: Any) -> NDArray[np.bool_]:
        busy = np.stack([(placements == device).sum(axis=1) for device in (0, 1)], axis=1)
        is_critical: NDArray[np.bool_] = placements == busy.argmax(axis=1)[:, None]
        return is_critical


def critical_moves(set_of: list[int], device: list[int], pick: list[float]) -> Moves:
    return moves(
        set_of,
        device,
        [9.0] * len(set_of),
        pick=[pick],
        neighbours=[[0, 1], [1, 0], [1, 2], [2, 3]],
        set_with=[[0, 1, 2, 3], [4, 4, 2, 3]],
    )


def test_critical_moves_pick_of_the_pairs_that_are_there_then() -> None:
    evaluator = FullerDevice()
    start = np.array([[0, 1, 0, 0]], np.int32)
    # Of critical 0, 2, 3 only 0 has a neighbour on the other device. Then no pair is left of 2, 3
    # on device 0, and with 2 on device 1 critical 2 has its neighbour 3 on device 0.
    tried = critical_moves([0, 0, 2, 0], [0, 0, 1, 0], [0.9, 0.0, np.inf, 0.9])
    walks = plain_walk(evaluator, start, tried)
    assert evaluator.asked == [[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]
    np.testing.assert_array_equal(walks.cost, [[3, 2, np.nan, 3, 2]])
    # At another level it takes 0 and 1 together.
    walks = plain_walk(evaluator, start, critical_moves([1], [0], [0.0]))
    assert walks.placement.tolist() == [[1, 1, 0, 0]]


def test_a_group_does_not_go_where_it_cannot_run() -> None:
    evaluator = BusiestDevice()
    compute_time = evaluator.problem.compute_time.copy()
    compute_time[1, 1] = np.inf
    evaluator.problem = replace(evaluator.problem, compute_time=compute_time)
    walks = plain_walk(evaluator, np.zeros((1, 4), np.int32), moves([4, 0], [1, 1], [0.0, 0.0]))
    assert evaluator.asked == [[0, 0, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_array_equal(walks.cost, [[4, np.nan, 3]])


def schedule(**changes: Any) -> ScheduleBatch:
    fields: dict[str, Any] = {"runtime": [0.1], "peak_memory": [[1]]}
    return ScheduleBatch(**(fields | {"start": [[0.0]], "end": [[0.1]]} | changes))


def penalised(limit: Any, scale: float = 1.0) -> object:
    batch = EvaluationBatch(runtime=np.array([1.0]), peak_memory=np.array([[30, 12]]))
    return memory_penalised_runtime(batch, limit, scale)


def one(**changes: Any) -> Moves:
    return replace(moves([0], [0], [0.0]), **changes)


def critical(**changes: Any) -> Moves:
    return replace(critical_moves([1], [0], [0.5]), **changes)


def walked(evaluator: type[BusiestDevice] = FullerDevice, **changes: Any) -> object:
    return plain_walk(evaluator(), np.zeros((1, 4), np.int32), critical(**changes))


TWO_WALKS = dict.fromkeys(("set_of", "device", "allowance"), [[0]] * 2) | {"pick": None}
NUMBER = "expected a number >= 0, or infinity"
THREE = [[0, 1, 2]]  # groups of the sets


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (result, {"placement": [-1]}, "placement[0]: expected an integer from 0 to"),
        (result, {"runtime": np.nan}, f"runtime: {NUMBER} (it cannot run)"),
        (result, {"evaluations": -1}, "evaluations: expected an integer from 0 to"),
        (result, {"curve": [[2, 1.0], [1, 0.5]]}, "curve[1, 0]: expected at least 2 placements,"),
        (schedule, {"peak_memory": [[1], [2]]}, "peak_memory: expected shape (1, any), got (2, 1)"),
        (schedule, {"start": [[0.0]] * 2}, "start: expected shape (1, any), got (2, 1)"),
        (schedule, {"start": [[0.0, -1.0]]}, "start[0, 1]: expected a finite number >= 0"),
        (schedule, {"end": [[0.1, 0.2]]}, "end: expected shape (1, 1), got (1, 2)"),
        (penalised, {"limit": -1}, f"limit: {NUMBER} (no limit), got -1.0"),
        (penalised, {"limit": [40, 10, 10]}, "limit: expected shape (2,), got (3,)"),
        (penalised, {"limit": 1, "scale": np.nan}, "scale: expected a finite number >= 0, got nan"),
        (one, {"first_member": [0, 0, 1]}, "first_member: expected rising positions from 0 to 6"),
        (one, {"members": [0, 1, 2, 3, 1, 1]}, "members[5]: expected each (set, group) once, got"),
        (one, {"set_of": [[5]]}, "set_of[0, 0]: expected an integer from 0 to 4, got 5"),
        (one, {"allowance": [[-1.0]]}, "allowance[0, 0]: expected a number >= 0"),
        (one, {"memory_penalty": -1.0}, "memory_penalty: expected a finite number >= 0, got -1.0"),
        (critical, {"pick": [[1.0]]}, "pick: expected numbers below 1, or infinity, got 1.0"),
        (critical, {"set_of": [[2]]}, "set_of: expected levels from 0 to 1 of critical moves, got"),
        (critical, {"set_with": [[5]]}, "set_with[0, 0]: expected an integer from 0 to 4, got 5"),
        (walked, {"evaluator": BusiestDevice}, "pick: expected no critical moves, as the evalu"),
        (walked, {"neighbours": [[0, 4]]}, "neighbours: expected numbers from 0 to 3, got 4"),
        (walked, {"set_with": THREE * 2}, "set_with: expected 4 groups, got 3"),
        (walked, {"members": [0, 1, 2, 3, 0, 4]}, "members: expected numbers from 0 to 3, got 4"),
        (walked, {"device": [[2]]}, "device: expected numbers from 0 to 1, got 2"),
        (walked, TWO_WALKS, "set_of: expected moves of 1 walks, got 2"),
    ],
)
def test_what_is_wrong_is_named(
    make: Callable[..., object], fields: dict[str, Any], message: str
) -> None:
    with refused(message):
        make(**fields)


# The best placement of a search so far, and the curve of its cost.


GIGABYTE = 10**9
Cost = tuple[float, int]  # seconds, and bytes on the second device


def two_groups() -> PlacementProblem:
    problem = example_problem(2)
    small = tuple(replace(device, memory_bytes=GIGABYTE) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=small))


class Listed:
    """An evaluator whose results are given in their order."""

    def __init__(self, problem: PlacementProblem, costs: list[Cost]) -> None:
        self.problem = problem
        self.costs = costs

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        now, self.costs = self.costs[: len(placements)], self.costs[len(placements) :]
        memory = np.zeros((len(now), self.problem.num_devices), np.int64)
        memory[:, 1] = [peak for _, peak in now]
        return EvaluationBatch(
            runtime=np.array([runtime for runtime, _ in now]), peak_memory=memory
        )


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("costs", "expected", "runtime", "row", "curve"),
    [
        # The second is the fastest, but 0.1 GB too large for 1 GB, which costs three runtimes.
        (
            [(5.0, 0), (1.0, GIGABYTE + GIGABYTE // 10), (2.5, 0), (2.5, 0), (4.0, 0)],
            [5.0, 4.0, 2.5, 2.5, 4.0],
            2.5,
            2,
            [[1, 5.0], [3, 2.5], [5, 2.5]],
        ),
        # What fits comes before what does not, whatever it costs.
        (
            [(0.25, 2 * GIGABYTE), (9.0, 0), (0.125, 2 * GIGABYTE), (8.0, 0), (np.inf, 0)],
            [7.75, 9.0, 3.875, 8.0, np.inf],
            8.0,
            3,
            [[1, 7.75], [2, 9.0], [4, 8.0], [5, 8.0]],
        ),
        # A placement over the memory is kept with its own runtime.
        ([(1.0, 2 * GIGABYTE)], [31.0], 1.0, 0, [[1, 31.0], [1, 31.0]]),
    ],
)
def test_the_best_and_its_curve(
    costs: list[Cost],
    expected: list[float],
    runtime: float,
    row: int,
    curve: list[list[float]],
    at_once: bool,
) -> None:
    problem = two_groups()
    evaluator, best = Listed(problem, costs), BestSoFar(problem)
    rows = np.array([[at % 2, at // 2 % 2] for at in range(len(costs))], np.int32)
    batches = [rows] if at_once else rows[:, None]
    ranks = [rank for batch in batches for rank in best.add(batch, evaluator.evaluate(batch))]
    assert [cost for _, cost in ranks] == pytest.approx(expected, rel=1e-14)
    assert [lacks for lacks, _ in ranks] == [
        peak > 0 or runtime == np.inf for runtime, peak in costs
    ]
    result = best.result(seconds=7.0)
    assert (result.runtime, result.evaluations, result.seconds) == (runtime, len(costs), 7.0)
    assert result.placement.tolist() == rows[row].tolist()
    assert result.peak_memory[1] == costs[row][1]
    assert result.curve.tolist() == curve
    assert best.rank == (costs[row][1] > 0, curve[-1][1])
    assert (best.fits, best.cost) == (costs[row][1] == 0, curve[-1][1])


@pytest.mark.parametrize(
    ("peak", "curve"),
    [
        # The first walk goes from 9 s to 8 s, the second one from 7 s over 6 s to 5 s.
        (0, [[1, 10.0], [3, 8.0], [7, 5.0], [7, 5.0]]),
        # Walks that pay more for memory are found by what they paid; the curve has the usual cost.
        (2 * GIGABYTE, [[1, 310.0], [3, 248.0], [7, 155.0], [7, 155.0]]),
    ],
)
def test_the_curve_says_after_how_many_placements_walks_found_the_best(
    peak: int, curve: list[list[float]]
) -> None:
    problem = two_groups()
    seconds = (10.0, 9.0, 8.0, 8.5, 7.0, 6.0, 5.0)
    evaluator, best = Listed(problem, [(runtime, peak) for runtime in seconds]), BestSoFar(problem)
    start = np.zeros((1, 2), np.int32)
    best.add(start, evaluator.evaluate(start))
    moves = Moves(
        set_of=np.array([[0, 1], [0, 1]]),
        device=np.ones((2, 2), np.int32),
        allowance=np.zeros((2, 2)),
        first_member=np.array([0, 1, 2]),
        members=np.array([0, 1]),
        memory_penalty=70.0,
    )
    best.add_walks(plain_walk(evaluator, np.zeros((2, 2), np.int32), moves), moves)
    assert best.placement is not None
    assert best.placement.tolist() == [1, 1]
    assert best.result(0.0).curve.tolist() == curve


def test_what_cannot_run_is_no_result_and_what_lacks_memory_is_one() -> None:
    problem = two_groups()
    evaluator = Listed(problem, [(np.inf, 0), (1.0, 2 * GIGABYTE)])
    placement = np.zeros((1, 2), np.int32)
    best = BestSoFar(problem)
    best.add(placement, evaluator.evaluate(placement))
    with refused("evaluator: expected a placement that can run, got none"):
        best.result(0.0)
    assert best.add(placement, evaluator.evaluate(placement)) == [(True, 31.0)]
    assert best.result(0.0).runtime == 1.0
