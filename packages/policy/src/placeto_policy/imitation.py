"""Learning from good placements: how a policy comes to place a graph that it has never seen."""

from collections.abc import Sequence

import torch

from placeto_policy.demonstrations import Demonstration
from placeto_policy.learning_run import LearningRun
from placeto_policy.lessons import ImitationSettings, Lesson, WantedStates
from placeto_policy.policy import PlacementPolicy
from placeto_policy.threads import one_thread_of_torch
from placeto_policy.workers import Processes

SMALLEST_PROBABILITY = 1e-9


class Imitation(LearningRun):
    """Lets a policy learn to place as demonstrated, on any graphs and clusters at once.

    A step learns from some states on the way to good placements, and from some that the policy
    comes to by itself (Ross et al. 2011, *A Reduction of Imitation Learning and Structured
    Prediction to No-Regret Online Learning*): of errors of its own, only these tell. The loss is
    the divergence of the policy from what is wanted. Devices that are alike and hold nothing yet
    are one choice.

    All of a step follows from the seed, its number and the weights, so that a run takes the same
    course however often it was interrupted.

    Parameters
    ----------
    policy
        The policy, for any number of devices; it stays as it is.
    demonstrations
        What to learn from.
    weights
        How often each demonstration is drawn, beside the others; by default all as often.
    steps
        Over how many steps the learning rate falls.
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
        When there is nothing to learn from, the policy is for a fixed number of devices, weights
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
            + self.settings.own_graphs * self.settings.own_passes * self.settings.own_states
        )
        self._lessons = [Lesson(each, policy.settings) for each in demonstrations]

    def step(self) -> float:
        """Learn from some graphs, and return the mean loss before that, in nats.

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


def divergence(policy: PlacementPolicy, learned: WantedStates) -> torch.Tensor:
    """Return the sum over states of how far a policy is from what is wanted in them, in nats.

    Parameters
    ----------
    policy
        The policy.
    learned
        The states.
    """
    wanted, together = learned.wanted, learned.together
    probabilities = torch.einsum("nde,ne->nd", together, policy(learned.states).exp())
    ideal = torch.einsum("nde,ne->nd", together, wanted)
    nats = torch.log(ideal + SMALLEST_PROBABILITY) - torch.log(probabilities + SMALLEST_PROBABILITY)
    far: torch.Tensor = (wanted * nats).sum()
    return far
