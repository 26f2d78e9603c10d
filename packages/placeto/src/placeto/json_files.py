"""JSON of typed values: msgspec writes it, and names the field that is wrong in a file."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from placeto.errors import InputError, reading
from placeto.outputs import write_text

Decoded = TypeVar("Decoded")


def json_text(value: Any, indent: int = 1) -> str:
    """Return a value as JSON, in which infinity and NaN are ``null``.

    It is on one line with an indent of 0, and without spaces with one below.
    """
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=indent).decode()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, at once or not at all."""
    write_text(path, json_text(value) + "\n")


def read_json(path: Path, expected: type[Decoded], writer: str) -> Decoded:
    """Return the value in a JSON file that ``writer`` writes; an error names the field."""
    with reading(path):
        content = path.read_bytes()
    return decode_json(content, expected, f"{path}: expected what {writer} writes")


def decode_json(content: bytes, expected: type[Decoded], problem: str) -> Decoded:
    """Return the value of a JSON text; if it has another type, the error names the field."""
    try:
        return msgspec.json.decode(content, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{problem}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} in JSON")
