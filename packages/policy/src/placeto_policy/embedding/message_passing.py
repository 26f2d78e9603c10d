"""The graph embedding of Placeto and its two ablations: one vector for each state.

Begin to read at `GraphEmbedding`; message passing and pooled summaries are its parts.
"""

import torch
from torch import nn

from placeto_policy.graph_features import GraphFeatures
from placeto_policy.settings import MessageName, Settings
from placeto_policy.states import GraphBatch, States, feature_width


def new_layers(
    count: int, width: int, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the weights float32[count, W, W] and biases float32[count, W] of equal layers."""
    weight, bias = torch.empty(count, width, width), torch.zeros(count, width)
    limit = glorot_limit(width, width)
    return nn.Parameter(weight.uniform_(-limit, limit, generator=generator)), nn.Parameter(bias)


def new_layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with weights as of `new_layers`, and biases of 0."""
    layer = nn.Linear(inputs, outputs)
    limit = glorot_limit(inputs, outputs)
    with torch.no_grad():
        layer.weight.uniform_(-limit, limit, generator=generator)
        layer.bias.zero_()
    return layer


def glorot_limit(inputs: int, outputs: int) -> float:
    """Return the largest weight of a layer: Glorot and Bengio 2010, equation 16.

    Biases begin at zero. Both are as in the published code of Addanki et al. 2019.
    """
    return float((6 / (inputs + outputs)) ** 0.5)


DIRECTIONS = 2


class MessagePassing(nn.Module):
    """k rounds of messages, from earlier to later groups and from later to earlier ones.

    A round replaces the features of every node: ``x_v <- g(sum of f(x_u))`` (Addanki et al. 2019,
    section 3.2). The sum is over the groups before the node in one direction, and over those behind
    it in the other. f and g are single layers with ReLU, as wide as the features, for each
    direction.

    Residual messages add the first features of the node: ``x_v <- x_v(0) + g(sum of f(x_u))``. A
    node then keeps its own features if paths are shorter than k. (The published code adds a
    transformed vector; see docs/settings.md.) Sums are also divided by the number of edges per
    group if that exceeds 1. Otherwise they would grow by that factor in every round.
    """

    def __init__(
        self,
        width: int,
        rounds: int,
        generator: torch.Generator,
        messages: MessageName = "residual",
    ) -> None:
        super().__init__()
        self.rounds = rounds
        self.messages = messages
        self.message_weight, self.message_bias = new_layers(DIRECTIONS, width, generator)
        self.update_weight, self.update_bias = new_layers(DIRECTIONS, width, generator)

    def forward(self, features: torch.Tensor, graph: GraphFeatures | GraphBatch) -> torch.Tensor:
        """Return float32[2 F, G, N], both directions of each node."""
        is_residual = self.messages == "residual"
        width, num_groups, count = features.shape
        # Groups as the last axis make each sum one product of matrices for all states.
        first = features.transpose(1, 2).reshape(width, count * num_groups)
        nodes_of_directions = []
        for direction, adjacency in enumerate(graph.directions(scaled=is_residual)):
            nodes = first
            for _ in range(self.rounds):
                messages = torch.addmm(
                    self.message_bias[direction, :, None], self.message_weight[direction], nodes
                ).relu()
                sums = _sums(messages.view(width, count, num_groups), adjacency)
                nodes = torch.addmm(
                    self.update_bias[direction, :, None],
                    self.update_weight[direction],
                    sums.reshape(width, -1),
                ).relu()
                if is_residual:
                    nodes = first + nodes
            nodes_of_directions.append(nodes)
        return torch.cat(nodes_of_directions).view(-1, count, num_groups).transpose(1, 2)


def _sums(messages: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
    """Return float32[F, N, G], the sums of messages in one graph [G, G] or in N [N, G, G]."""
    if adjacency.dim() == 3:
        return torch.bmm(messages.swapaxes(0, 1), adjacency).swapaxes(0, 1)
    return messages.reshape(-1, len(adjacency)) @ adjacency


class PooledSummaries(nn.Module):
    """One vector for each of S sets of nodes: ``h_i(sum of l_i(x_u) over set i)``.

    l_i and h_i are single layers with ReLU, as wide as a node (Addanki et al. 2019, section 3.2).
    With residual messages the sum is divided by the square root of the number of all groups. The
    first policy is then close to uniform in large graphs, too.
    """

    def __init__(
        self,
        num_sets: int,
        width: int,
        generator: torch.Generator,
        messages: MessageName,
    ) -> None:
        super().__init__()
        self.messages = messages
        self.each_weight, self.each_bias = new_layers(num_sets, width, generator)
        self.whole_weight, self.whole_bias = new_layers(num_sets, width, generator)

    def forward(
        self, nodes: torch.Tensor, sets: torch.Tensor, group_counts: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, S W] for nodes float32[W, G, N] of N states.

        Sets int8[N, G] are those of each node, relative to the current one; other numbers are no
        set. The number of groups of each state is float32[N] or float32[1].
        """
        width, num_groups, count = nodes.shape
        outputs = torch.addmm(
            self.each_bias.reshape(-1, 1),
            self.each_weight.reshape(-1, width),
            nodes.reshape(width, -1),
        ).relu()
        set_numbers = torch.arange(len(self.each_bias), dtype=sets.dtype)
        inside = (set_numbers[:, None, None] == sets.T).to(outputs.dtype)
        sums = (outputs.view(-1, width, num_groups, count) * inside[:, None]).sum(dim=2)
        scaled = sums / group_counts.sqrt() if self.messages == "residual" else sums
        summaries = torch.baddbmm(self.whole_bias[:, :, None], self.whole_weight, scaled)
        return torch.relu(summaries).flatten(0, 1).T


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

    Attributes
    ----------
    output_width : int
        Number of features of the embedding of a state, W.

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
        """Return float32[W, G, N], the embedding of each node of N ``states``."""
        nodes = states.features(self.node_features)
        if self.message_passing is not None:
            nodes = self.message_passing(nodes, states.graph_features)
        return nodes

    def forward(self, states: States) -> torch.Tensor:
        """Return float32[N, W], the embedding of each of N ``states``."""
        nodes = self.nodes(states)
        relations = states.graph_features.relations_of(states.current)
        if not self.has_relations:
            relations = relations.clamp(max=0)
        summary: torch.Tensor = self.summaries(nodes, relations, states.graph_features.group_counts)
        if not self.has_relations:
            return summary
        current_nodes = nodes[:, states.current, torch.arange(len(states))].T
        return torch.cat([current_nodes, summary], dim=1)
