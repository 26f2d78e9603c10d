"""Memory-constrained topological placement."""

import numpy as np

from placeto_baselines.devices import accelerators, allowed_devices
from placeto_baselines.scheduling.demand import demand
from placeto_baselines.scheduling.tasks import TaskGraph
from placeto_baselines.trials import Trials
from placeto_graphs import Evaluator, PlacementProblem, PlacementResult


class MTopo:
    """m-TOPO of Baechi (Jeon et al. 2020): fill one device after the other.

    Ops are taken in topological order, and each brings its group with it. A device is filled up to
    the mean memory per device plus that of the largest group, or to its own memory if that is less;
    then comes the next device. What is left over goes to the device with the most memory to spare.
    Only accelerators are filled if there are any; a group that cannot run where its turn comes goes
    to where it runs fastest, and takes its memory there.

    Examples
    --------
    >>> MTopo().place(problem, evaluator).placement
    array([1, 1, 1, 2], dtype=int32)
    """

    name = "m-topo"

    def place(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        *,
        seed: int = 0,  # noqa: ARG002
    ) -> PlacementResult:
        """Return the placement that fills the devices; nothing of it is random."""
        trials = Trials(problem, evaluator)
        need = demand(problem).total
        devices = accelerators(problem)
        even = int(need.sum()) // len(devices) + int(need.max())
        limit = np.minimum(trials.memory, even)
        used = np.zeros(problem.num_devices, np.int64)
        runs = allowed_devices(problem)
        fastest = problem.group_graph.compute_time.argmin(axis=1)
        placement = np.zeros(problem.num_groups, np.int32)
        turn = 0
        for group in _in_order_of_first_ops(problem):
            while turn < len(devices) and used[devices[turn]] + need[group] > limit[devices[turn]]:
                turn += 1
            spare = (trials.memory - used)[devices]
            device = devices[turn if turn < len(devices) else int(spare.argmax())]
            placement[group] = device if runs[group, device] else fastest[group]
            used[placement[group]] += need[group]
        trials.evaluate(placement[None])
        return trials.result()


def _in_order_of_first_ops(problem: PlacementProblem) -> list[int]:
    """Return the groups in the topological order of their first ops, those of data alone last."""
    tasks = TaskGraph(problem)
    in_order = tasks.group_of[tasks.order].tolist()
    return list(dict.fromkeys([*in_order, *range(problem.num_groups)]))
