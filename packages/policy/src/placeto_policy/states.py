"""Batches of states of episodes, on one graph or on several, and the features of their nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.earliest import MIN_SECONDS, NEAR
from placeto_policy.errors import PolicyError
from placeto_policy.graph_features import NO_RELATION, GraphFeatures
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName

# Numbers in the matrices of all states. Beyond, products take longer than their start.
MOST_NUMBERS = 2**21
NOWHERE = -1  # the device of a group that is not placed yet
FLAGS = 2  # current, visited
# Number of features of a group: costs, also longest paths, also the schedule.
NODE_FEATURES = {"costs": 2, "costs-and-times": 4, "costs-times-and-schedule": 7}
# Sums of a device: compute time, memory, traffic with the current group, and work near in time.
LOADS = 3 + len(NEAR)


def feature_width(num_devices: int, node_features: NodeFeaturesName = "costs") -> int:
    """Return the number of features of a node, F, for D devices."""
    return num_devices + FLAGS + NODE_FEATURES[node_features]


def device_width(num_devices: int, device_features: DeviceFeaturesName) -> int:
    """Return the number of features of D devices, besides the embedding."""
    if device_features == "none":
        return 0
    loads = load_width(num_devices)
    return loads if device_features == "loads" else loads + num_devices


def load_width(num_devices: int) -> int:
    """Return the number of features of `States.loads` for D devices."""
    return 2 * LOADS * num_devices


@dataclass(frozen=True, eq=False)
class States:
    """N states of episodes on one graph of G groups and D devices, or on several side by side.

    Attributes
    ----------
    graph_features : `GraphFeatures` or `GraphBatch`
        Features of the graph, or of the graphs.
    placement : int64[N, G]
        Device of each group; `NOWHERE` for groups that policies of pairs have not placed yet.
    current : int64[N]
        Current group.
    visited : bool[N, G]
        True for groups that were placed before.
    lookahead : float32[N, D] or None
        Features of the cost of each device, if the policy has them; see `lookahead_features`.
    schedule : float32[N, G, 3] or None
        Features of simulated schedules, if the policy has them; see `GroupSchedules`.
    """

    graph_features: "GraphFeatures | GraphBatch"
    placement: torch.Tensor
    current: torch.Tensor
    visited: torch.Tensor
    lookahead: torch.Tensor | None = None
    schedule: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.current)

    @property
    def single_graph(self) -> GraphFeatures:
        """Features of the graph, if all states are of one.

        Raises
        ------
        PolicyError
            When the states are of several graphs.
        """
        if not isinstance(self.graph_features, GraphFeatures):
            raise PolicyError("states: expected those of one graph, got several side by side")
        return self.graph_features

    def features(self, node_features: NodeFeaturesName = "costs") -> torch.Tensor:
        """Return the features of the nodes of each state.

        Parameters
        ----------
        node_features
            Features of `Settings`.

        Returns
        -------
        float32[F, G, N]
            F features of G groups in N states.

        Raises
        ------
        PolicyError
            When the states have no schedule, and the features need one.

        Notes
        -----
        The features are total compute time, total output bytes, one-hot device, current flag and
        visited flag, as in section 3.1 of Addanki et al. 2019. Longest paths come after the costs,
        and the schedule comes last. States are the last axis, so that loops over them are the
        innermost.
        """
        count, num_groups = self.placement.shape
        num_devices = self.graph_features.num_devices
        constant = self.graph_features.constant_features(with_paths=node_features != "costs")
        first = len(constant)
        features = torch.empty(feature_width(num_devices, node_features), num_groups, count)
        features[:first] = constant
        placement = self.placement.T
        for device in range(num_devices):
            torch.eq(placement, device, out=features[first + device])
        flags = first + num_devices
        features[flags] = 0.0
        features[flags, self.current, torch.arange(count)] = 1.0
        features[flags + 1] = self.visited.T
        if node_features == "costs-times-and-schedule":
            schedule = required(self.schedule, "node_features", node_features)
            features[flags + FLAGS :] = schedule.permute(2, 1, 0)
        return features

    def loads(self) -> torch.Tensor:
        """Return float32[N, 12 D], sums over the groups of each device without the current one.

        Six are over all groups on a device, and six over visited ones. They are fractions of the
        graph's compute time, of the device's memory, of the current group's traffic, and, for
        three scales, of the work near to it in time.
        """
        graph = self.graph_features
        count = len(self)
        near = graph.near_to(self.current)
        is_other = torch.ones(count, graph.num_groups)
        is_other[torch.arange(count), self.current] = 0.0
        loads = []
        for device in range(graph.num_devices):
            on_device = is_other * (self.placement == device)
            masks = torch.stack([on_device, on_device * self.visited], dim=2)
            quantities = torch.cat(
                [graph.work_and_memory(device).expand(count, -1, -1), near], dim=1
            )
            loads.append(torch.bmm(quantities, masks).flatten(1))
        return torch.cat(loads, dim=1)

    def devices(self, device_features: DeviceFeaturesName) -> torch.Tensor:
        """Return the features of the devices, besides the embedding.

        Parameters
        ----------
        device_features
            Features of `Settings`.

        Returns
        -------
        float32[N, `device_width`]
            Features of all D devices in N states.

        Raises
        ------
        PolicyError
            When the states have no lookahead, and the features need one.
        """
        if device_features == "none":
            return torch.empty(len(self), 0)
        if device_features == "loads":
            return self.loads()
        lookahead = required(self.lookahead, "device_features", device_features)
        return torch.cat([self.loads(), lookahead], dim=1)


def required(features: torch.Tensor | None, name: str, features_name: str) -> torch.Tensor:
    """Return features that need an evaluator, or raise an error if the states have none."""
    if features is None:
        raise PolicyError(
            f"states: expected those of an environment with the policy's {name} {features_name!r}, "
            "got none with what that shows"
        )
    return features


def lookahead_features(costs: NDArray[np.float64], seconds: float) -> NDArray[np.float32]:
    """Return float32[N, D], the features of the cost of each device.

    They are ``log(1 + (cost - least cost) / seconds)``. The best device has 0, and a loss of a
    hundred groups barely more than a loss of fifty. A device that cannot run the group, whose cost
    is infinite, has the feature of the worst one that can.
    """
    worst = np.where(np.isinf(costs), 0.0, costs).max(axis=1, keepdims=True)
    losses = np.minimum(costs, worst) - costs.min(axis=1, keepdims=True)
    features: NDArray[np.float32] = np.log1p(losses / max(seconds, MIN_SECONDS)).astype(np.float32)
    return features


class GraphBatch:
    """K graphs of up to G groups on D devices, with some states of each, as one batch.

    It has the methods of `GraphFeatures`. Graphs with fewer groups are padded by groups on no
    device, without features and messages.
    """

    def __init__(self, graphs: Sequence[GraphFeatures], counts: Sequence[int]) -> None:
        self.num_devices = graphs[0].num_devices
        self.num_groups = max(graph.num_groups for graph in graphs)
        self._graphs = graphs
        self._graph_of_state = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self._relations = _stacked([graph.relations for graph in graphs], NO_RELATION)
        self._near = _stacked([graph.near_to(torch.arange(graph.num_groups)) for graph in graphs])
        self._allowed = _stacked([graph.allowed for graph in graphs])
        self._work_and_memory = []
        for device in range(self.num_devices):
            fractions = _stacked([graph.work_and_memory(device)[0] for graph in graphs])
            self._work_and_memory.append(fractions[self._graph_of_state])
        group_counts = torch.cat([graph.group_counts for graph in graphs])
        self.group_counts = group_counts[self._graph_of_state]
        self._directions: dict[bool, list[torch.Tensor]] = {}
        self._constants: dict[bool, torch.Tensor] = {}

    @staticmethod
    def suits(graphs: Sequence[GraphFeatures], counts: Sequence[int]) -> bool:
        """Return True if it is quicker to compute these side by side."""
        largest = max(graph.num_groups for graph in graphs)
        return len(graphs) > 1 and sum(counts) * largest**2 <= MOST_NUMBERS

    def join(self, states_of_graphs: Sequence[States]) -> States:
        """Return the states of all graphs as one batch."""
        lookaheads = [
            states.lookahead for states in states_of_graphs if states.lookahead is not None
        ]
        schedules = [states.schedule for states in states_of_graphs if states.schedule is not None]
        return States(
            graph_features=self,
            placement=self._join([states.placement for states in states_of_graphs], NOWHERE),
            current=torch.cat([states.current for states in states_of_graphs]),
            visited=self._join([states.visited for states in states_of_graphs]),
            lookahead=torch.cat(lookaheads) if lookaheads else None,
            schedule=self._join(schedules) if schedules else None,
        )

    def constant_features(self, *, with_paths: bool) -> torch.Tensor:
        """Return float32[..., G, N]; see `GraphFeatures.constant_features`."""
        if with_paths not in self._constants:
            constants = [graph.constant_features(with_paths=with_paths) for graph in self._graphs]
            stacked = _stacked(constants)[self._graph_of_state]
            self._constants[with_paths] = stacked.squeeze(3).permute(1, 2, 0).contiguous()
        return self._constants[with_paths]

    def directions(self, *, scaled: bool) -> list[torch.Tensor]:
        """Return float32[N, G, G] for each direction; see `GraphFeatures.directions`."""
        if scaled not in self._directions:
            directions_of_graphs = [graph.directions(scaled=scaled) for graph in self._graphs]
            self._directions[scaled] = [
                _stacked(adjacencies)[self._graph_of_state]
                for adjacencies in zip(*directions_of_graphs, strict=True)
            ]
        return self._directions[scaled]

    def relations_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return int8[N, G]; see `GraphFeatures.relations_of`."""
        return self._relations[self._graph_of_state, current]

    def near_to(self, current: torch.Tensor) -> torch.Tensor:
        """Return float32[N, 1 + S, G]; see `GraphFeatures.near_to`."""
        return self._near[self._graph_of_state, current]

    def work_and_memory(self, device: int) -> torch.Tensor:
        """Return float32[N, 2, G]; see `GraphFeatures.work_and_memory`."""
        return self._work_and_memory[device]

    def allowed_of(self, current: torch.Tensor) -> torch.Tensor:
        """Return bool[N, D]; see `GraphFeatures.allowed_of`."""
        return self._allowed[self._graph_of_state, current]

    def _join(self, tensors: Sequence[torch.Tensor], padding: int = 0) -> torch.Tensor:
        """Return [N, G, ...] of tensors with fewer groups."""
        count = len(self._graph_of_state)
        joined = tensors[0].new_full((count, self.num_groups, *tensors[0].shape[2:]), padding)
        first = 0
        for tensor in tensors:
            joined[first : first + len(tensor), : tensor.shape[1]] = tensor
            first += len(tensor)
        return joined


def _stacked(tensors: Sequence[torch.Tensor], padding: int = 0) -> torch.Tensor:
    """Return tensors of several sizes as one, each filled up to the largest."""
    shapes = [tensor.shape for tensor in tensors]
    shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
    stacked = tensors[0].new_full((len(tensors), *shape), padding)
    for padded, tensor in zip(stacked, tensors, strict=True):
        padded[tuple(map(slice, tensor.shape))] = tensor
    return stacked
