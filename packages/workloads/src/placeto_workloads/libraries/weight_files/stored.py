"""A model in files of weights, and a tensor there, as the header of a file describes it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn


class StoredModel(Protocol):
    """A model in files of weights: its configuration, and the bytes of its parameters there."""

    config: dict[str, Any]

    def parameter_bytes(self, model: nn.Module) -> Mapping[str, int]:
        """Return the bytes of each parameter of the model that is built of the configuration."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes
    ----------
    shape
        Its shape, in the order of PyTorch.
    num_bytes
        Bytes in the file, with the scales of blocks that it is quantized in.
    """

    shape: tuple[int, ...]
    num_bytes: int


def shape_text(shape: Iterable[object]) -> str:
    """Return a shape as text.

    Examples
    --------
    >>> shape_text((4096, 128)), shape_text(())
    ('4096 x 128', '()')
    """
    return " x ".join(str(size) for size in shape) or "()"
