"""Placements as a person makes them who knows the model."""

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import accelerators, mean_seconds, repaired
from placeto_baselines.expert.regions import devices_by_regions
from placeto_baselines.expert.scopes import NOWHERE, ExpertScopes
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult


class ExpertPlacer:
    """Layers and branches on devices of their own ("Human expert" of Addanki et al. 2019).

    With the scopes of a model, one device for each layer of a translation model, and the parallel
    branches of each module of a vision model on the devices in turn (`ExpertScopes`). Without, a
    general rule takes the parallel branches between forks and joins of the graph
    (`expert.regions`). What neither names goes with the neighbour with which it shares most bytes,
    and where there is none to the first device. Devices are the accelerators, in their order.

    Parameters
    ----------
    scopes
        Which scopes are layers and branches; None for the general rule.

    Examples
    --------
    >>> ExpertPlacer().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "expert"

    def __init__(self, scopes: ExpertScopes | None = None) -> None:
        self.scopes = scopes

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the expert's placement; nothing of it is random."""
        trials = Trials(problem, evaluator)
        devices = accelerators(problem)
        if self.scopes is None:
            turn = devices_by_regions(problem, len(devices))
        else:
            of_op = self.scopes.devices(problem.graph.scopes, len(devices))
            turn = _votes(problem, of_op, len(devices))
        turn = _with_neighbours(problem, turn)
        trials.evaluate(repaired(problem, devices[turn])[None])
        return trials.result()


def _votes(
    problem: PlacementProblem, device_of_op: NDArray[np.int64], num_devices: int
) -> NDArray[np.int64]:
    """Return int64[G], the device of most of the work of each group whose ops have one."""
    least = np.finfo(np.float64).tiny  # ops without work vote, too
    weight = mean_seconds(problem.compute_time) + least
    votes = np.zeros((problem.num_groups, num_devices))
    named = device_of_op != NOWHERE
    np.add.at(votes, (problem.grouping.group_of[named], device_of_op[named]), weight[named])
    return np.where(votes.any(axis=1), votes.argmax(axis=1), NOWHERE)


def _with_neighbours(problem: PlacementProblem, given: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return devices for all groups: an open one joins the neighbour that it shares most with."""
    groups = problem.group_graph
    device_of = given.copy()
    order = np.lexsort((groups.edges[:, 1], groups.edges[:, 0], -groups.edge_bytes))
    joined = True
    while joined:
        joined = False
        # Heavy edges come first, so that each open group follows the heaviest it can.
        for source, reader in groups.edges[order].tolist():
            if (device_of[source] == NOWHERE) != (device_of[reader] == NOWHERE):
                device_of[[source, reader]] = max(device_of[source], device_of[reader])
                joined = True
    return np.where(device_of == NOWHERE, 0, device_of)
