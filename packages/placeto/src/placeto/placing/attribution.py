"""Effects of the differences between two placements on the runtime."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto.placing.costs import costs
from placeto_graphs import Evaluator


@dataclass(frozen=True)
class Move:
    """A group that moves, and its effects on the memory-penalised runtime, in seconds.

    Attributes
    ----------
    group : int
        The group.
    first : float
        Change if this group moves alone, from the placement before; below zero it is faster.
    last : float
        Change if this group moves after all others.
    share : float
        Average change over orders of all moves (Shapley 1953). The shares of all moves add up to
        the difference between the two placements.
    """

    group: int
    first: float
    last: float
    share: float


def moves_between(
    evaluator: Evaluator,
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    num_orders: int,
    generator: np.random.Generator,
) -> list[Move]:
    """Return the groups that int32[G] placements have on different devices, and their effects.

    Shares are averages over ``num_orders`` random orders of the moves, each also backwards.
    """
    groups = np.flatnonzero(before != after)
    if not len(groups):
        return []
    drawn = [generator.permutation(groups) for _ in range(num_orders)]
    steps = [_steps(evaluator, before, after, order) for one in drawn for order in (one, one[::-1])]
    share = np.mean(steps, axis=0)
    first = np.repeat(before[None], len(groups), axis=0)
    without = np.repeat(after[None], len(groups), axis=0)
    row = np.arange(len(groups))
    first[row, groups], without[row, groups] = after[groups], before[groups]
    start, end = costs(evaluator, np.stack([before, after]))
    changes = np.stack([costs(evaluator, first) - start, end - costs(evaluator, without)], axis=1)
    return [
        Move(group, alone, undone, float(share[group]))
        for group, (alone, undone) in zip(groups.tolist(), changes.tolist(), strict=True)
    ]


def _steps(
    evaluator: Evaluator,
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    order: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return float64[G], what each group changes when all move in an order; 0 for the others."""
    placements = np.repeat(before[None], len(order) + 1, axis=0)
    for moved, group in enumerate(order.tolist(), 1):
        placements[moved:, group] = after[group]
    result = np.zeros(len(before))
    result[order] = np.diff(costs(evaluator, placements))
    return result
