"""The linear programme of SCT: with whom each task would rather share its device."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import block_array, csr_array, diags_array, eye_array

from placeto_baselines.errors import BaselineError
from placeto_baselines.scheduling.tasks import TaskGraph

NOBODY = -1
THRESHOLD = 0.5  # at most one child of a task, and one parent, is below it


def favourite_children(tasks: TaskGraph) -> list[int]:
    """Return the favourite child of each task, or -1.

    With as many devices as are wanted, ``x[i, j]`` is 0 if task ``j`` runs on the device of task
    ``i`` right after it, and 1 if its input has to be sent there. The programme minimises the
    makespan ``w`` over ``x`` from 0 to 1 and start times ``s >= 0``::

        s[i] + seconds[i] + communication[i, j] x[i, j] <= s[j]     for each edge
        s[i] + seconds[i] <= w                                      for each task
        sum over children j of x[i, j] >= number of children - 1    for each task
        sum over parents i of x[i, j]  >= number of parents - 1     for each task

    and ``j`` is the favourite child of ``i`` where ``x[i, j] < 1/2`` (Hanen and Munier 1995; Jeon
    et al. 2020). The last two make it one at most. Times are means over devices.
    """
    edges = [
        (task, reader, sent)
        for task, readers in enumerate(tasks.successors)
        for reader, sent in readers
    ]
    favourite = [NOBODY] * tasks.num_tasks
    if not any(sent for _, _, sent in edges):
        return favourite
    parents, children = np.array([edge[:2] for edge in edges]).T
    communication = np.array([edge[2] for edge in edges])
    unit = max(float(tasks.mean_seconds.max()), float(communication.max()))
    local = _local_parts(tasks.mean_seconds / unit, parents, children, communication / unit)
    near = (communication > 0) & (local < THRESHOLD - 1e-6)
    for edge in np.flatnonzero(near).tolist():
        favourite[int(parents[edge])] = int(children[edge])
    return favourite


def _local_parts(
    seconds: NDArray[np.float64],
    parents: NDArray[np.intp],
    children: NDArray[np.intp],
    communication: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Solve the programme; return x, float64[M]."""
    num_tasks, num_edges = len(seconds), len(parents)
    edges, ones = np.arange(num_edges), np.ones(num_edges)
    of_parent = csr_array((ones, (parents, edges)), shape=(num_tasks, num_edges))
    of_child = csr_array((ones, (children, edges)), shape=(num_tasks, num_edges))
    makespan = np.ones((num_tasks, 1))
    matrix = block_array(
        [
            [diags_array(communication), (of_parent - of_child).T, None],
            [None, eye_array(num_tasks), -makespan],
            [-of_parent, None, None],
            [-of_child, None, None],
        ],
        format="csr",
    )
    limits = [
        -seconds[parents],
        -seconds,
        1 - np.bincount(parents, minlength=num_tasks),
        1 - np.bincount(children, minlength=num_tasks),
    ]
    costs = np.zeros(matrix.shape[1])
    costs[-1] = 1.0
    bounds = [(0, 1)] * num_edges + [(0, None)] * (num_tasks + 1)
    solution = linprog(
        costs, A_ub=matrix, b_ub=np.concatenate(limits), bounds=bounds, method="highs"
    )
    if solution.status != 0:
        raise BaselineError(f"favourite children: expected an optimum, got {solution.message}")
    return np.asarray(solution.x[:num_edges])
