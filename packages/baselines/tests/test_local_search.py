import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from baseline_problems import gpus, random_problem, two_chains
from placeto_baselines import BaselineError, LocalSearch, exhaustive_search
from placeto_baselines.devices import random_placements
from placeto_baselines.search import local_search
from placeto_graphs import EvaluationBatch
from plain_evaluator import PlainEvaluator

# Two ops that are best together on the faster device: from both on the slow one, moving either
# alone is worse.
TWO_THAT_TALK = gpus([[1, 0.9]] * 2, [(0, 1)], tensor_bytes=[10, 1])


class Recorder(PlainEvaluator):
    """Keeps what was evaluated, one call after the other."""

    runtimes: Iterator[float] | None = None  # instead of those of the simulated step

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        self.seen = [*getattr(self, "seen", []), placements.tolist()]
        batch = super().evaluate(placements)
        if self.runtimes is None:
            return batch
        runtime = np.array([next(self.runtimes) for _ in placements])
        return EvaluationBatch(runtime=runtime, peak_memory=batch.peak_memory * 0)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), budget=st.integers(1, 40), restarts=st.integers(1, 5))
def test_no_more_placements_are_evaluated_than_the_budget(
    seed: int, budget: int, restarts: int
) -> None:
    problem = random_problem(np.random.default_rng(seed))
    evaluator = PlainEvaluator(problem)
    result = LocalSearch(max_evaluations=budget, restarts=restarts).place(
        problem, evaluator, seed=seed
    )
    assert result.evaluations == evaluator.evaluated <= budget


@pytest.mark.parametrize(
    ("budget", "annealing", "evaluations"),
    # Of 81 placements, if the budget suffices, each is tried once; else the budget is spent.
    [(80, 0.0, 80), (80, 0.5, 80), (80, 1.0, 80), (81, 0.5, 81), (10_000, 0.5, 81)],
)
def test_the_budget_is_spent(budget: int, annealing: float, evaluations: int) -> None:
    evaluator = PlainEvaluator(two_chains())
    result = LocalSearch(budget, annealing=annealing).place(evaluator.problem, evaluator)
    assert result.evaluations == evaluator.evaluated == evaluations
    if budget > 80:
        assert (len(evaluator.known), result.runtime) == (81, 1.0)


def test_a_budget_without_end_does_not_go_through_many_placements_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_search, "FEW_PLACEMENTS", 8)
    problem = gpus([1, 1], count=3)  # 9 placements
    start_at(monkeypatch, [0, 1])
    result = LocalSearch(max_evaluations=20, annealing=0.0).place(problem, PlainEvaluator(problem))
    assert result.evaluations == 20
    assert result.curve[0].tolist() == [1, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_hill_climbing_ends_where_no_single_move_helps(seed: int) -> None:
    generator = np.random.default_rng(seed)
    edges = sorted({(int(a), int(b)) for a, b in generator.integers(0, 14, (30, 2)) if a < b})
    problem = gpus(generator.random(14) * 5, edges, count=3)
    evaluator = PlainEvaluator(problem)
    result = LocalSearch(max_evaluations=800, restarts=1, annealing=0.0).place(problem, evaluator)
    moves = np.repeat(result.placement[None], 14 * 3, axis=0)
    moves[np.arange(14 * 3), np.repeat(np.arange(14), 3)] = np.tile(np.arange(3), 14)
    assert evaluator.evaluate(moves).runtime.min() == result.runtime


@pytest.mark.usefixtures("tries_moves_alone")
def test_hill_climbing_tries_each_other_device_and_the_best_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Device 1 was lucky with 3 s; with the 4.5 s of the second look, device 2 is better.
    measured = Recorder(gpus([1], count=3))
    measured.runtimes = iter([5.0, 3.0, 4.0, 4.5, 5.0, 4.0, 4.0])
    start_at(monkeypatch, [0])
    LocalSearch(max_evaluations=7, restarts=1, annealing=0.0).place(measured.problem, measured)
    assert measured.seen == [[[0]], [[1], [2]], [[1]], [[0], [2]], [[2]]]


@pytest.fixture
def tries_moves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let problems be searched that have few placements, as long as others."""
    monkeypatch.setattr(local_search, "num_placements", lambda _problem: 10**9)
    monkeypatch.setattr(local_search, "MOST_STEPS_OF_PAIR", 10**9)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an element for each random placement that a search starts from."""
    calls: list[Any] = []

    def counted(*arguments: Any) -> NDArray[np.int32]:
        calls.append(arguments)
        return random_placements(*arguments)

    monkeypatch.setattr(local_search, "random_placements", counted)
    return calls


def start_at(monkeypatch: pytest.MonkeyPatch, placement: list[int]) -> None:
    """Let every start be one placement."""
    start = np.array([placement], np.int32)
    monkeypatch.setattr(local_search, "random_placements", lambda *_: start)


@pytest.mark.usefixtures("tries_moves_alone")
@pytest.mark.parametrize(("annealing", "best"), [(0.0, [0, 0]), (1.0, [1, 1])])
def test_annealing_leaves_a_local_optimum(
    annealing: float, best: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_at(monkeypatch, [0, 0])
    placer = LocalSearch(200, restarts=1, annealing=annealing, first_temperature=10.0)
    result = placer.place(TWO_THAT_TALK, PlainEvaluator(TWO_THAT_TALK))
    assert result.placement.tolist() == best


@pytest.mark.usefixtures("tries_moves_alone")
@pytest.mark.parametrize("seed", range(3))
def test_annealing_cools(seed: int) -> None:
    recorder = Recorder(TWO_THAT_TALK)
    placer = LocalSearch(200, restarts=1, annealing=1.0, first_temperature=100.0)
    placer.place(TWO_THAT_TALK, recorder, seed=seed)
    tried = [placement for batch in recorder.seen for placement in batch]
    assert all(placement in tried[:60] for placement in ([0, 0], [0, 1], [1, 0], [1, 1]))
    # In the end no move is accepted: each is one from where annealing has got to.
    assert {sum(placement) for placement in tried[-30:]} == {1}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_evaluations": 0}, "max_evaluations: expected at least 1, got 0"),
        ({"restarts": 0}, "restarts: expected at least 1, got 0"),
        ({"annealing": 1.5}, "annealing: expected a part from 0 to 1, got 1.5"),
        ({"last_temperature": 0.0}, "last_temperature: expected more than 0 and at most"),
        ({"last_temperature": 0.2}, "last_temperature: expected more than 0 and at most"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(BaselineError, match=re.escape(message)):
        LocalSearch(**setting)


def test_every_placement_that_can_run_is_tried_once() -> None:
    compute_time = np.ones((4, 3))
    compute_time[0, 1] = np.inf
    evaluator = PlainEvaluator(two_chains(compute_time=compute_time))
    result = exhaustive_search(evaluator.problem, evaluator)
    assert result.evaluations == evaluator.evaluated == len(evaluator.known) == 2 * 3**3
    assert result.runtime == min(runtime for runtime, _ in evaluator.known.values())


def test_a_placement_that_fits_is_better_than_a_faster_one_that_does_not() -> None:
    problem = gpus([[0.1, 1.0]] * 2, parameter_bytes=[10**9] * 2)
    result = exhaustive_search(problem, PlainEvaluator(problem))
    assert sorted(result.placement.tolist()) == [0, 1]
    assert result.fits(problem.cluster)


def test_too_many_placements_are_refused() -> None:
    problem = two_chains()
    assert exhaustive_search(problem, PlainEvaluator(problem), max_placements=81).runtime == 1.0
    message = "expected at most 80 placements to try, got 81 (4 groups on 3 devices)"
    with pytest.raises(BaselineError, match=re.escape(message)):
        exhaustive_search(problem, PlainEvaluator(problem), max_placements=80)
    huge = gpus([1] * 20_000)
    with pytest.raises(BaselineError, match=r"got 10\^6021 \(20000 groups on 2 devices\)$"):
        exhaustive_search(huge, PlainEvaluator(huge))


@pytest.mark.usefixtures("tries_moves_alone")
def test_each_start_anneals_with_its_share_of_the_budget(starts: list[Any]) -> None:
    problem = gpus([1, 1])
    LocalSearch(max_evaluations=400, restarts=4, annealing=0.9).place(
        problem, PlainEvaluator(problem)
    )
    assert len(starts) == 5  # 1 evaluation, 90 of annealing and about 5 of climbing each


@pytest.mark.usefixtures("tries_moves_alone")
def test_annealing_ends_after_so_many_steps_of_each_pair_of_groups(
    starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_search, "MOST_STEPS_OF_PAIR", 50)
    problem = gpus([1, 1])
    LocalSearch(max_evaluations=4000, restarts=1, annealing=1.0).place(
        problem, PlainEvaluator(problem)
    )
    assert 18 <= len(starts) <= 20  # 1 evaluation, 200 of annealing, a few of climbing each
