"""The first weights of layers."""

import torch
from torch import nn


def new_layers(
    count: int, width: int, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the weights float32[count, W, W] and biases float32[count, W] of equal layers."""
    weight, bias = torch.empty(count, width, width), torch.zeros(count, width)
    limit = glorot_limit(width, width)
    return nn.Parameter(weight.uniform_(-limit, limit, generator=generator)), nn.Parameter(bias)


def new_layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return one layer."""
    layer = nn.Linear(inputs, outputs)
    limit = glorot_limit(inputs, outputs)
    with torch.no_grad():
        layer.weight.uniform_(-limit, limit, generator=generator)
        layer.bias.zero_()
    return layer


def glorot_limit(inputs: int, outputs: int) -> float:
    """Return the largest weight of a layer: Glorot and Bengio 2010, equation 16.

    Biases begin at zero. So it is in the published code of Addanki et al. 2019.
    """
    return float((6 / (inputs + outputs)) ** 0.5)
