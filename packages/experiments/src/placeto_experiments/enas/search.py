"""Training that alternates between shared weights and the controller (Pham et al. 2018)."""

from enum import IntEnum
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_experiments.enas.controller import Controller
from placeto_experiments.enas.settings import Settings
from placeto_experiments.enas.tasks import Task
from placeto_workloads.families.search_spaces import Architecture, decisions_of
from placeto_workloads.families.trajectory import Trajectory


class Stream(IntEnum):
    """What a stream of random numbers is for; each begins anew in each round."""

    SHARED = 0
    CONTROLLER = 1
    JUDGEMENT = 2


class Search:
    """One training, round by round.

    In a round the shared weights are trained on batches of training data, each for one sampled
    architecture; then the controller by REINFORCE (Williams 1992) with rewards from batches of
    validation data. Every stream of random numbers begins anew in each round, from the seed and
    the number of the round, so that a training can be cut and go on.

    Parameters
    ----------
    task
        Super-network and data.
    settings
        All hyperparameters.
    seed
        Of the controller's weights and of all that is drawn.

    Attributes
    ----------
    controller : `Controller`
        The controller.
    rounds : int
        How many are over.
    baseline : float or None
        The moving average of rewards.

    Examples
    --------
    >>> from placeto_experiments.enas import TextTask, grammar_text
    >>> task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> search = Search(task, Settings(rounds=2, shared_steps=2, controller_steps=3))
    >>> mean_reward = search.round()
    >>> search.rounds, len(search.trajectory)
    (1, 24)
    """

    def __init__(self, task: Task, settings: Settings | None = None, *, seed: int = 0) -> None:
        self.task = task
        self.settings = settings = Settings() if settings is None else settings
        self.seed = seed
        self.controller = Controller(
            task.space,
            units=settings.controller_units,
            temperature=settings.temperature,
            tanh_constant=settings.tanh_constant,
            seed=seed,
        )
        self.shared_optimizer = torch.optim.SGD(
            task.network.parameters(),
            lr=settings.shared_rate,
            momentum=settings.momentum,
            nesterov=settings.momentum > 0,
            weight_decay=settings.weight_decay,
        )
        self.controller_optimizer = torch.optim.Adam(
            self.controller.parameters(), lr=settings.controller_rate
        )
        self.rounds = 0
        self.baseline: float | None = None
        self._passed: list[tuple[int, list[int], float]] = []

    @property
    def trajectory(self) -> Trajectory:
        """The architectures that were judged so far."""
        width = len(decisions_of(self.task.space))
        return Trajectory(
            self.task.space,
            np.array([number for number, _, _ in self._passed], dtype=np.int32),
            np.array([row for _, row, _ in self._passed], dtype=np.int16).reshape(-1, width),
            np.array([reward for _, _, reward in self._passed], dtype=np.float64),
            dict(self.task.description),
        )

    def restore_trajectory(self, trajectory: Trajectory) -> None:
        """Take up the architectures that were judged before a training was cut."""
        rows = (trajectory.rounds.tolist(), trajectory.choices.tolist())
        self._passed = list(zip(*rows, trajectory.rewards.tolist(), strict=True))

    def round(self) -> float:
        """Train the shared weights, then the controller; return the mean reward of the round."""
        self._train_shared_weights(self._generator(Stream.SHARED))
        mean_reward = self._train_controller(self._generator(Stream.CONTROLLER))
        self.rounds += 1
        return mean_reward

    def sample(self, number: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the choices of architectures that a training takes now, int64[number, decisions].

        They are the controller's, or are drawn evenly where the settings say so.
        """
        if not self.settings.uniform:
            return self.controller.sample(number, generator)
        space = self.task.space
        return np.array([space.choices(space.uniform(generator)) for _ in range(number)])

    def judged(self, architectures: list[Architecture], batches: int) -> NDArray[np.float64]:
        """Return the mean rewards of architectures, float64[architectures], as weights are now.

        Parameters
        ----------
        architectures
            What is judged.
        batches
            Of validation data; the same ones in every call after the same round.
        """
        generator = self._generator(Stream.JUDGEMENT)
        rewards = [self.task.rewards(architectures, generator) for _ in range(batches)]
        means: NDArray[np.float64] = np.array(rewards).mean(axis=0)
        return means

    def _generator(self, stream: Stream) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.rounds, stream])

    def _train_shared_weights(self, generator: np.random.Generator) -> None:
        for group in self.shared_optimizer.param_groups:
            group["lr"] = self.settings.rate(self.rounds)
        parameters = list(self.task.network.parameters())
        for _ in range(self.settings.shared_steps):
            (choices,) = self.sample(1, generator)
            architecture = self.task.space.architecture(choices.tolist())
            self.shared_optimizer.zero_grad()
            self.task.loss(architecture, generator).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.gradient_limit)
            self.shared_optimizer.step()

    def _train_controller(self, generator: np.random.Generator) -> float:
        means = []
        for _ in range(self.settings.controller_steps):
            choices = self.sample(self.settings.samples, generator)
            architectures = [self.task.space.architecture(row.tolist()) for row in choices]
            rewards = self.task.rewards(architectures, generator)
            judged = zip(choices.tolist(), rewards, strict=True)
            self._passed += [(self.rounds, row, reward) for row, reward in judged]
            if not self.settings.uniform:
                self._reinforce(torch.from_numpy(choices), torch.tensor(rewards))
            means.append(fmean(rewards))
        return fmean(means)

    def _reinforce(self, choices: torch.Tensor, rewards: torch.Tensor) -> None:
        log_probability, entropy = self.controller(choices)
        # As in Pham et al. the entropy is part of the reward, not of the loss.
        rewards = rewards + self.settings.entropy_weight * entropy.detach()
        mean = float(rewards.mean())
        if self.baseline is None:
            self.baseline = mean
        loss = -((rewards - self.baseline) * log_probability).mean()
        self.controller_optimizer.zero_grad()
        loss.backward()
        self.controller_optimizer.step()
        kept = self.settings.baseline_decay
        self.baseline = kept * self.baseline + (1 - kept) * mean
