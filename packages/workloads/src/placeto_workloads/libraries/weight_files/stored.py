"""A model in files of weights, and a tensor there, as the header of a file describes it."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn


class StoredTensor(NamedTuple):
    """A tensor in a file: its shape, as in PyTorch, and its bytes with the scales of blocks."""

    shape: tuple[int, ...]
    num_bytes: int


class StoredModel:
    """A model in files of weights: its configuration, as in a ``config.json``, and its tensors."""

    def __init__(
        self, path: Path, config: dict[str, Any], tensors: Mapping[str, StoredTensor]
    ) -> None:
        self.path = path
        self.config = config
        self.tensors = tensors

    def parameter_bytes(self, model: nn.Module) -> Mapping[str, int]:
        """Return the bytes of each parameter of the model that is built of the configuration."""
        raise NotImplementedError

    def warn_of_others(self, others: list[str]) -> None:
        if others:
            num_bytes = sum(self.tensors[name].num_bytes for name in others)
            warnings.warn(
                f"{self.path}: {len(others)} tensors of {num_bytes:,} bytes are no parameters of "
                f"the model and count nothing, such as {others[0]}",
                stacklevel=3,
            )


def shape_text(shape: Iterable[object]) -> str:
    """Return a shape as text, such as ``4096 x 128``."""
    return " x ".join(str(size) for size in shape) or "()"
