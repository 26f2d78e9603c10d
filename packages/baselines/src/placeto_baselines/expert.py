"""Placements as a person makes them who knows the model: layers, and parallel branches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import NOWHERE, majority, repaired
from placeto_baselines.errors import BaselineError
from placeto_baselines.placement_trials import RulePlacer
from placeto_graphs import Phase, PlacementProblem

if TYPE_CHECKING:
    import networkx as nx

ENTRY, EXIT = "entry", "exit"


@dataclass(frozen=True)
class ExpertScopes:
    r"""Patterns by which an expert reads the scopes of a model's ops.

    Each is a regular expression, matched at the beginning of a scope, or None. An op that several
    match follows the first of them.

    Attributes
    ----------
    branch : text or None
        Pattern with two groups: the name of a module, and the name of one of its parallel branches.
        The branches of each module go to the devices in turn, in the order of their first ops.
    layer : text or None
        Pattern with one group, the number of a layer. The layers ``l`` of encoder and decoder share
        a device, the first numbers the first one (Wu et al. 2016). More layers than devices are
        divided in order, so that neighbours stay together. Numbers may begin anywhere and have
        gaps.
    with_last_layer : text or None
        Scopes that stay with the last layer: attention and softmax of a translation model.

    Raises
    ------
    BaselineError
        When a text is not a regular expression, or has another number of groups.

    Examples
    --------
    >>> inception = ExpertScopes(branch=r"(Mixed_\w+)\.(branch\w+)")
    >>> inception.devices(["stem", "Mixed_5b.branch1x1.conv", "Mixed_5b.branch_pool"], 2)
    array([-1,  0,  1])
    >>> translation = ExpertScopes(
    ...     layer=r"(?:encoder|decoder)\.layers\.(\d+)", with_last_layer=r"attention|softmax"
    ... )
    >>> translation.devices(["encoder.layers.0", "decoder.layers.1.gates", "softmax"], 2)
    array([0, 1, 1])
    """

    branch: str | None = None
    layer: str | None = None
    with_last_layer: str | None = None

    def __post_init__(self) -> None:
        for field, groups in (("branch", 2), ("layer", 1), ("with_last_layer", 0)):
            text = getattr(self, field)
            if text is None:
                continue
            try:
                count = re.compile(text).groups
            except (re.error, RecursionError, OverflowError, TypeError) as error:
                raise BaselineError(
                    f"{field}: expected a regular expression, got {text!r}: {error}"
                ) from None
            if count < groups:
                raise BaselineError(f"{field}: expected {groups} groups in {text!r}, got {count}")

    def devices(self, scopes: Sequence[str], num_devices: int) -> NDArray[np.int64]:
        """Return int64[V], the device of each op, from 0 to ``num_devices`` - 1, or -1.

        Parameters
        ----------
        scopes
            Scope of each of V ops.
        num_devices
            Number of devices among which layers and branches are shared out.

        Raises
        ------
        BaselineError
            If the pattern of layers matches something that is not a number.
        """
        layers = [self._layer(scope) for scope in scopes]
        numbers = sorted(set(layers) - {NOWHERE})
        num_parts = max(len(numbers), num_devices)
        device_of_layer = {
            layer: rank * num_devices // num_parts for rank, layer in enumerate(numbers)
        }
        with_last_layer = self.with_last_layer if numbers else None
        device_of = np.full(len(scopes), NOWHERE)
        turn: dict[str, dict[str, int]] = {}  # of each branch of each module
        for op, (scope, layer) in enumerate(zip(scopes, layers, strict=True)):
            match = re.match(self.branch, scope) if self.branch else None
            if match:
                branches = turn.setdefault(match[1], {})
                device_of[op] = branches.setdefault(match[2], len(branches)) % num_devices
            elif layer != NOWHERE:
                device_of[op] = device_of_layer[layer]
            elif with_last_layer and re.match(with_last_layer, scope):
                device_of[op] = device_of_layer[numbers[-1]]
        return device_of

    def _layer(self, scope: str) -> int:
        match = re.match(self.layer, scope) if self.layer else None
        if not match:
            return NOWHERE
        if match[1] is None or not match[1].isdecimal():
            raise BaselineError(
                f"layer: expected a pattern whose group is the number of a layer, "
                f"got {match[1]!r} in {scope!r}"
            )
        return int(match[1])


class ExpertPlacer(RulePlacer):
    """Layers and branches on devices of their own ("Human expert" of Addanki et al. 2019).

    `ExpertScopes` give one device to each layer of a translation model. They give devices in turn
    to the parallel branches of each module of a vision model. Without scopes, a general rule takes
    the parallel branches between forks and joins of the graph. A group with ops of several branches
    goes to the device of most of its work. Any other group joins the neighbour with which it shares
    most bytes, or goes to the first device. Devices are the accelerators, in their order.

    Parameters
    ----------
    scopes
        Scopes that are layers and branches; None for the general rule.

    Examples
    --------
    >>> ExpertPlacer().place(problem, evaluator).placement
    array([1, 2, 1, 2], dtype=int32)
    """

    name = "expert"

    def __init__(self, scopes: ExpertScopes | None = None) -> None:
        self.scopes = scopes

    def placements(self, problem: PlacementProblem) -> NDArray[np.int32]:
        devices = problem.cluster.accelerators
        if self.scopes is None:
            turn = devices_by_regions(problem, len(devices))
        else:
            of_op = self.scopes.devices(problem.graph.scopes, len(devices))
            turn = majority(problem, of_op, devices)
        return repaired(problem, devices[_with_neighbours(problem, turn)])[None]


def _with_neighbours(
    problem: PlacementProblem, device_of_group: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return devices for all groups: an open one joins the neighbour that it shares most with.

    Sweeps over the edges, the heaviest first, join open groups to others, until none is left to
    join. A queue has the edges that join some, by sweep and weight.
    """
    groups = problem.group_graph
    device_of = device_of_group.copy()
    order = np.lexsort((groups.edges[:, 1], groups.edges[:, 0], -groups.edge_bytes))
    neighbours: list[list[tuple[int, int]]] = [[] for _ in device_of]
    for weight_rank, (source, reader) in enumerate(groups.edges[order].tolist()):
        neighbours[source].append((weight_rank, reader))
        neighbours[reader].append((weight_rank, source))
    queue = [
        (0, weight_rank, neighbour, int(device_of[group]))
        for group in np.flatnonzero(device_of != NOWHERE).tolist()
        for weight_rank, neighbour in neighbours[group]
    ]
    heapify(queue)
    while queue:
        sweep, weight_rank, group, device = heappop(queue)
        if device_of[group] == NOWHERE:
            device_of[group] = device
            for next_rank, neighbour in neighbours[group]:
                next_sweep = sweep + (next_rank < weight_rank)
                heappush(queue, (next_sweep, next_rank, neighbour, device))
    return np.where(device_of == NOWHERE, 0, device_of)


def forward_graph(problem: PlacementProblem) -> "nx.DiGraph":
    """Return the groups and the edges between them over which forward ops send tensors."""
    import networkx as nx  # noqa: PLC0415 (it takes a while, as below)

    graph, group_of = problem.graph, problem.grouping.group_of
    is_forward = graph.phases == Phase.FORWARD
    both = is_forward[graph.edge_producers] & is_forward[graph.edge_consumers]
    pairs = group_of[np.stack([graph.edge_producers[both], graph.edge_consumers[both]])]
    joined = set(map(frozenset, pairs.T.tolist()))
    result = nx.DiGraph()
    result.add_nodes_from(np.unique(group_of[is_forward]).tolist())
    # The graph of groups says which of two comes first.
    edges = problem.group_graph.edges.tolist()
    result.add_edges_from(edge for edge in edges if frozenset(edge) in joined)
    return result


def parallel_branches(graph: "nx.DiGraph") -> list[list[set[int]]]:
    """Return the fork-join regions of a graph, each as its parallel branches.

    A fork is a node with several successors. Its join is the first node that all paths from it pass
    (its immediate post-dominator). Its branches are the connected parts of the nodes between the
    two. A region has two branches or more. Regions within a branch of another are part of that
    branch; of regions that overlap the first counts. Separate parts of a graph are branches, too.
    """
    import networkx as nx  # noqa: PLC0415

    if not len(graph):
        return []
    closed = nx.DiGraph(graph.edges)
    closed.add_nodes_from(graph)
    closed.add_edges_from([(ENTRY, node) for node in graph if graph.in_degree(node) == 0])
    closed.add_edges_from([(node, EXIT) for node in graph if graph.out_degree(node) == 0])
    join_of = nx.immediate_dominators(closed.reverse(copy=False), EXIT)
    branch_groups: set[int] = set()
    regions = []
    for fork in nx.topological_sort(closed):
        if fork in branch_groups or closed.out_degree(fork) < 2:
            continue
        join = join_of[fork]
        between = nx.descendants(closed, fork) & nx.ancestors(closed, join)
        branches = list(nx.weakly_connected_components(closed.subgraph(between)))
        if len(branches) > 1 and not between & branch_groups:
            regions.append(sorted(branches, key=min))
            branch_groups |= between
    return regions


def devices_by_regions(problem: PlacementProblem, num_devices: int) -> NDArray[np.int64]:
    """Return int64[G], a device for each group, or -1 for those that go with their neighbours.

    The branches of each region go to the devices in turn, and the trunk between regions to the
    first. Groups that read nothing, such as weights, and those of other phases are left open.
    """
    graph = forward_graph(problem)
    device_of = np.full(problem.num_groups, NOWHERE)
    trunk = [group for group in graph if graph.in_degree(group) > 0]
    device_of[trunk] = 0
    for branches in parallel_branches(graph):
        for turn, branch in enumerate(branches):
            device_of[list(branch)] = turn % num_devices
    return device_of
