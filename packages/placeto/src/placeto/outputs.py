"""Files: each is written whole or not at all, and over an existing one only with ``force``.

msgspec writes JSON of typed values, and names the field that is wrong in a file.
"""

import io
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from placeto.errors import InputError, writing
from placeto_graphs import write_atomically

LOCK = ".lock"
Decoded = TypeVar("Decoded")


def check_file(path: Path, *, force: bool, suffixes: tuple[str, ...]) -> None:
    """Refuse a file that exists, has another suffix or cannot be made, before work is done."""
    if not path.name.endswith(suffixes):
        raise InputError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a folder")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.exists() and not force:
        raise InputError(f"{path}: exists; --force overwrites it")
    _try_to_write(path, path.parent)


def check_folder(path: Path, description: str, *patterns: str, force: bool) -> None:
    """Refuse a folder that cannot be made or written, before work is done for it.

    Without ``force`` it may only have files of an earlier command: with the file that describes
    it, or no files but hidden ones and those that match ``patterns``, which a killed one leaves.
    """
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise InputError(f"{path}: expected a folder, got a file: {existing}")
    if existing == path and not force and not (path / description).exists():
        for file in path.iterdir():
            if not any(fnmatch(file.name, pattern) for pattern in (".*", *patterns)):
                raise InputError(
                    f"{path}: exists and is not empty; --force overwrites its contents"
                )
    _try_to_write(path, existing)


def _try_to_write(path: Path, folder: Path) -> None:
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))  # the disk may be full
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Make a folder, and give it to this process alone."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(path / LOCK).acquire(timeout=0)
        except Timeout:
            raise InputError(f"{path}: another process uses it; name another folder") from None
    with lock:
        yield


def file_name(text: str, used_names: Collection[str] = ()) -> str:
    """Return a text as a part of a file's name, with a number behind it if that name is used."""
    stem = name = re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "problem"
    suffix = 1
    while name in used_names:
        suffix += 1
        name = f"{stem}-{suffix}"
    return name


def write_text(path: Path, text: str) -> None:
    """Write a text file, at once or not at all."""
    with writing(path):
        write_atomically(path, text.encode())


# What a picture would say of its making, by suffix
VARYING = {".png": "Software", ".pdf": "CreationDate", ".svg": "Date"}


class Picture(Protocol):
    """A picture that can be saved: a figure of matplotlib."""

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """Write it to a file or a buffer."""
        ...


def save_picture(figure: Picture, path: Path) -> None:
    """Write a figure as its suffix says, at once or not at all; equal figures give equal files."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], metadata={VARYING[path.suffix]: None})
    with writing(path):
        write_atomically(path, buffer.getvalue())


def json_text(value: Any, indent: int = 1) -> str:
    """Return JSON, with infinity as ``null``; on one line with an indent of 0 or, dense, below."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=indent).decode()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, at once or not at all."""
    write_text(path, json_text(value) + "\n")


def read_json(path: Path, expected: type[Decoded], writer: str) -> Decoded:
    """Return the value in a JSON file that ``writer`` writes; an error names the field."""
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
