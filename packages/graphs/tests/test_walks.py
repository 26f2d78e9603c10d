"""What moves may be, and how they are tried one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from example_graphs import diamond_problem
from placeto_graphs import EvaluationBatch, GraphError, Moves, plain_walk


class BusiestDevice:
    """Counts the groups of the fuller of two devices, and calls that seconds."""

    def __init__(self) -> None:
        self.problem = diamond_problem()
        self.asked: list[list[int]] = []

    def evaluate(self, placements: Any) -> EvaluationBatch:
        self.asked += placements.tolist()
        busy = np.stack([(placements == device).sum(axis=1) for device in (0, 1)], axis=1)
        return EvaluationBatch(runtime=busy.max(axis=1) * 1.0, peak_memory=busy)


def moves(set_of: list[int], device: list[int], allowance: list[float], **changes: Any) -> Moves:
    """Return the moves of one walk with the sets {0}, {1}, {2}, {3} and {0, 1}."""
    fields: dict[str, Any] = {
        "set_of": [set_of],
        "device": [device],
        "allowance": [allowance],
        "first_member": [0, 1, 2, 3, 4, 6],
        "members": [0, 1, 2, 3, 0, 1],
    }
    return Moves(**(fields | changes))


def test_a_move_that_costs_too_much_goes_back_and_one_that_changes_nothing_is_not_tried() -> None:
    evaluator = BusiestDevice()
    start = np.zeros((1, 4), np.int32)
    walks = plain_walk(evaluator, start, moves([4, 0, 2, 2], [1, 1, 1, 0], [0.0, 9.0, 0.5, 0.0]))
    assert evaluator.asked == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    np.testing.assert_array_equal(walks.cost, [[4, 2, np.nan, 3, np.nan]])
    assert walks.placement.tolist() == [[1, 1, 0, 0]]
    assert walks.best_runtime.tolist() == [2]
    assert walks.evaluations == 3


def test_the_best_is_kept_when_a_walk_leaves_it() -> None:
    start = np.array([[0, 0, 1, 1]], np.int32)
    walks = plain_walk(BusiestDevice(), start, moves([0], [1], [1.0]))
    assert walks.placement.tolist() == [[1, 0, 1, 1]]
    assert walks.best_placement.tolist() == start.tolist()
    assert walks.best_peak_memory.tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_member": [0, 0, 1]}, "first_member: expected rising positions from 0 to 6"),
        ({"first_member": []}, "first_member: expected rising positions"),
        ({"set_of": [[5]]}, r"set_of\[0, 0\]: expected an integer from 0 to 4, got 5"),
        ({"allowance": [[-1.0]]}, r"allowance\[0, 0\]: expected a number >= 0"),
        ({"device": [[0, 1]]}, "device: expected shape"),
    ],
)
def test_moves_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=f"^{message}"):
        replace(moves([0], [0], [0.0]), **changes)


def test_moves_of_another_problem_are_refused() -> None:
    start = np.zeros((1, 4), np.int32)
    far = moves([0], [0], [0.0], members=[0, 1, 2, 3, 0, 4])
    with pytest.raises(GraphError, match=r"^members: expected numbers from 0 to 3, got 4$"):
        plain_walk(BusiestDevice(), start, far)
