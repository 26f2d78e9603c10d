"""Learning from good placements: how a policy comes to place a graph that it has never seen."""

import copy
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.demonstrations import Demonstration
from placeto_policy.embedding.blocks import threads_for_blocks
from placeto_policy.errors import PolicyError
from placeto_policy.errors import shown
from placeto_policy.gradients import sum_gradients
from placeto_policy.imitation_settings import ImitationSettings
from placeto_policy.lessons import Lesson
from placeto_policy.lessons import WantedStates
from placeto_policy.policy import PlacementPolicy
from placeto_policy.workers import OneProcess
from placeto_policy.workers import Processes

WARM_UP_STEPS = 50
LEAST_SHARE_OF_LEARNING_RATE = 0.05
SMALLEST_PROBABILITY = 1e-9


class Imitation:
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
    >>> from placeto_policy import demonstrate, preset
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> good = demonstrate(BusiestDevice(two_chains()), np.array([0, 0, 0, 1, 1, 1], np.int32))
    >>> imitation = Imitation(PlacementPolicy(settings=preset("general")), [good], steps=2)
    >>> imitation.step() > 0.0
    True
    >>> imitation.steps_done
    1
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
        if not demonstrations:
            raise PolicyError("demonstrations: expected at least one, got none")
        self._chances = _chances(weights, len(demonstrations))
        if policy.num_devices is not None:
            raise PolicyError(
                "policy: expected one for any number of devices, "
                f"got one for {policy.num_devices}: choose the embedding 'pairs'"
            )
        self.settings = settings or ImitationSettings()
        self.processes: Processes = processes or OneProcess()
        graphs = self.settings.graphs + self.settings.own_graphs
        if self.processes.count > graphs:
            raise PolicyError(
                f"processes: expected at most {graphs}, one for each graph of a step, "
                f"got {self.processes.count}"
            )
        self.policy = copy.deepcopy(policy)
        self.steps = steps
        self.seed = seed
        self.steps_done = 0
        self._states_of_step = (
            self.settings.graphs * self.settings.states
            + self.settings.own_graphs * self.settings.own_passes * self.settings.own_states
        )
        self._lessons = [Lesson(each, policy.settings) for each in demonstrations]
        self._optimizer = torch.optim.Adam(self.policy.parameters())

    def step(self) -> float:
        """Learn from some graphs, and return the mean loss before that, in nats.

        Raises
        ------
        PolicyError
            When the gradient is not finite (the policy is left as it was), or another process
            failed.
        """
        chosen = self.settings
        count = chosen.graphs + chosen.own_graphs
        drawn = np.random.default_rng((self.seed, self.steps_done)).choice(
            len(self._lessons), size=count, p=self._chances
        )
        added = 0.0
        with threads_for_blocks():
            for turn in range(self.processes.rank, count, self.processes.count):
                generator = np.random.default_rng((self.seed, self.steps_done, turn))
                lesson = self._lessons[drawn[turn]]
                learned = (
                    lesson.demonstrated(chosen, generator)
                    if turn < chosen.graphs
                    else lesson.own(self.policy, chosen, generator)
                )
                loss = divergence(self.policy, learned) / self._states_of_step
                loss.backward()  # type: ignore[no-untyped-call]
                added += float(loss.detach())
        mean, _ = sum_gradients(
            self.policy.parameters(),
            added,
            self.processes,
            max_norm=chosen.max_gradient_norm,
            when=f"step {self.steps_done + 1}",
        )
        self._optimizer.param_groups[0]["lr"] = chosen.learning_rate * self._share()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps_done += 1
        return mean

    def _share(self) -> float:
        """Return which part of the learning rate this step has."""
        far = min(1.0, self.steps_done / self.steps)
        falling = 1 - (1 - LEAST_SHARE_OF_LEARNING_RATE) * far
        return min(1.0, (self.steps_done + 1) / WARM_UP_STEPS) * falling

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all that the run has come to, so that it can go on from there."""
        found = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        for name, parameter in self.policy.named_parameters():
            for average, value in self._optimizer.state.get(parameter, {}).items():
                found[f"adam.{average}.{name}"] = value
        return found | {"steps_done": torch.tensor(self.steps_done)}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go on from where a run of the same settings, demonstrations and seed was.

        Parameters
        ----------
        tensors
            What `tensors` returned there.

        Raises
        ------
        PolicyError
            When one is missing or of another shape.
        """
        state = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        steps_done = int(_like(tensors, "steps_done", torch.tensor(0)))
        self.policy.load_state_dict(
            {
                name.removeprefix("policy."): _like(tensors, name, like)
                for name, like in state.items()
            }
        )
        for name, parameter in self.policy.named_parameters() if steps_done else ():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(steps_done)),
                **{
                    average: _like(tensors, f"adam.{average}.{name}", parameter).clone()
                    for average in ("exp_avg", "exp_avg_sq")
                },
            }
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


def _like(tensors: dict[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
    found = tensors.get(name)
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise PolicyError(f"{name}: expected {like.dtype} of shape {tuple(like.shape)}, got {got}")
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise PolicyError(f"{name}: expected finite numbers, got others")
    return found


def imitate(
    policy: PlacementPolicy,
    demonstrations: Sequence[Demonstration],
    *,
    steps: int,
    settings: ImitationSettings | None = None,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> PlacementPolicy:
    """Return what a policy is after it has learned from demonstrations; see `Imitation`.

    Parameters
    ----------
    policy
        The policy, for any number of devices; it stays as it is.
    demonstrations
        What to learn from.
    steps
        How many steps of Adam.
    settings
        How it learns.
    seed
        Fixes every random choice.
    report
        Is called after each step with its number and its loss in nats.

    Raises
    ------
    PolicyError
        As `Imitation` does.

    Examples
    --------
    >>> from placeto_policy import PlacetoPlacer, demonstrate, preset
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> evaluator = BusiestDevice(two_chains())
    >>> good = demonstrate(evaluator, np.array([0, 0, 0, 1, 1, 1], np.int32))
    >>> policy = imitate(PlacementPolicy(settings=preset("general")), [good], steps=60)
    >>> PlacetoPlacer(policy=policy).place(evaluator.problem, evaluator).runtime
    3.0
    """
    imitation = Imitation(policy, demonstrations, steps=steps, settings=settings, seed=seed)
    for step in range(steps):
        loss = imitation.step()
        if report:
            report(step + 1, loss)
    return imitation.policy
