"""Data sets of text: the files of Penn Treebank from disk, and sentences of a small grammar."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_workloads.errors import WorkloadError
from placeto_workloads.models.sizes import whole_number

END = "<eos>"
UNKNOWN = "<unk>"
TRAINING_FILE, VALIDATION_FILE = "ptb.train.txt", "ptb.valid.txt"


@dataclass(frozen=True, eq=False)
class TextData:
    """Text as numbers of words, for training and for validation.

    Attributes
    ----------
    name
        Of the data set.
    training, validation
        int64[words], indices of the vocabulary.
    vocabulary
        The words.

    Examples
    --------
    >>> data = grammar_text(num_sentences=200)
    >>> [data.vocabulary[word] for word in data.training[-1:]]
    ['<eos>']
    """

    name: str
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    vocabulary: tuple[str, ...]

    @property
    def digest(self) -> str:
        """What tells this text from another."""
        digest = hashlib.sha256("\n".join(self.vocabulary).encode())
        digest.update(self.training.tobytes() + self.validation.tobytes())
        return digest.hexdigest()[:32]


def penn_treebank(folder: str | os.PathLike[str]) -> TextData:
    r"""Return text of a folder with the files that Mikolov et al. (2010) made of Penn Treebank.

    Any text in files of these names will do: words between spaces, a sentence on each line. The
    vocabulary is that of the training part; other words are ``<unk>``.

    Parameters
    ----------
    folder
        Where ``ptb.train.txt`` and ``ptb.valid.txt`` lie.

    Raises
    ------
    WorkloadError
        When a file is not there, is empty or no text, or a word of the validation part is unknown
        where there is no ``<unk>``.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("ptb.train.txt").write_text("the cat sees the dog\n")
    >>> _ = Path("ptb.valid.txt").write_text("the dog sees\n")
    >>> data = penn_treebank(".")
    >>> [data.vocabulary[word] for word in data.validation]
    ['the', 'dog', 'sees', '<eos>']
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
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WorkloadError(f"{path.parent}: expected {path.name}, found none") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: expected text in UTF-8") from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
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
_ADJECTIVES = ("small", "old", "red", "loud", "kind")
_TRANSITIVE = (("sees", "see"), ("hears", "hear"), ("likes", "like"), ("follows", "follow"))
_INTRANSITIVE = (("sleeps", "sleep"), ("runs", "run"), ("waits", "wait"))
_ADVERBS = ("often", "slowly", "here")
_RELATIVE = "who"
_DEEPEST = 2  # relative clauses within each other


def grammar_text(
    *, num_sentences: int = 4_000, validation_share: float = 0.2, seed: int = 0
) -> TextData:
    """Return sentences of a grammar in which verbs agree with nouns that stand far before them.

    Parameters
    ----------
    num_sentences
        How many, at least 2.
    validation_share
        How many of them are for validation, above 0 and below 1; at least one is for either.
    seed
        Of all that is drawn.

    Raises
    ------
    WorkloadError
        When there are too few sentences, or the share is out of range.

    Examples
    --------
    >>> data = grammar_text(num_sentences=100, seed=1)
    >>> words = [data.vocabulary[word] for word in data.training]
    >>> " ".join(words[:words.index(END)])
    'that cat sees these dogs'
    """
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
    return _numbered(f"grammar, seed {seed}", training, validation, _all_words())


def _all_words() -> tuple[str, ...]:
    pairs = (*_DETERMINERS, *_NOUNS, *_TRANSITIVE, *_INTRANSITIVE)
    single = (*_ADJECTIVES, *_ADVERBS, _RELATIVE, END)
    return tuple(dict.fromkeys((*(word for pair in pairs for word in pair), *single)))


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
