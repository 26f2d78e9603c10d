"""What the policy must learn on problems whose best placement brute force knows."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto_graphs import PlacementProblem
from placeto_policy import (
    JsonLinesLog,
    PlacementEnvironment,
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Settings,
    TensorBoardLog,
    Trainer,
    preset,
)
from random_states import random_problem
from scheduled_problems import (
    QUICK,
    ListSchedule,
    heavy_chain,
    optimum,
    penalised,
    train,
    two_by_turns,
    two_chains,
    two_speeds,
)

# With fewer steps of Adam for each update, each may be a longer one.
TINY = Settings(updates=30, hidden_units=64, minibatches=2, learning_rate_start=5e-3)
INTERMEDIATE = replace(
    TINY, reward="intermediate", updates=60, minibatches=1, learning_rate_end=5e-4
)


def greedy_cost(policy: PlacementPolicy, evaluator: ListSchedule) -> float:
    placement = PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator).placement
    return float(penalised(evaluator, placement[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "settings", "seed"),
    [
        (two_chains, TINY, 0),
        (two_speeds, TINY, 2),
        (two_chains, INTERMEDIATE, 1),
        (two_speeds, INTERMEDIATE, 0),
        (two_by_turns, TINY, 0),
    ],
)
def test_the_greedy_pass_of_a_trained_policy_is_the_best_placement(
    problem: Callable[[], PlacementProblem], settings: Settings, seed: int
) -> None:
    evaluator = ListSchedule(problem())
    trainer = Trainer([evaluator], settings, seed=seed)
    train(trainer)
    assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))


@pytest.mark.slow
def test_one_policy_learns_two_graphs_and_places_longer_ones_unseen() -> None:
    evaluators = [ListSchedule(two_chains()), ListSchedule(two_speeds())]
    trainer = Trainer(evaluators, TINY, seed=0)
    train(trainer)
    unseen = [ListSchedule(two_chains(length=4)), ListSchedule(two_speeds(length=8))]
    for evaluator in (*evaluators, *unseen):
        assert greedy_cost(trainer.policy, evaluator) == pytest.approx(optimum(evaluator))


# So fast that the policy gets worse again and again.
UNSTEADY = replace(QUICK, updates=12, workers=2, learning_rate_start=0.05, learning_rate_end=0.05)
Weights = dict[str, torch.Tensor]


def weights_of(policy: PlacementPolicy) -> Weights:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def assert_same(policy: PlacementPolicy, weights: Weights) -> None:
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def mean_greedy_cost(policy: PlacementPolicy, evaluators: list[ListSchedule]) -> float:
    """What the policy's greedy placements cost, in parts of the work, as a placer finds them."""
    costs = []
    for evaluator in evaluators:
        environment = PlacementEnvironment.for_policy(evaluator, policy.settings)
        environment.reset(num_episodes=1)
        while not environment.is_over:
            environment.step(policy(environment.states()).argmax(dim=1).numpy())
        costs.append(environment.costs[0] / evaluator.problem.compute_time.max(axis=1).sum())
    return float(np.mean(costs))


@pytest.mark.parametrize(("num_graphs", "has_validation", "seed"), [(1, False, 4), (3, True, 0)])
def test_a_training_leaves_the_policy_whose_greedy_placements_are_best(
    num_graphs: int, has_validation: bool, seed: int
) -> None:
    settings = replace(
        UNSTEADY,
        updates=33,
        device_features="loads",
        learning_rate_start=0.01,
        learning_rate_end=0.01,
    )
    evaluators = [ListSchedule(random_problem(9, 2, np.random.default_rng(n))) for n in range(5)]
    graphs, validation = evaluators[:num_graphs], evaluators[3:] if has_validation else []
    trainer = Trainer(graphs, settings, seed=seed, validation=validation)
    validated = []
    for update in range(1, settings.updates + 1):
        trainer.update()
        if update in (10, 20, 30, 33):
            validated.append(weights_of(trainer.policy))
        if not validated:
            assert_same(trainer.trained_policy, weights_of(trainer.policy))
    costs = []
    for weights in validated:
        policy = PlacementPolicy(2, settings)
        policy.load_state_dict(weights)
        costs.append(mean_greedy_cost(policy, validation or graphs))
    best = int(np.argmin(costs))
    assert best < len(costs) - 1
    assert costs[best] < min(costs[:best] + costs[best + 1 :])
    assert trainer.best_policy.cost == pytest.approx(costs[best])
    assert_same(trainer.trained_policy, validated[best])


def test_graphs_to_choose_by_have_as_many_devices() -> None:
    three = ListSchedule(random_problem(5, 3, np.random.default_rng(0)))
    two = ListSchedule(two_chains())
    with pytest.raises(PolicyError, match=r"validation\[1\]: expected a problem of 2 dev.* got 3"):
        Trainer([two], UNSTEADY, validation=[two, three])


def test_the_best_placements_are_none_of_the_graphs_to_choose_by() -> None:
    longer = ListSchedule(heavy_chain())
    shorter = ListSchedule(two_chains())
    trainer = Trainer([longer], replace(UNSTEADY, updates=1), validation=[shorter])
    trainer.update()
    (best,) = trainer.best
    assert best is not None
    assert trainer.best_policy.weights
    assert longer.evaluate(best.placement[None]).runtime[0] == best.cost


def test_the_last_policy_can_be_had_instead() -> None:
    settings = replace(UNSTEADY, selection="last")
    trainer = Trainer([ListSchedule(two_chains())], settings, seed=4)
    train(trainer)
    assert_same(trainer.trained_policy, weights_of(trainer.policy))
    assert preset("paper").selection == "last"


def three_updates(updates: int = 3) -> Trainer:
    settings = Settings(updates=updates, reward="intermediate", device_features="loads")
    return Trainer([ListSchedule(two_chains())], settings)


def test_json_lines_hold_what_each_update_did(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log, summaries = JsonLinesLog(path), train(three_updates())
    for summary in summaries:
        log.write(summary)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [asdict(summary) for summary in summaries]
    assert [line["evaluations"] for line in lines] == [48, 96, 144 + 6]  # a validation in the last
    assert all(line["best_runtime"] <= line["runtime"] for line in lines)
    assert all(0 < line["entropy"] <= 0.6932 for line in lines)


def test_a_resumed_log_drops_what_the_resumed_training_does_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonLinesLog(path)
    for summary in train(three_updates()):
        log.write(summary)
    with path.open("a") as file:
        file.write('{"update": 4, "runt')  # the process was killed here
    JsonLinesLog(path, updates=2)
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_file_that_is_no_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n")
    with pytest.raises(PolicyError, match="expected a log of updates, got 'remember the milk"):
        JsonLinesLog(path)
    assert path.read_text() == "remember the milk\n"


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        summaries = train(three_updates())
        for summary in summaries:
            log.write(summary)
    curves = EventAccumulator(str(tmp_path))
    curves.Reload()
    assert set(curves.Tags()["scalars"]) == set(asdict(summaries[0])) - {"update"}
    for name in ("runtime", "entropy", "gradient_norm", "learning_rate"):
        points = {event.step: event.value for event in curves.Scalars(name)}
        expected = {summary.update: getattr(summary, name) for summary in summaries}
        assert points == pytest.approx(expected, rel=1e-6)


def test_presets_that_there_are_not() -> None:
    with pytest.raises(PolicyError, match=r"preset: expected one of 'default', .*, got ''"):
        preset("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": "transformer"}, "embedding: expected one of 'pairs', 'message-passing', "),
        ({"reward": 3}, "reward: expected one of 'counterfactual', .*, 'terminal', got 3"),
        ({"minibatches": 0}, "minibatches: expected an integer >= 1, got 0"),
        ({"clip_ratio": 0.0}, "clip_ratio: expected a finite number > 0, got 0.0"),
        ({"workers": True}, "workers: expected an integer >= 1, got True"),
        ({"learning_rate_end": float("nan")}, "learning_rate_end: expected a finite number >= 0"),
        ({"discount": 1.5}, "discount: expected at most 1, got 1.5"),
    ],
)
def test_values_that_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Settings(**change)  # type: ignore[arg-type]
