"""Training that alternates between shared weights and the controller (Pham et al. 2018).

`train` keeps it in a folder, in which it resumes after it was cut: ``search.pt`` has its weights,
``architectures.json`` what it has evaluated.
"""

import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from enas.controller import Controller
from enas.tasks import Task
from placeto_graphs import write_atomically
from placeto_workloads import RecurrentCell, WorkloadError
from placeto_workloads.families.search_spaces import ACTIVATIONS, MICRO_OPERATIONS, Architecture

CHECKPOINT = "search.pt"
ARCHITECTURES = "architectures.json"


def choices_of(architecture: Architecture) -> list[int]:
    """Return the choices that make an architecture of a search space."""
    if isinstance(architecture, RecurrentCell):
        first, *others = map(ACTIVATIONS.index, architecture.activations)
        pairs = zip(architecture.inputs, others, strict=True)
        return [first, *(choice for pair in pairs for choice in pair)]
    choices = []
    for block in (*architecture.normal.blocks, *architecture.reduction.blocks):
        operations = block.left_operation, block.right_operation
        choices += [block.left, block.right, *map(MICRO_OPERATIONS.index, operations)]
    return choices


def round_means(search: "Search") -> list[float]:
    """Return the mean reward of each round that has architectures."""
    rewards: dict[int, list[float]] = {}
    for number, _, reward in search.evaluated:
        rewards.setdefault(number, []).append(reward)
    return [fmean(each) for each in rewards.values()]


@dataclass(frozen=True)
class Settings:
    """All hyperparameters of a training.

    The defaults suit the small data sets; `PUBLISHED` are those of Pham et al. (2018).
    """

    rounds: int = 30
    shared_steps: int = 40  # batches of training data in a round, each for one architecture
    controller_steps: int = 10  # updates of the controller in a round
    samples: int = 8  # architectures of an update, evaluated on one batch of validation data
    shared_rate: float = 0.05  # learning rate of the shared weights in the first round
    least_shared_rate: float = 0.001  # and, along a cosine, in the last round
    momentum: float = 0.9  # of the shared weights, as of Nesterov
    weight_decay: float = 1e-4  # of the shared weights
    gradient_limit: float = 5.0  # largest norm of a gradient of the shared weights
    controller_units: int = 64
    controller_rate: float = 0.0035  # learning rate of Adam
    entropy_weight: float = 1e-4  # reward for each nat of a sample's entropy
    temperature: float = 5.0  # of the controller's logits
    tanh_constant: float = 2.5  # of the controller's logits
    baseline_decay: float = 0.95  # fraction of the moving average of rewards that an update keeps
    uniform: bool = False  # True to sample uniformly, without training the controller

    def rate(self, round_index: int) -> float:
        """Return the learning rate of the shared weights in a round."""
        if self.rounds == 1:
            return self.shared_rate
        along = (1 + math.cos(math.pi * round_index / (self.rounds - 1))) / 2
        return self.least_shared_rate + (self.shared_rate - self.least_shared_rate) * along


# What the publication leaves open is near to the authors' own program, whose moving baseline is
# slower (0.99 and 0.999). The learning rate of the shared weights falls along one cosine.
PUBLISHED = {
    "convolutional": Settings(
        rounds=310,
        shared_steps=312,
        controller_steps=30,
        samples=10,
        controller_units=100,
        controller_rate=0.00035,
        entropy_weight=0.1,
    ),
    "recurrent": Settings(
        rounds=150,
        shared_steps=415,
        controller_steps=2000,
        samples=1,
        shared_rate=20.0,
        least_shared_rate=0.1,
        momentum=0.0,
        weight_decay=1e-7,
        gradient_limit=0.25,
        controller_units=100,
        controller_rate=0.00035,
    ),
}


class _Stream(IntEnum):
    """Streams of random numbers; each begins anew in each round."""

    SHARED = 0
    CONTROLLER = 1
    EVALUATION = 2


class Search:
    """One training, round by round.

    A round trains the shared weights on batches of training data, each for one sampled
    architecture. Then it trains the controller by REINFORCE (Williams 1992), with rewards from
    batches of validation data. Each round seeds its random numbers with the seed and its number,
    so that a training can be stopped and resumed.
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
        self.evaluated: list[tuple[int, list[int], float]] = []  # round, choices, reward

    def save_architectures(self, path: Path) -> None:
        """Write what the training has evaluated so far, as the files that the package ships."""
        content = {
            "format": "placeto-architectures",
            "version": 1,
            "space": self.task.space.name,
            "num_nodes": self.task.space.num_nodes,
            "task": dict(self.task.description),
            "rounds": [number for number, _, _ in self.evaluated],
            "choices": [row for _, row, _ in self.evaluated],
            "rewards": [reward for _, _, reward in self.evaluated],
        }
        write_atomically(path, json.dumps(content, separators=(",", ":")).encode() + b"\n")

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, in values that `torch.load` reads without unpickling."""
        return {
            "task": self.task.description,
            "settings": asdict(self.settings),
            "seed": self.seed,
            "rounds": self.rounds,
            "baseline": self.baseline,
            "evaluated": self.evaluated,
            "parts": [part.state_dict() for part in self._parts()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state; raise `WorkloadError` for that of another training."""
        own = self.state()
        for name in ("task", "settings", "seed"):
            if state[name] != own[name]:
                raise WorkloadError(
                    f"{name}: expected that of the training in this folder, {state[name]}; "
                    f"got {own[name]}"
                )
        self.rounds, self.baseline = state["rounds"], state["baseline"]
        self.evaluated = state["evaluated"]
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)

    def _parts(self) -> list[Any]:
        optimizers = [self.controller_optimizer, self.shared_optimizer]
        return [self.controller, self.task.network, *optimizers]

    def round(self) -> float:
        """Train the shared weights, then the controller; return the mean reward of the round."""
        self._train_shared_weights(self._generator(_Stream.SHARED))
        mean_reward = self._train_controller(self._generator(_Stream.CONTROLLER))
        self.rounds += 1
        return mean_reward

    def sample(self, number: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the choices of sampled architectures, int64[number, decisions].

        They are the controller's, or uniform if the settings say so.
        """
        if not self.settings.uniform:
            return self.controller.sample(number, generator)
        space = self.task.space
        return np.array([choices_of(space.uniform(generator)) for _ in range(number)])

    def evaluate(self, architectures: list[Architecture], batches: int) -> NDArray[np.float64]:
        """Return the mean rewards of architectures, float64[architectures], as weights are now.

        The batches of validation data are the same in every call after the same round.
        """
        generator = self._generator(_Stream.EVALUATION)
        rewards = [self.task.rewards(architectures, generator) for _ in range(batches)]
        means: NDArray[np.float64] = np.array(rewards).mean(axis=0)
        return means

    def _generator(self, stream: _Stream) -> np.random.Generator:
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
            rows = zip(choices.tolist(), rewards, strict=True)
            self.evaluated += [(self.rounds, row, reward) for row, reward in rows]
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


def train(
    task: Task,
    settings: Settings,
    folder: Path,
    *,
    seed: int = 0,
    report: Callable[[Search, float], None] = lambda _search, _reward: None,
) -> Search:
    """Train to the last round, from the round that the folder has reached.

    It ends in the same weights whether it was cut or not. The training and its mean reward are
    reported after each round.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, search = folder / CHECKPOINT, Search(task, settings, seed=seed)
    if checkpoint.exists():
        search.restore(torch.load(checkpoint, weights_only=True))
        search.save_architectures(folder / ARCHITECTURES)  # it may be a round behind
    while search.rounds < settings.rounds:
        mean_reward = search.round()
        content = io.BytesIO()
        torch.save(search.state(), content)
        write_atomically(checkpoint, content.getvalue())
        search.save_architectures(folder / ARCHITECTURES)
        report(search, mean_reward)
    return search
