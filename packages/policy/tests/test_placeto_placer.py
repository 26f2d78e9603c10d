from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    memory_penalised_runtime,
)
from placeto_graphs.testing import PlacerSuite
from placeto_policy import (
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Settings,
    load_pretrained,
    preset,
)
from placeto_policy.placer import devices_alone
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName, RewardName
from random_states import random_problem
from scheduled_problems import (
    QUICK,
    Given,
    ListSchedule,
    heavy_chain,
    penalised,
    too_large_for_one,
    two_chains,
)

FAST = Settings(learning_rate_start=5e-3)


class TestTrained(PlacerSuite):
    """All features need the evaluator, which refuses devices that cannot run a group."""

    settings = replace(QUICK, device_features="loads-and-lookahead", workers=2)

    def make_placer(self, _: PlacementProblem) -> PlacetoPlacer:
        return PlacetoPlacer(max_evaluations=200, num_rollouts=1, settings=self.settings)

    def make_evaluator(self, problem: PlacementProblem) -> ListSchedule:
        return ListSchedule(problem)


class TestPretrained(TestTrained):
    def make_placer(self, _: PlacementProblem) -> PlacetoPlacer:
        return PlacetoPlacer(policy=load_pretrained(), num_rollouts=1, refinement_rounds=2)


def test_optimized_finds_the_best_placement_and_keeps_to_its_budget() -> None:
    evaluator = ListSchedule(two_chains())
    placer = PlacetoPlacer(max_evaluations=500, settings=FAST)
    result = placer.place(evaluator.problem, evaluator, seed=1)
    assert result.runtime == 3.0
    assert evaluator.placements_seen <= result.evaluations + len(result.curve)
    assert len(result.curve) == (500 - 7) // (8 * (1 + 2 * 6)) + 1  # updates and the greedy pass
    # A validation and the pass at the end look at seven placements each.
    assert result.evaluations <= (len(result.curve) - 1) * 8 * (1 + 2 * 6) + 7 + 7 <= 507
    assert result.evaluations <= placer.most_evaluations(evaluator.problem) == 507
    assert result.curve[-1].tolist() == [result.evaluations, 3.0]
    assert (np.diff(result.curve, axis=0) * [1, -1] >= 0).all()


@pytest.mark.parametrize(
    ("reward", "node_features", "device_features", "per_episode", "per_rollout"),
    [
        ("intermediate", "costs-and-times", "none", 6, 1),
        ("terminal", "costs-and-times", "none", 1, 1),
        ("counterfactual", "costs-and-times", "loads", 1 + 6, 1),
        ("intermediate", "costs-times-and-schedule", "none", 6, 6),
        ("terminal", "costs-times-and-schedule", "none", 6, 6),
        ("counterfactual", "costs-times-and-schedule", "loads", 6 + 6, 6),
        ("intermediate", "costs-times-and-schedule", "loads-and-lookahead", 1 + 6, 7),
        ("terminal", "costs-and-times", "loads-and-lookahead", 1 + 6, 7),
        ("counterfactual", "costs-times-and-schedule", "loads-and-lookahead", 1 + 6 + 6, 7),
    ],
)
def test_the_evaluations_are_enough_for_the_updates_at_their_most(
    reward: RewardName,
    node_features: NodeFeaturesName,
    device_features: DeviceFeaturesName,
    per_episode: int,
    per_rollout: int,
) -> None:
    evaluator = ListSchedule(two_chains())
    settings = replace(
        QUICK,
        reward=reward,
        node_features=node_features,
        device_features=device_features,
        workers=3,
    )
    for updates, validations in ((1, 1), (11, 2)):
        for spare in (0, 3 * per_episode - 1):
            training_evaluations = 3 * per_episode * updates + per_rollout * validations
            max_evaluations = training_evaluations + spare
            placer = PlacetoPlacer(max_evaluations=max_evaluations, settings=settings)
            result = placer.place(evaluator.problem, evaluator)
            assert len(result.curve) == updates + 1
            assert result.evaluations == training_evaluations + per_rollout
    min_evaluations = 3 * per_episode + per_rollout
    with pytest.raises(
        PolicyError, match=f"at least {min_evaluations}, one update of 3 episodes, got"
    ):
        PlacetoPlacer(max_evaluations=min_evaluations - 1, settings=settings).place(
            evaluator.problem, evaluator
        )


def test_all_costs_have_the_memory_penalty_of_the_training() -> None:
    evaluator = ListSchedule(too_large_for_one())
    policy = PlacementPolicy(2, Settings(memory_penalty=0.0, hidden_units=8))
    chosen = Settings(memory_penalty=1e-6, hidden_units=8, workers=2)
    placer = PlacetoPlacer(policy=policy, max_evaluations=200, refinement_rounds=1, settings=chosen)
    result = placer.place(evaluator.problem, evaluator)
    batch = evaluator.evaluate(result.placement[None])
    expected = memory_penalised_runtime(batch, evaluator.problem.cluster.memory_bytes, 1e-6)[0]
    assert result.curve[-1, 1] == pytest.approx(expected)
    assert result.fits(evaluator.problem.cluster)


class Recorded(ListSchedule):
    """A list schedule that keeps all placements that it was asked for."""

    def __init__(self, problem: PlacementProblem) -> None:
        super().__init__(problem)
        self.placements: list[NDArray[np.int32]] = []

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        self.placements.append(placements.copy())
        return super().evaluate(placements)


@pytest.mark.parametrize("reward", ["intermediate", "terminal", "counterfactual"])
@pytest.mark.parametrize("features", ["loads", "loads-and-lookahead"])
def test_no_better_placement_was_evaluated_than_the_one_that_is_returned(
    reward: RewardName, features: DeviceFeaturesName
) -> None:
    evaluator = Recorded(random_problem(9, 3, np.random.default_rng(0)))
    settings = replace(QUICK, reward=reward, device_features=features, workers=2)
    placer = PlacetoPlacer(max_evaluations=300, num_rollouts=2, settings=settings)
    result = placer.place(evaluator.problem, evaluator, seed=0)
    costs = penalised(evaluator, np.concatenate(evaluator.placements))
    assert penalised(evaluator, result.placement[None])[0] == costs.min()


@pytest.mark.parametrize("features", ["loads", "loads-and-lookahead"])
def test_rounds_of_descent_continue_from_the_best_placement_until_no_move_helps(
    features: DeviceFeaturesName,
) -> None:
    evaluator = ListSchedule(random_problem(9, 3, np.random.default_rng(2)))
    policy = PlacementPolicy(3, Settings(device_features=features))
    greedy = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator)
    placers = [PlacetoPlacer(policy=policy, refinement_rounds=rounds) for rounds in (1, 100)]
    once, still = (placer.place(evaluator.problem, evaluator) for placer in placers)
    assert still.runtime <= once.runtime < greedy.runtime
    assert once.evaluations == greedy.evaluations + 9 * 2
    rounds = len(still.curve) - 1
    assert 1 < rounds < 100
    assert still.evaluations == greedy.evaluations + rounds * 9 * 2
    moves = np.tile(still.placement, (27, 1))
    moves[np.arange(27), np.repeat(np.arange(9), 3)] = np.tile(np.arange(3), 9)
    assert penalised(evaluator, moves).min() == pytest.approx(still.runtime)


def test_sampled_rollouts_can_only_help_and_follow_from_the_seed() -> None:
    evaluator = ListSchedule(two_chains())
    policy = PlacementPolicy(2)
    greedy = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator)
    placer = PlacetoPlacer(policy=policy, num_rollouts=40)
    sampled = placer.place(evaluator.problem, evaluator)
    assert sampled.runtime <= greedy.runtime
    assert sampled.evaluations == 41 * 7
    evaluated_placements = []
    for seed in (0, 1):
        recorded = Recorded(two_chains())
        PlacetoPlacer(policy=policy, num_rollouts=3).place(recorded.problem, recorded, seed=seed)
        evaluated_placements.append(np.concatenate(recorded.placements).tolist())
    assert evaluated_placements[0] != evaluated_placements[1]


def test_each_sampled_rollout_is_another_one_and_more_of_them_begin_with_the_same() -> None:
    problem = two_chains(length=12)
    network = Settings(node_features="costs-and-times", device_features="loads", hidden_units=8)
    policy = PlacementPolicy(2, network)
    sampled = []
    for num_rollouts in (3, 40):
        recorded = Recorded(problem)
        PlacetoPlacer(policy=policy, num_rollouts=num_rollouts).place(problem, recorded)
        placements = np.concatenate(recorded.placements)[:-1]  # the last one is the result
        sampled.append([tuple(placement) for placement in placements.tolist()])
    assert [len(set(placements)) for placements in sampled] == [1 + 3, 1 + 40]
    assert sampled[1][:4] == sampled[0]


def test_the_seed_decides_about_the_training_and_other_placers() -> None:
    problem = two_chains()
    seeds = []

    class Seeded(Given):
        def place(
            self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
        ) -> PlacementResult:
            seeds.append(seed)
            return super().place(problem, evaluator, seed=seed)

    evaluated = []
    for seed in (3, 3, 4):
        recorded = Recorded(problem)
        starts = [Seeded(np.zeros(6, np.int32))]
        settings = replace(QUICK, workers=1)
        placer = PlacetoPlacer(max_evaluations=20, starts=starts, settings=settings)
        placer.place(problem, recorded, seed=seed)
        evaluated.append(np.concatenate(recorded.placements).tolist())
    assert seeds == [3, 3, 4]
    assert evaluated[0] == evaluated[1] != evaluated[2]


def test_the_largest_number_of_evaluations_has_all_that_a_placer_does() -> None:
    problem = two_chains()  # of six groups: a rollout takes 7, a round of descent 6
    policy = PlacementPolicy(2, QUICK)
    for placer, evaluations in (
        (PlacetoPlacer(policy=policy), 7),
        (PlacetoPlacer(policy=policy, num_rollouts=3, refinement_rounds=2), 4 * 7 + 2 * 6),
        (PlacetoPlacer(policy=policy, max_evaluations=500, num_rollouts=1), 500 + 2 * 2 * 7),
        (PlacetoPlacer(max_evaluations=500, num_rollouts=1), 500 + 2 * 7),
    ):
        assert placer.most_evaluations(problem) == evaluations


def test_fine_tuning_starts_from_the_policy_and_leaves_it_as_it_is() -> None:
    evaluator = ListSchedule(heavy_chain())
    policy = PlacementPolicy(2, QUICK, seed=9)
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    placer = PlacetoPlacer(policy=policy, max_evaluations=8 * 13 * 2 + 7)
    result = placer.place(evaluator.problem, evaluator)
    assert 8 * 7 * 2 < result.evaluations <= 8 * 13 * 2 + 3 * 7
    zero_shot = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator)
    assert result.curve[0].tolist() == zero_shot.curve[0].tolist()
    assert result.runtime <= zero_shot.runtime
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, weights[name])


def test_a_policy_for_another_number_of_devices() -> None:
    evaluator = ListSchedule(two_chains())
    with pytest.raises(PolicyError, match=r"expected a problem of 4 devices, .*, got 2"):
        PlacetoPlacer(policy=PlacementPolicy(4)).place(evaluator.problem, evaluator)


def test_placers_that_cannot_be() -> None:
    with pytest.raises(PolicyError, match="max_evaluations: expected some"):
        PlacetoPlacer()
    with pytest.raises(PolicyError, match="num_rollouts: expected at least 0, got -1"):
        PlacetoPlacer(max_evaluations=1, num_rollouts=-1)
    with pytest.raises(PolicyError, match="refinement_rounds: expected at least 0, got -2"):
        PlacetoPlacer(max_evaluations=1, refinement_rounds=-2)


def test_each_update_is_reported() -> None:
    evaluator = ListSchedule(two_chains())
    reports: list[tuple[int, int, int]] = []
    placer = PlacetoPlacer(
        max_evaluations=400,
        settings=QUICK,
        on_update=lambda summary, total: reports.append(
            (summary.update, summary.evaluations, total)
        ),
    )
    result = placer.place(evaluator.problem, evaluator)
    assert [(update, total) for update, _, total in reports] == [(1, 3), (2, 3), (3, 3)]
    assert [evaluations for _, evaluations, _ in reports] == result.curve[:3, 0].tolist()


def test_placements_of_others_count_and_descent_continues_from_the_best() -> None:
    evaluator = ListSchedule(two_chains())
    untrained = PlacementPolicy(num_devices=2)
    best, worse = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]], np.int32)
    # The network does not find the best placement of two chains before it has learned.
    alone = PlacetoPlacer(policy=untrained).place(evaluator.problem, evaluator)
    assert alone.runtime > 3.0
    starts = [Given(worse), Given(best)]
    result = PlacetoPlacer(policy=untrained, starts=starts).place(evaluator.problem, evaluator)
    np.testing.assert_array_equal(result.placement, best)
    assert (result.runtime, result.evaluations) == (3.0, 3 + 3 + alone.evaluations)
    assert result.curve[:2].tolist() == [[3.0, 6.2], [6.0, 3.0]]
    swept = PlacetoPlacer(policy=untrained, starts=[Given(worse)], refinement_rounds=2)
    assert swept.place(evaluator.problem, evaluator).runtime == 3.0


def test_a_policy_for_any_devices_is_never_slower_than_one_device() -> None:
    problem = random_problem(12, 3, np.random.default_rng(4))
    evaluator = ListSchedule(problem)
    untrained = PlacementPolicy(settings=preset("general"))
    alone = [np.full((1, 12), device, np.int32) for device in range(3)]
    runtimes = [evaluator.evaluate(placement).runtime.item() for placement in alone]
    rollout = PlacetoPlacer(policy=untrained, starts=()).place(problem, evaluator)
    result = PlacetoPlacer(policy=untrained).place(problem, evaluator)
    assert result.runtime == min(rollout.runtime, *runtimes)
    assert result.evaluations == 3 + rollout.evaluations


def test_a_group_that_cannot_run_on_a_device_is_on_its_fastest_one() -> None:
    problem = two_chains()
    seconds = problem.compute_time.copy()
    seconds[2] = np.inf, 1.0
    placements = devices_alone(replace(problem, compute_time=seconds))
    (group,) = np.flatnonzero(placements[0])
    assert problem.grouping.group_of[2] == group
    assert placements[1].all()
