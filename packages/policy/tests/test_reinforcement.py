"""Reinforcement over whole rollouts: the gradient, what it leads to, and resuming."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_imitation_goes_on import Part, weights

from placeto_policy import (
    PlacementPolicy,
    PlacetoPlacer,
    PolicyError,
    Reinforcement,
    ReinforcementSettings,
    preset,
)
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import run_episodes, sampling
from placeto_policy.reinforcement import advantages_of
from placeto_policy.states import States
from scheduled_problems import (
    ListSchedule,
    heavy_chain,
    too_large_for_one,
    two_chains,
    with_room,
)

SMALL = replace(preset("general"), hidden_units=16)
SETTINGS = ReinforcementSettings(graphs=2, rollouts=6, states=4)


def test_the_gradient_is_that_of_reinforce_with_the_mean_of_the_rollouts() -> None:
    """Against autograd over each state of each pass alone, drawn again from the same streams."""
    settings = ReinforcementSettings(graphs=1, rollouts=5, states=100, entropy_weight=0.07)
    policy, evaluator = PlacementPolicy(settings=SMALL), ListSchedule(two_chains())
    caught = Part(0, 1)
    run = Reinforcement(policy, [evaluator], steps=1, settings=settings, seed=3, processes=caught)
    mean_logarithm = run.step()

    environment = PlacementEnvironment.for_policy(evaluator, SMALL, reward="terminal")
    environment.reset(num_episodes=5)
    streams = np.random.default_rng((3, 0, 0)).spawn(5)
    episodes = run_episodes(policy, environment, sampling(streams, 6))
    assert mean_logarithm == pytest.approx(np.log(episodes.costs).mean())
    logarithms = np.log(episodes.costs)
    assert logarithms.std() > 0.01
    advantages = (logarithms.mean() - logarithms) / (logarithms.std() + 0.01)
    gain = torch.zeros(())
    for episode in range(5):
        placement = torch.from_numpy(episodes.start[episode].astype(np.int64))
        visited = torch.zeros(6, dtype=torch.bool)
        for group in episodes.order[episode].tolist():
            state = States(
                topology=episodes.topology,
                placement=placement[None].clone(),
                current=torch.tensor([group]),
                visited=visited[None].clone(),
            )
            log_probability = policy(state)[0]
            device = int(episodes.final[episode, group])
            entropy = -(log_probability.exp() * log_probability).sum()
            gain = gain + log_probability[device] * float(advantages[episode]) + 0.07 * entropy
            placement[group], visited[group] = device, True
    (-gain / 30).backward()  # type: ignore[no-untyped-call]
    expected = torch.cat(
        [
            parameter.grad.flatten()
            for parameter in policy.parameters()
            if parameter.grad is not None
        ]
    )
    torch.testing.assert_close(caught.parts[0][:-1], expected, rtol=1e-3, atol=1e-6)


def test_advantages_do_not_depend_on_the_unit_and_are_limited() -> None:
    settings = ReinforcementSettings(largest_advantage=2.0)
    costs = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1])
    advantages = advantages_of(costs, settings)
    np.testing.assert_allclose(advantages_of(1e-6 * costs, settings), advantages, rtol=1e-5)
    assert advantages[-1] == 2.0
    assert advantages_of(np.full(4, 0.5), settings).tolist() == [0.0] * 4
    assert np.isfinite(advantages_of(np.array([0.0, 1.0]), settings)).all()


@pytest.mark.slow
def test_it_learns_graphs_of_different_needs_at_once() -> None:
    """Two chains go apart, a heavy one stays together, and a large one fills two devices."""
    problems = [with_room(two_chains()), with_room(heavy_chain()), too_large_for_one()]
    evaluators = [ListSchedule(problem) for problem in problems]
    run = Reinforcement(
        PlacementPolicy(settings=SMALL),
        evaluators,
        steps=150,
        settings=ReinforcementSettings(learning_rate=3e-3),
    )
    for _ in range(150):
        run.step()
    found = [
        PlacetoPlacer(policy=run.policy, num_rollouts=15).place(each.problem, each)
        for each in evaluators
    ]
    assert [result.runtime for result in found[:2]] == [3.0, 6.0]
    assert found[2].fits(evaluators[2].problem.cluster)


def test_a_run_that_goes_on_comes_to_the_same_weights() -> None:
    evaluators = [ListSchedule(two_chains()), ListSchedule(heavy_chain())]
    whole, first, second = (
        Reinforcement(PlacementPolicy(settings=SMALL), evaluators, steps=4, settings=SETTINGS)
        for _ in range(3)
    )
    costs = [whole.step() for _ in range(4)]
    first.step()
    second.restore({name: value.clone() for name, value in first.tensors().items()})
    assert [second.step() for _ in range(3)] == costs[1:]
    assert torch.equal(weights(whole), weights(second))


def test_the_parts_of_processes_sum_up_to_the_gradient_of_one() -> None:
    evaluators = [ListSchedule(two_chains()), ListSchedule(heavy_chain())]
    alone, *several = (Part(0, 1), *(Part(rank, 2) for rank in range(2)))
    for part in (alone, *several):
        Reinforcement(
            PlacementPolicy(settings=SMALL),
            evaluators,
            steps=1,
            settings=SETTINGS,
            processes=part,
        ).step()
    summed = torch.stack([part.parts[0] for part in several]).sum(dim=0)
    torch.testing.assert_close(summed, alone.parts[0], rtol=1e-4, atol=1e-6)


def test_what_cannot_learn_is_refused() -> None:
    with pytest.raises(PolicyError, match="evaluators: expected at least one, got none"):
        Reinforcement(PlacementPolicy(settings=SMALL), [], steps=1)
    with pytest.raises(PolicyError, match="got one for 2: choose the embedding 'pairs'"):
        Reinforcement(PlacementPolicy(2), [ListSchedule(two_chains())], steps=1)
