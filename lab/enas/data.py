"""Data sets: CIFAR-10 and Penn Treebank from disk, drawn shapes, sentences of a small grammar."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_workloads import WorkloadError
from placeto_workloads.models.training_step import whole_number

CIFAR_CLASSES = 10
CIFAR_SIDE = 32
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_RECORD = 1 + 3 * CIFAR_SIDE**2  # a label, then the three channels

END = "<eos>"
UNKNOWN = "<unk>"
TRAINING_FILE, VALIDATION_FILE = "ptb.train.txt", "ptb.valid.txt"


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images, uint8[images, 3, height, width], with their classes, int64[images]."""

    name: str
    training_images: NDArray[np.uint8]
    training_labels: NDArray[np.int64]
    validation_images: NDArray[np.uint8]
    validation_labels: NDArray[np.int64]
    num_classes: int

    @property
    def digest(self) -> str:
        """Text that differs between different data."""
        training = (self.training_images.tobytes(), self.training_labels.tobytes())
        return _digest(
            *training, self.validation_images.tobytes(), self.validation_labels.tobytes()
        )

    def moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and deviation of the channels of the training images, float32[3, 1, 1]."""
        mean = self.training_images.mean(axis=(0, 2, 3), dtype=np.float64)
        deviation = self.training_images.std(axis=(0, 2, 3), dtype=np.float64)
        deviation[deviation == 0] = 1
        mean, deviation = (each.astype(np.float32)[:, None, None] for each in (mean, deviation))
        return mean, deviation


@dataclass(frozen=True, eq=False)
class TextData:
    """Text as word numbers, int64[words], which are indices into the vocabulary."""

    name: str
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    vocabulary: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Text that differs between different data."""
        words = "\n".join(self.vocabulary).encode()
        return _digest(words, self.training.tobytes(), self.validation.tobytes())


def cifar10(folder: str | os.PathLike[str], *, num_validation: int = 5_000) -> ImageData:
    """Return CIFAR-10 from its binary version (Krizhevsky 2009).

    Its version for Python is pickled, and not read.
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
    return _split("cifar10", images, labels, num_validation, CIFAR_CLASSES)


def _split(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    num_validation: int,
    num_classes: int,
) -> ImageData:
    first = len(labels) - num_validation
    return ImageData(
        name, images[:first], labels[:first], images[first:], labels[first:], num_classes
    )


def _cifar_records(path: Path) -> NDArray[np.uint8]:
    pickled = path.with_suffix("").exists()
    hint = "; the version for Python is pickled and not read" if pickled else ""
    missing = f" of the binary version of CIFAR-10{hint}"
    content = np.frombuffer(_content(path, missing), dtype=np.uint8)
    if not content.size or content.size % _RECORD:
        raise WorkloadError(f"{path}: expected a multiple of {_RECORD} bytes, got {content.size}")
    records = content.reshape(-1, _RECORD)
    largest = int(records[:, 0].max())
    if largest >= CIFAR_CLASSES:
        raise WorkloadError(f"{path}: expected labels from 0 to 9, got {largest}")
    return records


def _content(path: Path, missing: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise WorkloadError(f"{path.parent}: expected {path.name}{missing}") from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None


Mask = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


def _square(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.maximum(np.abs(x), np.abs(y)) < 0.85


# Pixels of each shape, in coordinates whose origin is its middle and whose unit is its radius.
SHAPES: dict[str, Mask] = {
    "disc": lambda x, y: np.hypot(x, y) < 1,
    "plus": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.3) & _square(x, y),
    "rows": lambda x, y: _square(x, y) & (np.abs(y) > 0.35),
    "frame": lambda x, y: _square(x, y) & ~_square(x * 1.8, y * 1.8),
    "columns": lambda x, y: _square(x, y) & (np.abs(x) > 0.35),
    "cross": lambda x, y: (np.abs(np.abs(x) - np.abs(y)) < 0.35) & _square(x, y),
    "triangle": lambda x, y: (y < 0.8) & (y > 2 * np.abs(x) - 1),
    "checks": lambda x, y: _square(x, y) & (x * y > 0),
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
    """Return images of shapes, bright on dark, of any place, size and colours, under noise."""
    count = whole_number("num_training", num_training)
    count += whole_number("num_validation", num_validation)
    side = whole_number("size", size, minimum=4)
    if whole_number("num_classes", num_classes, minimum=2) > len(SHAPES):
        raise WorkloadError(f"num_classes: expected at most {len(SHAPES)}, got {num_classes}")
    generator = np.random.default_rng(seed)
    labels = generator.integers(num_classes, size=count)
    images = np.stack([_drawn(int(label), side, generator) for label in labels])
    name = f"{num_classes} shapes of {side} pixels, seed {seed}"
    return _split(name, images, labels, num_validation, num_classes)


def _drawn(label: int, side: int, generator: np.random.Generator) -> NDArray[np.uint8]:
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


def penn_treebank(folder: str | os.PathLike[str]) -> TextData:
    r"""Return text of a folder with the files that Mikolov et al. (2010) made of Penn Treebank.

    Any text in ``ptb.train.txt`` and ``ptb.valid.txt`` will do: words between spaces, a sentence on
    each line. The vocabulary is that of the training part; other words are ``<unk>``.
    """
    training = _words_of_file(Path(folder) / TRAINING_FILE)
    validation = _words_of_file(Path(folder) / VALIDATION_FILE)
    vocabulary = tuple(dict.fromkeys(training))
    known = set(vocabulary)
    unknown = next((word for word in validation if word not in known), None)
    if unknown is not None and UNKNOWN not in known:
        raise WorkloadError(
            f"{Path(folder) / VALIDATION_FILE}: expected words of {TRAINING_FILE}, got {unknown!r}"
        )
    return _numbered("penn treebank", training, validation, vocabulary)


def _words_of_file(path: Path) -> list[str]:
    try:
        text = _content(path, ", found none").decode()
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: expected text in UTF-8") from None
    words = [word for line in text.splitlines() if line.strip() for word in (*line.split(), END)]
    if not words:
        raise WorkloadError(f"{path}: expected words, got an empty file")
    return words


def _numbered(
    name: str, training: Sequence[str], validation: Sequence[str], vocabulary: tuple[str, ...]
) -> TextData:
    numbers = {word: number for number, word in enumerate(vocabulary)}
    unknown = numbers.get(UNKNOWN, 0)

    def numbered(words: Sequence[str]) -> NDArray[np.int64]:
        return np.array([numbers.get(word, unknown) for word in words], dtype=np.int64)

    return TextData(name, numbered(training), numbered(validation), vocabulary)


# Each word in the singular and in the plural.
_DETERMINERS = (("a", "some"), ("this", "these"), ("that", "those"), ("the", "the"))
_NOUNS = tuple((noun, f"{noun}s") for noun in ("cat", "dog", "bird", "girl", "boy", "horse"))
_TRANSITIVE = (("sees", "see"), ("hears", "hear"), ("likes", "like"), ("follows", "follow"))
_INTRANSITIVE = (("sleeps", "sleep"), ("runs", "run"), ("waits", "wait"))
_ADJECTIVES = ("small", "old", "red", "loud", "kind")
_ADVERBS = ("often", "slowly", "here")
_RELATIVE = "who"
_VOCABULARY = tuple(
    dict.fromkeys(
        [
            *(word for pair in _DETERMINERS + _NOUNS for word in pair),
            *(word for pair in _TRANSITIVE + _INTRANSITIVE for word in pair),
            *(*_ADJECTIVES, *_ADVERBS, _RELATIVE, END),
        ]
    )
)
_DEEPEST = 2  # relative clauses within each other


def grammar_text(
    *, num_sentences: int = 4_000, validation_share: float = 0.2, seed: int = 0
) -> TextData:
    """Return sentences of a grammar in which verbs agree with nouns that stand far before them."""
    num_sentences = whole_number("num_sentences", num_sentences, minimum=2)
    if not 0 < validation_share < 1:
        raise WorkloadError(
            f"validation_share: expected a number between 0 and 1, got {validation_share!r}"
        )
    generator = np.random.default_rng(seed)
    sentences = [(*_clause(generator), END) for _ in range(num_sentences)]
    held = min(max(1, round(num_sentences * validation_share)), num_sentences - 1)
    training = [word for sentence in sentences[:-held] for word in sentence]
    validation = [word for sentence in sentences[-held:] for word in sentence]
    return _numbered(f"grammar, seed {seed}", training, validation, _VOCABULARY)


def _clause(generator: np.random.Generator) -> list[str]:
    plural = int(generator.integers(2))
    return _noun_phrase(generator, plural, 0) + _verb_phrase(generator, plural, 0)


def _noun_phrase(generator: np.random.Generator, plural: int, depth: int) -> list[str]:
    words = [_DETERMINERS[generator.integers(len(_DETERMINERS))][plural]]
    while generator.random() < 0.3:
        words.append(_ADJECTIVES[generator.integers(len(_ADJECTIVES))])
    words.append(_NOUNS[generator.integers(len(_NOUNS))][plural])
    if depth < _DEEPEST and generator.random() < 0.4:
        words += [_RELATIVE, *_verb_phrase(generator, plural, depth + 1)]
    return words


def _verb_phrase(generator: np.random.Generator, plural: int, depth: int) -> list[str]:
    if generator.random() < 0.5:
        verb = _TRANSITIVE[generator.integers(len(_TRANSITIVE))][plural]
        return [verb, *_noun_phrase(generator, int(generator.integers(2)), depth)]
    words = [_INTRANSITIVE[generator.integers(len(_INTRANSITIVE))][plural]]
    if generator.random() < 0.4:
        words.append(_ADVERBS[generator.integers(len(_ADVERBS))])
    return words
