"""The graph of groups at each level: where groups are drawn, and what each one holds."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import PlacementProblem
from placeto_tools.plots.layers import layered_positions

Report = dict[str, Any]
MOST_GROUPS = 4_096
NAMED = 6  # op types or scopes of a group; the others are counted


def drawn_levels(problem: PlacementProblem) -> list[PlacementProblem]:
    """Return the problem at each level that is drawn, from coarse to fine.

    Levels of more than 4,096 groups are left out, unless there is no other.
    """
    sizes = [level.num_groups for level in problem.levels]
    few = [number for number, size in enumerate(sizes) if size <= MOST_GROUPS]
    return [problem.at_level(number) for number in few] or [problem]


def level_report(level: PlacementProblem, coarser: PlacementProblem | None) -> Report:
    """Return the groups of a level, which open from those of the level before, and their edges."""
    groups, graph = level.group_graph, level.graph
    positions = layered_positions(groups)
    members = _members(level)
    return {
        "names": list(level.grouping.group_names),
        "x": positions[:, 0],
        "y": positions[:, 1],
        "ops": [len(ops) for ops in members],
        "types": [most_common([graph.op_types[op] for op in ops]) for ops in members],
        "scopes": [most_common([graph.scopes[op] or "(none)" for op in ops]) for ops in members],
        "seconds": groups.compute_time,
        "output_bytes": groups.output_bytes,
        "parameter_bytes": groups.parameter_bytes,
        "edges": groups.edges,
        "edge_bytes": groups.edge_bytes,
        "parents": [0] * len(members) if coarser is None else _parents(coarser, members),
    }


def most_common(words: list[str]) -> str:
    """Return words and how often each occurs, the most frequent first.

    Examples
    --------
    >>> most_common(["relu", "mm", "relu"])
    '2 relu, 1 mm'
    """
    counts = Counter(words).most_common()
    named = ", ".join(f"{count:,} {word}" for word, count in counts[:NAMED])
    hidden = len(counts) - NAMED
    return f"{named}, and {hidden:,} more" if hidden > 0 else named


def _members(level: PlacementProblem) -> list[NDArray[np.int64]]:
    order = np.argsort(level.grouping.group_of, kind="stable")
    sizes = np.bincount(level.grouping.group_of, minlength=level.num_groups)
    return np.split(order, np.cumsum(sizes)[:-1])


def _parents(coarser: PlacementProblem, members: list[NDArray[np.int64]]) -> list[int]:
    return [int(coarser.grouping.group_of[ops[0]]) for ops in members]
