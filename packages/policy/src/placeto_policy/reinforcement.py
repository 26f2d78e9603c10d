"""Learning from whole passes over many graphs: what places them faster becomes more probable."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import Evaluator
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Episodes, run_episodes, sampling
from placeto_policy.learning_run import LearningRun
from placeto_policy.policy import PlacementPolicy
from placeto_policy.threads import one_thread_of_torch
from placeto_policy.workers import Processes

SMALLEST_SPREAD = 0.01  # of logarithms of costs: passes that are nearer to each other are as good
LEAST_LOG_PROBABILITY = -30.0


@dataclass(frozen=True, kw_only=True)
class ReinforcementSettings:
    """The hyperparameters of learning from passes over many graphs.

    Attributes
    ----------
    graphs, passes, states : int
        On how many graphs, by how many passes on each, and from how many states of each pass a
        step learns.
    learning_rate : float
        Of Adam, when it begins; it rises over the first 50 steps, and falls to a twentieth.
    entropy_weight : float
        Of the entropy bonus.
    largest_advantage : float
        At which advantages are cut off, in parts of their spread.
    max_gradient_norm : float
        The gradient is scaled down to this norm.

    Examples
    --------
    >>> ReinforcementSettings(passes=8).graphs
    2
    """

    graphs: int = 2
    passes: int = 16
    states: int = 48
    learning_rate: float = 5e-4
    entropy_weight: float = 3e-3
    largest_advantage: float = 3.0
    max_gradient_norm: float = 1.0


class Reinforcement(LearningRun):
    """Lets a policy learn from its own passes over any graphs and clusters at once.

    REINFORCE (Williams 1992) with the cost of the last placement alone, as a terminal reward. All
    passes of a step over one graph begin alike, so that their mean is the baseline of each of
    them. Costs are compared by their logarithms, in parts of their spread: a graph of seconds
    counts as much as one of milliseconds.

    Parameters
    ----------
    policy
        The policy, for any number of devices; it stays as it is. A new one learns next to nothing
        of whole passes: begin with `Imitation`.
    evaluators
        One for each graph.
    steps
        Over how many steps the learning rate falls.
    weights
        How often each graph is drawn, beside the others; by default all as often.
    settings
        How it learns.
    seed
        Fixes every random choice.
    processes
        Which processes share the graphs of a step; see `join_processes`.

    Attributes
    ----------
    policy : `PlacementPolicy`
        The policy as it is now.
    steps_done : int
        How many steps were made.

    Raises
    ------
    PolicyError
        As `Imitation` does.

    Examples
    --------
    >>> from placeto_policy import preset
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> policy = PlacementPolicy(settings=preset("general"))
    >>> practice = Reinforcement(policy, [BusiestDevice(two_chains())], steps=1)
    >>> 3.0 <= float(np.exp(practice.step())) <= 6.0
    True
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
        processes: Processes | None = None,
    ) -> None:
        self.settings = settings or ReinforcementSettings()
        super().__init__(
            policy,
            "evaluators",
            len(evaluators),
            graphs_of_step=self.settings.graphs,
            weights=weights,
            steps=steps,
            learning_rate=self.settings.learning_rate,
            max_gradient_norm=self.settings.max_gradient_norm,
            seed=seed,
            processes=processes,
        )
        self._environments = [
            PlacementEnvironment.for_policy(evaluator, policy.settings, reward="terminal")
            for evaluator in evaluators
        ]

    def step(self) -> float:
        """Learn from passes over some graphs; return their mean logarithm of the cost in seconds.

        Raises
        ------
        PolicyError
            When the gradient is not finite (the policy is left as it was), or another process
            failed.
        """
        added = 0.0
        with one_thread_of_torch():
            for _, graph, generator in self.own_turns():
                environment = self._environments[graph]
                environment.reset(num_episodes=self.settings.passes)
                streams = generator.spawn(self.settings.passes)
                choice = sampling(streams, environment.topology.num_groups)
                episodes = run_episodes(self.policy, environment, choice)
                self._add_gradient(episodes, generator)
                added += float(_logarithms(episodes.costs).mean()) / self.settings.graphs
        return self.apply(added)

    def _add_gradient(self, episodes: Episodes, generator: np.random.Generator) -> None:
        """Add the gradient of what passes over one graph teach, in some of their states."""
        num_groups = episodes.order.shape[1]
        count = min(num_groups, self.settings.states)
        steps = np.sort(generator.choice(num_groups, size=count, replace=False))
        advantages = torch.from_numpy(advantages_of(episodes.costs, self.settings))
        actions = torch.from_numpy(episodes.actions())
        for some, states in episodes.states(steps):
            log_probabilities = self.policy(states)
            chosen = log_probabilities.gather(1, actions[:, some].T.reshape(-1, 1)).squeeze(1)
            possible = log_probabilities.clamp(min=LEAST_LOG_PROBABILITY)
            entropy = -(log_probabilities.exp() * possible).sum(dim=1)
            gain = chosen * advantages.repeat(len(some)) + self.settings.entropy_weight * entropy
            share = self.settings.graphs * count * len(advantages)
            (-gain.sum() / share).backward()


def _logarithms(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(costs, MIN_SECONDS))


def advantages_of(
    costs: NDArray[np.float64], settings: ReinforcementSettings
) -> NDArray[np.float32]:
    """Return float32[B], how much better each of B passes over one graph was than all on the mean.

    Parameters
    ----------
    costs : float64[B]
        Of their last placements, seconds.
    settings
        Where advantages are cut off.

    Examples
    --------
    >>> advantages_of(np.array([1.0, 4.0]), ReinforcementSettings()).round(2)
    array([ 0.99, -0.99], dtype=float32)
    """
    logarithms = _logarithms(costs)
    better = logarithms.mean() - logarithms
    parts = better / (logarithms.std() + SMALLEST_SPREAD)
    most = settings.largest_advantage
    limited: NDArray[np.float32] = np.clip(parts, -most, most).astype(np.float32)
    return limited
