"""Placements drawn at random."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices
from placeto_baselines.errors import check_at_least
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

BATCH = 256  # placements that are evaluated at once


def random_placements(
    problem: PlacementProblem, count: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G]: each group on a device that can run it, all equally likely."""
    allowed = allowed_devices(problem)
    choices = allowed.sum(axis=1)
    picked = generator.integers(0, choices, (count, problem.num_groups))
    # The devices that can run a group, in order, at the front of each row.
    in_front = np.argsort(~allowed, axis=1, kind="stable")
    return in_front[np.arange(problem.num_groups), picked].astype(np.int32)


class RandomPlacer:
    """Each group on any device that can run it, all equally likely; the best of several draws.

    Parameters
    ----------
    samples
        How many placements are drawn. The best of them is the result; `runtimes` gives them all,
        so that their mean can be told, too.

    Raises
    ------
    BaselineError
        When the number of samples is not at least 1.

    Examples
    --------
    >>> placer = RandomPlacer(samples=100)
    >>> placer.place(problem, evaluator, seed=1).runtime
    1.0
    >>> float(placer.runtimes(problem, evaluator, seed=1).mean())
    3.76
    """

    name = "random"

    def __init__(self, samples: int = 1000) -> None:
        check_at_least("samples", samples, 1)
        self.samples = samples

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best of the placements that the seed gives."""
        trials = Trials(problem, evaluator)
        for placements in self._drawn(problem, seed):
            trials.evaluate(placements)
        return trials.result()

    def runtimes(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> NDArray[np.float64]:
        """Return float64[samples], the runtime in seconds of each of the same placements."""
        batches = [evaluator.evaluate(placements) for placements in self._drawn(problem, seed)]
        return np.concatenate([batch.runtime for batch in batches])

    def _drawn(self, problem: PlacementProblem, seed: int) -> list[NDArray[np.int32]]:
        generator = np.random.default_rng(seed)
        sizes = [min(BATCH, self.samples - start) for start in range(0, self.samples, BATCH)]
        return [random_placements(problem, size, generator) for size in sizes]
