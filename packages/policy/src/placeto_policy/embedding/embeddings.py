"""The graph embedding of Placeto and its two ablations: one vector for each state."""

import torch
from torch import nn

from placeto_policy.embedding.message_passing import MessagePassing, PooledSummaries
from placeto_policy.settings import MessageName, NodeFeaturesName
from placeto_policy.states import States, feature_width

NUM_RELATIONS = 3


class GraphEmbedding(nn.Module):
    """Message passing, then the current node and its three summaries.

    The summaries are of three sets of groups (Addanki et al. 2019, section 3.2): those that can
    reach the current one, those that it can reach, and the others.

    Parameters
    ----------
    num_devices
        Number of devices, D.
    rounds
        Number of rounds of message passing, k.
    generator
        Generator of the first weights.
    node_features
        Features of a node; see `Settings`.
    messages
        ``"residual"``, or ``"plain"`` as in the paper.

    Examples
    --------
    >>> GraphEmbedding(2, rounds=8, generator=torch.Generator()).output_width
    48
    """

    def __init__(
        self,
        num_devices: int,
        rounds: int,
        generator: torch.Generator,
        *,
        node_features: NodeFeaturesName = "costs",
        messages: MessageName = "residual",
    ) -> None:
        super().__init__()
        self.node_features = node_features
        width = feature_width(num_devices, node_features)
        self.message_passing = MessagePassing(width, rounds, generator, messages)
        self.summaries = PooledSummaries(NUM_RELATIONS, 2 * width, generator, messages)
        self.output_width = (1 + NUM_RELATIONS) * 2 * width

    def nodes(self, states: States) -> torch.Tensor:
        """Return float32[2 F, G, N], the embedding of each node of each state."""
        nodes: torch.Tensor = self.message_passing(
            states.features(self.node_features), states.topology
        )
        return nodes

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, 8 F]."""
        return _with_summaries(self.nodes(states), self.summaries, states)


class SimplePartitioner(nn.Module):
    """The current node and its three summaries, without message passing.

    This is an ablation of Addanki et al. 2019, section 4.3. Parents, children and parallel nodes
    are aggregated separately.

    Parameters
    ----------
    num_devices
        Number of devices, D.
    generator
        Generator of the first weights.
    node_features
        Features of a node; see `Settings`.
    messages
        ``"residual"``, or ``"plain"`` as in the paper.

    Examples
    --------
    >>> SimplePartitioner(2, torch.Generator()).output_width
    24
    """

    def __init__(
        self,
        num_devices: int,
        generator: torch.Generator,
        *,
        node_features: NodeFeaturesName = "costs",
        messages: MessageName = "residual",
    ) -> None:
        super().__init__()
        self.node_features = node_features
        width = feature_width(num_devices, node_features)
        self.summaries = PooledSummaries(NUM_RELATIONS, width, generator, messages)
        self.output_width = (1 + NUM_RELATIONS) * width

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, 4 F]."""
        return _with_summaries(states.features(self.node_features), self.summaries, states)


class SimpleAggregator(nn.Module):
    """The features of all nodes through one feed-forward network, summed.

    This is an ablation of Addanki et al. 2019, section 4.3, which uses no edges. The current node
    is marked by its flag alone.

    Parameters
    ----------
    num_devices
        Number of devices, D.
    generator
        Generator of the first weights.
    node_features
        Features of a node; see `Settings`.
    messages
        ``"residual"``, or ``"plain"`` as in the paper.

    Examples
    --------
    >>> SimpleAggregator(2, torch.Generator()).output_width
    6
    """

    def __init__(
        self,
        num_devices: int,
        generator: torch.Generator,
        *,
        node_features: NodeFeaturesName = "costs",
        messages: MessageName = "residual",
    ) -> None:
        super().__init__()
        self.node_features = node_features
        self.output_width = feature_width(num_devices, node_features)
        self.summaries = PooledSummaries(1, self.output_width, generator, messages)

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, F]."""
        one_set = states.topology.relations_of(states.current).clamp(max=0)
        summary: torch.Tensor = self.summaries(
            states.features(self.node_features), one_set, states.topology.group_counts
        )
        return summary


def _with_summaries(
    nodes: torch.Tensor, summaries: PooledSummaries, states: States
) -> torch.Tensor:
    own = nodes[:, states.current, torch.arange(len(states))].T
    relations = states.topology.relations_of(states.current)
    return torch.cat([own, summaries(nodes, relations, states.topology.group_counts)], dim=1)
