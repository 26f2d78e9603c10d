"""What architectures are trained and judged on."""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto_experiments.enas.images import ImageData
from placeto_experiments.enas.shared_images import SharedImageNetwork
from placeto_experiments.enas.shared_text import SharedLanguageModel
from placeto_experiments.enas.texts import TextData
from placeto_workloads.errors import WorkloadError
from placeto_workloads.families.search_spaces import (
    Architecture,
    ConvolutionalSpace,
    RecurrentSpace,
    SearchSpace,
)
from placeto_workloads.models.cell_architecture import ConvolutionalArchitecture, RecurrentCell
from placeto_workloads.models.sizes import whole_number


class Task(Protocol):
    """A search space with a super-network, and data to train and to judge it.

    Attributes
    ----------
    space
        The search space.
    network
        The super-network, whose parameters are trained.
    description
        What the task is, in values of JSON; equal descriptions are equal tasks.

    Examples
    --------
    >>> from placeto_experiments.enas import grammar_text
    >>> task: Task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> task.space
    RecurrentSpace(num_nodes=2)
    """

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        ...

    @property
    def network(self) -> nn.Module:
        """The super-network."""
        ...

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """What the task is."""
        ...

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the loss of an architecture on a batch of training data, a scalar."""
        ...

    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        """Return the rewards of architectures on one batch of validation data."""
        ...


class ImageTask:
    """Convolutional cells on images; the reward is the accuracy.

    Parameters
    ----------
    data
        The images.
    num_nodes
        Blocks of a cell.
    cells_per_stage, filters
        As in `enas_image_network`.
    batch_size
        Images of a batch, in training and in validation.
    seed
        Of the weights.

    Raises
    ------
    WorkloadError
        When a size is not a whole number, or a batch is larger than one of the parts.

    Examples
    --------
    >>> from placeto_experiments.enas import shape_images
    >>> data = shape_images(num_training=16, num_validation=8, size=8)
    >>> task = ImageTask(data, num_nodes=2, filters=2, batch_size=8)
    >>> cells = task.space.uniform(np.random.default_rng(0))
    >>> task.loss(cells, np.random.default_rng(0)).shape
    torch.Size([])
    >>> 0 <= task.rewards([cells], np.random.default_rng(0))[0] <= 1
    True
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
        self.data = data
        self.space = ConvolutionalSpace(num_nodes)
        self.batch_size = whole_number("batch_size", batch_size)
        smaller = min(len(data.training_labels), len(data.validation_labels))
        if batch_size > smaller:
            raise WorkloadError(
                f"batch_size: expected at most {smaller}, the images of the smaller part of "
                f"{data.name}, got {batch_size}"
            )
        self.network = SharedImageNetwork(
            num_blocks=num_nodes,
            num_classes=data.num_classes,
            cells_per_stage=whole_number("cells_per_stage", cells_per_stage),
            filters=whole_number("filters", filters, minimum=2),
            seed=seed,
        )
        self.description: Mapping[str, str | int | float] = {
            "space": self.space.name,
            "data": data.name,
            "digest": data.digest,
            "num_nodes": num_nodes,
            "cells_per_stage": cells_per_stage,
            "filters": filters,
            "batch_size": batch_size,
            "seed": seed,
        }
        self._mean, self._deviation = data.moments()

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the cross-entropy of a batch of training images."""
        assert isinstance(architecture, ConvolutionalArchitecture)  # noqa: S101
        images, labels = self._batch(
            self.data.training_images, self.data.training_labels, generator
        )
        return functional.cross_entropy(self.network(architecture, images), labels)

    def rewards(
        self, architectures: list[Architecture], generator: np.random.Generator
    ) -> list[float]:
        """Return the share of a batch of validation images that each architecture gets right."""
        images, labels = self._batch(
            self.data.validation_images, self.data.validation_labels, generator
        )
        with torch.no_grad():
            return [
                float((self.network(cells, images).argmax(dim=1) == labels).float().mean())
                for cells in architectures
            ]

    def _batch(
        self,
        images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
        labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        generator: np.random.Generator,
    ) -> tuple[Tensor, Tensor]:
        chosen = generator.choice(len(labels), self.batch_size, replace=False)
        pixels = (images[chosen].astype(np.float32) - self._mean) / self._deviation
        return torch.from_numpy(pixels), torch.from_numpy(labels[chosen])


class TextTask:
    """Recurrent cells on text; the reward is a constant over the perplexity.

    Every sequence begins with a state of zeros, as in `enas_language_model`.

    Parameters
    ----------
    data
        The text.
    num_nodes
        Of a cell.
    units
        The length of embeddings and states.
    steps
        Words of a sequence.
    batch_size
        Sequences of a batch, in training and in validation.
    reward_scale
        The constant; 80 in Pham et al. (2018), where perplexities are about 60.
    seed
        Of the weights.

    Raises
    ------
    WorkloadError
        When a size is not a whole number, or a sequence is longer than one of the parts.

    Examples
    --------
    >>> from placeto_experiments.enas import grammar_text
    >>> task = TextTask(grammar_text(num_sentences=50), num_nodes=2, units=4, steps=3)
    >>> cell = task.space.uniform(np.random.default_rng(0))
    >>> 0 < task.rewards([cell], np.random.default_rng(0))[0] < 1
    True
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
        self.data = data
        self.space = RecurrentSpace(num_nodes)
        self.steps = whole_number("steps", steps)
        self.batch_size = whole_number("batch_size", batch_size)
        self.reward_scale = reward_scale
        if not (math.isfinite(reward_scale) and reward_scale > 0):
            raise WorkloadError(f"reward_scale: expected a number above 0, got {reward_scale!r}")
        shorter = min(len(data.training), len(data.validation))
        if steps >= shorter:
            raise WorkloadError(
                f"steps: expected less than {shorter}, the words of the shorter part of "
                f"{data.name}, got {steps}"
            )
        self.network = SharedLanguageModel(
            num_nodes=num_nodes,
            units=whole_number("units", units),
            vocabulary_size=len(data.vocabulary),
            seed=seed,
        )
        self.description: Mapping[str, str | int | float] = {
            "space": self.space.name,
            "data": data.name,
            "digest": data.digest,
            "num_nodes": num_nodes,
            "units": units,
            "steps": steps,
            "batch_size": batch_size,
            "reward_scale": reward_scale,
            "seed": seed,
        }

    def loss(self, architecture: Architecture, generator: np.random.Generator) -> Tensor:
        """Return the cross-entropy of a batch of training sequences, averaged over words."""
        assert isinstance(architecture, RecurrentCell)  # noqa: S101
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

    def _batch(
        self,
        text: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        generator: np.random.Generator,
    ) -> Tensor:
        starts = generator.integers(len(text) - self.steps, size=self.batch_size)
        return torch.from_numpy(text[starts[None, :] + np.arange(self.steps + 1)[:, None]])
