"""Training runs, which resume from their last checkpoint, and the score that chooses policies."""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy import PlacementPolicy, PlacetoPlacer, save_policy
from placeto_policy.trainer import take_step
from placeto_policy.workers import Processes
from placeto_simulator import Simulator
from pretraining.searched import Searched, cost_of

STEPS_BETWEEN_CHECKPOINTS = 200
STEPS_BETWEEN_VALIDATIONS = 250
WARM_UP_STEPS = 50
LEAST_SHARE_OF_LEARNING_RATE = 0.05
ROLLOUTS = 15  # sampled ones, besides the greedy one


class LearningRun(ABC):
    """A training of a policy for any number of devices that takes some of many graphs in each step.

    A step depends on the seed, its number and the weights alone. Interruptions therefore do not
    change a run. The learning rate rises over the first 50 steps, and falls to a twentieth.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        count: int,
        *,
        graphs_of_step: int,
        weights: Sequence[float] | None,
        steps: int,
        learning_rate: float,
        max_gradient_norm: float,
        seed: int,
    ) -> None:
        self.policy = copy.deepcopy(policy)
        self.steps = steps
        self.seed = seed
        self.steps_done = 0
        self._graphs_of_step = graphs_of_step
        chances = np.ones(count) if weights is None else np.asarray(weights, np.float64)
        self._chances = chances / chances.sum()
        self._learning_rate = learning_rate
        self._max_gradient_norm = max_gradient_norm
        self._optimizer = torch.optim.Adam(self.policy.parameters())

    @abstractmethod
    def step(self) -> float:
        """Make a step, and return a measure of the policy before it."""

    def turns(self) -> list[tuple[int, int, np.random.Generator]]:
        """Return the graphs of the step, each with its turn and stream."""
        drawn = np.random.default_rng((self.seed, self.steps_done)).choice(
            len(self._chances), size=self._graphs_of_step, p=self._chances
        )
        return [
            (turn, int(graph), np.random.default_rng((self.seed, self.steps_done, turn)))
            for turn, graph in enumerate(drawn)
        ]

    def apply(self, number: float) -> float:
        """Make a step of Adam with the added gradients, and return the number."""
        far = min(1.0, self.steps_done / self.steps)
        falling = 1 - (1 - LEAST_SHARE_OF_LEARNING_RATE) * far
        rising = min(1.0, (self.steps_done + 1) / WARM_UP_STEPS)
        total, _ = take_step(
            self._optimizer,
            number,
            Processes(),
            learning_rate=self._learning_rate * (rising * falling),
            max_norm=self._max_gradient_norm,
            when=f"step {self.steps_done + 1}",
        )
        self.steps_done += 1
        return total

    def save(self, path: Path, best: float, described: str) -> None:
        """Write the state of the run, its best score, and a text that identifies the run."""
        state = self.policy.state_dict(), self._optimizer.state_dict(), self.steps_done
        torch.save((*state, best, described), path)

    def restore(self, path: Path, described: str) -> float:
        """Resume from a file, if there is one, and return the best score so far."""
        if not path.exists():
            return float("inf")
        policy, optimizer, steps_done, best, begun = torch.load(path, weights_only=True)
        if begun != described:
            raise ValueError(f"{path}: begun with other options: {begun}, not {described}")
        self.policy.load_state_dict(policy)
        self._optimizer.load_state_dict(optimizer)
        self.steps_done = steps_done
        return float(best)


@dataclass(frozen=True)
class Validation:
    """Costs of a policy on N problems that it does not learn from, as ratios to those of search."""

    greedy: NDArray[np.float64]  # [N], of the most probable placement
    best_of_some: NDArray[np.float64]  # [N], of the best of it and of some sampled ones

    @property
    def score(self) -> float:
        """The score by which policies are chosen: the geometric mean of the best ones."""
        return float(np.exp(np.log(self.best_of_some).mean()))

    def __str__(self) -> str:
        parts = []
        for name, ratios in (("greedy", self.greedy), ("best of 16", self.best_of_some)):
            mean = np.exp(np.log(ratios).mean())
            parts.append(f"{name} {np.median(ratios):.3f} (geometric mean {mean:.3f})")
        near = float((self.best_of_some < 1.05).mean())
        return ", ".join(parts) + f", {near:.0%} within 5 %"


def validate(policy: PlacementPolicy, problems: Sequence[Searched]) -> Validation:
    """Return the zero-shot costs of a policy on unseen problems."""
    placer = PlacetoPlacer(policy=policy, num_rollouts=ROLLOUTS)
    found = []
    for each in problems:
        simulator = Simulator(each.problem, num_threads=1)
        costs = placer.place(each.problem, simulator).curve[:, 1]  # the greedy rollout is the first
        found.append(costs[[0, -1]] / cost_of(simulator, each.placement))
    greedy, best_of_some = np.array(found).T
    return Validation(greedy, best_of_some)


def weights_of(names: Sequence[str]) -> list[float]:
    """Return the sampling weights of problems by name: equal for each kind of graph.

    The problem set has a thousand random graphs, and few of real models.
    """
    kinds = [name.rpartition("-")[0] for name in names]
    return [1 / kinds.count(kind) for kind in kinds]


def learn(
    run: LearningRun,
    checkpoint: Path,
    policy: Path,
    validation: Sequence[Searched],
    described: str,
    report: Callable[[str], None] = print,
) -> None:
    """Make the steps that are left of a run, and keep the policy that places problems best."""
    best = run.restore(checkpoint, described)

    def choose(best: float) -> float:
        validated = validate(run.policy, validation)
        report(f"step {run.steps_done:,}: {validated}")
        if validated.score < best:
            save_policy(run.policy, policy)
        return min(best, validated.score)

    if not run.steps_done:
        best = choose(best)
    values: list[float] = []
    began = time.monotonic()
    while run.steps_done < run.steps:
        values.append(run.step())
        is_last = run.steps_done == run.steps
        if is_last or run.steps_done % STEPS_BETWEEN_VALIDATIONS == 0:
            best = choose(best)
        if is_last or run.steps_done % STEPS_BETWEEN_CHECKPOINTS == 0:
            each = (time.monotonic() - began) / len(values)
            mean = float(np.mean(values))
            report(f"step {run.steps_done:,}: {mean:.4f} on average, {each:.3f} s a step")
            values, began = [], time.monotonic()
            run.save(checkpoint, best, described)
