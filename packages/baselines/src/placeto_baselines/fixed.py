"""Placements that no search finds: one device, the CPU, chance."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import random_placements, repaired
from placeto_baselines.errors import BaselineError, check_at_least
from placeto_baselines.placement_trials import PlacementTrials, RulePlacer
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

BATCH = 256  # placements that are evaluated at once


class SingleDevice(RulePlacer):
    """Every group on the fastest single GPU ("Single GPU" of Addanki et al. 2019).

    Each GPU is tried, and the best kept. A group that cannot run on it goes to where it runs
    fastest. On a cluster without GPUs the same holds for its CPUs.

    Examples
    --------
    >>> SingleDevice().place(problem, evaluator).placement
    array([1, 1, 1, 1], dtype=int32)
    """

    name = "single"

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        return _on_each(problem, problem.cluster.accelerators)


class CpuOnly(RulePlacer):
    """Every group on the CPU ("CPU only" of Addanki et al. 2019).

    Of several CPUs the fastest. A group that cannot run there goes to where it runs fastest.

    Raises
    ------
    BaselineError
        By `place`, when the cluster has no CPU.

    Examples
    --------
    >>> CpuOnly().place(problem, evaluator).placement
    array([0, 0, 0, 0], dtype=int32)
    """

    name = "cpu"

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        cpus = np.flatnonzero([device.is_cpu for device in problem.cluster.devices])
        if not len(cpus):
            kinds = sorted({device.kind for device in problem.cluster.devices})
            raise BaselineError(
                f"cluster: expected a device of the kind 'cpu', got {', '.join(map(repr, kinds))}"
            )
        return _on_each(problem, cpus)


def _on_each(problem: PlacementProblem, devices: NDArray[np.intp]) -> NDArray[np.int32]:
    rows = [repaired(problem, np.full(problem.num_groups, device)) for device in devices]
    return np.stack(rows)


class RandomPlacer:
    """Each group on any device that can run it, sampled uniformly; the best of several samples.

    Parameters
    ----------
    max_evaluations
        Number of placements that are sampled and evaluated.

    Raises
    ------
    BaselineError
        If ``max_evaluations`` is not at least 1.

    Examples
    --------
    >>> RandomPlacer(max_evaluations=100).place(problem, evaluator, seed=1).runtime
    1.0
    """

    name = "random"

    def __init__(self, max_evaluations: int = 1000) -> None:
        check_at_least("max_evaluations", max_evaluations, 1)
        self.max_evaluations = max_evaluations

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best of the placements that the seed gives."""
        trials = PlacementTrials(problem, evaluator)
        generator = np.random.default_rng(seed)
        for start in range(0, self.max_evaluations, BATCH):
            count = min(BATCH, self.max_evaluations - start)
            trials.costs(random_placements(problem, count, generator))
        return trials.result()
