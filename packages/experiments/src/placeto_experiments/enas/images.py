"""Data sets of images: CIFAR-10 from disk, and shapes that are drawn here."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.sizes import whole_number

CIFAR_CLASSES = 10
CIFAR_SIDE = 32
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_RECORD = 1 + 3 * CIFAR_SIDE**2  # a label, then the three channels

Mask = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images with their classes, for training and for validation.

    Attributes
    ----------
    name
        Of the data set.
    training_images, validation_images
        uint8[images, 3, height, width].
    training_labels, validation_labels
        int64[images].
    num_classes
        How many classes there are.

    Examples
    --------
    >>> shape_images(num_training=20, num_validation=10, size=12).training_images.shape
    (20, 3, 12, 12)
    """

    name: str
    training_images: NDArray[np.uint8]
    training_labels: NDArray[np.int64]
    validation_images: NDArray[np.uint8]
    validation_labels: NDArray[np.int64]
    num_classes: int

    @property
    def digest(self) -> str:
        """What tells these images from others."""
        digest = hashlib.sha256()
        for part in (
            *(self.training_images, self.training_labels),
            *(self.validation_images, self.validation_labels),
        ):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:32]

    def moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and standard deviation of each channel of the training images.

        Both are float32[3, 1, 1]; a channel that is the same everywhere has deviation 1.
        """
        mean = self.training_images.mean(axis=(0, 2, 3), dtype=np.float64)
        deviation = self.training_images.std(axis=(0, 2, 3), dtype=np.float64)
        deviation[deviation == 0] = 1
        return (
            mean.astype(np.float32)[:, None, None],
            deviation.astype(np.float32)[:, None, None],
        )


def cifar10(folder: str | os.PathLike[str], *, num_validation: int = 5_000) -> ImageData:
    """Return CIFAR-10 from its binary version (Krizhevsky 2009).

    Its version for Python is pickled, and not read.

    Parameters
    ----------
    folder
        Where ``data_batch_1.bin`` to ``data_batch_5.bin`` lie, or ``cifar-10-batches-bin``.
    num_validation
        How many of the last images are for validation; 5,000 in Pham et al. (2018).

    Raises
    ------
    WorkloadError
        When a file is not there, or is not what it is said to be.

    Examples
    --------
    >>> cifar10("no-such-folder")
    Traceback (most recent call last):
    ...
    placeto_workloads.errors.WorkloadError: no-such-folder: expected data_batch_1.bin of ...
    """
    inner = Path(folder) / CIFAR_FOLDER
    place = inner if inner.is_dir() else Path(folder)
    records = np.concatenate([_cifar_records(place / name) for name in CIFAR_FILES])
    num_validation = whole_number("num_validation", num_validation)
    if num_validation >= len(records):
        raise WorkloadError(
            f"num_validation: expected less than {len(records)}, got {num_validation}"
        )
    labels = records[:, 0].astype(np.int64)
    images = records[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
    return ImageData(
        "cifar10",
        images[:-num_validation],
        labels[:-num_validation],
        images[-num_validation:],
        labels[-num_validation:],
        CIFAR_CLASSES,
    )


def _cifar_records(path: Path) -> NDArray[np.uint8]:
    try:
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except FileNotFoundError:
        pickled = path.with_suffix("").exists()
        hint = "; the version for Python is pickled and not read" if pickled else ""
        raise WorkloadError(
            f"{path.parent}: expected {path.name} of the binary version of CIFAR-10{hint}"
        ) from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    if not content.size or content.size % _RECORD:
        raise WorkloadError(f"{path}: expected a multiple of {_RECORD} bytes, got {content.size}")
    records = content.reshape(-1, _RECORD)
    largest = int(records[:, 0].max())
    if largest >= CIFAR_CLASSES:
        raise WorkloadError(f"{path}: expected labels from 0 to 9, got {largest}")
    return records


def _triangle(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (y < 0.8) & (y > 2 * np.abs(x) - 1)


def _square(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.maximum(np.abs(x), np.abs(y)) < 0.85


def _checks(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    return _square(x, y) & (x * y > 0)


# Where the shape is, for coordinates whose origin is its middle and whose unit is its radius.
SHAPES: dict[str, Mask] = {
    "disc": lambda x, y: np.hypot(x, y) < 1,
    "plus": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.3) & _square(x, y),
    "rows": lambda x, y: _square(x, y) & (np.abs(y) > 0.35),
    "frame": lambda x, y: _square(x, y) & ~_square(x * 1.8, y * 1.8),
    "columns": lambda x, y: _square(x, y) & (np.abs(x) > 0.35),
    "cross": lambda x, y: (np.abs(np.abs(x) - np.abs(y)) < 0.35) & _square(x, y),
    "triangle": _triangle,
    "checks": _checks,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) < 0.25,
    "square": _square,
}


def shape_images(
    *,
    num_training: int = 4_000,
    num_validation: int = 1_000,
    num_classes: int = 4,
    size: int = 10,
    seed: int = 0,
) -> ImageData:
    """Return images of shapes, bright on dark, of any place, size and colours, under noise.

    Parameters
    ----------
    num_training, num_validation
        How many images.
    num_classes
        How many of the ten `SHAPES`, in their order; at least 2.
    size
        Their height and width, in pixels; at least 4.
    seed
        Of all that is drawn.

    Raises
    ------
    WorkloadError
        When a number is not a whole one, or there are not as many shapes.

    Examples
    --------
    >>> data = shape_images(num_training=20, num_validation=10)
    >>> data.num_classes, data.validation_labels.shape
    (4, (10,))
    """
    num_training = whole_number("num_training", num_training)
    num_validation = whole_number("num_validation", num_validation)
    side = whole_number("size", size, minimum=4)
    if whole_number("num_classes", num_classes, minimum=2) > len(SHAPES):
        raise WorkloadError(f"num_classes: expected at most {len(SHAPES)}, got {num_classes}")
    generator = np.random.default_rng(seed)
    count = num_training + num_validation
    labels = generator.integers(num_classes, size=count)
    images = np.stack([_drawn(int(label), side, generator) for label in labels])
    return ImageData(
        f"{num_classes} shapes of {side} pixels, seed {seed}",
        images[:num_training],
        labels[:num_training],
        images[num_training:],
        labels[num_training:],
        num_classes,
    )


def _drawn(label: int, side: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return one image, uint8[3, side, side]."""
    radius = generator.uniform(0.38, 0.46) * side
    middle = generator.uniform(radius, side - radius, size=2)
    rows, columns = np.mgrid[:side, :side] + 0.5
    mask = tuple(SHAPES.values())[label](
        (columns - middle[0]) / radius, (rows - middle[1]) / radius
    )
    background = generator.uniform(0, 90, size=3)
    foreground = generator.uniform(150, 255, size=3)
    pixels = np.where(mask, foreground[:, None, None], background[:, None, None])
    noise = generator.normal(0, 10, size=pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)
