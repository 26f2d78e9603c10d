"""The graph embedding of Placeto and its two ablations: one vector for each state."""

import torch
from torch import nn

from placeto_policy.embedding.message_passing import MessagePassing, PooledSummaries
from placeto_policy.settings import Settings
from placeto_policy.states import States, feature_width

NUM_RELATIONS = 3


class GraphEmbedding(nn.Module):
    """Message passing, then the current node and its three summaries.

    The summaries are of three sets of groups (Addanki et al. 2019, section 3.2): those that can
    reach the current one, those that it can reach, and the others. Section 4.3 has two ablations:
    ``"simple-partitioner"`` has no message passing. ``"simple-aggregator"`` is one summary of all
    nodes, without edges; the current node is marked by its flag alone.

    Parameters
    ----------
    num_devices
        Number of devices, D.
    settings
        Hyperparameters of the network.
    generator
        Generator of the first weights.

    Examples
    --------
    >>> GraphEmbedding(2, Settings(node_features="costs"), torch.Generator()).output_width
    48
    """

    def __init__(self, num_devices: int, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        self.node_features = settings.node_features
        width = feature_width(num_devices, settings.node_features)
        self.message_passing: MessagePassing | None = None
        if settings.embedding == "message-passing":
            self.message_passing = MessagePassing(
                width, settings.message_rounds, generator, settings.messages
            )
            width *= 2  # both directions
        self.has_relations = settings.embedding != "simple-aggregator"
        num_sets = NUM_RELATIONS if self.has_relations else 1
        self.summaries = PooledSummaries(num_sets, width, generator, settings.messages)
        self.output_width = (num_sets + self.has_relations) * width

    def nodes(self, states: States) -> torch.Tensor:
        """Return float32[W, G, N], the embedding of each node of each state."""
        nodes = states.features(self.node_features)
        if self.message_passing is not None:
            nodes = self.message_passing(nodes, states.topology)
        return nodes

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, W], the embedding of each state."""
        nodes = self.nodes(states)
        relations = states.topology.relations_of(states.current)
        if not self.has_relations:
            relations = relations.clamp(max=0)
        summary: torch.Tensor = self.summaries(nodes, relations, states.topology.group_counts)
        if not self.has_relations:
            return summary
        own = nodes[:, states.current, torch.arange(len(states))].T
        return torch.cat([own, summary], dim=1)
