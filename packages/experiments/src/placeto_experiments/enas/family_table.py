"""What changes in a family when its architectures come from a controller."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from placeto import family_graph
from placeto_capture.costs.roofline import cost_model
from placeto_experiments.enas.cell_table import cells_of, num_loose_ends
from placeto_graphs import GroupGraph, OpGraph, PlacementProblem, parse_cluster
from placeto_workloads.families.family import Family, FamilyMember

KIND = "k80"
GIGABYTE = 10**9


@dataclass(frozen=True)
class MemberNumbers:
    """What one model of a family is like.

    Attributes
    ----------
    loose_ends
        States that the output of a cell is made of; of convolutional ones the mean of both cells.
    ops
        Of the graph.
    parameter_gigabytes
        Weights and optimizer state.
    seconds
        Of all ops, one after the other, on a K80.
    widest_level
        The most groups that are equally far from the first one, in steps of the group graph.
    parallel_groups
        Seconds of all groups over those of the longest path: how many groups run at once on
        average, if there are devices enough and nothing is transferred.

    Examples
    --------
    >>> MemberNumbers(3, 1000, 0.5, 1.5, 7, 1.25).ops
    1000
    """

    loose_ends: float
    ops: int
    parameter_gigabytes: float
    seconds: float
    widest_level: int
    parallel_groups: float


def member_numbers(member: FamilyMember, family: Family) -> MemberNumbers:
    """Return the numbers of one member, in the groups of its family.

    Parameters
    ----------
    member
        The model; its graph is captured, or comes from the cache.
    family
        Its family.
    """
    graph = family_graph(member)
    groups = _problem(graph, family).group_graph
    seconds = groups.compute_time[:, 0]
    levels = np.bincount(longest_paths(groups, np.ones(len(seconds))).astype(np.int64))
    return MemberNumbers(
        loose_ends(member),
        graph.num_ops,
        float(graph.parameter_bytes.sum()) / GIGABYTE,
        float(seconds.sum()),
        int(levels.max()),
        float(seconds.sum() / longest_paths(groups, seconds).max()),
    )


def loose_ends(member: FamilyMember) -> float:
    """Return how many states the output of a member's cell is made of; 0 without a cell."""
    if member.architecture is None:
        return 0.0
    return fmean(num_loose_ends(cell) for cell in cells_of(member.architecture))


def longest_paths(groups: GroupGraph, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of the heaviest path that ends at each group, float64[G].

    Parameters
    ----------
    groups
        The G groups.
    weights
        float64[G].

    Examples
    --------
    >>> groups = GroupGraph(
    ...     compute_time=[[1.0], [2.0], [3.0]], output_bytes=[0, 0, 0], parameter_bytes=[0, 0, 0],
    ...     edges=[[0, 1], [0, 2]], edge_bytes=[0, 0])
    >>> longest_paths(groups, groups.compute_time[:, 0]).tolist()
    [1.0, 3.0, 4.0]
    """
    waiting = np.bincount(groups.edges[:, 1], minlength=len(weights))
    before = np.zeros(len(weights))
    ready = [group for group in range(len(weights)) if not waiting[group]]
    while ready:
        group = ready.pop()
        for later in groups.edges[groups.edges[:, 0] == group, 1]:
            before[later] = max(before[later], before[group] + weights[group])
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(int(later))
    return before + weights


def family_table(rows: Sequence[tuple[str, Sequence[MemberNumbers]]]) -> str:
    """Return means, least and most of each number as a table in Markdown.

    Parameters
    ----------
    rows
        Names of families, and the numbers of their members.

    Examples
    --------
    >>> numbers = [MemberNumbers(3, 10, 0.5, 1.5, 7, 1.25), MemberNumbers(4, 20, 0.5, 2, 8, 1.5)]
    >>> print(family_table([("ptb, even", numbers)]).splitlines()[-1].split(" | ")[:3])
    ['| ptb, even', '3.5 (3 to 4)', '15 (10 to 20)']
    """
    names = [field.name for field in fields(MemberNumbers)]
    heads = " | ".join(name.replace("_", " ") for name in names)
    lines = [f"| family | {heads} |", "|---" * (len(names) + 1) + "|"]
    for name, members in rows:
        cells = []
        for column in names:
            values = [getattr(member, column) for member in members]
            least, most = _shown(min(values)), _shown(max(values))
            cells.append(f"{_shown(fmean(values))} ({least} to {most})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _problem(graph: OpGraph, family: Family) -> PlacementProblem:
    seconds = cost_model(graph, KIND)
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"2x{KIND}"),
        compute_time=np.stack([seconds, seconds], axis=1),
        grouping=family.grouping(graph),
    )
