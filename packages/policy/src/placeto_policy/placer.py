"""`PlacetoPlacer`: a policy that is trained on the problem, used as it is, or trained further."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Evaluator, PlacementProblem, PlacementResult, Placer
from placeto_policy.environment import (
    PlacementEnvironment,
    lookahead_evaluations,
    most_evaluations,
    training_evaluations,
)
from placeto_policy.episodes import greedy, run_episodes, sampling
from placeto_policy.errors import PolicyError
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.trainer import Trainer, UpdateSummary
from placeto_policy.workers import one_thread_of_torch

SAMPLING_STREAM = 2**32 - 1  # a worker's index that no trainer has
ROLLOUTS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class PlacetoPlacer:
    """Places a problem with a policy, and returns the best placement that was seen on the way.

    Without a policy it trains a new one on the problem. With a policy and no training it places
    zero-shot: by one greedy rollout, and by sampled ones. With both it first places zero-shot, then
    trains a copy of the policy on the problem, and places by that. Rounds of coordinate descent,
    which use no policy, continue from the best placement.

    Placements that fit the memory come first, then the least memory-penalised runtime decides.

    Parameters
    ----------
    policy
        A trained policy.
    max_evaluations
        Largest number of evaluations of the training; 0 for no training. Rollouts and rounds of
        coordinate descent add to it (`most_evaluations`).
    num_rollouts
        Number of sampled rollouts, besides the greedy one.
    starts
        Placers whose placements count, too, such as list schedulers. By default, a policy for any
        number of devices that is not trained starts with each device alone. Pass ``()`` to
        evaluate such a policy by itself.
    refinement_rounds
        Largest number of rounds of coordinate descent; see `descend`.
    settings
        Hyperparameters of the training, by default those of the policy. `Settings.updates` follows
        from the number of evaluations.
    on_update
        Function that is called after each update, with its summary and the number of updates in
        all.

    Raises
    ------
    PolicyError
        When there is neither a policy nor training, or a number is negative.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> placer = PlacetoPlacer(max_evaluations=1000)
    >>> placer.place(problem, BusiestDevice(problem)).runtime
    3.0
    """

    policy: PlacementPolicy | None = None
    max_evaluations: int = 0
    num_rollouts: int = 0
    starts: Sequence[Placer] | None = None
    refinement_rounds: int = 0
    settings: Settings | None = None
    on_update: Callable[[UpdateSummary, int], None] | None = None
    name: str = field(default="placeto", init=False)

    def __post_init__(self) -> None:
        for name in ("max_evaluations", "num_rollouts", "refinement_rounds"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if self.policy is None and not self.max_evaluations:
            raise PolicyError("max_evaluations: expected some where there is no policy, got 0")

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best placement of all that were evaluated.

        Parameters
        ----------
        problem
            Problem to place.
        evaluator
            Evaluator of the problem.
        seed
            Seed of the first weights, of the training and of the sampled rollouts.

        Raises
        ------
        PolicyError
            When the policy is for another number of devices, or the evaluations are not enough for
            one update.
        """
        began = time.perf_counter()
        if self.policy:
            self.policy.check_devices(problem.num_devices)
        settings, network_settings = self._settings()
        environment = PlacementEnvironment.for_policy(
            evaluator,
            network_settings,
            reward="terminal",
            memory_penalty=settings.memory_penalty,
        )
        search = _Search(environment)
        self._start(search, seed)
        if self.policy:
            self._roll_out(self.policy, search, seed)
        if self.max_evaluations:
            self._roll_out(self._train(search, seed), search, seed)
        self._refine(search)
        return search.result(time.perf_counter() - began)

    def most_evaluations(self, problem: PlacementProblem) -> int:
        """Return the largest number of evaluations of `place`, without those of ``starts``."""
        _, network_settings = self._settings()
        rollouts = 1 + self.num_rollouts
        if self.policy and self.max_evaluations:
            rollouts *= 2  # before the training and after it
        evaluations = rollouts * most_evaluations(problem, "terminal", network_settings)
        evaluations += self.refinement_rounds * lookahead_evaluations(problem)
        return self.max_evaluations + evaluations

    def _settings(self) -> tuple[Settings, Settings]:
        """Return the hyperparameters of the training and those of the network."""
        policy_settings = self.policy.settings if self.policy else None
        settings = self.settings or policy_settings or Settings()
        return settings, policy_settings or settings

    def _start(self, search: "_Search", seed: int) -> None:
        """Evaluate the placements of other placers, by default each device alone."""
        evaluator = search.environment.evaluator
        problem, is_general = evaluator.problem, self.policy and self.policy.num_devices is None
        if self.starts is None and is_general and not self.max_evaluations:
            search.take(devices_alone(problem), problem.num_devices)
        for placer in self.starts or ():
            start = placer.place(problem, evaluator, seed=seed)
            search.take(start.placement[None], start.evaluations)

    def _train(self, search: "_Search", seed: int) -> PlacementPolicy:
        evaluator = search.environment.evaluator
        settings = self._with_updates(evaluator.problem)
        trainer = Trainer([evaluator], settings, seed=seed, policy=self.policy)
        evaluations_before = search.evaluations
        for _ in range(settings.updates):
            summary = trainer.update()
            best = trainer.best[0]
            if best:
                evaluations = evaluations_before + summary.evaluations - search.evaluations
                search.take(best.placement[None], evaluations)
            if self.on_update:
                self.on_update(summary, settings.updates)
        return trainer.trained_policy

    def _with_updates(self, problem: PlacementProblem) -> Settings:
        """Return the settings of the training with as many updates as the evaluations allow."""
        settings, network_settings = self._settings()
        settings = replace(settings, updates=1)
        min_evaluations = training_evaluations(problem, settings, network_settings)
        if self.max_evaluations < min_evaluations:
            raise PolicyError(
                f"max_evaluations: expected at least {min_evaluations}, one update of "
                f"{settings.workers} episodes, got {self.max_evaluations}"
            )
        evaluations_of_episode = most_evaluations(problem, settings.reward, network_settings)
        max_episodes = self.max_evaluations // evaluations_of_episode
        settings = replace(settings, updates=max_episodes // settings.workers)
        while training_evaluations(problem, settings, network_settings) > self.max_evaluations:
            settings = replace(settings, updates=settings.updates - 1)
        return settings

    def _roll_out(self, policy: PlacementPolicy, search: "_Search", seed: int) -> None:
        """Run the greedy rollout and the sampled ones."""
        environment = search.environment
        problem = environment.evaluator.problem
        evaluations_of_rollout = most_evaluations(problem, "terminal", policy.settings)
        environment.reset(num_episodes=1)
        with one_thread_of_torch():
            run_episodes(policy, environment, greedy)
            search.count(evaluations_of_rollout)
            for first in range(0, self.num_rollouts, ROLLOUTS_AT_ONCE):
                generators = [
                    np.random.default_rng((seed, SAMPLING_STREAM, sample))
                    for sample in range(first, min(first + ROLLOUTS_AT_ONCE, self.num_rollouts))
                ]
                environment.reset(num_episodes=len(generators))
                choice = sampling(generators, environment.num_groups)
                run_episodes(policy, environment, choice)
                search.count(len(generators) * evaluations_of_rollout)

    def _refine(self, search: "_Search") -> None:
        """Descend from the best placement, until a round moves nothing."""
        environment = search.environment
        for _ in range(self.refinement_rounds):
            best = environment.best
            environment.reset(num_episodes=1, start=best.placement)
            descend(environment)
            search.count(lookahead_evaluations(environment.evaluator.problem))
            if environment.best is best:
                return


class _Search:
    """Number of evaluations, and the best cost after them, in one environment."""

    def __init__(self, environment: PlacementEnvironment) -> None:
        self.environment = environment
        self.evaluations = 0
        self._curve: list[tuple[int, float]] = []

    def count(self, evaluations: int) -> None:
        """Note the best cost after some more evaluations."""
        self.evaluations += evaluations
        self._curve.append((self.evaluations, self.environment.best.cost))

    def take(self, placements: NDArray[np.int32], evaluations: int) -> None:
        """Evaluate placements int32[B, G] that were made in some evaluations."""
        self.environment.costs_of(placements)
        self.count(evaluations)

    def result(self, seconds: float) -> PlacementResult:
        """Return the best placement and the curve."""
        placement = self.environment.best.placement
        batch = self.environment.evaluator.evaluate(placement[None])
        return PlacementResult(
            placement=placement,
            runtime=float(batch.runtime[0]),
            peak_memory=batch.peak_memory[0],
            evaluations=self.evaluations,
            seconds=seconds,
            curve=np.array(self._curve, np.float64),
        )


def devices_alone(problem: PlacementProblem) -> NDArray[np.int32]:
    """Return int32[D, G], all groups on each device; one that cannot run there on its fastest."""
    seconds = problem.group_graph.compute_time
    devices = np.arange(problem.num_devices)[:, None]
    placements = np.where(np.isfinite(seconds.T), devices, seconds.argmin(axis=1))
    return placements.astype(np.int32)


def descend(environment: PlacementEnvironment) -> None:
    """Run a round of coordinate descent: each group moves to the device of the least cost.

    A group stays if no other device is better. The environment was reset.
    """
    episodes = np.arange(len(environment.order))
    while not environment.is_over:
        devices = environment.placement[episodes, environment.order[:, environment.time]]
        costs = environment.costs_of_devices()
        has_better = costs.min(axis=1) < costs[episodes, devices]
        environment.step(np.where(has_better, costs.argmin(axis=1), devices))
