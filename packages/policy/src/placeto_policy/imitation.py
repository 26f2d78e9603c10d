"""Imitation of good placements, by which one policy learns many graphs and clusters."""

from collections.abc import Sequence

import torch

from placeto_policy.demonstrations import Demonstration
from placeto_policy.learning_run import LearningRun
from placeto_policy.lessons import ImitationSettings, LabelledStates, Lesson
from placeto_policy.policy import PlacementPolicy
from placeto_policy.threads import one_thread_of_torch
from placeto_policy.workers import Processes

SMALLEST_PROBABILITY = 1e-9


class Imitation(LearningRun):
    """Trains a policy to place as demonstrated, on any graphs and clusters at once.

    A step learns from states on the way to good placements, and from states of the policy's own
    rollouts (Ross et al. 2011, *A Reduction of Imitation Learning and Structured Prediction to
    No-Regret Online Learning*). Only the latter correct errors of the policy. The loss is the
    divergence of the policy from `target_probs`. Devices that are alike and empty are one choice.

    A step depends on the seed, its number and the weights alone. Interruptions therefore do not
    change a run.

    Parameters
    ----------
    policy
        First policy, for any number of devices. It is copied.
    demonstrations
        Demonstrations to learn from.
    weights
        Relative frequency of each demonstration, equal by default.
    steps
        Number of steps over which the learning rate falls.
    settings
        Hyperparameters.
    seed
        Seed of every random choice.
    processes
        Processes that share the graphs of a step; see `join_processes`.

    Attributes
    ----------
    policy : `PlacementPolicy`
        Present policy.
    steps_done : int
        Number of steps that were made.

    Raises
    ------
    PolicyError
        When there is no demonstration, the policy is for a fixed number of devices, the weights
        are not as described, or there are more processes than graphs in a step.

    Examples
    --------
    >>> import numpy as np
    >>> from placeto_policy import PlacetoPlacer, demonstrate, preset
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> evaluator = BusiestDevice(two_chains())
    >>> good = demonstrate(evaluator, np.array([0, 0, 0, 1, 1, 1], np.int32))
    >>> imitation = Imitation(PlacementPolicy(settings=preset("general")), [good], steps=100)
    >>> losses = [imitation.step() for _ in range(100)]
    >>> PlacetoPlacer(policy=imitation.policy).place(evaluator.problem, evaluator).runtime
    3.0
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        demonstrations: Sequence[Demonstration],
        *,
        steps: int,
        weights: Sequence[float] | None = None,
        settings: ImitationSettings | None = None,
        seed: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.settings = settings or ImitationSettings()
        super().__init__(
            policy,
            "demonstrations",
            len(demonstrations),
            graphs_of_step=self.settings.graphs + self.settings.own_graphs,
            weights=weights,
            steps=steps,
            learning_rate=self.settings.learning_rate,
            max_gradient_norm=self.settings.max_gradient_norm,
            seed=seed,
            processes=processes,
        )
        self._states_of_step = (
            self.settings.graphs * self.settings.states
            + self.settings.own_graphs * self.settings.own_rollouts * self.settings.own_states
        )
        self._lessons = [Lesson(each, policy.settings) for each in demonstrations]

    def step(self) -> float:
        """Make a step, and return the mean loss before it, in nats.

        Raises
        ------
        PolicyError
            When the gradient is not finite (the policy is left as it was), or another process
            failed.
        """
        chosen = self.settings
        added = 0.0
        with one_thread_of_torch():
            for turn, graph, generator in self.own_turns():
                lesson = self._lessons[graph]
                learned = (
                    lesson.demonstrated(chosen, generator)
                    if turn < chosen.graphs
                    else lesson.own(self.policy, chosen, generator)
                )
                loss = divergence(self.policy, learned) / self._states_of_step
                loss.backward()  # type: ignore[no-untyped-call]
                added += float(loss.detach())
        return self.apply(added)


def divergence(policy: PlacementPolicy, learned: LabelledStates) -> torch.Tensor:
    """Return the divergence of a policy from target probabilities, summed over states, in nats.

    Parameters
    ----------
    policy
        Policy.
    learned
        States with target probabilities.
    """
    targets, together = learned.target_probs, learned.together
    probabilities = torch.einsum("nde,ne->nd", together, policy(learned.states).exp())
    ideal = torch.einsum("nde,ne->nd", together, targets)
    nats = torch.log(ideal + SMALLEST_PROBABILITY) - torch.log(probabilities + SMALLEST_PROBABILITY)
    total: torch.Tensor = (targets * nats).sum()
    return total
