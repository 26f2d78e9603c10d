"""The decoder's LSTM, one group after the other, and its gradient from its states.

While placements are sampled, each device is known only after the group before. The states of
sampling are kept, and the gradient is computed from them: no second pass is needed.
The input is one of D + 1 embeddings, so that what it adds to the gates is a table.
"""

from typing import Any

import torch
from torch import Tensor, nn


class DecoderWeights(nn.Module):
    """The weights of the LSTM that `DecoderStates` computes; gates as PyTorch orders them.

    Parameters
    ----------
    size
        H, the number of units, and the length of the inputs.

    Attributes
    ----------
    by_input, by_hidden : float32[4H, H]
        What inputs and hidden states are multiplied with.
    bias : float32[4H]
        What is added.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.by_input = nn.Parameter(torch.empty(4 * size, size))
        self.by_hidden = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.empty(4 * size))

    def signals(self, inputs: Tensor) -> Tensor:
        """Return float32[N, 4H], what N inputs add to the gates."""
        return torch.addmm(self.bias, inputs, self.by_input.t())


class DecoderStates:
    """The states of R sequences of up to L groups.

    Parameters
    ----------
    hidden, cell : float32[R, H]
        The first states.
    length
        L, the number of groups.

    Attributes
    ----------
    hidden, cells : float32[L + 1, R, H]
        The states, the first ones included.
    gates : float32[L, R, 4, H]
        Input, forget, cell and output gates, as PyTorch orders them.
    """

    def __init__(self, hidden: Tensor, cell: Tensor, length: int) -> None:
        sequences, size = hidden.shape
        self.hidden = hidden.new_empty(length + 1, sequences, size)
        self.cells = hidden.new_empty(length + 1, sequences, size)
        self.gates = hidden.new_empty(length, sequences, 4, size)
        self.hidden[0], self.cells[0] = hidden, cell

    def advance(self, place: int, signals: Tensor, weight: Tensor) -> Tensor:
        """Compute and return float32[R, H], the hidden states at one place.

        Parameters
        ----------
        place
            Of the group; the places before are done.
        signals : float32[R, 4H]
            What the inputs add to the gates.
        weight : float32[4H, H]
            What hidden states are multiplied with.
        """
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

    Called by ``apply(table, weight, hidden, cell, inputs, known)``; ``known`` are the
    `DecoderStates`, if sampling has computed them, else None.

    Examples
    --------
    >>> table, weight, first = torch.zeros(3, 8), torch.zeros(8, 2), torch.zeros(5, 2)
    >>> inputs = torch.zeros(4, 5, dtype=torch.int64)
    >>> DecodedStates.apply(table, weight, first, first, inputs, None).shape
    torch.Size([4, 5, 2])
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
        """Return float32[L, R, H].

        Parameters
        ----------
        table : float32[D + 1, 4H]
            What each input adds to the gates.
        weight : float32[4H, H]
            What hidden states are multiplied with.
        hidden, cell : float32[R, H]
            The first states.
        inputs : int64[L, R]
            Rows of the table.
        """
        if known is None:
            known = DecoderStates(hidden, cell, len(inputs))
            for place, rows in enumerate(inputs):
                known.advance(place, table[rows], weight)
        ctx.save_for_backward(weight, inputs)
        ctx.states, ctx.rows = known, len(table)
        return known.hidden[1:].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients by the table, the weight and the first states."""
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
    """Return how the states depend on the gates before their nonlinearities.

    Returns
    -------
    float32[L, R, H]
        The hidden state by the output gate.
    float32[L, R, H]
        The hidden state by the cell.
    float32[L, R, 3, H]
        The cell by the input, forget and cell gates.
    """
    entry, forget, update, output = states.gates.unbind(dim=2)
    cell = states.cells[1:].tanh()
    others = torch.empty_like(states.gates[:, :, :3])
    others[:, :, 0] = update * entry * (1 - entry)
    others[:, :, 1] = states.cells[:-1] * forget * (1 - forget)
    others[:, :, 2] = entry * (1 - update**2)
    return cell * output * (1 - output), output * (1 - cell**2), others
