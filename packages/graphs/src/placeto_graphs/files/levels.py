"""The levels of a problem in its file: which group each group is part of, one level up."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, within
from placeto_graphs.schema.grouping import Grouping


class LevelFields(msgspec.Struct, forbid_unknown_fields=True):
    """A level in a problem file.

    Attributes
    ----------
    group_of : ints
        The group of each group of the next finer level; of each op at the finest one.
    group_names : texts
        As of a `Grouping`.
    """

    group_of: list[int]
    group_names: list[str]


def encoded_levels(hierarchy: Sequence[Grouping]) -> list[LevelFields]:
    """Return nested groupings as they stand in a file."""
    levels: list[LevelFields] = []
    for level, finer in zip(hierarchy, [*hierarchy[1:], None], strict=True):
        group_of = level.group_of
        if finer is not None:
            _, first_ops = np.unique(finer.group_of, return_index=True)
            group_of = group_of[first_ops]
        levels.append(LevelFields(group_of.tolist(), list(level.group_names)))
    return levels


def decoded_levels(levels: Sequence[LevelFields]) -> tuple[Grouping, ...]:
    """Return nested groupings from what stands in a file; see `encoded_levels`.

    Raises
    ------
    GraphError
        When a level does not say the group of each group of the next finer one.
    """
    decoded: list[Grouping] = []
    finer_of: NDArray[np.int32] | None = None
    for number, level in reversed(list(enumerate(levels))):
        with within(f"levels[{number}]."):
            names = tuple(level.group_names)
            grouping = Grouping(group_of=np.array(level.group_of, np.int64), group_names=names)
            if finer_of is not None:
                if grouping.num_ops != decoded[-1].num_groups:
                    raise GraphError(
                        f"group_of: expected the groups of {decoded[-1].num_groups} groups of "
                        f"levels[{number + 1}], got {grouping.num_ops}"
                    )
                grouping = Grouping(group_of=grouping.group_of[finer_of], group_names=names)
        finer_of = grouping.group_of
        decoded.append(grouping)
    return tuple(reversed(decoded))
