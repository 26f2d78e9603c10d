"""A batch of states of episodes on one graph, and the features of its nodes."""

from dataclasses import dataclass

import torch

from placeto_policy.topology import Topology

FEATURES_BESIDE_DEVICES = 4  # compute time, output bytes, current, visited


def feature_width(num_devices: int) -> int:
    """Return F, the number of features of a node, for D devices."""
    return num_devices + FEATURES_BESIDE_DEVICES


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

    def features(self) -> torch.Tensor:
        """Return float32[D + 4, G, N], the features of the nodes of each state.

        Total compute time, total output bytes, one-hot device, current flag, visited flag: the
        state of section 3.1 of Addanki et al. 2019. States come last, so that loops over them,
        which all do the same, are the innermost.
        """
        count, num_groups = self.placement.shape
        num_devices = self.topology.num_devices
        features = torch.empty(feature_width(num_devices), num_groups, count)
        features[:2] = self.topology.cost_features.T[:, :, None]
        placement = self.placement.T
        for device in range(num_devices):
            torch.eq(placement, device, out=features[2 + device])
        features[2 + num_devices] = 0.0
        features[2 + num_devices, self.current, torch.arange(count)] = 1.0
        features[3 + num_devices] = self.visited.T
        return features
