"""Layers unrolled over time, one module per step.

The weights stand in the layer, and its child ``step<t>`` computes step t. So the scope of an op in
a captured graph names both the layer and the step: ``decoder.layer1.step5``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LSTMState = tuple[Tensor, Tensor]


class Step(nn.Module):
    """One step of a layer, which a function computes."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *arguments: Any) -> Any:
        return self.compute(*arguments)


class UnrolledLayer(nn.Module):
    """A layer that computes the same at every step, with the same weights."""

    def __init__(self, compute: Callable[..., Any], num_steps: int) -> None:
        super().__init__()
        for step in range(num_steps):
            self.add_module(f"step{step}", Step(compute))

    def at_step(self, step: int, *arguments: Any) -> Any:
        """Return what the module of one step computes."""
        return self.get_submodule(f"step{step}")(*arguments)


def lstm_step(
    inputs: tuple[Tensor, ...], state: LSTMState, weight: Tensor, bias: Tensor
) -> tuple[Tensor, LSTMState]:
    """Compute one step of an LSTM layer; all gates are one matrix product."""
    last_output, last_cell = state
    gates = torch.addmm(bias, torch.cat([*inputs, last_output], dim=1), weight)
    write, forget, candidate, read = gates.chunk(4, dim=1)
    kept_cell = torch.sigmoid(forget) * last_cell
    cell = kept_cell + torch.sigmoid(write) * torch.tanh(candidate)
    output = torch.sigmoid(read) * torch.tanh(cell)
    return output, (output, cell)


def residual_lstm_step(
    inputs: tuple[Tensor, ...], *state_and_weights: Any
) -> tuple[Tensor, LSTMState]:
    """Compute one step of an LSTM layer whose first input is added to its output."""
    output, new_state = lstm_step(inputs, *state_and_weights)
    return output + inputs[0], new_state


class LSTM(UnrolledLayer):
    """One LSTM layer (Hochreiter and Schmidhuber 1997), without peepholes."""

    def __init__(
        self,
        inputs: int,
        units: int,
        num_steps: int,
        compute: Callable[..., tuple[Tensor, LSTMState]] = lstm_step,
    ) -> None:
        super().__init__(compute, num_steps)
        self.weight = uniform_weight(inputs + units, 4 * units)
        self.bias = nn.Parameter(torch.zeros(4 * units))

    def forward(
        self, step: int, inputs: tuple[Tensor, ...], state: LSTMState
    ) -> tuple[Tensor, LSTMState]:
        """Return the output, float32[batch, units], and the state of one step."""
        output_and_state: tuple[Tensor, LSTMState] = self.at_step(
            step, inputs, state, self.weight, self.bias
        )
        return output_and_state


def uniform_weight(inputs: int, outputs: int) -> nn.Parameter:
    """Return float32[inputs, outputs], uniform within one over the root of the inputs."""
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
