"""What the policy must learn on problems whose best placement brute force knows."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from placeto_graphs import PlacementProblem
from placeto_policy import PlacementPolicy
from placeto_policy import PlacetoPlacer
from placeto_policy import Settings
from placeto_policy import Trainer
from placeto_policy import train
from scheduled_problems import ListSchedule
from scheduled_problems import heavy_chain
from scheduled_problems import optimum
from scheduled_problems import penalised
from scheduled_problems import too_large_for_one
from scheduled_problems import two_chains

# Tiny graphs have few steps to learn from in an update, so that each may be a longer one.
TINY = Settings(updates=100, learning_rate_start=5e-3, learning_rate_end=5e-4, discount=0.9)
EVALUATIONS = 100 * 8 * 6


def greedy_cost(policy: PlacementPolicy, evaluator: ListSchedule) -> float:
    placement = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator).placement
    return float(penalised(evaluator, placement[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("problem", [two_chains, heavy_chain, too_large_for_one])
def test_the_greedy_pass_of_a_trained_policy_is_the_best_placement(
    problem: Callable[[], PlacementProblem], seed: int
) -> None:
    evaluator = ListSchedule(problem())
    trainer = Trainer([evaluator], TINY, seed=seed)
    train(trainer)
    assert trainer.evaluations == EVALUATIONS
    assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_one_policy_learns_two_graphs_and_places_longer_ones_unseen(seed: int) -> None:
    evaluators = [ListSchedule(two_chains()), ListSchedule(heavy_chain())]
    trainer = Trainer(evaluators, replace(TINY, updates=200), seed=seed)
    train(trainer)
    unseen = [ListSchedule(two_chains(length=4)), ListSchedule(heavy_chain(length=8))]
    for evaluator in (*evaluators, *unseen):
        assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))


def test_the_ablations_are_trained_like_the_rest() -> None:
    for embedding in ("simple-partitioner", "simple-aggregator"):
        evaluator = ListSchedule(heavy_chain())
        settings = replace(TINY, embedding=embedding, updates=60)
        trainer = Trainer([evaluator], settings)
        first = trainer.update().runtime
        assert train(trainer)[-1].runtime < first
