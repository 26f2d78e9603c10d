"""Summaries of sets of nodes, as seen from the current one."""

import torch
from torch import nn

from placeto_policy.embedding.layers import new_layers
from placeto_policy.settings import MessageName


class PooledSummaries(nn.Module):
    """One vector for each of S sets of nodes: ``h_i(sum of l_i(x_u) over set i)``.

    l_i and h_i are single layers with ReLU, as wide as a node (Addanki et al. 2019, section 3.2).
    With residual messages the sum is divided by the square root of the number G of all groups, so
    that the first policy is close to uniform in large graphs, too.

    Parameters
    ----------
    num_sets
        S.
    width
        W, the number of features of a node.
    generator
        Of the first weights.
    messages
        ``"residual"``, or ``"plain"``, for sums as the paper has them.
    """

    def __init__(
        self,
        num_sets: int,
        width: int,
        generator: torch.Generator,
        messages: MessageName = "residual",
    ) -> None:
        super().__init__()
        self.messages = messages
        self.each_weight, self.each_bias = new_layers(num_sets, width, generator)
        self.whole_weight, self.whole_bias = new_layers(num_sets, width, generator)

    def forward(
        self, nodes: torch.Tensor, sets: torch.Tensor, group_counts: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, S W].

        Parameters
        ----------
        nodes : float32[W, G, N]
            Of N states.
        sets : int8[N, G]
            The set that each node is in, as seen from the current one; others are in none.
        group_counts : float32[N] or float32[1]
            How many groups there are.
        """
        width, num_groups, count = nodes.shape
        each = torch.addmm(
            self.each_bias.reshape(-1, 1),
            self.each_weight.reshape(-1, width),
            nodes.reshape(width, -1),
        ).relu()
        chosen = torch.arange(len(self.each_bias), dtype=sets.dtype)
        inside = (chosen[:, None, None] == sets.T).to(each.dtype)
        sums = (each.view(-1, width, num_groups, count) * inside[:, None]).sum(dim=2)
        scaled = sums / group_counts.sqrt() if self.messages == "residual" else sums
        whole = torch.baddbmm(self.whole_bias[:, :, None], self.whole_weight, scaled)
        return torch.relu(whole).flatten(0, 1).T
