"""Everything on one device."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import CPU, accelerators, cpus, repaired
from placeto_baselines.errors import BaselineError
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult


class SingleDevice:
    """Every group on the fastest single GPU ("Single GPU" of Addanki et al. 2019).

    Each GPU is tried, and the best kept. A group that cannot run on it goes to where it runs
    fastest. On a cluster without GPUs the same holds for its CPUs.

    Examples
    --------
    >>> SingleDevice().place(problem, evaluator).placement
    array([1, 1, 1, 1], dtype=int32)
    """

    name = "single"

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the placement on the fastest GPU; nothing of it is random."""
        return _best_of(problem, evaluator, accelerators(problem))


class CpuOnly:
    """Every group on the CPU ("CPU only" of Addanki et al. 2019).

    Of several CPUs the fastest. A group that cannot run there goes to where it runs fastest.

    Examples
    --------
    >>> CpuOnly().place(problem, evaluator).placement
    array([0, 0, 0, 0], dtype=int32)
    """

    name = "cpu"

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the placement on the CPU; nothing of it is random.

        Raises
        ------
        BaselineError
            When the cluster has no CPU.
        """
        found = cpus(problem)
        if not len(found):
            kinds = sorted({device.kind for device in problem.cluster.devices})
            raise BaselineError(
                f"cluster: expected a device of the kind {CPU!r}, got {', '.join(map(repr, kinds))}"
            )
        return _best_of(problem, evaluator, found)


def _best_of(
    problem: PlacementProblem, evaluator: Evaluator, devices: NDArray[np.intp]
) -> PlacementResult:
    trials = Trials(problem, evaluator)
    rows = [repaired(problem, np.full(problem.num_groups, device)) for device in devices]
    trials.evaluate(np.stack(rows))
    return trials.result()
