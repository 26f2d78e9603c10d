"""Inception-V3 (Szegedy et al. 2015, "Rethinking the Inception Architecture")."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from placeto_workloads.models.cell_network import batch_normalisation
from placeto_workloads.models.training_step import (
    TrainingStep,
    build_classification_step,
    of_checked_sizes,
)


@of_checked_sizes
def inception_v3(
    *,
    batch_size: int = 64,
    image_size: int = 299,
    num_classes: int = 1000,
    device: torch.device | str = "meta",
    seed: int = 0,
) -> TrainingStep:
    """Return one training step of Inception-V3.

    The network of Szegedy et al. (2015), table 1 and figures 5 to 7 and 10, with batch
    normalisation after every convolution, without the auxiliary head: 23,834,568 parameters.
    Sizes that the paper leaves open, such as the width of the branches, are those of its published
    network.

    Parameters
    ----------
    batch_size, num_classes
        Numbers of images in a step, and of classes.
    image_size
        Height and width of an image, in pixels; at least 75.
    device
        Device of weights and inputs; on the default, meta, they take no memory.
    seed
        Seed of weights and inputs on any other device.

    Raises
    ------
    WorkloadError
        If a size is no whole number of at least 1, or the sizes make no network.

    Examples
    --------
    >>> step = inception_v3(batch_size=1)
    >>> step.model.network(step.example_inputs[0]).shape
    torch.Size([1, 1000])
    """
    images = batch_size, image_size, num_classes
    return build_classification_step(
        lambda: InceptionV3(num_classes), *images, device=device, seed=seed
    )


class InceptionV3(nn.Module):
    """From images, float32[batch, 3, height, width], to logits, float32[batch, classes]."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _stem()
        self.modules_35x35 = nn.Sequential(
            _module_of_figure_5(192, pool_channels=32),
            _module_of_figure_5(256, pool_channels=64),
            _module_of_figure_5(288, pool_channels=64),
        )
        self.reduction_to_17x17 = _reduction_of_figure_10(288)
        self.modules_17x17 = nn.Sequential(
            *(_module_of_figure_6(768, width) for width in (128, 160, 160, 192))
        )
        self.reduction_to_8x8 = _reduction_with_factorised_branch(768)
        self.modules_8x8 = nn.Sequential(_module_of_figure_7(1280), _module_of_figure_7(2048))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(2048, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.modules_35x35(self.stem(images))
        features = self.modules_17x17(self.reduction_to_17x17(features))
        features = self.modules_8x8(self.reduction_to_8x8(features))
        logits: Tensor = self.classifier(self.dropout(self.pool(features).flatten(1)))
        return logits


class Branches(nn.Module):
    """Layers side by side on one input; their outputs are joined along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([branch(features) for branch in self.children()], dim=1)


def _convolution(
    inputs: int, outputs: int, rows: int = 1, columns: int = 1, *, stride: int | None = None
) -> nn.Sequential:
    """Return a convolution that keeps height and width, or one with a stride, without padding."""
    padding = (rows // 2, columns // 2) if stride is None else 0
    window = rows, columns
    layers = OrderedDict[str, nn.Module](
        convolution=nn.Conv2d(inputs, outputs, window, stride or 1, padding, bias=False),
        normalisation=batch_normalisation(outputs),
        activation=nn.ReLU(),
    )
    return nn.Sequential(layers)


def _stem() -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](
        convolution_1=_convolution(3, 32, 3, 3, stride=2),
        convolution_2=_convolution(32, 32, 3, 3, stride=1),
        convolution_3=_convolution(32, 64, 3, 3),
        pool_1=nn.MaxPool2d(3, stride=2),
        convolution_4=_convolution(64, 80),
        convolution_5=_convolution(80, 192, 3, 3, stride=1),
        pool_2=nn.MaxPool2d(3, stride=2),
    )
    return nn.Sequential(layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(pool, _convolution(inputs, outputs))


def _module_of_figure_5(inputs: int, pool_channels: int) -> Branches:
    return Branches(
        point=_convolution(inputs, 64),
        five=nn.Sequential(_convolution(inputs, 48), _convolution(48, 64, 5, 5)),
        double_three=nn.Sequential(
            _convolution(inputs, 64), _convolution(64, 96, 3, 3), _convolution(96, 96, 3, 3)
        ),
        pool=_pooled(inputs, pool_channels),
    )


def _reduction_of_figure_10(inputs: int) -> Branches:
    return Branches(
        three=_convolution(inputs, 384, 3, 3, stride=2),
        double_three=nn.Sequential(
            _convolution(inputs, 64),
            _convolution(64, 96, 3, 3),
            _convolution(96, 96, 3, 3, stride=2),
        ),
        pool=nn.MaxPool2d(3, stride=2),
    )


def _module_of_figure_6(inputs: int, width: int) -> Branches:
    return Branches(
        point=_convolution(inputs, 192),
        seven=nn.Sequential(
            _convolution(inputs, width),
            _convolution(width, width, 1, 7),
            _convolution(width, 192, 7, 1),
        ),
        double_seven=nn.Sequential(
            _convolution(inputs, width),
            _convolution(width, width, 7, 1),
            _convolution(width, width, 1, 7),
            _convolution(width, width, 7, 1),
            _convolution(width, 192, 1, 7),
        ),
        pool=_pooled(inputs, 192),
    )


def _reduction_with_factorised_branch(inputs: int) -> Branches:
    return Branches(
        three=nn.Sequential(_convolution(inputs, 192), _convolution(192, 320, 3, 3, stride=2)),
        seven=nn.Sequential(
            _convolution(inputs, 192),
            _convolution(192, 192, 1, 7),
            _convolution(192, 192, 7, 1),
            _convolution(192, 192, 3, 3, stride=2),
        ),
        pool=nn.MaxPool2d(3, stride=2),
    )


def _module_of_figure_7(inputs: int) -> Branches:
    return Branches(
        point=_convolution(inputs, 320),
        three=nn.Sequential(_convolution(inputs, 384), _row_and_column()),
        double_three=nn.Sequential(
            _convolution(inputs, 448), _convolution(448, 384, 3, 3), _row_and_column()
        ),
        pool=_pooled(inputs, 192),
    )


def _row_and_column() -> Branches:
    return Branches(row=_convolution(384, 384, 1, 3), column=_convolution(384, 384, 3, 1))
