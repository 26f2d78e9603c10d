import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from baseline_problems import (
    cluster,
    op_graph,
    problem_of,
    random_problem,
    two_chains,
)
from placeto_baselines import BaselineError, LocalSearch
from placeto_baselines.devices import random_placements
from placeto_baselines.search import local_search
from placeto_graphs import EvaluationBatch, PlacementProblem
from plain_evaluator import PlainEvaluator


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), budget=st.integers(1, 40), restarts=st.integers(1, 5))
def test_no_more_placements_are_evaluated_than_the_budget(
    seed: int, budget: int, restarts: int
) -> None:
    problem = random_problem(np.random.default_rng(seed))
    evaluator = PlainEvaluator(problem)
    result = LocalSearch(budget=budget, restarts=restarts).place(problem, evaluator, seed=seed)
    assert evaluator.evaluated <= budget
    assert result.evaluations == evaluator.evaluated


@pytest.mark.parametrize("annealing", [0.0, 0.5, 1.0])
def test_the_budget_is_spent(annealing: float) -> None:
    problem = two_chains()  # 81 placements
    evaluator = PlainEvaluator(problem)
    LocalSearch(budget=80, annealing=annealing).place(problem, evaluator)
    assert evaluator.evaluated == 80


def test_a_budget_for_all_placements_is_spent_on_each_of_them_once() -> None:
    problem = two_chains()
    evaluator = PlainEvaluator(problem)
    result = LocalSearch(budget=81).place(problem, evaluator)
    assert result.evaluations == evaluator.evaluated == 81
    assert result.runtime == 1.0
    evaluator = PlainEvaluator(two_that_talk())
    result = LocalSearch(budget=10_000).place(evaluator.problem, evaluator)
    assert result.evaluations == evaluator.evaluated == 4
    assert result.placement.tolist() == [1, 1]


def test_a_budget_without_end_does_not_go_through_many_placements_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_search, "FEW_PLACEMENTS", 8)
    problem = problem_of(op_graph(2, []), cluster(["k80"] * 3), np.ones((2, 3)))  # 9 placements
    start_at(monkeypatch, [0, 1])
    result = LocalSearch(budget=20, annealing=0.0).place(problem, PlainEvaluator(problem))
    assert result.evaluations == 20
    assert result.curve[0].tolist() == [1, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_hill_climbing_ends_where_no_single_move_helps(seed: int) -> None:
    generator = np.random.default_rng(seed)
    edges = sorted({(int(a), int(b)) for a, b in generator.integers(0, 14, (30, 2)) if a < b})
    problem = problem_of(
        op_graph(14, edges), cluster(["k80"] * 3), np.tile(generator.random((14, 1)), (1, 3)) * 5
    )
    evaluator = PlainEvaluator(problem)
    result = LocalSearch(budget=800, restarts=1, annealing=0.0).place(problem, evaluator)
    moves = np.repeat(result.placement[None], 14 * 3, axis=0)
    moves[np.arange(14 * 3), np.repeat(np.arange(14), 3)] = np.tile(np.arange(3), 14)
    assert evaluator.evaluate(moves).runtime.min() == result.runtime


@pytest.mark.usefixtures("tries_moves_alone")
def test_hill_climbing_tries_each_other_device_and_the_best_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Device 1 was lucky with 3 s; with the 4.5 s of the second look, device 2 is better.
    problem = problem_of(op_graph(1, []), cluster(["k80"] * 3), np.ones((1, 3)))
    measured = iter([5.0, 3.0, 4.0, 4.5, 5.0, 4.0, 4.0])
    seen = []

    class Measured:
        def __init__(self) -> None:
            self.problem = problem

        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            seen.append(placements[:, 0].tolist())
            runtime = np.array([next(measured) for _ in placements])
            return EvaluationBatch(runtime=runtime, peak_memory=np.zeros((len(runtime), 3), int))

    start_at(monkeypatch, [0])
    LocalSearch(budget=7, restarts=1, annealing=0.0).place(problem, Measured())
    assert seen == [[0], [1, 2], [1], [0, 2], [2]]


@pytest.fixture
def tries_moves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let problems be searched that have few placements."""
    monkeypatch.setattr(local_search, "num_placements", lambda _problem: 10**9)


def start_at(monkeypatch: pytest.MonkeyPatch, placement: list[int]) -> None:
    """Let every start be one placement."""
    monkeypatch.setattr(
        local_search, "random_placements", lambda *_: np.array([placement], np.int32)
    )


def two_that_talk() -> PlacementProblem:
    """Return two ops that are best together on the faster device.

    From both on the slow one, moving either alone is worse.
    """
    graph = op_graph(2, [(0, 1)], tensor_bytes=np.array([10, 1]))
    return problem_of(graph, cluster(["k80", "v100"]), np.array([[1.0, 0.9], [1.0, 0.9]]))


@pytest.mark.usefixtures("tries_moves_alone")
def test_annealing_leaves_a_local_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_that_talk()
    evaluator = PlainEvaluator(problem)
    start_at(monkeypatch, [0, 0])
    for annealing, best in ((0.0, [0, 0]), (1.0, [1, 1])):
        placer = LocalSearch(200, restarts=1, annealing=annealing, first_temperature=10.0)
        assert placer.place(problem, evaluator).placement.tolist() == best


@pytest.mark.usefixtures("tries_moves_alone")
@pytest.mark.parametrize("seed", range(3))
def test_annealing_cools(seed: int) -> None:
    problem = two_that_talk()
    seen: list[list[int]] = []

    class Recorder(PlainEvaluator):
        def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
            seen.extend(placements.tolist())
            return super().evaluate(placements)

    placer = LocalSearch(200, restarts=1, annealing=1.0, first_temperature=100.0)
    placer.place(problem, Recorder(problem), seed=seed)
    assert all(placement in seen[:60] for placement in ([0, 0], [0, 1], [1, 0], [1, 1]))
    # In the end no move is accepted: each is one from where annealing has got to.
    assert {sum(placement) for placement in seen[-30:]} == {1}


@pytest.mark.usefixtures("tries_moves_alone")
def test_each_start_anneals_with_its_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(op_graph(2, []), cluster(["k80"] * 2), np.ones((2, 2)))
    starts = []

    def counted(*given: Any) -> NDArray[np.int32]:
        starts.append(given)
        return random_placements(*given)

    monkeypatch.setattr(local_search, "random_placements", counted)
    LocalSearch(budget=400, restarts=4, annealing=0.9).place(problem, PlainEvaluator(problem))
    assert len(starts) == 5  # 1 evaluation, 90 of annealing and about 5 of climbing each


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"budget": 0}, "budget: expected at least 1 evaluation, got 0"),
        ({"restarts": 0}, "restarts: expected at least 1, got 0"),
        ({"annealing": 1.5}, "annealing: expected a part from 0 to 1, got 1.5"),
        ({"last_temperature": 0.0}, "last_temperature: expected more than 0 and at most"),
        ({"last_temperature": 0.2}, "last_temperature: expected more than 0 and at most"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=re.escape(message)):
        LocalSearch(**setting)
