"""Bytes from and to disk, and what files say as typed structs.

Reading is bounded, writing is atomic, and names that end in ``.gz`` are packed. Errors name the
file, the field, the index and the value. Begin to read at `opened`.
"""

import codecs
import gzip
import json
import os
import re
import secrets
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from placeto_graphs.errors import GraphError, short_repr, within
from placeto_graphs.files.columns import column

MAX_BYTES = 2 * 1024**3
CHUNK_BYTES = 1 << 20
# Level 1 takes a third of the time of the default, and the files grow by a quarter.
GZIP_LEVEL = 1
KEY_END = re.compile(rb'"[ \t\r\n]*:')
Decoded = TypeVar("Decoded")


class Header(Struct):
    """First fields of every file of this project."""

    format: str
    version: int


Document = TypeVar("Document", bound=Header)


def read_bytes(path: str | os.PathLike[str], *, start: bool = False) -> bytearray:
    """Return the content of a file, or its start alone, unpacked if its name ends in ``.gz``.

    Reading stops, with a `GraphError`, at 2 GiB after unpacking. The byte order mark that some
    editors put before a text in UTF-8 is left out.
    """
    packed = os.fspath(path).endswith(".gz")
    content = bytearray()
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                content += chunk
                if start:
                    break
                if len(content) > MAX_BYTES:
                    raise GraphError(
                        f"{os.fspath(path)}: expected at most {MAX_BYTES} bytes"
                        f"{' after unpacking' if packed else ''}, got more"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise GraphError(f"{os.fspath(path)}: expected a whole gzip file: {error}") from None
    if content.startswith(codecs.BOM_UTF8):
        del content[: len(codecs.BOM_UTF8)]
    return content


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file at once, or leave it as it was.

    The bytes go to a temporary file in the same folder. It replaces the old file after all bytes
    are on disk. If the file cannot be written, nothing of the new content is left behind.

    Parameters
    ----------
    path
        Name of the file. One that ends in ``.gz`` packs the bytes; equal contents give equal files.
    content
        Bytes of the whole file.

    Raises
    ------
    OSError
        When the file cannot be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> write_atomically("notes.txt", b"first")
    >>> Path("notes.txt").read_bytes()
    b'first'
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    if os.fspath(path).endswith(".gz"):
        content = gzip.compress(content, GZIP_LEVEL, mtime=0)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def opened(
    path: str | os.PathLike[str], parse: Callable[[bytearray], Any], language: str = ""
) -> Iterator[Any]:
    """Give what a file says in a language; errors until the end of the block name the file."""
    content = read_bytes(path)
    with within(f"{os.fspath(path)}: "):
        try:
            data = parse(content)
        except GraphError:
            raise
        except UnicodeDecodeError as error:
            raise GraphError(
                f"expected text in UTF-8: byte {error.start}: {error.reason}"
            ) from None
        except ValueError as error:  # also of numbers with more digits than Python takes
            raise GraphError(f"expected {language}: {error}") from None
        except RecursionError:
            raise GraphError("expected fewer levels of brackets") from None
        yield data


def opened_json(path: str | os.PathLike[str]) -> Any:
    """Open a JSON file, in whose objects each key stands once."""
    return opened(path, _parsed_json, "JSON")


def opened_toml(path: str | os.PathLike[str]) -> Any:
    """Open a TOML file."""
    return opened(path, lambda content: tomllib.loads(content.decode()), "TOML")


@contextmanager
def opened_document(
    path: str | os.PathLike[str], expected: type[Document], name: str, version: int
) -> Iterator[Document]:
    """Open a JSON file of a format and a version as a struct.

    A sound one is decoded at once, column by column. Others are read again, to name the fault.
    """

    def document(content: bytearray) -> Document:
        with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            struct = msgspec.json.decode(content, type=expected, dec_hook=column)
            is_of_format = struct.format == name and struct.version == version
            if is_of_format and _has_keys_once(content, struct):
                return struct
        return checked(_parsed_json(content), expected, name, version)

    with opened(path, document, "JSON") as struct:
        yield struct


def checked(data: Any, expected: type[Decoded], name: str, version: int) -> Decoded:
    """Convert data of a format and a version; refuse those of others."""
    header = convert(data, Header)
    if header.format != name:
        raise GraphError(f"format: expected {name!r}, got {short_repr(header.format)}")
    if header.version != version:
        raise GraphError(f"version: expected {version}, got {short_repr(header.version)}")
    return convert(data, expected)


def convert(data: Any, expected: type[Decoded]) -> Decoded:
    """Convert data into a struct, or raise a `GraphError` that says what is wrong."""
    try:
        return msgspec.convert(data, type=expected, dec_hook=column)
    except msgspec.ValidationError as error:
        message, *places = str(error).split(" - at `$")  # in a column, and where that is
        path = "".join(place.rstrip("`") for place in reversed(places))
    except UnicodeEncodeError as error:  # "\ud800" in JSON
        raise GraphError(
            f"expected text that UTF-8 can hold, got {short_repr(error.object)}"
        ) from None
    value = _value_at(data, path)
    field = f"{path.removeprefix('.')}: " if path else ""
    ending = "" if isinstance(value, dict | list) else f" ({short_repr(value)})"
    raise GraphError(f"{field}{message[0].lower()}{message[1:].replace('`', '')}{ending}")


def _parsed_json(content: bytearray) -> Any:
    """Return what a JSON file says. If msgspec finds a fault or a key twice, Python names it."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        data = msgspec.json.decode(content)
        if _has_keys_once(content, data):
            return data
    text = content.decode()
    return json.loads(text, object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)


def _has_keys_once(content: bytearray, data: Any) -> bool:
    """Return whether a file certainly has each key of an object once, as what it says has it."""
    num_keys = _num_keys(data)  # texts may have more of what follows a key
    return num_keys == content.count(b":") or num_keys == len(KEY_END.findall(content))


def _num_keys(data: Any) -> int:
    """Return the number of keys in a value; fewer where a list begins with no list or object."""
    if isinstance(data, Struct):
        data = {name: value for name, value in asdict(data).items() if value is not None}
    if isinstance(data, dict):
        return len(data) + sum(map(_num_keys, data.values()))
    is_nested = isinstance(data, list) and data and isinstance(data[0], dict | list | Struct)
    return sum(map(_num_keys, data)) if is_nested else 0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, of whose repeated keys Python would take the last one."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise GraphError(
                f"{short_repr(key)}: expected each key of an object once, got it again"
            )
        members[key] = value
    return members


def _finite(literal: str) -> float:
    if not abs(value := float(literal)) < float("inf"):
        raise ValueError(f"{literal} is no finite number")
    return value


def _value_at(data: Any, path: str) -> Any:
    """Follow a path such as ``.graph.flops[3]``; a whole container where it leads nowhere."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            data = data[name or int(index)]
        except (KeyError, IndexError, TypeError):
            return {}
    return data
