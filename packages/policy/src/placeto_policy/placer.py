"""The policy as a placer: trained on the problem, used as it is, or trained further."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Evaluator, PlacementProblem, PlacementResult, Placer
from placeto_policy.costs import (
    PlacementCosts,
    lookahead_evaluations,
    most_evaluations,
    training_evaluations,
)
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import Episodes, greedy, run_episodes, sampling
from placeto_policy.errors import PolicyError
from placeto_policy.policy import PlacementPolicy
from placeto_policy.settings import Settings
from placeto_policy.threads import one_thread_of_torch
from placeto_policy.trainer import Trainer, UpdateSummary

SAMPLING_STREAM = 2**32 - 1  # a worker's index that no trainer has
SAMPLES_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class PlacetoPlacer:
    """Places a problem with a policy, and returns the best placement that was seen on the way.

    *Optimized* (no policy): trains a new one on the problem. *Zero-shot* (a policy and no training
    evaluations): one greedy pass, or the best of that and some sampled ones. *Fine-tuned* (a
    policy and training evaluations): trains that policy further on the problem, after
    its zero-shot passes, so that the result is never worse than theirs. The policy itself stays as
    it is. Sweeps then go on from the best placement without the policy. What is best is
    said by the memory-penalised runtime.

    Parameters
    ----------
    policy
        A trained policy.
    training_evaluations
        How many placements may be sampled in training, at most.
    samples
        How many passes are sampled after the greedy one.
    starts
        Placers whose placements count, too, such as one device for all and list schedulers: cheap
        beside the passes, and sometimes better.
    sweeps
        How often, at most, each group is then moved to where the evaluator likes it best, in
        topological order; see `sweep`.
    settings
        Of the training; `Settings.updates` is set to what the evaluations are enough for. By
        default those of the policy, if there is one.
    on_update
        Called after each update of the training with its summary, and with the number of updates
        that there are to be.

    Raises
    ------
    PolicyError
        When there is neither a policy nor training; in `place`, when the policy is for another
        number of devices, or the evaluations are not enough for one update.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> placer = PlacetoPlacer(training_evaluations=1000)
    >>> placer.place(problem, BusiestDevice(problem)).runtime
    3.0
    """

    policy: PlacementPolicy | None = None
    training_evaluations: int = 0
    samples: int = 0
    starts: Sequence[Placer] = ()
    sweeps: int = 0
    settings: Settings | None = None
    on_update: Callable[[UpdateSummary, int], None] | None = None
    name: str = field(default="placeto", init=False)

    def __post_init__(self) -> None:
        for name in ("training_evaluations", "samples", "sweeps"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if self.policy is None and not self.training_evaluations:
            raise PolicyError("training_evaluations: expected some where there is no policy, got 0")

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best placement that the policy comes across.

        Parameters
        ----------
        problem
            What to place.
        evaluator
            Says what placements of that problem cost.
        seed
            Fixes every random choice.
        """
        began = time.perf_counter()
        if self.policy:
            self.policy.check_devices(problem.num_devices)
        search = _Search(evaluator)
        self._start(search, seed)
        if self.policy:
            self._pass(self.policy, search, seed)
        if self.training_evaluations:
            self._pass(self._train(search, seed), search, seed)
        self._sweep(search)
        return search.result(time.perf_counter() - began)

    def most_evaluations(self, problem: PlacementProblem) -> int:
        """Return how many placements `place` samples at most, training included.

        Those of ``starts`` come on top.
        """
        settings = self.policy.settings if self.policy else self.settings or Settings()
        each = most_evaluations(problem, "terminal", settings)
        rounds = 2 if self.policy and self.training_evaluations else 1
        passes = rounds * (1 + self.samples) * each
        return self.training_evaluations + passes + self.sweeps * lookahead_evaluations(problem)

    @property
    def _chosen(self) -> Settings:
        """The settings of the training, whose memory penalty is that of all costs."""
        return self.settings or (self.policy.settings if self.policy else Settings())

    def _start(self, search: "_Search", seed: int) -> None:
        """Take the best of what other placers place."""
        costs = PlacementCosts(search.evaluator, self._chosen.memory_penalty)
        for placer in self.starts:
            found = placer.place(search.evaluator.problem, search.evaluator, seed=seed)
            cost = float(costs.costs_of(found.placement[None])[0])
            search.offer(found.placement, cost, search.evaluations + found.evaluations)

    def _train(self, search: "_Search", seed: int) -> PlacementPolicy:
        settings = self._chosen
        shown = self.policy.settings if self.policy else settings
        settings = self._with_updates(search.evaluator.problem, settings, shown)
        trainer = Trainer([search.evaluator], settings, seed=seed, policy=self.policy)
        before = search.evaluations
        for _ in range(settings.updates):
            summary = trainer.update()
            best = trainer.best[0]
            if best:
                search.offer(best.placement, best.cost, before + summary.evaluations)
            if self.on_update:
                self.on_update(summary, settings.updates)
        return trainer.trained_policy

    def _with_updates(
        self, problem: PlacementProblem, settings: Settings, shown: Settings
    ) -> Settings:
        """Return settings with as many updates as the evaluations are enough for."""
        least = training_evaluations(problem, replace(settings, updates=1), shown)
        if self.training_evaluations < least:
            raise PolicyError(
                f"training_evaluations: expected at least {least}, one update of "
                f"{settings.workers} episodes, got {self.training_evaluations}"
            )
        each = settings.workers * most_evaluations(problem, settings.reward, shown)
        settings = replace(settings, updates=self.training_evaluations // each)
        while training_evaluations(problem, settings, shown) > self.training_evaluations:
            settings = replace(settings, updates=settings.updates - 1)
        return settings

    def _pass(self, policy: PlacementPolicy, search: "_Search", seed: int) -> None:
        """Run the greedy pass and the sampled ones."""
        environment = PlacementEnvironment.for_policy(
            search.evaluator,
            policy.settings,
            reward="terminal",
            memory_penalty=self._chosen.memory_penalty,
        )
        each = most_evaluations(search.evaluator.problem, "terminal", policy.settings)
        environment.reset(num_episodes=1)
        with one_thread_of_torch():
            search.offer_all(run_episodes(policy, environment, greedy), each)
            for first in range(0, self.samples, SAMPLES_AT_ONCE):
                generators = [
                    np.random.default_rng((seed, SAMPLING_STREAM, sample))
                    for sample in range(first, min(first + SAMPLES_AT_ONCE, self.samples))
                ]
                environment.reset(num_episodes=len(generators))
                choice = sampling(generators, environment.topology.num_groups)
                search.offer_all(run_episodes(policy, environment, choice), each)

    def _sweep(self, search: "_Search") -> None:
        """Sweep on from the best placement, until a sweep moves nothing."""
        if not self.sweeps:
            return
        environment = PlacementEnvironment.for_policy(
            search.evaluator,
            self.policy.settings if self.policy else self._chosen,
            reward="terminal",
            memory_penalty=self._chosen.memory_penalty,
        )
        for _ in range(self.sweeps):
            before = search.best_placement
            environment.reset(num_episodes=1, start=before)
            sweep(environment)
            search.offer_sweep(environment)
            if (search.best_placement == before).all():
                return


class _Search:
    """The best placement so far, and how it came to be so good."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.best_placement = np.zeros(0, np.int32)
        self._cost = math.inf
        self._runtime = math.inf
        self._peak_memory = np.zeros(0, np.int64)
        self.evaluations = 0
        self._curve: list[tuple[int, float]] = []

    def offer(self, placement: NDArray[np.int32], cost: float, evaluations: int) -> None:
        """Take the best placement of so many evaluations altogether, if it is a better one."""
        self.evaluations = evaluations
        if cost < self._cost:
            found = self.evaluator.evaluate(placement[None])
            self._cost, self.best_placement = cost, placement
            self._runtime, self._peak_memory = float(found.runtime[0]), found.peak_memory[0]
        self._curve.append((evaluations, self._cost))

    def offer_all(self, episodes: Episodes, each: int) -> None:
        """Take the best placement on the way of each episode, which sampled so many."""
        found = zip(episodes.best_placements, episodes.best_costs.tolist(), strict=True)
        for placement, cost in found:
            self.offer(placement, cost, self.evaluations + each)

    def offer_sweep(self, environment: PlacementEnvironment) -> None:
        """Take where a sweep that began at the best placement ended."""
        looked = lookahead_evaluations(self.evaluator.problem)
        placement, cost = environment.placement[0], float(environment.costs[0])
        self.offer(placement, cost, self.evaluations + looked)

    def result(self, seconds: float) -> PlacementResult:
        """Return what the search came to."""
        return PlacementResult(
            placement=self.best_placement,
            runtime=self._runtime,
            peak_memory=self._peak_memory,
            evaluations=self.evaluations,
            seconds=seconds,
            curve=np.array(self._curve, np.float64),
        )


def sweep(environment: PlacementEnvironment) -> None:
    """Take an episode to its end, and put each group where the placement then costs least.

    A group stays where no other device is better. Unlike the choices of a policy, those of a sweep
    look no further than the next step; a placement that is good on the whole gains from a few of
    them.

    Parameters
    ----------
    environment
        An environment that was reset.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> environment = PlacementEnvironment(BusiestDevice(two_chains()))
    >>> environment.reset(num_episodes=1)
    >>> sweep(environment)
    >>> environment.placement, environment.costs
    (array([[1, 1, 1, 0, 0, 0]], dtype=int32), array([3.]))
    """
    episodes = np.arange(len(environment.order))
    while not environment.is_over:
        here = environment.placement[episodes, environment.order[:, environment.time]]
        costs = environment.costs_of_devices()
        better = costs.min(axis=1) < costs[episodes, here]
        environment.step(np.where(better, costs.argmin(axis=1), here))
