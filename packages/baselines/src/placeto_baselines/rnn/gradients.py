"""The scores of attention and the decoder's LSTM, with gradients that keep little.

Between L groups and M states of the decoder there are ``M L H`` hyperbolic tangents. Autograd would
keep them all, 8 million for each sample of 128 groups; here they are made again for the gradient.
With `torch.nn.LSTMCell` and checkpoints a training takes 1.6 to 2.0 times the CPU time, and twice
the memory.
``tanh x`` is written ``2 s(2 x) - 1`` with the logistic function ``s``. That is several times as
fast on processors for which PyTorch has no vector code for the former.

While placements are sampled, each device is known only after the group before. The decoder's states
of sampling are kept, and the gradient is computed from them: no second pass is needed. Its input is
one of D + 1 embeddings, so that what it adds to the gates is a table.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 2**20  # numbers that are worked on at once: what a processor's cache holds


class AttentionScores(torch.autograd.Function):
    """``v . tanh(keys + queries)`` of Bahdanau et al. (2015), for every key and query of a graph.

    ``known`` are the scores, if they have been computed before, else None.
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
    """Yield ``s(2 (keys + queries))`` of some queries of a graph at a time; each in one memory."""
    number, length, size = keys.shape
    at_once = max(1, CHUNK // (length * size))
    twice_keys, twice_queries = 2 * keys, 2 * queries[:, :, None]
    memory = keys.new_empty(min(at_once, queries.shape[1]), length, size)
    for graph in range(number):
        for first in range(0, queries.shape[1], at_once):
            part = slice(first, first + at_once)
            some = twice_queries[graph, part]
            total = torch.add(some, twice_keys[graph], out=memory[: len(some)])
            yield graph, part, total.sigmoid_()


class DecoderWeights(nn.Module):
    """The weights of the LSTM that `DecoderStates` computes; gates as PyTorch orders them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.by_input = nn.Parameter(torch.empty(4 * size, size))
        self.by_hidden = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.empty(4 * size))

    def signals(self, inputs: Tensor) -> Tensor:
        """Return float32[N, 4H], what N inputs add to the gates."""
        return torch.addmm(self.bias, inputs, self.by_input.t())


class DecoderStates:
    """The states of R sequences of up to L groups, the first ones included."""

    def __init__(self, hidden: Tensor, cell: Tensor, length: int) -> None:
        sequences, size = hidden.shape
        self.hidden = hidden.new_empty(length + 1, sequences, size)
        self.cells = hidden.new_empty(length + 1, sequences, size)
        self.gates = hidden.new_empty(length, sequences, 4, size)  # input, forget, cell, output
        self.hidden[0], self.cells[0] = hidden, cell

    def advance(self, place: int, signals: Tensor, weight: Tensor) -> Tensor:
        """Compute and return float32[R, H], the hidden states at one place after those before."""
        gates = self.gates[place]
        torch.addmm(signals, self.hidden[place], weight.t(), out=gates.flatten(1))
        gates[:, :2].sigmoid_()
        gates[:, 2].tanh_()
        gates[:, 3].sigmoid_()
        cell = torch.mul(gates[:, 1], self.cells[place], out=self.cells[place + 1])
        cell.addcmul_(gates[:, 0], gates[:, 2])
        return torch.mul(gates[:, 3], cell.tanh(), out=self.hidden[place + 1])


class DecodedStates(torch.autograd.Function):
    """The hidden states of sequences whose inputs are known.

    Inputs int64[L, R] are rows of the ``table`` of what each adds to the gates, float32[D + 1, 4H].
    The first states are float32[R, H]. ``known`` are all states, if sampling has computed them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        inputs: Tensor,
        known: DecoderStates | None,
    ) -> Tensor:
        """Return float32[L, R, H]."""
        if known is None:
            known = DecoderStates(hidden, cell, len(inputs))
            for place, rows in enumerate(inputs):
                known.advance(place, table[rows], weight)
        ctx.save_for_backward(weight, inputs)
        ctx.states, ctx.rows = known, len(table)
        return known.hidden[1:].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        weight, inputs = ctx.saved_tensors
        states: DecoderStates = ctx.states
        by_gates = torch.empty_like(states.gates)
        into_output, into_cell, into_others = _slopes(states)
        by_hidden = torch.zeros_like(states.hidden[0])
        by_cell = torch.zeros_like(by_hidden)
        for place in reversed(range(len(inputs))):
            by_hidden = by_hidden + gradients[0][place]
            by_cell = torch.addcmul(by_cell, by_hidden, into_cell[place])
            torch.mul(by_cell[:, None], into_others[place], out=by_gates[place, :, :3])
            torch.mul(by_hidden, into_output[place], out=by_gates[place, :, 3])
            by_cell = by_cell * states.gates[place, :, 1]
            by_hidden = by_gates[place].flatten(1) @ weight
        flat = by_gates.flatten(2).flatten(0, 1)
        by_table = flat.new_zeros(ctx.rows, flat.shape[1]).index_add_(0, inputs.flatten(), flat)
        by_weight = flat.t() @ states.hidden[:-1].flatten(0, 1)
        return by_table, by_weight, by_hidden, by_cell, None, None


def _slopes(states: DecoderStates) -> tuple[Tensor, Tensor, Tensor]:
    """Return slopes before the nonlinearities of the gates.

    They are those of the hidden state by the output gate and by the cell, float32[L, R, H], and of
    the cell by the input, forget and cell gates, float32[L, R, 3, H].
    """
    entry, forget, update, output = states.gates.unbind(dim=2)
    cell = states.cells[1:].tanh()
    others = torch.empty_like(states.gates[:, :, :3])
    others[:, :, 0] = update * entry * (1 - entry)
    others[:, :, 1] = states.cells[:-1] * forget * (1 - forget)
    others[:, :, 2] = entry * (1 - update**2)
    return cell * output * (1 - output), output * (1 - cell**2), others
