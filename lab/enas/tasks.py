"""Tasks that train and reward architectures: a super-network, and data."""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from enas.data import ImageData, TextData
from enas.networks import SharedImageNetwork, SharedLanguageModel
from placeto_workloads import ConvolutionalSpace, RecurrentSpace, SearchSpace, WorkloadError
from placeto_workloads.families.search_spaces import Architecture
from placeto_workloads.models.training_step import whole_number

Description = dict[str, str | int | float]


class Task(ABC):
    """A search space with a super-network, and data to train and to evaluate it.

    Its description has values of JSON; tasks with equal ones are equal.
    """

    def __init__(self, space: SearchSpace, network: nn.Module, description: Description) -> None:
        self.space = space
        self.network = network
        self.description = description

    @abstractmethod
    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the loss of an architecture on a batch of training data, a scalar."""

    @abstractmethod
    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        """Return the rewards of architectures on one batch of validation data."""


class ImageTask(Task):
    """Convolutional cells on images; the reward is the accuracy.

    A cell has as many blocks as nodes; the other sizes are those of `enas_image_network`. A batch
    has at most as many images as the smaller part of the data. The seed is that of the weights.
    """

    def __init__(
        self,
        data: ImageData,
        *,
        num_nodes: int = 5,
        cells_per_stage: int = 1,
        filters: int = 4,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        smaller = min(len(data.training_labels), len(data.validation_labels))
        if whole_number("batch_size", batch_size) > smaller:
            raise WorkloadError(
                f"batch_size: expected at most {smaller}, the images of the smaller part of "
                f"{data.name}, got {batch_size}"
            )
        space = ConvolutionalSpace(num_nodes)
        sizes = {
            "cells_per_stage": whole_number("cells_per_stage", cells_per_stage),
            "filters": whole_number("filters", filters, minimum=2),
        }
        network = SharedImageNetwork(
            num_blocks=num_nodes, num_classes=data.num_classes, **sizes, seed=seed
        )
        described: Description = {"space": space.name, "data": data.name, "digest": data.digest}
        described |= {"num_nodes": num_nodes, **sizes, "batch_size": batch_size, "seed": seed}
        super().__init__(space, network, described)
        self.data = data
        self.batch_size = batch_size
        self._mean, self._deviation = data.moments()

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the cross-entropy of a batch of training images."""
        data = self.data
        images, labels = self._batch(data.training_images, data.training_labels, generator)
        return functional.cross_entropy(self.network(architecture, images), labels)

    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        """Return the fraction of a batch of validation images that each architecture gets right."""
        data = self.data
        images, labels = self._batch(data.validation_images, data.validation_labels, generator)
        with torch.no_grad():
            return [
                float((self.network(cells, images).argmax(dim=1) == labels).float().mean())
                for cells in architectures
            ]

    def _batch(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        chosen = generator.choice(len(labels), self.batch_size, replace=False)
        pixels = (images[chosen].astype(np.float32) - self._mean) / self._deviation
        return torch.from_numpy(pixels), torch.from_numpy(labels[chosen])


class TextTask(Task):
    """Recurrent cells on text; the reward is a constant over the perplexity.

    Every sequence begins with a state of zeros, as in `enas_language_model`, and has fewer words
    (``steps``) than the shorter part of the data. The constant, ``reward_scale``, is 80 in Pham et
    al. (2018), where perplexities are about 60. The seed is that of the weights.
    """

    def __init__(
        self,
        data: TextData,
        *,
        num_nodes: int = 12,
        units: int = 32,
        steps: int = 12,
        batch_size: int = 32,
        reward_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not (math.isfinite(reward_scale) and reward_scale > 0):
            raise WorkloadError(f"reward_scale: expected a number above 0, got {reward_scale!r}")
        shorter = min(len(data.training), len(data.validation))
        if whole_number("steps", steps) >= shorter:
            raise WorkloadError(
                f"steps: expected less than {shorter}, the words of the shorter part of "
                f"{data.name}, got {steps}"
            )
        space = RecurrentSpace(num_nodes)
        network = SharedLanguageModel(
            num_nodes=num_nodes,
            units=whole_number("units", units),
            vocabulary_size=len(data.vocabulary),
            seed=seed,
        )
        described: Description = {"space": space.name, "data": data.name, "digest": data.digest}
        described |= {"num_nodes": num_nodes, "units": units, "steps": steps}
        described |= {"batch_size": whole_number("batch_size", batch_size)}
        super().__init__(space, network, described | {"reward_scale": reward_scale, "seed": seed})
        self.data = data
        self.steps = steps
        self.batch_size = batch_size
        self.reward_scale = reward_scale

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the cross-entropy of a batch of training sequences, averaged over words."""
        loss: Tensor = self.network(architecture, self._batch(self.data.training, generator))
        return loss

    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        """Return the constant over the perplexity on a batch of validation sequences."""
        words = self._batch(self.data.validation, generator)
        with torch.no_grad():
            losses = [float(self.network(cell, words)) for cell in architectures]
        return [self.reward_scale * math.exp(-loss) for loss in losses]

    def _batch(self, text: NDArray[np.int64], generator: np.random.Generator) -> Tensor:
        starts = generator.integers(len(text) - self.steps, size=self.batch_size)
        return torch.from_numpy(text[starts[None, :] + np.arange(self.steps + 1)[:, None]])
