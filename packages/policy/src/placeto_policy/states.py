"""A batch of states of episodes on one graph, and the features of its nodes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_policy.concurrency import NEAR
from placeto_policy.earliest import MIN_SECONDS
from placeto_policy.errors import PolicyError
from placeto_policy.settings import DeviceFeaturesName, NodeFeaturesName
from placeto_policy.topology import Topology

if TYPE_CHECKING:
    from placeto_policy.side_by_side import SideBySide

FLAGS = 2  # current, visited
# Of a group: its costs, with the longest paths before and behind it, with its schedule.
NODE_FEATURES = {"costs": 2, "costs-and-times": 4, "costs-times-and-schedule": 7}
# Of a device: compute time, memory, traffic with the current group, and work at about its time.
LOADS = 3 + len(NEAR)


def feature_width(num_devices: int, node_features: NodeFeaturesName = "costs") -> int:
    """Return F, the number of features of a node, for D devices."""
    return num_devices + FLAGS + NODE_FEATURES[node_features]


def device_width(num_devices: int, device_features: DeviceFeaturesName) -> int:
    """Return how many numbers the network sees of D devices beside the embedding."""
    if device_features == "none":
        return 0
    loads = load_width(num_devices)
    return loads if device_features == "loads" else loads + num_devices


def load_width(num_devices: int) -> int:
    """Return how many numbers `States.loads` has for D devices."""
    return 2 * LOADS * num_devices


@dataclass(frozen=True, eq=False)
class States:
    """N states of episodes on one graph of G groups and D devices, or on several side by side.

    Attributes
    ----------
    topology : `Topology` or `SideBySide`
        The graph, or the graphs.
    placement : int64[N, G]
        The device of each group.
    current : int64[N]
        The group that is to be placed now.
    visited : bool[N, G]
        The groups that were placed before.
    lookahead : float32[N, D] or None
        What it costs to put the current group on each device, where the policy is to know; see
        `lookahead_features`.
    schedule : float32[N, G, 3] or None
        When each group is at work with that placement, and how full its device is, where the policy
        is to know; see `GroupSchedules`.

    Examples
    --------
    See `PlacementEnvironment.states`.
    """

    topology: "Topology | SideBySide"
    placement: torch.Tensor
    current: torch.Tensor
    visited: torch.Tensor
    lookahead: torch.Tensor | None = None
    schedule: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.current)

    @property
    def graph(self) -> Topology:
        """The graph, where there is one.

        Raises
        ------
        PolicyError
            When there are several.
        """
        if not isinstance(self.topology, Topology):
            raise PolicyError("states: expected those of one graph, got several side by side")
        return self.topology

    def features(self, node_features: NodeFeaturesName = "costs") -> torch.Tensor:
        """Return float32[F, G, N], the features of the nodes of each state.

        Total compute time, total output bytes, one-hot device, current flag, visited flag: the
        state of section 3.1 of Addanki et al. 2019; with times, the longest paths before and behind
        each group come after the costs, and with the schedule what that tells comes last. States
        are the last axis, so that loops over them, which all do the same, are the innermost.

        Raises
        ------
        PolicyError
            When a schedule is to be shown, and the states have none.
        """
        count, num_groups = self.placement.shape
        num_devices = self.topology.num_devices
        constant = self.topology.constant_features(with_paths=node_features != "costs")
        first = len(constant)
        features = torch.empty(feature_width(num_devices, node_features), num_groups, count)
        features[:first] = constant
        placement = self.placement.T
        for device in range(num_devices):
            torch.eq(placement, device, out=features[first + device])
        features[first + num_devices] = 0.0
        features[first + num_devices, self.current, torch.arange(count)] = 1.0
        features[first + num_devices + 1] = self.visited.T
        if node_features == "costs-times-and-schedule":
            shown = asked(self.schedule, "node_features", node_features)
            features[first + num_devices + FLAGS :] = shown.permute(2, 1, 0)
        return features

    def loads(self) -> torch.Tensor:
        """Return float32[N, 12 D], what each device holds beside the current group.

        For each device, of all groups on it and of those that were visited: their part in the
        graph's compute time, the part of the device's memory that they fill, their part in the
        current group's traffic, and in the work that could run at about its time, for each idea of
        how near that is.
        """
        topology = self.topology
        count = len(self)
        near = topology.near_to(self.current)
        others = torch.ones(count, topology.num_groups)
        others[torch.arange(count), self.current] = 0.0
        loads = []
        for device in range(topology.num_devices):
            there = others * (self.placement == device)
            both = torch.stack([there, there * self.visited], dim=2)
            parts = torch.cat([topology.held_by(device).expand(count, -1, -1), near], dim=1)
            loads.append(torch.bmm(parts, both).flatten(1))
        return torch.cat(loads, dim=1)

    def devices(self, device_features: DeviceFeaturesName) -> torch.Tensor:
        """Return float32[N, ...], what the network sees of the devices beside the embedding.

        Raises
        ------
        PolicyError
            When it is to look ahead, and the states do not say what that shows.
        """
        if device_features == "none":
            return torch.empty(len(self), 0)
        if device_features == "loads":
            return self.loads()
        shown = asked(self.lookahead, "device_features", device_features)
        return torch.cat([self.loads(), shown], dim=1)


def asked(shown: torch.Tensor | None, name: str, value: str) -> torch.Tensor:
    """Return what only an evaluator can give, if the environment asked for it."""
    if shown is None:
        raise PolicyError(
            f"states: expected those of an environment with the policy's {name} {value!r}, "
            "got none with what that shows"
        )
    return shown


def lookahead_features(costs: NDArray[np.float64], seconds: float) -> NDArray[np.float32]:
    """Return float32[N, D], what the network is told of what each device would cost.

    That is ``log(1 + (cost - least cost) / seconds)``: 0 for the best device, and hardly more for a
    loss of a hundred groups than for one of fifty.

    Parameters
    ----------
    costs : float64[N, D]
        Of N placements with their current groups on each device, seconds.
    seconds
        What a group takes on the mean.

    Examples
    --------
    >>> lookahead_features(np.array([[2.0, 1.5], [1.5, 1.5]]), 0.5).round(2)
    array([[0.69, 0.  ],
           [0.  , 0.  ]], dtype=float32)
    """
    more = costs - costs.min(axis=1, keepdims=True)
    features: NDArray[np.float32] = np.log1p(more / max(seconds, MIN_SECONDS)).astype(np.float32)
    return features
