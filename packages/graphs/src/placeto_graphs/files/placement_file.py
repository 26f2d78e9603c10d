"""Placement files: a JSON object from group names to device names."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.copies.division import BatchDivision
from placeto_graphs.errors import GraphError, check_one_of, short_repr
from placeto_graphs.files.storage import convert, opened_json, write_atomically
from placeto_graphs.grouping.colocation import colocate, colocate_by_id
from placeto_graphs.schema.problem import PlacementProblem

COPIES = "copies"  # key of an object that no group has: names of groups have names of devices


def save_placement(
    placement: NDArray[np.int32],
    problem: PlacementProblem,
    path: str | os.PathLike[str],
    copies: BatchDivision | None = None,
) -> None:
    """Write a placement to a JSON file of group names and device names.

    The file is written at once or not at all.

    Parameters
    ----------
    placement : int32[G]
        The device of each group.
    problem
        Problem with the names of the groups and devices.
    path
        Name of the file; an existing file is replaced.
    copies
        Copies of the model that the problem consists of, which the file then has besides.

    Raises
    ------
    GraphError
        When the placement is none of the problem (`PlacementProblem.check_placement`).
    OSError
        When the file cannot be written.

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
    described = {} if copies is None else {COPIES: asdict(copies)}
    content = described | {
        group: names[device]
        for group, device in zip(problem.grouping.group_names, devices, strict=True)
    }
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def load_copies(path: str | os.PathLike[str]) -> BatchDivision | None:
    """Return the copies of the model that the problem of a placement file consists of, if any.

    Parameters
    ----------
    path
        Name of the JSON file.

    Raises
    ------
    GraphError
        When the file is no placement file.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> copies = BatchDivision(samples=(3, 1), devices=("k80:0", "k80:1"))
    >>> save_placement(np.array([0, 1]), example_problem(2), "placement.json", copies)
    >>> load_copies("placement.json").samples
    (3, 1)
    """
    with opened_json(path) as data:
        described = convert(data, dict[str, Any]).get(COPIES)
        return convert(described, BatchDivision) if isinstance(described, dict) else None


def load_placement(path: str | os.PathLike[str], problem: PlacementProblem) -> NDArray[np.int32]:
    """Read a placement of a problem from a JSON file of group names and device names.

    Parameters
    ----------
    path
        Name of the JSON file.
    problem
        Problem whose groups the file places.

    Returns
    -------
    int32[G]
        The device of each group.

    Raises
    ------
    GraphError
        When the file does not name a device of the cluster for each group of the problem.
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
    with opened_json(path) as data:
        return _placement_of(data, problem, problem.grouping.group_names, "group")


def load_placement_of_any_level(
    path: str | os.PathLike[str], problem: PlacementProblem
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    """Read a placement of a problem at whichever of its levels, or one that is said op by op.

    The JSON file has the names of the groups of one level, or those of all ops, and device names.
    The level of a placement that is said op by op is the coarsest level that keeps no two ops
    together which are apart in the file. If there is none, each op is a group of its own, but for
    colocation ids.

    Parameters
    ----------
    path
        Name of the JSON file.
    problem
        Problem at any of its levels.

    Returns
    -------
    PlacementProblem
        The problem at the level of the placement, with G groups.
    int32[G]
        The device of each group.

    Raises
    ------
    GraphError
        When the file does not name a device of the cluster for each group of a level, or for each
        op; or when an op cannot run on its device.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from placeto_graphs.testing import example_problem
    >>> problem = example_problem(64)
    >>> save_placement(np.zeros(32, np.int32), problem.at_level(0), "placement.json")
    >>> load_placement_of_any_level("placement.json", problem)[0]
    PlacementProblem(ops=128, groups=32, devices=3)
    """
    with opened_json(path) as data:
        file_names = set(_devices_of_names(data))
        groups, ops = problem.grouping.group_names, problem.graph.op_names
        levels = [level.group_names for level in problem.levels]
        nearest = min(
            (groups, ops, *levels), key=lambda names: len(file_names.symmetric_difference(names))
        )
        if nearest == ops != groups:
            return _at_coarsest_level(problem, _placement_of(data, problem, ops, "op"))
        problem_at_level = problem if nearest == groups else problem.at_level(levels.index(nearest))
        return problem_at_level, _placement_of(data, problem_at_level, nearest, "group")


def _placement_of(
    data: Any, problem: PlacementProblem, names: Sequence[str], unit: str
) -> NDArray[np.int32]:
    """Return the device of each group, or op, of these names."""
    devices = _devices_of_names(data)
    device_of_name = {name: device for device, name in enumerate(problem.cluster.device_names)}
    known_names = set(names)
    if len(devices) < len(data) and devices.keys() != known_names:
        raise GraphError(
            f"{COPIES}: expected a placement of this problem, got one of copies of the model; to "
            "train them, export the file with --to torch"
        )
    for name in devices:
        if name not in known_names:
            raise GraphError(f"{short_repr(name)}: expected the name of a {unit} of the problem")
    for name in names:
        if name not in devices:
            raise GraphError(f"{short_repr(name)}: expected a device for every {unit}, got none")
        check_one_of(short_repr(name), devices[name], problem.cluster.device_names)
    return np.array([device_of_name[devices[name]] for name in names], np.int32)


def _devices_of_names(data: Any) -> dict[str, Any]:
    """Return the content of a placement file, without a description of copies."""
    content: dict[str, Any] = convert(data, dict[str, Any])
    if isinstance(content.get(COPIES), dict):
        content.pop(COPIES)
    return content


def _at_coarsest_level(
    problem: PlacementProblem, op_devices: NDArray[np.int32]
) -> tuple[PlacementProblem, NDArray[np.int32]]:
    for level in range(len(problem.levels)):
        problem_at_level = problem.at_level(level)
        placement = problem_at_level.placement_of_ops(op_devices)
        if np.array_equal(placement[problem_at_level.grouping.group_of], op_devices):
            return problem_at_level, placement
    ungrouped = replace(problem, grouping=colocate(problem.graph, [colocate_by_id]), hierarchy=None)
    placement = ungrouped.placement_of_ops(op_devices)
    apart = placement[ungrouped.grouping.group_of] != op_devices
    if apart.any():
        op = int(np.argmax(apart))
        raise GraphError(
            f"{short_repr(problem.graph.op_names[op])}: expected a device that can run it, and the "
            "one of all ops of its colocation id, got "
            f"{short_repr(problem.cluster.device_names[op_devices[op]])}"
        )
    return ungrouped, placement
