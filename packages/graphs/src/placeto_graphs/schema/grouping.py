"""Which ops move together."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.schema.arrays import int_array, texts
from placeto_graphs.schema.record import Record, set_field
from placeto_graphs.topology.compressed_rows import CompressedRows, compress_rows


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Grouping(Record):
    """A partition of V ops into G groups that are each placed as one.

    Attributes
    ----------
    group_of : int32[V]
        The group of each op. Every group has at least one op.
    group_names : G texts
        Unique and not empty.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> grouping = Grouping(group_of=[0, 1, 0], group_names=["embedding", "softmax"])
    >>> grouping.members[0]
    array([0, 2], dtype=int32)
    """

    group_of: NDArray[np.int32]
    group_names: tuple[str, ...]

    def __post_init__(self) -> None:
        set_field(self, "group_names", texts("group_names", self.group_names, unique=True))
        if not self.group_names:
            raise GraphError("group_names: expected at least one group, got none")
        last = self.num_groups - 1
        group_of = int_array("group_of", self.group_of, np.int32, (None,), maximum=last)
        set_field(self, "group_of", group_of)
        sizes = np.bincount(group_of, minlength=self.num_groups)
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
