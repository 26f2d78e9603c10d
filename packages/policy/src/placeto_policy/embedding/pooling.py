"""Summaries of sets of nodes, as seen from the current one."""

from typing import Any

import torch
from torch import nn

from placeto_policy.embedding import kernels
from placeto_policy.embedding.blocks import blocks_of
from placeto_policy.embedding.blocks import for_each_block
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
        self, nodes: torch.Tensor, sets: torch.Tensor, current: torch.Tensor
    ) -> torch.Tensor:
        """Return float32[N, S W] for nodes float32[W, G, N].

        ``sets[v, u]``, int8[G, G], is the set of u as seen from v, and current int64[N] is the v
        of each state.
        """
        sums = _RelatedSums.apply(  # type: ignore[no-untyped-call]
            nodes, self.each_weight, self.each_bias, sets, current
        )
        scaled = sums / nodes.shape[1] ** 0.5 if self.messages == "residual" else sums
        whole = torch.baddbmm(self.whole_bias[:, :, None], self.whole_weight, scaled)
        return torch.relu(whole).flatten(0, 1).T


class _RelatedSums(torch.autograd.Function):
    """The compiled loops as an operation that torch can differentiate."""

    @staticmethod
    def forward(
        ctx: Any,
        nodes: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        sets: torch.Tensor,
        current: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(nodes, weight, bias, sets, current)
        sums = torch.empty(*bias.shape, nodes.shape[2])
        inputs = _arrays(sets, current, weight, bias, nodes)
        results = sums.numpy()

        def run(_: int, block: tuple[int, int]) -> None:
            kernels.sum_related(inputs, results, block)

        for_each_block(run, blocks_of(nodes.shape[2]))
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        nodes, weight, bias, sets, current = ctx.saved_tensors
        inputs = _arrays(sets, current, weight, bias, nodes)
        blocks = blocks_of(nodes.shape[2])
        to_weight = torch.zeros(len(blocks), *weight.shape)
        to_bias = torch.zeros(len(blocks), *bias.shape)
        to_nodes = torch.empty(nodes.shape)
        incoming = gradient.contiguous().numpy()
        weights, biases, result = to_weight.numpy(), to_bias.numpy(), to_nodes.numpy()

        def run(index: int, block: tuple[int, int]) -> None:
            kernels.sum_related_backward(
                inputs, incoming, block, weights[index], biases[index], result
            )

        for_each_block(run, blocks)
        return to_nodes, to_weight.sum(dim=0), to_bias.sum(dim=0), None, None


def _arrays(
    sets: torch.Tensor,
    current: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    nodes: torch.Tensor,
) -> kernels.RelatedInputs:
    return kernels.RelatedInputs(
        sets=sets.contiguous().numpy(),
        current=current.contiguous().numpy(),
        weight=weight.detach().numpy(),
        bias=bias.detach().numpy(),
        nodes=nodes.detach().contiguous().numpy(),
    )
