"""The header of a GGUF file: the metadata of a model, and its tensors.

It is read here, and not by the reader of the `gguf` library. That one makes objects of each word of
the vocabulary, which takes seconds and hundreds of megabytes, and it believes the counts that it
reads. The library gives the types of blocks, and their sizes.
"""

import mmap
import re
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from placeto_workloads.errors import WorkloadError
from placeto_workloads.libraries.loading import import_library
from placeto_workloads.libraries.weight_files.stored import StoredTensor, shape_text

LARGEST_HEADER = 2**26  # bytes; those of models with 256,000 words have some 16 million
LONGEST_ARRAY = 2**12  # that is kept: some have a value for each layer, others for each word
MOST_DIMENSIONS = 4
MOST_ENTRIES = 2**16  # values, and tensors
MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Types of numbers, as `struct` calls them.
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf")


class GgufHeader(NamedTuple):
    """Values by name, where long lists and lists of text are None, and tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufHeader:
    """Return what the header of a GGUF file says; of a model in several, what all of them say."""
    named = PART.fullmatch(path.name)
    if named is None:
        header = _read_part(path)
        if header.metadata.get("split.count", 1) != 1:
            raise WorkloadError(
                f"{path}: expected the name of a part of a model, such as "
                "model-00001-of-00003.gguf, so that the other parts are found beside it"
            )
        return header
    count = int(named["count"])
    tensors: dict[str, StoredTensor] = {}
    first: dict[str, Any] = {}
    for number in range(1, count + 1):
        part = path.with_name(f"{named['stem']}-{number:05}-of-{count:05}.gguf")
        header = _read_part(part)
        if header.metadata.get("split.count", count) != count:
            raise WorkloadError(f"{part}: expected one of {count} parts, as its name says")
        first = first or header.metadata
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise WorkloadError(f"{part}: expected {name} in one part of the model alone")
            tensors[name] = tensor
    return GgufHeader(first, tensors)


def _read_part(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < len(MAGIC):
                raise WorkloadError(f"{path}: expected a GGUF file, got one of {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _header(_Cursor(path, data, size))
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error


class _Cursor:
    """A place in a header, which never leaves it."""

    def __init__(self, path: Path, data: mmap.mmap, file_size: int) -> None:
        self.path = path
        self.file_size = file_size
        self.place = 0
        self._data = data
        self._end = min(file_size, LARGEST_HEADER)

    def skip(self, num_bytes: int) -> int:
        """Go on by so many bytes, and return where they begin."""
        if num_bytes > self._end - self.place:
            raise WorkloadError(
                f"{self.path}: expected a header that ends before byte {self._end:,}, but it says "
                "that it goes on; the file is damaged, or cut off"
            )
        before = self.place
        self.place += num_bytes
        return before

    def number(self, code: str) -> Any:
        """Return the next number, of a type of `struct`."""
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        """Return the next numbers, of a type of `struct`."""
        at = self.skip(count * struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self._data, at)

    def text(self) -> str:
        """Return the next text."""
        length = self.number("Q")
        at = self.skip(length)
        try:
            return self._data[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise WorkloadError(f"{self.path}: expected text at byte {at:,}, in UTF-8") from error

    def skip_texts(self, count: int) -> None:
        """Go on behind so many texts."""
        length = struct.Struct("<Q")
        place, last = self.place, self._end - length.size
        for _ in range(count):
            if place > last:
                break
            place += length.size + length.unpack_from(self._data, place)[0]
        self.skip(place - self.place)


def _header(cursor: _Cursor) -> GgufHeader:
    path = cursor.path
    magic = bytes(cursor.numbers("B", len(MAGIC)))
    if magic != MAGIC:
        raise WorkloadError(f"{path}: expected a GGUF file, got one that begins with {magic!r}")
    version = cursor.number("I")
    if version % 2**16 == 0:
        raise WorkloadError(f"{path}: expected a little-endian GGUF file, got a big-endian one")
    if version not in VERSIONS:
        raise WorkloadError(f"{path}: expected GGUF of version 2 or 3, got version {version}")
    num_tensors, num_values = cursor.numbers("Q", 2)
    if max(num_tensors, num_values) > MOST_ENTRIES:
        raise WorkloadError(
            f"{path}: expected at most {MOST_ENTRIES:,} values and tensors, got {num_values:,} and "
            f"{num_tensors:,}; the file is damaged"
        )
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        if key in metadata:
            raise WorkloadError(f"{path}: expected {key} once, got it twice")
        metadata[key] = _value(cursor, key, cursor.number("I"))
    return GgufHeader(metadata, _tensors(cursor, num_tensors))


def _value(cursor: _Cursor, key: str, kind: int) -> Any:
    if kind == STRING:
        return cursor.text()
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind])
    if kind != ARRAY:
        raise WorkloadError(f"{cursor.path}: expected a known type of {key}, got {kind}")
    element, count = cursor.number("I"), cursor.number("Q")
    if element == STRING:
        cursor.skip_texts(count)
        return None
    if element not in NUMBERS:
        raise WorkloadError(f"{cursor.path}: expected {key} of text or numbers, got type {element}")
    if count > LONGEST_ARRAY:
        cursor.skip(count * struct.calcsize(f"<{NUMBERS[element]}"))
        return None
    return list(cursor.numbers(NUMBERS[element], count))


def _tensors(cursor: _Cursor, count: int) -> dict[str, StoredTensor]:
    """Return the tensors that a header lists, each within the file."""
    path = cursor.path
    tensors: dict[str, StoredTensor] = {}
    offsets: dict[str, int] = {}
    for _ in range(count):
        name = cursor.text()
        if name in tensors:
            raise WorkloadError(f"{path}: expected {name} once, got it twice")
        num_dimensions = cursor.number("I")
        if num_dimensions > MOST_DIMENSIONS:
            raise WorkloadError(
                f"{path}: expected {name} of at most {MOST_DIMENSIONS} dimensions, "
                f"got {num_dimensions}"
            )
        sizes = cursor.numbers("Q", num_dimensions)
        kind, offsets[name] = cursor.number("I"), cursor.number("Q")
        tensors[name] = StoredTensor(sizes[::-1], _num_bytes(path, name, sizes, kind))
    for name, tensor in tensors.items():
        end = cursor.place + offsets[name] + tensor.num_bytes
        if end > cursor.file_size:
            raise WorkloadError(
                f"{path}: expected {name} within the {cursor.file_size:,} bytes of the file, but "
                f"it ends at byte {end:,} or later; the file is damaged, or cut off"
            )
    return tensors


def _num_bytes(path: Path, name: str, sizes: tuple[int, ...], kind: int) -> int:
    gguf: Any = import_library("gguf", "gguf")
    block: int
    num_bytes: int
    try:
        block, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise WorkloadError(
            f"{path}: expected a type of {name} that the gguf library knows, got {kind}; a newer "
            "gguf may know it"
        ) from None
    if not sizes or min(sizes) < 1 or sizes[0] % block:
        raise WorkloadError(
            f"{path}: expected rows of {name} in blocks of {block}, got the shape "
            f"{shape_text(sizes[::-1])}"
        )
    return prod(sizes) // block * num_bytes
