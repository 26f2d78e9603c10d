"""Features of a problem that no placement changes, computed once."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import GroupGraph, PlacementProblem, reachability
from placeto_policy.device_costs import DeviceCosts, device_costs, floats
from placeto_policy.earliest import (
    concurrency,
    earliest_starts,
    earliest_times,
    mean_seconds,
    memory_at_peak,
)

ITSELF = 3
NO_RELATION = -1  # of a padded graph: not a group


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """A graph of G groups on D devices, as tensors.

    Attributes
    ----------
    cost_features : float32[G, 2]
        Total compute time, the mean over the devices that can run the group, and total output
        bytes. Each is divided by its largest value in the graph, so a graph of larger layers or on
        faster devices has the same features.
    path_features : float32[G, 2]
        Compute time of the longest path that ends before each group, and of the longest path that
        begins with it, as fractions of the longest path of all.
    incoming : float32[G, G]
        ``incoming[v, u]`` is 1 where an edge leads from u to v, otherwise 0.
    message_scale : float
        Factor of sums of messages: 1 divided by the number of edges per group, at most 1.
    relations : int8[G, G]
        ``relations[v, u]`` is 0 where ``u`` can reach ``v``, 1 where ``v`` can reach ``u``, 2
        where neither can, 3 where they are the same.
    shares : float32[G]
        Compute time of each group as a fraction of that of the graph.
    memory : float32[D, G]
        Bytes of each group when the graph needs most memory (`memory_at_peak`), as fractions of the
        memory of each device.
    affinity : float32[G, G]
        ``affinity[v, u]`` is the traffic of v with u as a fraction of all traffic of v.
    vicinity : float32[S, G, G]
        ``vicinity[s, v, u]`` is the work of u near to v in time, as a fraction of all such work,
        for each of S scales; see `concurrency`.
    allowed : bool[G, D]
        True for devices that can run a group.
    order : int64[G]
        Groups in topological order.
    device_costs : `DeviceCosts` or None
        Features of pairs of a group and a device; None for a graph of groups alone.
    """

    cost_features: torch.Tensor
    path_features: torch.Tensor
    incoming: torch.Tensor
    message_scale: float
    relations: torch.Tensor
    shares: torch.Tensor
    memory: torch.Tensor
    affinity: torch.Tensor
    vicinity: torch.Tensor
    allowed: torch.Tensor
    order: NDArray[np.int64]
    device_costs: DeviceCosts | None = None

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return self.allowed.shape[0]

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return self.allowed.shape[1]

    @property
    def group_counts(self) -> torch.Tensor:
        """Number of groups, float32[1], for all states."""
        return torch.tensor([float(self.num_groups)])

    def constant_features(self, *, with_paths: bool) -> torch.Tensor:
        """Return the features of groups that are equal in all states.

        Parameters
        ----------
        with_paths
            True for `path_features`, too.

        Returns
        -------
        float32[2 or 4, G, 1]
        """
        features = self.cost_features
        if with_paths:
            features = torch.cat([features, self.path_features], dim=1)
        return features.T[:, :, None]

    def directions(self, *, scaled: bool) -> list[torch.Tensor]:
        """Return the edges of each direction of messages, from sender (row) to receiver (column).

        Parameters
        ----------
        scaled
            True to multiply them by `message_scale`.

        Returns
        -------
        list of float32[G, G]
            Edges to later groups, and to earlier ones.
        """
        incoming = self.incoming * self.message_scale if scaled else self.incoming
        return [incoming.T.contiguous(), incoming.contiguous()]

    def relations_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return int8[N, G], the relations of all groups to the current ones int64[N]."""
        return self.relations[current]

    def near_to(self, current: torch.Tensor) -> torch.Tensor:
        """Return float32[N, 1 + S, G], the affinity and the vicinities of the current groups."""
        vicinity = self.vicinity[:, current].swapaxes(0, 1)
        return torch.cat([self.affinity[current, None], vicinity], dim=1)

    def work_and_memory(self, device: int) -> torch.Tensor:
        """Return float32[1, 2, G], each group's fraction of all work and of memory."""
        return torch.stack([self.shares, self.memory[device]])[None]

    def allowed_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return bool[N, D], True for devices that can run the current groups."""
        return self.allowed[current]


def graph_features_of(problem: PlacementProblem) -> GraphFeatures:
    """Return the features of a problem.

    Examples
    --------
    >>> from placeto_policy.example import two_chains
    >>> graph_features_of(two_chains()).vicinity[1, 0].round(decimals=3)  # of a0: b0
    tensor([0.0000, 0.0300, 0.0000, 0.9400, 0.0300, 0.0000])
    """
    times = earliest_times(problem)
    memory = memory_at_peak(problem, times) / problem.cluster.memory_bytes[:, None]
    graph_features = graph_features_of_groups(
        problem.group_graph, concurrency(problem, times), memory
    )
    return replace(graph_features, device_costs=device_costs(problem, memory, times.longest))


def graph_features_of_groups(
    graph: GroupGraph,
    concurrent_work: NDArray[np.float64],
    memory: NDArray[np.float64],
) -> GraphFeatures:
    """Return the features of groups.

    Parameters
    ----------
    graph
        Graph of G groups.
    concurrent_work : float64[S, G, G]
        Work of pairs of groups near in time, as `concurrency` returns it.
    memory : float64[D, G]
        Bytes of each group as a fraction of the memory of each device.
    """
    seconds = mean_seconds(graph.compute_time)
    costs = [_share_of_largest(seconds), _share_of_largest(graph.output_bytes)]
    incoming = np.zeros((graph.num_groups, graph.num_groups))
    incoming[graph.edges[:, 1], graph.edges[:, 0]] = 1.0
    reachable = reachability(graph)
    relations = np.full((graph.num_groups, graph.num_groups), ITSELF, np.int8)
    relations[reachable.ancestors] = 0
    relations[reachable.descendants] = 1
    relations[reachable.parallel] = 2
    return GraphFeatures(
        cost_features=floats(np.stack(costs, axis=1)),
        path_features=floats(_path_features(graph, seconds)),
        incoming=floats(incoming),
        message_scale=min(1.0, graph.num_groups / max(1, graph.num_edges)),
        relations=torch.from_numpy(relations),
        shares=floats(_fractions(seconds)),
        memory=floats(memory),
        affinity=floats(_fractions(_traffic_between(graph))),
        vicinity=floats(_fractions(concurrent_work)),
        allowed=torch.from_numpy(np.isfinite(graph.compute_time)),
        order=graph.topological_order.astype(np.int64),
    )


def _traffic_between(graph: GroupGraph) -> NDArray[np.float64]:
    """Return float64[G, G], the bytes that flow between each two groups, both ways."""
    traffic = np.zeros((graph.num_groups, graph.num_groups))
    sources, targets = graph.edges.T
    traffic[sources, targets] = traffic[targets, sources] = graph.edge_bytes
    return traffic


def _path_features(graph: GroupGraph, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    index = np.argsort(graph.topological_order)
    path_before = earliest_starts(graph.edges, index, seconds)
    path_from = earliest_starts(graph.edges[:, ::-1], -index, seconds) + seconds
    longest = (path_before + path_from).max()
    return np.stack([path_before, path_from], axis=1) / (longest if longest > 0 else 1.0)


def _fractions(amounts: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each row as fractions of its sum."""
    total = amounts.sum(axis=-1, keepdims=True)
    fractions: NDArray[np.float64] = np.divide(
        amounts, total, out=np.zeros(amounts.shape), where=total > 0
    )
    return fractions


def _share_of_largest(amounts: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    largest = amounts.max()
    return amounts / largest if largest > 0 else np.zeros(len(amounts))
