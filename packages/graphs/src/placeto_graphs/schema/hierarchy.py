"""Groupings of one graph that are nested: the levels of a problem."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from placeto_graphs.errors import GraphError, shown
from placeto_graphs.schema.grouping import Grouping


def checked_hierarchy(hierarchy: Iterable[Any], grouping: Grouping) -> tuple[Grouping, ...]:
    """Return groupings of which each is nested in the one before, and one is a given one.

    Raises
    ------
    GraphError
        When they are not that.
    """
    levels = tuple(hierarchy)
    for number, level in enumerate(levels):
        if not isinstance(level, Grouping):
            raise GraphError(f"hierarchy[{number}]: expected Grouping, got {shown(level)}")
        if level.num_ops != grouping.num_ops:
            raise GraphError(
                f"hierarchy[{number}].group_of: expected the groups of {grouping.num_ops} ops, "
                f"got {level.num_ops}"
            )
        if number and not levels[number - 1].num_groups < level.num_groups:
            raise GraphError(
                f"hierarchy[{number}]: expected more than {levels[number - 1].num_groups} groups, "
                f"got {level.num_groups}"
            )
        if number:
            _check_nested(number, levels[number - 1], level)
    if grouping not in levels:
        raise GraphError(f"hierarchy: expected the {grouping.num_groups} groups of grouping in it")
    return levels


def _check_nested(number: int, coarse: Grouping, fine: Grouping) -> None:
    _, first = np.unique(fine.group_of, return_index=True)
    apart = coarse.group_of != coarse.group_of[first][fine.group_of]
    if apart.any():
        group = int(fine.group_of[int(np.argmax(apart))])
        raise GraphError(
            f"hierarchy[{number}]: expected group {group} ({shown(fine.group_names[group])}) "
            f"within one group of hierarchy[{number - 1}], got it in several"
        )
