"""Message passing along the edges of a graph, in both directions at once."""

import torch
from torch import nn

from placeto_policy.embedding.layers import new_layers
from placeto_policy.settings import MessageName
from placeto_policy.states import SideBySide
from placeto_policy.topology import Topology

DIRECTIONS = 2


class MessagePassing(nn.Module):
    """k rounds of messages, from earlier to later groups and from later to earlier ones.

    In a round every node becomes what it makes of its neighbours' messages,
    ``x_v <- g(sum of f(x_u))``, over the groups before it in one direction and over those behind it
    in the other (Addanki et al. 2019, section 3.2). f and g are single layers with ReLU, as wide as
    the features; each direction has its own.

    Residual messages add that to the node's first features, ``x_v <- x_v(0) + g(sum of f(x_u))``,
    as the published code does: they keep a node's own features in sight where paths are shorter
    than k. They also divide sums by the number of edges per group where that is more than 1, lest
    they grow by that factor in every round.

    Parameters
    ----------
    width
        F, the number of features of a node.
    rounds
        k.
    generator
        Of the first weights.
    messages
        ``"residual"``, or ``"plain"``, as the paper has them.
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

    def forward(self, features: torch.Tensor, topology: Topology | SideBySide) -> torch.Tensor:
        """Return float32[2 F, G, N], both directions of each node.

        Parameters
        ----------
        features : float32[F, G, N]
            Of the nodes.
        topology
            The graph, or the graphs.
        """
        is_residual = self.messages == "residual"
        width, num_groups, count = features.shape
        # Groups as the last axis make each sum one product of matrices for all states.
        first = features.transpose(1, 2).reshape(width, count * num_groups)
        found = []
        for direction, heard in enumerate(topology.heard(scaled=is_residual)):
            nodes = first
            for _ in range(self.rounds):
                messages = torch.addmm(
                    self.message_bias[direction, :, None], self.message_weight[direction], nodes
                ).relu()
                sums = _sums(messages.view(width, count, num_groups), heard)
                nodes = torch.addmm(
                    self.update_bias[direction, :, None],
                    self.update_weight[direction],
                    sums.reshape(width, -1),
                ).relu()
                if is_residual:
                    nodes = first + nodes
            found.append(nodes)
        return torch.cat(found).view(-1, count, num_groups).transpose(1, 2)


def _sums(messages: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
    """Return float32[F, N, G], what each group hears, of one graph [G, G] or of N [N, G, G]."""
    if heard.dim() == 3:
        return torch.bmm(messages.swapaxes(0, 1), heard).swapaxes(0, 1)
    return messages.reshape(-1, len(heard)) @ heard
