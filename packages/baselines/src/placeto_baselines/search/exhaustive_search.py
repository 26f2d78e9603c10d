"""The best placement of all, by trying all."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import allowed_devices
from placeto_baselines.errors import BaselineError
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult

MAX_PLACEMENTS = 200_000  # 11 groups on 3 devices
FEW_PLACEMENTS = 4096  # so many are evaluated one and all by searches
BATCH = 1024


def exhaustive_search(
    problem: PlacementProblem, evaluator: Evaluator, *, max_placements: int = MAX_PLACEMENTS
) -> PlacementResult:
    """Return the placement with the lowest memory-penalised runtime of all.

    Every placement in which each group can run is evaluated. The result therefore holds for any
    evaluator, also if a move to an equal device changes the order of execution.

    Parameters
    ----------
    problem
        A small problem: about 10 groups on 3 devices.
    evaluator
        Evaluator of its placements.
    max_placements
        Largest number of placements; a problem with more is refused.

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
    trials = Trials(problem, evaluator)
    for placements in all_placements(problem):
        trials.evaluate(placements)
    return trials.result()


def num_placements(problem: PlacementProblem) -> int:
    """Return the number of placements in which every group can run."""
    return math.prod(allowed_devices(problem).sum(axis=1).tolist())


def all_placements(problem: PlacementProblem) -> Iterator[NDArray[np.int32]]:
    """Yield all placements in which every group can run, int32[B, G] at a time."""
    allowed = allowed_devices(problem)
    rows = itertools.product(*(np.flatnonzero(row).tolist() for row in allowed))
    while batch := list(itertools.islice(rows, BATCH)):
        yield np.array(batch, np.int32)
