"""`PlacementProblem`: a graph on a cluster, with costs and groups, as placers get it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, short_repr
from placeto_graphs.grouping.colocation import rules_of_names
from placeto_graphs.grouping.labels import grouping_of_labels
from placeto_graphs.grouping.merging import LEVEL_SIZES, nested_groupings
from placeto_graphs.schema.arrays import Record, first_index, float_array, int_array, texts
from placeto_graphs.schema.cluster import Cluster
from placeto_graphs.schema.grouping import (
    GroupGraph,
    Grouping,
    check_num_ops,
    checked_hierarchy,
    group_compute_time,
    group_graph,
)
from placeto_graphs.schema.op_graph import OpGraph

_DEFAULT: Any = None  # no grouping is given: only colocation ids put ops together


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlacementProblem(Record):
    """A graph, a cluster, the seconds of each op on each device, and the groups of ops.

    Attributes
    ----------
    graph : `OpGraph`
        The graph of V ops.
    cluster : `Cluster`
        The D devices.
    compute_time : float64[V, D]
        Seconds that each op takes on each device; infinity where it cannot run. For every group
        there is a device where all its ops can run.
    grouping : `Grouping`
        The partition of the ops into G groups. Ops with equal colocation ids are in one group.
        Unless it is given, all others are groups of their own.
    rules : texts or None
        The co-location rules that suit the graph and made the groups that these were merged from,
        by the names that `rules_of_names` takes; None if they are not known.
    hierarchy : groupings or None
        The groupings of which ``grouping`` is one, from coarse to fine: what is together in one of
        them is so in all coarser ones. None if nothing finer is known; see `levels`.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> problem = PlacementProblem(
    ...     graph=from_networkx(nx.DiGraph([("a", "b"), ("b", "c")])),
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=[[1, 1], [1, 1], [3, 3]],
    ...     grouping=Grouping(group_of=[0, 1, 0], group_names=("a, c", "b")),
    ... )
    >>> problem
    PlacementProblem(ops=3, groups=2, devices=2)
    >>> problem.expand([1, 0])
    array([1, 0, 1], dtype=int32)
    >>> problem.placement_of_ops([0, 0, 1])
    array([1, 0], dtype=int32)
    """

    graph: OpGraph
    cluster: Cluster
    compute_time: NDArray[np.float64]
    grouping: Grouping = _DEFAULT
    rules: tuple[str, ...] | None = None
    hierarchy: tuple[Grouping, ...] | None = None

    def __post_init__(self) -> None:
        grouping: Any = self.grouping
        if grouping is None and isinstance(self.graph, OpGraph):
            alone = grouping_of_labels(self.graph, self.graph.colocation_leaders)
            object.__setattr__(self, "grouping", alone)
        for name, expected in (("graph", OpGraph), ("cluster", Cluster), ("grouping", Grouping)):
            if not isinstance(getattr(self, name), expected):
                raise GraphError(
                    f"{name}: expected {expected.__name__}, got {short_repr(getattr(self, name))}"
                )
        shape = (self.graph.num_ops, self.cluster.num_devices)
        self._check("compute_time", float_array, shape, infinity_is="it cannot run there")
        self._check_grouping()
        if self.rules is not None:
            self._check("rules", texts)
            rules_of_names(self.rules)
        if self.hierarchy is not None:
            self._check("hierarchy", checked_hierarchy, self.grouping)

    def __repr__(self) -> str:
        return (
            f"PlacementProblem(ops={self.graph.num_ops}, groups={self.num_groups}, "
            f"devices={self.num_devices})"
        )

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return self.grouping.num_groups

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.cluster.num_devices

    @property
    def busy_time(self) -> NDArray[np.float64]:
        """float64[V, D], the seconds that each op keeps each device busy: overheads included."""
        return self.compute_time + self.overhead_time

    @property
    def overhead_time(self) -> NDArray[np.float64]:
        """float64[V, D], the seconds that each device stays busy after each op.

        After an op that takes no time that is 0.
        """
        overhead = np.array([device.op_overhead for device in self.cluster.devices])
        return np.where(self.compute_time > 0, overhead, 0.0)

    @cached_property
    def group_graph(self) -> GroupGraph:
        """The graph of groups that placers see."""
        return group_graph(self.graph, self.grouping, self.compute_time)

    def check_placement(self, placement: Any) -> NDArray[np.int32]:
        """Return a placement of this problem, int32[G], read-only; refuse one of another.

        Parameters
        ----------
        placement : int[G]
            The device of each group.

        Raises
        ------
        GraphError
            When it is not a device for each group, or a group is on a device where one of its ops
            cannot run.
        """
        return self._checked_devices("placement", placement, (self.num_groups,))

    def check_placements(self, placements: Any) -> NDArray[np.int32]:
        """Return placements of this problem, int32[B, G]; see `check_placement`.

        Parameters
        ----------
        placements : int[B, G]
            The device of each group, one placement a row.
        """
        return self._checked_devices("placements", placements, (None, self.num_groups))

    def expand(self, placement: Any) -> NDArray[np.int32]:
        """Return int32[V], the device of each op.

        Parameters
        ----------
        placement : int[G]
            The device of each group; see `check_placement`.
        """
        op_devices: NDArray[np.int32] = self.check_placement(placement)[self.grouping.group_of]
        return op_devices

    # --- levels: the same problem in fewer and in more groups ------------------------------------

    @cached_property
    def levels(self) -> tuple[Grouping, ...]:
        """The groupings that the problem can be placed in, from coarse to fine.

        Those of ``hierarchy`` in which every group has a device that can run all its ops. If there
        is no hierarchy, the groups of the problem are merged into 32, 64, 128, ... groups, as long
        as these are fewer.
        """
        groupings = self.hierarchy
        if groupings is None:
            fewer = [size for size in LEVEL_SIZES if size < self.num_groups]
            groupings = nested_groupings(self.graph, self.grouping, [*fewer, self.num_groups])
        return tuple(grouping for grouping in groupings if self._can_be_placed(grouping))

    @property
    def level(self) -> int:
        """Index of the grouping of the problem among its `levels`; 0 is the coarsest."""
        return [level.num_groups for level in self.levels].index(self.num_groups)

    def at_level(self, level: int) -> "PlacementProblem":
        """Return the problem at one of its levels.

        Parameters
        ----------
        level
            Index of one of `levels`; 0 is the coarsest.

        Raises
        ------
        GraphError
            When there is no such level.
        """
        last = len(self.levels) - 1
        if not 0 <= level <= last:
            raise GraphError(f"level: expected one from 0 to {last}, got {level}")
        if level == self.level:
            return self
        return replace(self, grouping=self.levels[level], hierarchy=self.levels)

    def placement_of_ops(self, op_devices: Any) -> NDArray[np.int32]:
        """Return int32[G], the placement that comes nearest to a device for each op.

        Each group goes to the device on which its ops spend the largest share of their compute
        time. Only devices that can run all of them count. If no op takes time, it goes to the
        device of most ops. Of equal devices the first counts. If the ops of each group are on one
        device, the result is exact: `expand` gives the same devices again.

        The same converts a placement of another level of the problem to this one: exactly from a
        coarser level, and by the largest share from a finer one.

        Parameters
        ----------
        op_devices : int[V]
            The device of each op.

        Raises
        ------
        GraphError
            When it is not a device for each op.
        """
        last, ops = self.num_devices - 1, self.graph.num_ops
        devices = int_array("op_devices", op_devices, np.int32, (ops,), maximum=last)
        op_seconds = self.compute_time[np.arange(ops), devices]
        finite_seconds = np.where(np.isinf(op_seconds), 0.0, op_seconds)
        cell = self.grouping.group_of.astype(np.int64) * self.num_devices + devices
        shape = (self.num_groups, self.num_devices)
        size = self.num_groups * self.num_devices
        counts = np.bincount(cell, minlength=size).reshape(shape)
        seconds = np.bincount(cell, finite_seconds, size).reshape(shape)
        takes_time = seconds.any(axis=1, keepdims=True)
        share = np.where(takes_time, seconds, counts.astype(np.float64))
        share[np.isinf(self._group_compute_time)] = -1.0
        placement: NDArray[np.int32] = share.argmax(axis=1).astype(np.int32)
        return placement

    def _checked_devices(
        self, field: str, placements: Any, shape: tuple[int | None, ...]
    ) -> NDArray[np.int32]:
        devices = int_array(field, placements, np.int32, shape, maximum=self.num_devices - 1)
        impossible = np.isinf(self._group_compute_time[np.arange(self.num_groups), devices])
        if impossible.any():
            index, place = first_index(impossible)
            raise GraphError(
                f"{field}{place}: expected a device that can run every op of group "
                f"{short_repr(self.grouping.group_names[index[-1]])}, "
                f"got {devices[index]} ({short_repr(self.cluster.device_names[devices[index]])})"
            )
        return devices

    def _can_be_placed(self, grouping: Grouping) -> bool:
        bound_ops, cannot_run = self._bound_ops
        nowhere = np.zeros((grouping.num_groups, self.num_devices), np.bool_)
        np.logical_or.at(nowhere, grouping.group_of[bound_ops], cannot_run)
        return not nowhere.all(axis=1).any()

    @cached_property
    def _bound_ops(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The ops that some device cannot run, and bool[N, D], the devices that cannot."""
        cannot_run = np.isinf(self.compute_time)
        ops = np.flatnonzero(cannot_run.any(axis=1))
        return ops, cannot_run[ops]

    @cached_property
    def _group_compute_time(self) -> NDArray[np.float64]:
        return group_compute_time(self.grouping, self.compute_time)

    def _check_grouping(self) -> None:
        graph, group_of = self.graph, self.grouping.group_of
        check_num_ops("grouping", self.grouping, graph.num_ops)
        apart = group_of != group_of[graph.colocation_leaders]
        if apart.any():
            op = int(np.argmax(apart))
            leader = int(graph.colocation_leaders[op])
            raise GraphError(
                f"grouping.group_of[{op}]: expected ops {short_repr(graph.op_names[leader])} and "
                f"{short_repr(graph.op_names[op])} of colocation id {graph.colocation[op]} in one "
                f"group, got groups {group_of[leader]} and {group_of[op]}"
            )
        nowhere = np.isinf(self._group_compute_time).all(axis=1)
        if nowhere.any():
            group = int(np.argmax(nowhere))
            raise GraphError(
                f"compute_time: expected a device that can run every op of group {group} "
                f"({short_repr(self.grouping.group_names[group])}), got none"
            )


def measured_compute_time(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Return float64[V, D], the measured times of a graph as the compute times on a cluster.

    Parameters
    ----------
    graph
        A graph of V ops with measured times for the kind of every device, in seconds.
    cluster
        The D devices.

    Raises
    ------
    GraphError
        When the graph has no times for the kind of a device.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> ops = nx.DiGraph()
    >>> ops.add_node("matmul", measured_time={"cpu": 0.5, "k80": 0.125})
    >>> measured_compute_time(from_networkx(ops), parse_cluster("1xcpu+2xk80"))
    array([[0.5  , 0.125, 0.125]])
    """
    for device in cluster.devices:
        if device.kind not in graph.measured_time:
            measured_kinds = ", ".join(map(repr, graph.measured_time)) or "none"
            raise GraphError(
                f"measured_time: expected times for the kind {device.kind!r} of device "
                f"{device.name!r}, got {measured_kinds}"
            )
    return np.stack([graph.measured_time[device.kind] for device in cluster.devices], axis=1)
