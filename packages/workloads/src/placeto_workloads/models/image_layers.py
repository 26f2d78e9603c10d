"""Layers of networks of images; most are those of cells (Zoph et al. 2018, section 3, A.4)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_workloads.models.cell_architecture import Operation

EPSILON = 1e-3  # of the published networks, Inception-V3 and NASNet-A
_KERNELS = {
    Operation.SEPARABLE_CONVOLUTION_3: 3,
    Operation.SEPARABLE_CONVOLUTION_5: 5,
    Operation.SEPARABLE_CONVOLUTION_7: 7,
}


def batch_normalisation(channels: int) -> nn.BatchNorm2d:
    """Return batch normalisation that keeps moving averages, and no count of batches.

    PyTorch reads the count only where there is no momentum. In a graph of ops it would be one op
    per layer that nothing else is joined to, and that no grouping could put anywhere.
    """
    layer = nn.BatchNorm2d(channels, eps=EPSILON)
    layer.num_batches_tracked = None
    return layer


class Projection(nn.Module):
    """ReLU, a convolution of 1x1 and batch normalisation: other channels, the same size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.convolution = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.normalisation = batch_normalisation(outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[batch, outputs, height, width]."""
        projected: Tensor = self.normalisation(self.convolution(self.activation(features)))
        return projected


class FactorisedReduction(nn.Module):
    """Half the height and width: two convolutions of 1x1 with stride 2, side by side.

    One reads the even rows and columns, the other the odd ones; each makes half of the channels.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.normalisation = batch_normalisation(outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[batch, outputs, height / 2, width / 2], rounded up."""
        active = self.activation(features)
        shifted = functional.pad(active, (-1, 1, -1, 1))
        reduced: Tensor = self.normalisation(
            torch.cat([self.even(active), self.odd(shifted)], dim=1)
        )
        return reduced


class SeparableConvolution(nn.Module):
    """A depthwise-separable convolution, applied twice; the first time with the stride.

    Each time ReLU, a convolution of each channel, one of 1x1 and batch normalisation.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.first = _separable_convolution(inputs, outputs, kernel, stride)
        self.second = _separable_convolution(outputs, outputs, kernel, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[batch, outputs, height / stride, width / stride], rounded up."""
        convolved: Tensor = self.second(self.first(features))
        return convolved


def operation_layer(operation: Operation, inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the layer that does an operation.

    Pools and the identity do not change the channels. A projection follows them if inputs and
    outputs differ.
    """
    if operation in _KERNELS:
        return SeparableConvolution(inputs, outputs, _KERNELS[operation], stride)
    if operation is Operation.IDENTITY:
        return adjustment(inputs, outputs, stride)
    pool: nn.Module
    if operation is Operation.MAX_POOL_3:
        pool = nn.MaxPool2d(3, stride, padding=1)
    else:
        pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    return pool if inputs == outputs else nn.Sequential(pool, Projection(inputs, outputs))


def adjustment(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the layer that gives features other channels or half the size, as far as needed."""
    if stride == 2:
        return FactorisedReduction(inputs, outputs)
    return nn.Identity() if inputs == outputs else Projection(inputs, outputs)


def _separable_convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("activation", nn.ReLU())
    layers.add_module(
        "depthwise",
        nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False),
    )
    layers.add_module("pointwise", nn.Conv2d(inputs, outputs, 1, bias=False))
    layers.add_module("normalisation", batch_normalisation(outputs))
    return layers
