"""Files to write: each whole or not at all, and over an existing one only with ``force``."""

import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from placeto.errors import InputError, writing
from placeto_graphs import write_atomically


def check_file(path: Path, *, force: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that exists, or has another suffix or no folder, before work is done for it."""
    if suffixes and not path.name.endswith(suffixes):
        raise InputError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a folder")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} is not there; make it first")
    if path.exists() and not force:
        raise InputError(f"{path}: is there already; --force overwrites it")


def make_folder(path: Path, *, force: bool) -> None:
    """Make a folder for results; a folder that is not empty is an error without ``force``."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: expected a folder, got a file")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise InputError(
            f"{path}: is there already, and not empty; --force overwrites what is in it"
        )
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def file_name(text: str, taken: Collection[str] = ()) -> str:
    """Return a text as a part of a file's name, with a number behind it if that is taken."""
    stem = name = re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "problem"
    number = 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


def write_text(path: Path, text: str) -> None:
    """Write a text file, at once or not at all."""
    with writing(path):
        write_atomically(path, text.encode())


class Picture(Protocol):
    """A picture that can be saved: a figure of matplotlib."""

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """Write it to a file or a buffer."""
        ...


def save_png(figure: Picture, path: Path) -> None:
    """Write a figure as PNG, at once or not at all; equal figures give equal files."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    with writing(path):
        write_atomically(path, buffer.getvalue())
