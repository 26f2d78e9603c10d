"""The scores of attention by content, and their gradients, without keeping what they are made of.

Between L groups and M states of the decoder there are ``M L H`` hyperbolic tangents. Autograd would
keep them all, 8 million for each sample of 128 groups; here they are made again for the gradient.
``tanh x`` is written ``2 s(2 x) - 1`` with the logistic function ``s``: several times as fast on
processors for which PyTorch has no vector code for the former.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**20  # numbers that are worked on at once: what a processor's cache holds


class AttentionScores(torch.autograd.Function):
    """``v . tanh(keys + queries)`` of Bahdanau et al. (2015), for every key and query of a graph.

    Called by ``apply(keys, queries, weight, known)``; ``known`` are the scores, if they have been
    computed before, else None.

    Examples
    --------
    >>> keys, queries, weight = torch.zeros(1, 3, 2), torch.ones(1, 4, 2), torch.tensor([1.0, 2.0])
    >>> AttentionScores.apply(keys, queries, weight, None).shape
    torch.Size([1, 4, 3])
    """

    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weight: Tensor, known: Any) -> Tensor:
        """Return float32[N, M, L] for keys[N, L, H], queries[N, M, H] and weight[H]."""
        ctx.save_for_backward(keys, queries, weight)
        if known is not None:
            return torch.as_tensor(known)
        scores = keys.new_empty(*queries.shape[:2], keys.shape[1])
        for graph, part, logistic in _logistics(keys, queries):
            torch.matmul(logistic, weight, out=scores[graph, part])
        return scores.mul_(2).sub_(weight.sum())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients by keys, queries and weight for that by the scores."""
        keys, queries, weight = ctx.saved_tensors
        by_scores = gradients[0].contiguous()
        by_keys, by_queries = torch.zeros_like(keys), torch.empty_like(queries)
        by_weight = torch.zeros_like(weight)
        for graph, part, logistic in _logistics(keys, queries):
            here = by_scores[graph, part]
            by_weight += here.flatten() @ logistic.flatten(0, 1)
            # s (1 - s) times the gradient, in the place of s
            slope = torch.ops.aten.sigmoid_backward.grad_input(
                here[:, :, None].expand_as(logistic), logistic, grad_input=logistic
            )
            by_keys[graph] += slope.sum(dim=0)
            torch.sum(slope, dim=1, out=by_queries[graph, part])
        by_weight.mul_(2).sub_(by_scores.sum())
        return by_keys.mul_(4 * weight), by_queries.mul_(4 * weight), by_weight, None


def _logistics(keys: Tensor, queries: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield ``s(2 (keys + queries))`` of some queries[m, H] of a graph at a time, as [m, L, H].

    Each overwrites the one before.
    """
    number, length, size = keys.shape
    at_once = max(1, CHUNK // (length * size))
    twice_keys, twice_queries = 2 * keys, 2 * queries[:, :, None]
    memory = keys.new_empty(min(at_once, queries.shape[1]), length, size)
    for graph in range(number):
        for first in range(0, queries.shape[1], at_once):
            part = slice(first, first + at_once)
            some = twice_queries[graph, part]
            yield (
                graph,
                part,
                torch.add(some, twice_keys[graph], out=memory[: len(some)]).sigmoid_(),
            )
