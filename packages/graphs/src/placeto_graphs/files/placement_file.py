"""Placement files: a JSON object from group names to device names."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.files.decoding import decode_pairs
from placeto_graphs.files.storage import read_bytes, write_atomically
from placeto_graphs.grouping.colocation import colocate, colocate_by_id
from placeto_graphs.schema.problem import PlacementProblem


def save_placement(
    placement: NDArray[np.int32], problem: PlacementProblem, path: str | os.PathLike[str]
) -> None:
    """Write a placement to a JSON file of group names and device names, at once or not at all.

    Parameters
    ----------
    placement : int32[G]
        The device of each group.
    problem
        The problem that it places.
    path
        The file; an existing one is replaced.

    Raises
    ------
    GraphError
        When the placement is not one of that problem.
    OSError
        When the file cannot be written; then an existing one is as it was.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> problem = example_problem(2)
    >>> save_placement(np.array([0, 1]), problem, "placement.json")
    >>> from pathlib import Path
    >>> print(Path("placement.json").read_text(), end="")
    {
     "group0": "cpu:0",
     "group1": "k80:1"
    }
    """
    devices = problem.check_placement(placement).tolist()
    names = problem.cluster.device_names
    content = {
        group: names[device]
        for group, device in zip(problem.grouping.group_names, devices, strict=True)
    }
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def load_placement(path: str | os.PathLike[str], problem: PlacementProblem) -> NDArray[np.int32]:
    """Read a placement of a problem from a JSON file of group names and device names.

    Parameters
    ----------
    path
        File to read.
    problem
        Problem that it places.

    Returns
    -------
    int32[G]
        The device of each group.

    Raises
    ------
    GraphError
        When the file is not such a file, leaves a group out, names one twice, or names a group or
        a device that the problem does not have.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> problem = example_problem(2)
    >>> save_placement(np.array([0, 1]), problem, "placement.json")
    >>> load_placement("placement.json", problem)
    array([0, 1], dtype=int32)
    """
    content = read_bytes(path)
    with within(f"{os.fspath(path)}: "):
        return _placement_of(_decoded(content), problem, problem.grouping.group_names, "group")


def load_placement_of_any_level(
    path: str | os.PathLike[str], problem: PlacementProblem
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Read a placement of a problem at whichever of its levels, or one that is said op by op.

    Parameters
    ----------
    path
        A JSON file of names and device names. Names are those of the groups of one level, or those
        of all ops.
    problem
        Problem that it places, at any level.

    Returns
    -------
    PlacementProblem, int32[G]
        The problem at the level of the placement, and the device of each group. Op by op, that is
        the coarsest level that keeps no two ops together which are apart in the file, or else the
        problem in which each op is a group of its own, but for colocation ids.

    Raises
    ------
    GraphError
        When the file is not such a file, as `load_placement` says it for the level of ``problem``.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> problem = example_problem(64)
    >>> save_placement(np.zeros(32, np.int32), problem.coarser, "placement.json")
    >>> load_placement_of_any_level("placement.json", problem)[0]
    PlacementProblem(ops=128, groups=32, devices=3)
    """
    content = read_bytes(path)
    with within(f"{os.fspath(path)}: "):
        entries = _decoded(content)
        names = {name for name, _ in entries}
        if names != set(problem.grouping.group_names):
            if names == set(problem.graph.op_names):
                ops = _placement_of(entries, problem, problem.graph.op_names, "op")
                return _at_coarsest_level(problem, ops)
            for number, level in enumerate(problem.levels):
                if names == set(level.group_names):
                    problem = problem.at_level(number)
                    break
        return problem, _placement_of(entries, problem, problem.grouping.group_names, "group")


def _placement_of(
    entries: list[tuple[str, Any]], problem: PlacementProblem, names: Sequence[str], what: str
) -> NDArray[np.int32]:
    """Return the device of each group, or op, of these names."""
    number_of_name = {name: number for number, name in enumerate(names)}
    device_of_name = {name: device for device, name in enumerate(problem.cluster.device_names)}
    placement = np.full(len(names), -1, np.int32)
    for name, device in entries:
        if name not in number_of_name:
            raise GraphError(f"{shown(name)}: expected the name of a {what} of the problem")
        if not isinstance(device, str) or device not in device_of_name:
            known = ", ".join(map(repr, device_of_name))
            raise GraphError(f"{shown(name)}: expected one of {known}, got {shown(device)}")
        if placement[number_of_name[name]] >= 0:
            raise GraphError(f"{shown(name)}: expected each {what} once, got it again")
        placement[number_of_name[name]] = device_of_name[device]
    if (placement < 0).any():
        missing = names[int(np.argmin(placement))]
        raise GraphError(f"{shown(missing)}: expected a device for every {what}, got none")
    return placement


def _at_coarsest_level(
    problem: PlacementProblem, op_devices: NDArray[np.int32]
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    for level in range(len(problem.levels)):
        found = problem.at_level(level)
        placement = found.placement_of_ops(op_devices)
        if np.array_equal(placement[found.grouping.group_of], op_devices):
            return found, placement
    ungrouped = replace(problem, grouping=colocate(problem.graph, [colocate_by_id]), hierarchy=None)
    placement = ungrouped.placement_of_ops(op_devices)
    apart = placement[ungrouped.grouping.group_of] != op_devices
    if apart.any():
        op = int(np.argmax(apart))
        raise GraphError(
            f"{shown(problem.graph.op_names[op])}: expected a device that can run it, and the one "
            "of all ops of its colocation id, got "
            f"{shown(problem.cluster.device_names[op_devices[op]])}"
        )
    return ungrouped, placement


def _decoded(content: bytearray) -> list[tuple[str, Any]]:
    """Decode a JSON object into its entries, repeated names included."""
    entries = decode_pairs(content, _Entries)
    if not isinstance(entries, _Entries):
        raise GraphError(
            f"expected an object of group names and device names, got {shown(entries)}"
        )
    return entries


class _Entries(list[tuple[str, Any]]):
    """The entries of a JSON object, in order."""
