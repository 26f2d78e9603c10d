"""Which ops move together, and which groups are parts of which."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, shown
from placeto_graphs.schema.arrays import Record, int_array, texts
from placeto_graphs.topology import CompressedRows, compress_rows


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Grouping(Record):
    """A partition of V ops into G groups that are each placed as one.

    Attributes
    ----------
    group_of : int32[V]
        The group of each op. Every group has at least one op.
    group_names : G texts
        Names, unique and not empty.

    Examples
    --------
    >>> grouping = Grouping(group_of=[0, 1, 0], group_names=["embedding", "softmax"])
    >>> grouping.members[0]
    array([0, 2], dtype=int32)
    """

    group_of: NDArray[np.int32]
    group_names: tuple[str, ...]

    def __post_init__(self) -> None:
        self._check("group_names", texts, unique=True)
        if not self.group_names:
            raise GraphError("group_names: expected at least one group, got none")
        self._check("group_of", int_array, np.int32, (None,), maximum=self.num_groups - 1)
        sizes = np.bincount(self.group_of, minlength=self.num_groups)
        if not sizes.all():
            group = int(np.argmin(sizes))
            raise GraphError(
                f"group_of: expected at least one op in every group, got none in group {group} "
                f"({self.group_names[group]!r})"
            )

    def __repr__(self) -> str:
        return f"Grouping(ops={self.num_ops}, groups={self.num_groups})"

    @property
    def num_ops(self) -> int:
        """V, the number of ops."""
        return len(self.group_of)

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return len(self.group_names)

    @cached_property
    def members(self) -> CompressedRows:
        """Row ``group`` holds its ops, in the order of their indices."""
        return compress_rows(self.num_groups, self.group_of, np.arange(self.num_ops))

    @property
    def first_ops(self) -> NDArray[np.int32]:
        """int32[G], the op of the lowest index in each group."""
        return self.members.values[self.members.offsets[:-1]]


def check_num_ops(field: str, grouping: Grouping, num_ops: int) -> None:
    """Refuse a grouping of a graph with another number of ops."""
    if grouping.num_ops != num_ops:
        raise GraphError(
            f"{field}.group_of: expected the groups of {num_ops} ops, got {grouping.num_ops}"
        )


def checked_hierarchy(
    field: str, hierarchy: Iterable[Any], grouping: Grouping
) -> tuple[Grouping, ...]:
    """Check that each grouping is nested in the one before, and that one is a given one."""
    levels = tuple(hierarchy)
    for number, level in enumerate(levels):
        name = f"{field}[{number}]"
        if not isinstance(level, Grouping):
            raise GraphError(f"{name}: expected Grouping, got {shown(level)}")
        check_num_ops(name, level, grouping.num_ops)
        if number == 0:
            continue
        coarser = levels[number - 1]
        if not coarser.num_groups < level.num_groups:
            raise GraphError(
                f"{name}: expected more than {coarser.num_groups} groups, got {level.num_groups}"
            )
        apart = coarser.group_of != coarser.group_of[level.first_ops][level.group_of]
        if apart.any():
            group = int(level.group_of[int(np.argmax(apart))])
            raise GraphError(
                f"{name}: expected group {group} ({shown(level.group_names[group])}) "
                f"within one group of {field}[{number - 1}], got it in several"
            )
    if grouping not in levels:
        raise GraphError(f"{field}: expected the {grouping.num_groups} groups of grouping in it")
    return levels
