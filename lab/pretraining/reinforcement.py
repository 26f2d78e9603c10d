"""REINFORCE over whole rollouts, by which one policy learns many graphs and clusters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Evaluator
from placeto_policy import PlacementEnvironment, PlacementPolicy
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.episodes import Episodes, run_episodes, sampling
from placeto_policy.workers import one_thread_of_torch
from pretraining.learning import LearningRun

SMALLEST_SPREAD = 0.01  # of logarithms of costs: below, rollouts are equally good
LEAST_LOG_PROBABILITY = -30.0


@dataclass(frozen=True, kw_only=True)
class ReinforcementSettings:
    """The hyperparameters of `Reinforcement`."""

    graphs: int = 2  # in a step
    rollouts: int = 16  # of each graph
    states: int = 48  # of each rollout
    learning_rate: float = 5e-4
    entropy_weight: float = 3e-3
    largest_advantage: float = 3.0  # in standard deviations
    max_gradient_norm: float = 1.0


class Reinforcement(LearningRun):
    """Trains a policy by its own rollouts on any graphs and clusters at once.

    This is REINFORCE (Williams 1992) with the cost of the last placement as a terminal reward. All
    rollouts of a step on one graph begin equally, so their mean is the baseline. Advantages are
    differences of logarithms of costs, as fractions of their standard deviation. A graph of
    seconds therefore counts as much as one of milliseconds. A new policy learns next to nothing
    from whole rollouts: begin with `Imitation`.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        evaluators: Sequence[Evaluator],
        *,
        steps: int,
        weights: Sequence[float] | None = None,
        settings: ReinforcementSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = settings or ReinforcementSettings()
        super().__init__(
            policy,
            len(evaluators),
            graphs_of_step=self.settings.graphs,
            weights=weights,
            steps=steps,
            learning_rate=self.settings.learning_rate,
            max_gradient_norm=self.settings.max_gradient_norm,
            seed=seed,
        )
        self._environments = [
            PlacementEnvironment.for_policy(evaluator, policy.settings, reward="terminal")
            for evaluator in evaluators
        ]

    def step(self) -> float:
        """Make a step; return the mean logarithm of the costs in seconds before it."""
        added = 0.0
        with one_thread_of_torch():
            for _, graph, generator in self.turns():
                environment = self._environments[graph]
                environment.reset(num_episodes=self.settings.rollouts)
                streams = generator.spawn(self.settings.rollouts)
                choice = sampling(streams, environment.topology.num_groups)
                episodes = run_episodes(self.policy, environment, choice)
                self._add_gradient(episodes, generator)
                added += float(_logarithms(episodes.costs).mean()) / self.settings.graphs
        return self.apply(added)

    def _add_gradient(self, episodes: Episodes, generator: np.random.Generator) -> None:
        """Add the gradient of some states of rollouts on one graph."""
        num_groups = episodes.order.shape[1]
        count = min(num_groups, self.settings.states)
        steps = np.sort(generator.choice(num_groups, size=count, replace=False))
        advantages = torch.from_numpy(self._advantages(episodes.costs))
        actions = torch.from_numpy(episodes.actions())
        for some, states in episodes.states(steps):
            log_probabilities = self.policy(states)
            chosen = log_probabilities.gather(1, actions[:, some].T.reshape(-1, 1)).squeeze(1)
            possible = log_probabilities.clamp(min=LEAST_LOG_PROBABILITY)
            entropy = -(log_probabilities.exp() * possible).sum(dim=1)
            gain = chosen * advantages.repeat(len(some)) + self.settings.entropy_weight * entropy
            share = self.settings.graphs * count * len(advantages)
            (-gain.sum() / share).backward()

    def _advantages(self, costs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return float32[B], the advantages of B rollouts by the costs of their last placements."""
        logarithms = _logarithms(costs)
        better = logarithms.mean() - logarithms
        parts = better / (logarithms.std() + SMALLEST_SPREAD)
        most = self.settings.largest_advantage
        return np.asarray(np.clip(parts, -most, most), np.float32)


def _logarithms(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(costs, MIN_SECONDS))
