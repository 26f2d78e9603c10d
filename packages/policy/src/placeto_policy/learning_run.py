"""`LearningRun`: common parts of `Imitation` and `Reinforcement`."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.errors import PolicyError, shown
from placeto_policy.gradients import take_step
from placeto_policy.policy import PlacementPolicy
from placeto_policy.stored_tensors import adam_tensors, check_like, restore_adam
from placeto_policy.workers import OneProcess, Processes, check_same

WARM_UP_STEPS = 50
LEAST_SHARE_OF_LEARNING_RATE = 0.05


class LearningRun(ABC):
    """A training of a policy that takes some of many graphs in each step.

    A step depends on the seed, its number and the weights alone. Interruptions therefore do not
    change a run.

    Parameters
    ----------
    policy
        First policy, for any number of devices. It is copied.
    what
        Name of the graphs in errors.
    count
        Number of graphs.
    graphs_of_step
        Number of graphs in a step.
    weights
        Relative frequency of each graph, equal by default.
    steps
        Number of steps over which the learning rate falls.
    learning_rate
        Learning rate of Adam. It rises over the first 50 steps, and falls to a twentieth.
    max_gradient_norm
        Norm to which a longer gradient is scaled down.
    seed
        Seed of every random choice.
    processes
        Processes that share the graphs of a step.

    Attributes
    ----------
    policy : `PlacementPolicy`
        Present policy.
    steps_done : int
        Number of steps that were made.

    Raises
    ------
    PolicyError
        When there is no graph, the policy is for a fixed number of devices, weights are not as
        described, or there are more processes than graphs in a step.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        what: str,
        count: int,
        *,
        graphs_of_step: int,
        weights: Sequence[float] | None,
        steps: int,
        learning_rate: float,
        max_gradient_norm: float,
        seed: int,
        processes: Processes | None,
    ) -> None:
        if not count:
            raise PolicyError(f"{what}: expected at least one, got none")
        if policy.num_devices is not None:
            raise PolicyError(
                "policy: expected one for any number of devices, "
                f"got one for {policy.num_devices}: choose the embedding 'pairs'"
            )
        self.processes: Processes = processes or OneProcess()
        if self.processes.count > graphs_of_step:
            raise PolicyError(
                f"processes: expected at most {graphs_of_step}, one for each graph of a step, "
                f"got {self.processes.count}"
            )
        self.policy = copy.deepcopy(policy)
        self.steps = steps
        self.seed = seed
        self.steps_done = 0
        self._count = count
        self._graphs_of_step = graphs_of_step
        self._chances = _chances(weights, count)
        self._learning_rate = learning_rate
        self._max_gradient_norm = max_gradient_norm
        self._optimizer = torch.optim.Adam(self.policy.parameters())
        self._is_checked = False

    @abstractmethod
    def step(self) -> float:
        """Make a step, and return a measure of the policy before it."""

    def own_turns(self) -> list[tuple[int, int, np.random.Generator]]:
        """Return this process's graphs of the step, each with its turn and stream.

        Raises
        ------
        PolicyError
            When another process has another run.
        """
        self._check_processes()
        drawn = np.random.default_rng((self.seed, self.steps_done)).choice(
            self._count, size=self._graphs_of_step, p=self._chances
        )
        return [
            (turn, int(drawn[turn]), np.random.default_rng((self.seed, self.steps_done, turn)))
            for turn in range(self.processes.rank, self._graphs_of_step, self.processes.count)
        ]

    def _check_processes(self) -> None:
        if not self._is_checked:
            check_same(
                self.processes,
                f"{type(self).__name__} {self.seed} {self.steps} {self.steps_done} "
                f"{self._graphs_of_step} {self._learning_rate} {self._chances.tolist()} "
                f"{self.policy.settings}",
                self.policy,
            )
            self._is_checked = True

    def apply(self, number: float) -> float:
        """Make a step of Adam with the added gradients, and return the sum of the numbers."""
        total, _ = take_step(
            self._optimizer,
            number,
            self.processes,
            learning_rate=self._learning_rate * self._share(),
            max_norm=self._max_gradient_norm,
            when=f"step {self.steps_done + 1}",
        )
        self.steps_done += 1
        return total

    def _share(self) -> float:
        """Return the learning rate of this step as a fraction."""
        far = min(1.0, self.steps_done / self.steps)
        falling = 1 - (1 - LEAST_SHARE_OF_LEARNING_RATE) * far
        return min(1.0, (self.steps_done + 1) / WARM_UP_STEPS) * falling

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state of the run, from which `restore` resumes."""
        policy = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        steps_done = {"steps_done": torch.tensor(self.steps_done)}
        return policy | adam_tensors(self.policy, self._optimizer) | steps_done

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Resume a run of the same settings, graphs and seed.

        Parameters
        ----------
        tensors
            State that `tensors` returned.

        Raises
        ------
        PolicyError
            When one is missing or of another shape.
        """
        state = self.policy.state_dict()
        steps_done = int(_like(tensors, "steps_done", torch.tensor(0)))
        self.policy.load_state_dict(
            {name: _like(tensors, f"policy.{name}", like) for name, like in state.items()}
        )
        restore_adam(
            self.policy, self._optimizer, steps_done, lambda name, like: _like(tensors, name, like)
        )
        self.steps_done = steps_done


def _chances(weights: Sequence[float] | None, count: int) -> NDArray[np.float64]:
    chosen = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    is_one = chosen.shape == (count,) and np.isfinite(chosen).all() and (chosen >= 0).all()
    if not is_one or not chosen.sum() > 0:
        raise PolicyError(
            f"weights: expected {count} finite numbers >= 0, not all of them 0, "
            f"got {shown(weights)}"
        )
    shares: NDArray[np.float64] = chosen / chosen.sum()
    return shares


def _like(tensors: dict[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
    if name not in tensors:
        raise PolicyError(f"{name}: expected {like.dtype} of shape {tuple(like.shape)}, got none")
    return check_like(name, tensors[name], like)
