"""How an update is divided in parts, each a step of Adam."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logit_policies import gradients_of_update
from placeto_policy import PlacementPolicy, PolicyError, Settings, Trainer
from placeto_policy.settings import RewardName
from placeto_policy.workers import Processes
from scheduled_problems import QUICK, ListSchedule, heavy_chain, partly_possible, two_chains

STILL = 1e-60  # a learning rate that is 0 in float32


class OneOf(Processes):
    """A process that only says how many there are, and keeps what it would send."""

    def __init__(self, rank: int = 0, count: int = 2) -> None:
        self.rank, self.count, self.sent = rank, count, [b""]

    def gather(self, own: Sequence[Any]) -> list[Any]:
        self.sent = list(own)
        return self.sent


def new_trainer(settings: Settings, *, seed: int = 0, rank: int | None = None) -> Trainer:
    evaluators = [ListSchedule(heavy_chain()), ListSchedule(partly_possible())]
    processes = None if rank is None else OneOf(rank)
    return Trainer(evaluators, settings, seed=seed, processes=processes)


def division(trainer: Trainer) -> list[list[list[int]]]:
    return [[steps.tolist() for steps in part] for part in trainer._parts()]


@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 3))
def test_each_step_is_in_one_part_of_each_epoch(seed: int, minibatches: int, epochs: int) -> None:
    settings = Settings(minibatches=minibatches, epochs=epochs, hidden_units=2)
    parts = division(new_trainer(settings, seed=seed))
    assert len(parts) == minibatches * epochs
    for epoch in range(epochs):
        own = parts[epoch * minibatches : (epoch + 1) * minibatches]
        for graph, num_groups in enumerate((6, 3)):
            steps = [part[graph] for part in own]
            assert sorted(itertools.chain.from_iterable(steps)) == list(range(num_groups))
            sizes = [len(part) for part in steps]
            assert max(sizes) - min(sizes) <= 1


def test_all_processes_divide_in_one_way_and_each_epoch_and_update_in_another() -> None:
    settings = Settings(minibatches=2, epochs=2, workers=2)
    ranks = [new_trainer(settings, rank=rank) for rank in (0, 1)]
    first = division(ranks[0])
    assert first == division(ranks[1]) == division(new_trainer(settings))
    assert first[:2] != first[2:]
    ranks[0].updates = 1
    assert division(ranks[0]) != first
    assert division(new_trainer(settings, seed=1)) != first


@pytest.mark.parametrize("reward", ["counterfactual", "intermediate"])
@pytest.mark.parametrize(("minibatches", "epochs"), [(4, 1), (2, 3), (7, 1)])
def test_the_parts_of_a_policy_that_stays_add_up_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, reward: RewardName, minibatches: int, epochs: int
) -> None:
    settings = replace(
        Settings(learning_rate_start=STILL, learning_rate_end=STILL, workers=4),
        reward=reward,
    )
    gradients, entropies = [], []
    for parts in (
        replace(settings, minibatches=1, epochs=1),
        replace(settings, minibatches=minibatches, epochs=epochs),
    ):
        trainer = new_trainer(parts)
        with monkeypatch.context() as patch:
            gradients.append(torch.stack(gradients_of_update(patch, trainer)))
        entropies.append(trainer.update().entropy)
    assert [len(each) for each in gradients] == [1, minibatches * epochs]
    whole, parted = (each.sum(dim=0) for each in gradients)
    torch.testing.assert_close(
        parted, epochs * whole, rtol=1e-3, atol=1e-5 * float(whole.abs().max())
    )
    assert entropies[1] == pytest.approx(entropies[0], rel=1e-5)


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (4, 1), (3, 2)])
def test_each_part_is_a_step_of_adam(minibatches: int, epochs: int) -> None:
    trainer = new_trainer(Settings(minibatches=minibatches, epochs=epochs))
    for update in (1, 2):
        trainer.update()
        made = {float(state["step"]) for state in trainer.optimizer.state.values()}
        assert made == {update * minibatches * epochs}
    assert trainer.steps_per_update == minibatches * epochs


def test_a_clipped_policy_moves_less() -> None:
    """Many epochs over the same episodes: the clip is what ends them."""
    moved = []
    for clip_ratio in (0.05, 1e6):
        settings = replace(
            QUICK,
            clip_ratio=clip_ratio,
            epochs=30,
            learning_rate_start=5e-3,
            entropy_weight_start=0.0,
            entropy_weight_end=0.0,
        )
        trainer = Trainer([ListSchedule(two_chains())], settings)
        environment = trainer.environments[0]
        environment.reset(num_episodes=1)
        states = environment.states()
        before = trainer.policy(states).exp().detach()
        trainer.update()
        after = trainer.policy(states).exp().detach()
        moved.append(float((after - before).abs().max()))
    assert moved[0] < 0.5 * moved[1]
    assert np.isfinite(moved).all()


def test_processes_with_different_trainings_refuse_to_continue() -> None:
    """Each sends a digest of its training, which is another one after any change."""
    settings = replace(QUICK, workers=2)
    policy = PlacementPolicy(2, settings)

    def told(graph: int = 0, updates: int = 0, **changes: Any) -> bytes:
        processes = OneOf()
        chosen: dict[str, Any] = {"settings": settings, "seed": 7, "policy": policy} | changes
        evaluator = ListSchedule((two_chains(), partly_possible())[graph])
        trainer = Trainer([evaluator], processes=processes, **chosen)
        trainer.updates = updates
        trainer._check_processes()
        return bytes(processes.sent[0])

    others = [
        told(seed=8),
        told(updates=1),
        told(policy=PlacementPolicy(2, settings, seed=1)),
        told(settings=replace(settings, discount=0.5)),
        told(graph=1),
    ]
    assert told() == told()
    assert len({told(), *others}) == 6

    class Other(OneOf):
        def gather(self, own: Sequence[Any]) -> list[Any]:
            return [*own, b"other"]

    trainer = Trainer([ListSchedule(two_chains())], settings, processes=Other())
    with pytest.raises(PolicyError, match="policy, settings or graphs in process 1 than in"):
        trainer.update()
    with pytest.raises(PolicyError, match="workers: expected at least one for each of 9 processes"):
        Trainer([ListSchedule(two_chains())], settings, processes=OneOf(count=9))
