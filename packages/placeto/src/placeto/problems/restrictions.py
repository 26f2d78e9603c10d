"""Devices that a user pins ops to, or keeps free of them."""

from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto_baselines.search.layers import path_of
from placeto_graphs import Grouping, OpGraph, PlacementProblem, grouping_of_labels
from placeto_graphs.errors import not_among


@dataclass(frozen=True)
class Restrictions:
    """Devices where some ops have to be, and devices where none may be."""

    pins: tuple[tuple[str, str], ...] = ()  # a module, or an op, and the name of its device
    forbidden: tuple[str, ...] = ()  # names of devices

    def applied(
        self, problem: PlacementProblem, finest: Grouping | None = None
    ) -> PlacementProblem:
        """Return a problem whose ops have no time on devices where they may not be.

        What stays together in the ``finest`` groups, by default those of the problem, is pinned as
        a whole. Groups that would be pinned only in part are divided at every level.
        """
        if not (self.pins or self.forbidden):
            return problem
        finest = finest or (problem.hierarchy or (problem.grouping,))[-1]
        possible = np.isfinite(problem.compute_time)
        for device in self.forbidden:
            possible[:, _device(problem, "--forbid", device)] = False
        _check_possible(finest, possible, f"--forbid {' '.join(self.forbidden)}")
        for name, device in self.pins:
            pin = f"--pin {name}={device}"
            others = np.arange(problem.num_devices) != _device(problem, pin, device)
            possible[np.ix_(_named_ops(problem.graph, pin, name), others)] = False
            _check_possible(finest, possible, pin)
        in_group = _possible_in_groups(finest, possible)[finest.group_of]
        _, devices_of_op = np.unique(in_group, axis=0, return_inverse=True)
        seconds = np.where(in_group, problem.compute_time, np.inf)
        return divided_problem(problem, devices_of_op.ravel(), seconds)


def divided_problem(
    problem: PlacementProblem, labels: NDArray[np.int64], compute_time: NDArray[np.float64]
) -> PlacementProblem:
    """Return a problem with other times, in whose groups all ops have the same label, int64[V].

    Groups are divided at every level.
    """

    def divided(grouping: Grouping) -> Grouping:
        ids = grouping.group_of.astype(np.int64) * (labels.max() + 1) + labels
        return grouping_of_labels(problem.graph, ids)

    # Levels that differ by what is divided now are one.
    levels = {level.num_groups: level for level in map(divided, problem.hierarchy or ())}
    return replace(
        problem,
        compute_time=compute_time,
        grouping=divided(problem.grouping),
        hierarchy=tuple(levels.values()) or None,
    )


def _device(problem: PlacementProblem, option: str, device: str) -> int:
    names = problem.cluster.device_names
    if device not in names:
        raise InputError(f"{option}: {not_among(device, names)}")
    return names.index(device)


def _named_ops(graph: OpGraph, option: str, name: str) -> NDArray[np.int64]:
    """Return the ops of a module with all in it, or the op of a name."""
    paths = [path_of(scope) for scope in graph.scopes]
    is_named = [
        name in (op_name, *path) for op_name, path in zip(graph.op_names, paths, strict=True)
    ]
    if not any(is_named):
        modules = {module for path in paths for module in path if module}
        near = get_close_matches(name, sorted(modules or graph.op_names))
        raise InputError(
            f"{option}: expected a module or an op of the problem"
            f"{f', such as {near[0]}' if near else ''}, got {name!r}"
        )
    return np.flatnonzero(is_named)


def _possible_in_groups(grouping: Grouping, possible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[G, D], the devices that can run all ops of each group, of bool[V, D]."""
    in_groups = np.ones((grouping.num_groups, possible.shape[1]), np.bool_)
    np.logical_and.at(in_groups, grouping.group_of, possible)
    return in_groups


def _check_possible(finest: Grouping, possible: NDArray[np.bool_], option: str) -> None:
    nowhere = ~_possible_in_groups(finest, possible).any(axis=1)
    if nowhere.any():
        group = finest.group_names[int(nowhere.argmax())]
        raise InputError(
            f"{option}: expected a device for group {group}, whose ops stay together, got none: "
            "another option or a device's kind bars all"
        )
