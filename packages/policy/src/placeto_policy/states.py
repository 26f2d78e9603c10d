"""A batch of states of episodes on one graph, and the features of its nodes."""

from dataclasses import dataclass

import torch

from placeto_policy.concurrency import NEAR
from placeto_policy.settings import NodeFeaturesName
from placeto_policy.topology import Topology

FLAGS = 2  # current, visited
# Of a device: compute time, bytes, traffic with the current group, and work at about its time.
LOADS = 3 + len(NEAR)


def feature_width(num_devices: int, node_features: NodeFeaturesName = "costs") -> int:
    """Return F, the number of features of a node, for D devices."""
    return num_devices + FLAGS + (2 if node_features == "costs" else 4)


def load_width(num_devices: int) -> int:
    """Return how many numbers `States.loads` has for D devices."""
    return 2 * LOADS * num_devices


@dataclass(frozen=True, eq=False)
class States:
    """N states of episodes on one graph of G groups and D devices.

    Attributes
    ----------
    topology : `Topology`
        The graph.
    placement : int64[N, G]
        The device of each group.
    current : int64[N]
        The group that is to be placed now.
    visited : bool[N, G]
        The groups that were placed before.

    Examples
    --------
    See `PlacementEnvironment.states`.
    """

    topology: Topology
    placement: torch.Tensor
    current: torch.Tensor
    visited: torch.Tensor

    def __len__(self) -> int:
        return len(self.current)

    def features(self, node_features: NodeFeaturesName = "costs") -> torch.Tensor:
        """Return float32[F, G, N], the features of the nodes of each state.

        Total compute time, total output bytes, one-hot device, current flag, visited flag: the
        state of section 3.1 of Addanki et al. 2019; with times, the longest paths before and behind
        each group come after the costs. States come last, so that loops over them, which all do the
        same, are the innermost.
        """
        count, num_groups = self.placement.shape
        num_devices = self.topology.num_devices
        constant = self.topology.cost_features
        if node_features == "costs-and-times":
            constant = torch.cat([constant, self.topology.path_features], dim=1)
        first = constant.shape[1]
        features = torch.empty(feature_width(num_devices, node_features), num_groups, count)
        features[:first] = constant.T[:, :, None]
        placement = self.placement.T
        for device in range(num_devices):
            torch.eq(placement, device, out=features[first + device])
        features[first + num_devices] = 0.0
        features[first + num_devices, self.current, torch.arange(count)] = 1.0
        features[first + num_devices + 1] = self.visited.T
        return features

    def loads(self) -> torch.Tensor:
        """Return float32[N, 12 D], what each device holds beside the current group.

        For each device, of all groups on it and of those that were visited: their part in the
        graph's compute time and in its bytes, their part in the current group's traffic, and in the
        work that could run at about its time, for each idea of how near that is.
        """
        topology = self.topology
        count = len(self)
        own = [
            topology.affinity[self.current, None],
            topology.vicinity[:, self.current].swapaxes(0, 1),
        ]
        parts = torch.cat([topology.shares.expand(count, -1, -1), *own], dim=1)
        others = torch.ones(count, topology.num_groups)
        others[torch.arange(count), self.current] = 0.0
        loads = []
        for device in range(topology.num_devices):
            there = others * (self.placement == device)
            both = torch.stack([there, there * self.visited], dim=2)
            loads.append(torch.bmm(parts, both).flatten(1))
        return torch.cat(loads, dim=1)
