"""Reports of episodes, which processes exchange."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_policy.costs import Best
from placeto_policy.episodes import Episodes

NUM_SCALARS = 7


@dataclass(frozen=True, eq=False)
class WorkerReport:
    """The episode of one worker on a graph of G groups.

    Attributes
    ----------
    worker : int
        Index among all workers.
    graph : int
        Index of the graph.
    cost : float
        R of the last placement, seconds.
    reward : float
        Sum of the rewards, seconds.
    best : `Best`
        Best placement of the graph that its process has evaluated so far.
    returns : float64[G]
        Return of each step, seconds.
    evaluations : int
        Number of evaluations.
    """

    worker: int
    graph: int
    cost: float
    reward: float
    best: Best
    returns: NDArray[np.float64]
    evaluations: int


def reports_of(
    episodes: Episodes,
    best: Best,
    graph: int,
    workers: Sequence[int],
    evaluations: Sequence[int],
    discount: float,
) -> list[WorkerReport]:
    """Return the report of each worker, for the episodes that they ran on one graph."""
    returns = discounted_returns(episodes.rewards, discount)
    return [
        WorkerReport(
            worker=worker,
            graph=graph,
            cost=float(episodes.costs[row]),
            reward=float(episodes.rewards[row].sum()),
            best=best,
            returns=returns[row],
            evaluations=evaluations[row],
        )
        for row, worker in enumerate(workers)
    ]


def discounted_returns(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """Return float64[B, G], the discounted sum of the rewards [B, G] from each step on.

    Examples
    --------
    >>> discounted_returns(np.array([[1.0, 2.0, 4.0]]), discount=0.5)
    array([[3., 4., 4.]])
    """
    returns = rewards.copy()
    for time in range(rewards.shape[1] - 2, -1, -1):
        returns[:, time] += discount * returns[:, time + 1]
    return returns


def to_rows(reports: Sequence[WorkerReport], most_groups: int) -> NDArray[np.float64]:
    """Return the reports as rows of numbers, for graphs of up to so many groups."""
    rows = np.zeros((len(reports), NUM_SCALARS + 2 * most_groups))
    for row, report in zip(rows, reports, strict=True):
        row[:NUM_SCALARS] = (
            report.worker,
            report.graph,
            report.cost,
            report.reward,
            report.best.lacks_memory,
            report.best.cost,
            report.evaluations,
        )
        placement, returns = row[NUM_SCALARS:].reshape(2, most_groups)
        placement[: len(report.best.placement)] = report.best.placement
        returns[: len(report.returns)] = report.returns
    return rows


def from_rows(rows: NDArray[np.float64], group_counts: Sequence[int]) -> list[WorkerReport]:
    """Return the reports of rows, in the order of the workers."""
    reports = []
    for row in rows[np.argsort(rows[:, 0])]:
        worker, graph, cost, reward, lacks, best_cost, evaluations = row[:NUM_SCALARS].tolist()
        placement, returns = row[NUM_SCALARS:].reshape(2, -1)[:, : group_counts[int(graph)]]
        reports.append(
            WorkerReport(
                worker=int(worker),
                graph=int(graph),
                cost=cost,
                reward=reward,
                best=Best(bool(lacks), best_cost, placement.astype(np.int32)),
                returns=returns,
                evaluations=int(evaluations),
            )
        )
    return reports
