"""Message passing along the edges of a graph, in both directions at once."""

from typing import Any

import numpy as np
import torch
from torch import nn

from placeto_policy.embedding import kernels
from placeto_policy.embedding.blocks import blocks_of
from placeto_policy.embedding.blocks import for_each_block
from placeto_policy.embedding.layers import new_layers
from placeto_policy.settings import MessageName
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

    def forward(self, features: torch.Tensor, topology: Topology) -> torch.Tensor:
        """Return float32[2 F, G, N], both directions of each node.

        Parameters
        ----------
        features : float32[F, G, N]
            Of the nodes.
        topology
            The graph.
        """
        nodes: torch.Tensor = _MessagePassing.apply(  # type: ignore[no-untyped-call]
            features,
            self.message_weight,
            self.message_bias,
            self.update_weight,
            self.update_bias,
            topology,
            self.rounds,
            self.messages == "residual",
        )
        return nodes


class _MessagePassing(torch.autograd.Function):
    """The compiled loops as an operation that torch can differentiate by the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        message_weight: torch.Tensor,
        message_bias: torch.Tensor,
        update_weight: torch.Tensor,
        update_bias: torch.Tensor,
        topology: Topology,
        rounds: int,
        residual: bool,
    ) -> torch.Tensor:
        weights = (message_weight, message_bias, update_weight, update_bias)
        ctx.save_for_backward(features, *weights)
        ctx.topology, ctx.rounds = topology, rounds
        ctx.own = np.float32(residual)
        ctx.scale = topology.message_scale if residual else np.float32(1)
        width, num_groups, count = features.shape
        nodes = torch.empty(DIRECTIONS, width, num_groups, count)
        x, y = features.numpy(), nodes.numpy()
        arrays = [weight.detach().numpy() for weight in weights]

        def run(_: int, block: tuple[int, int]) -> None:
            for direction in range(DIRECTIONS):
                layers = kernels.Layers(*(array[direction] for array in arrays))
                kernels.embed_nodes(
                    topology.neighbours[direction],
                    ctx.scale,
                    layers,
                    rounds,
                    ctx.own,
                    x,
                    y[direction],
                    block,
                )

        for_each_block(run, blocks_of(count))
        return nodes.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, *weights = ctx.saved_tensors
        width, num_groups, count = features.shape
        x = features.numpy()
        to_nodes = gradient.contiguous().view(DIRECTIONS, width, num_groups, count).numpy()
        arrays = [weight.detach().numpy() for weight in weights]
        blocks = blocks_of(count)
        gradients = [torch.zeros(len(blocks), *weight.shape) for weight in weights]
        results = [result.numpy() for result in gradients]

        def run(index: int, block: tuple[int, int]) -> None:
            for direction in range(DIRECTIONS):
                kernels.embed_nodes_backward(
                    ctx.topology.neighbours[direction],
                    ctx.topology.neighbours[1 - direction],
                    ctx.scale,
                    kernels.Layers(*(array[direction] for array in arrays)),
                    ctx.rounds,
                    ctx.own,
                    x,
                    to_nodes[direction],
                    block,
                    kernels.Layers(*(result[index, direction] for result in results)),
                )

        for_each_block(run, blocks)
        return (None, *(result.sum(dim=0) for result in gradients), None, None, None)
