"""Trying all placements, and simulated annealing and hill climbing over moves of single groups."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices, random_placements
from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.placement_trials import PlacementTrials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

MAX_PLACEMENTS = 200_000  # 11 groups on 3 devices
FEW_PLACEMENTS = 4096  # of so few, `LocalSearch` evaluates all
BATCH = 1024
MOST_STEPS_OF_PAIR = 3  # of annealing, times G^2: beyond, another start finds more


def exhaustive_search(
    problem: PlacementProblem, evaluator: Evaluator, *, max_placements: int = MAX_PLACEMENTS
) -> PlacementResult:
    """Return the placement of the least rank of all (`placement_ranks`).

    Every placement in which each group can run is evaluated. The result therefore holds for any
    evaluator, also if a move to an equal device changes the order of execution.

    It is for small problems: one with more than ``max_placements`` is refused, which by default are
    about those of 11 groups on 3 devices.

    Raises
    ------
    BaselineError
        When there are too many placements.

    Examples
    --------
    >>> exhaustive_search(problem, evaluator).runtime
    1.0
    """
    count = num_placements(problem)
    if count > max_placements:
        got = str(count) if count < 10**15 else f"10^{math.log10(count):.0f}"
        raise BaselineError(
            f"problem: expected at most {max_placements} placements to try, got {got} "
            f"({problem.num_groups} groups on {problem.num_devices} devices)"
        )
    trials = PlacementTrials(problem, evaluator)
    for placements in all_placements(problem):
        trials.costs(placements)
    return trials.result()


def num_placements(problem: PlacementProblem) -> int:
    """Return the number of placements in which every group can run."""
    return math.prod(allowed_devices(problem).sum(axis=1).tolist())


def all_placements(
    problem: PlacementProblem, batch_size: Callable[[], int] = lambda: BATCH
) -> Iterator[NDArray[np.int32]]:
    """Yield all placements in which every group can run, int32[B, G] at a time.

    ``batch_size`` returns the number B of the next ones.
    """
    allowed = allowed_devices(problem)
    rows = itertools.product(*(np.flatnonzero(row).tolist() for row in allowed))
    while batch := list(itertools.islice(rows, batch_size())):
        yield np.array(batch, np.int32)


class LocalSearch:
    """Simulated annealing (Kirkpatrick et al. 1983), then hill climbing, from several starts.

    Each start is a random placement. Annealing moves a random group to another device, and accepts
    what costs ``x`` seconds more with probability ``exp(-x / T)``; ``T`` falls geometrically, in at
    most 3 G² steps of G groups. Hill climbing then goes through the groups in random order, moves
    each to its best device, and ends when no move of a single group helps. Costs are those of
    `placement_ranks`. If there are at most 4,096 placements and ``max_evaluations`` suffices for
    all, they are evaluated instead (`exhaustive_search`).

    Parameters
    ----------
    max_evaluations
        Maximum number of evaluations.
    restarts
        Number of starts, among which the evaluations are shared out. Each anneals with its share;
        hill climbing takes as many as it needs, so that there may be fewer starts, or more.
    annealing
        Fraction of each share that is spent on annealing; 0 is hill climbing alone.
    first_temperature, last_temperature
        ``T`` at the beginning and at the end, as fractions of the cost of the start.

    Raises
    ------
    BaselineError
        When a setting is out of its range.

    Examples
    --------
    >>> result = LocalSearch(max_evaluations=50).place(problem, evaluator)
    >>> result.placement, result.runtime, result.evaluations
    (array([1, 2, 1, 2], dtype=int32), 1.0, 50)
    """

    name = "local-search"

    def __init__(
        self,
        max_evaluations: int = 10_000,
        restarts: int = 4,
        annealing: float = 0.75,
        first_temperature: float = 0.1,
        last_temperature: float = 1e-4,
    ) -> None:
        check_at_least("max_evaluations", max_evaluations, 1)
        check_at_least("restarts", restarts, 1)
        if not 0 <= annealing <= 1:
            raise BaselineError(f"annealing: expected a part from 0 to 1, got {annealing}")
        if not 0 < last_temperature <= first_temperature:
            raise BaselineError(
                "last_temperature: expected more than 0 and at most first_temperature "
                f"({first_temperature}), got {last_temperature}"
            )
        self.max_evaluations = max_evaluations
        self.restarts = restarts
        self.annealing = annealing
        self.first_temperature = first_temperature
        self.last_temperature = last_temperature

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
            Seed of the starts and moves.

        Raises
        ------
        BaselineError
            If the evaluator is that of another problem.
        """
        if num_placements(problem) <= min(FEW_PLACEMENTS, self.max_evaluations):
            return exhaustive_search(problem, evaluator)
        climber = _Climber(PlacementTrials(problem, evaluator), self.max_evaluations, seed)
        annealing_steps = int(self.annealing * (self.max_evaluations // self.restarts))
        annealing_steps = min(annealing_steps, MOST_STEPS_OF_PAIR * problem.num_groups**2)
        climber.start()
        while climber.evaluations_left:
            climber.anneal(annealing_steps, self.first_temperature, self.last_temperature)
            climber.climb()
            climber.start()
        return climber.trials.result()


class _Climber:
    """One placement that moves, as long as evaluations are left."""

    def __init__(self, trials: PlacementTrials, max_evaluations: int, seed: int) -> None:
        self.trials, self.max_evaluations = trials, max_evaluations
        self.generator = np.random.default_rng(seed)
        self.allowed = allowed_devices(trials.problem)
        self.movable = np.flatnonzero(self.allowed.sum(axis=1) > 1)

    @property
    def evaluations_left(self) -> int:
        return self.max_evaluations - self.trials.evaluations

    def start(self) -> None:
        """Go to a random placement, if an evaluation is left."""
        if self.evaluations_left:
            placements = random_placements(self.trials.problem, 1, self.generator)
            self.cost = float(self.trials.costs(placements)[0])
            self.placement = placements[0]

    def anneal(self, steps: int, first: float, last: float) -> None:
        """Try so many random moves; temperatures fall from first to last, in present costs."""
        steps = min(steps, self.evaluations_left)
        temperatures = self.cost * np.geomspace(first, last, max(steps, 1))
        for temperature in temperatures[:steps].tolist():
            group = int(self.generator.choice(self.movable))
            device = int(self.generator.choice(self._other_devices(group)))
            cost = float(self._costs_on(group, [device])[0])
            increase = cost - self.cost
            if increase <= 0 or self.generator.random() < np.exp(
                -increase / max(temperature, 1e-300)
            ):
                self.placement[group], self.cost = device, cost

    def climb(self) -> None:
        """Move groups to their best devices until no move of a single group helps."""
        improved = True
        while improved:
            improved = False
            for group in self.generator.permutation(self.movable).tolist():
                if self.evaluations_left < self.allowed[group].sum():
                    return
                devices = self._other_devices(group)
                costs = self._costs_on(group, devices)
                best = int(devices[costs.argmin()])
                if costs.min() < self.cost:
                    # Where costs are measured, the least of several is too low on average.
                    self.cost = float(self._costs_on(group, [best])[0])
                    self.placement[group] = best
                    improved = True

    def _costs_on(self, group: int, devices: Sequence[int]) -> NDArray[np.float64]:
        """Return what the placement costs with one group on each of some devices in turn."""
        placements = np.tile(self.placement, (len(devices), 1))
        placements[:, group] = devices
        return self.trials.costs(placements)

    def _other_devices(self, group: int) -> list[int]:
        devices: list[int] = np.flatnonzero(self.allowed[group]).tolist()
        return [device for device in devices if device != self.placement[group]]
