"""A tensor in a file of weights, as the header of the file describes it."""

from collections.abc import Iterable
from dataclasses import dataclass


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
