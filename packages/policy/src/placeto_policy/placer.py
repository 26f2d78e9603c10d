"""The policy as a placer: trained on the problem, used as it is, or trained further."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import Evaluator, PlacementProblem, PlacementResult, Placer
from placeto_policy.costs import lookahead_evaluations, most_evaluations, training_evaluations
from placeto_policy.environment import PlacementEnvironment
from placeto_policy.episodes import greedy, run_episodes, sampling
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
    it is. Sweeps then go on from the best placement without the policy. The best is what
    fits the memory, and of that the one of the lowest memory-penalised runtime.

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
        chosen = self.settings or (self.policy.settings if self.policy else Settings())
        environment = PlacementEnvironment.for_policy(
            evaluator,
            self.policy.settings if self.policy else chosen,
            reward="terminal",
            memory_penalty=chosen.memory_penalty,
        )
        search = _Search(environment)
        self._start(search, seed)
        if self.policy:
            self._pass(self.policy, search, seed)
        if self.training_evaluations:
            self._pass(self._train(search, chosen, seed), search, seed)
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

    def _start(self, search: "_Search", seed: int) -> None:
        """Take what other placers place."""
        evaluator = search.environment.evaluator
        for placer in self.starts:
            found = placer.place(evaluator.problem, evaluator, seed=seed)
            search.take(found.placement, found.evaluations)

    def _train(self, search: "_Search", settings: Settings, seed: int) -> PlacementPolicy:
        evaluator = search.environment.evaluator
        shown = self.policy.settings if self.policy else settings
        settings = self._with_updates(evaluator.problem, settings, shown)
        trainer = Trainer([evaluator], settings, seed=seed, policy=self.policy)
        before = search.evaluations
        for _ in range(settings.updates):
            summary = trainer.update()
            if best := trainer.best[0]:
                evaluations = before + summary.evaluations - search.evaluations
                search.take(best.placement, evaluations)
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
        environment = search.environment
        each = most_evaluations(environment.evaluator.problem, "terminal", policy.settings)
        environment.reset(num_episodes=1)
        with one_thread_of_torch():
            run_episodes(policy, environment, greedy)
            search.count(each)
            for first in range(0, self.samples, SAMPLES_AT_ONCE):
                generators = [
                    np.random.default_rng((seed, SAMPLING_STREAM, sample))
                    for sample in range(first, min(first + SAMPLES_AT_ONCE, self.samples))
                ]
                environment.reset(num_episodes=len(generators))
                choice = sampling(generators, environment.topology.num_groups)
                run_episodes(policy, environment, choice)
                search.count(len(generators) * each)

    def _sweep(self, search: "_Search") -> None:
        """Sweep on from the best placement, until a sweep moves nothing."""
        environment = search.environment
        for _ in range(self.sweeps):
            before = environment.best
            environment.reset(num_episodes=1, start=before.placement)
            sweep(environment)
            search.count(lookahead_evaluations(environment.evaluator.problem))
            if environment.best is before:
                return


class _Search:
    """How many placements were evaluated, and how the best of them came to be so good.

    All that is placed is evaluated in one environment, which knows the best of it.
    """

    def __init__(self, environment: PlacementEnvironment) -> None:
        self.environment = environment
        self.evaluations = 0
        self._curve: list[tuple[int, float]] = []

    def count(self, evaluations: int) -> None:
        """Note what is the best after some more evaluations."""
        self.evaluations += evaluations
        self._curve.append((self.evaluations, self.environment.best.cost))

    def take(self, placement: NDArray[np.int32], evaluations: int) -> None:
        """Take a placement that another placer found in some evaluations."""
        self.environment.costs_of(placement[None])
        self.count(evaluations)

    def result(self, seconds: float) -> PlacementResult:
        """Return what the search came to."""
        placement = self.environment.best.placement
        found = self.environment.evaluator.evaluate(placement[None])
        return PlacementResult(
            placement=placement,
            runtime=float(found.runtime[0]),
            peak_memory=found.peak_memory[0],
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
