"""Reads the archive of an exported program, without what would be unpickled."""

import math
import os
import zipfile
from collections.abc import Container
from typing import TypeVar

import msgspec
import torch

from placeto_capture.errors import CaptureError
from placeto_capture.programs.exported_schema import (
    DTYPES,
    Payload,
    Payloads,
    Program,
    TensorMeta,
)

MAX_BYTES = 2**28  # of a description; values of buffers are smaller, too
Decoded = TypeVar("Decoded")


class ProgramArchive:
    """An archive that `torch.export.save` wrote.

    Parameters
    ----------
    path
        Where it is.

    Attributes
    ----------
    program : `Program`
        What it computes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
            raise CaptureError(f"{path}: expected an exported program, got {error}") from error
        self._members = {name.partition("/")[2]: name for name in self._archive.namelist()}
        models = [name for name in self._members if _is_model(name)]
        if len(models) != 1:
            raise CaptureError(
                f"{path}: expected an archive of torch.export.save with one model in models/, "
                f"got {len(models)}"
            )
        self._name = models[0].removeprefix("models/").removesuffix(".json")
        self.program = self._decoded(models[0], Program)

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def values(self, names: Container[str]) -> dict[str, torch.Tensor]:
        """Return those of some tensors that are stored as plain numbers, by name."""
        found = {}
        for folder in ("weights", "constants"):
            config = f"data/{folder}/{self._name}_{folder}_config.json"
            if config not in self._members:
                continue
            for name, payload in self._decoded(config, Payloads).config.items():
                if name not in names:
                    continue
                tensor = self._tensor(f"data/{folder}/{payload.path_name}", payload)
                if tensor is not None:
                    found[name] = tensor
        return found

    def _tensor(self, member: str, payload: Payload) -> torch.Tensor | None:
        """Return the values of a tensor; None where they are pickled, large, or not there."""
        meta = payload.tensor_meta
        if payload.use_pickle or meta is None or member not in self._members:
            return None
        dtype, size, stride = (
            dtype_of(self.path, meta),
            sizes_of(meta.sizes),
            sizes_of(meta.strides),
        )
        item = torch.empty(0, dtype=dtype).element_size()
        if min(size, default=1) < 1 or math.prod(size) * item > MAX_BYTES:
            return None
        values = self._read(member)
        if any(step < 0 for step in stride) or len(size) != len(stride):
            return None
        needed = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if len(values) < needed * item or len(values) % item:
            raise CaptureError(
                f"{self.path}: {member}: expected {needed * item} bytes, got {len(values)}"
            )
        return torch.frombuffer(bytearray(values), dtype=dtype).as_strided(size, stride).clone()

    def _decoded(self, member: str, kind: type[Decoded]) -> Decoded:
        try:
            return msgspec.json.decode(self._read(member), type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CaptureError(f"{self.path}: {member}: {error}") from error

    def _read(self, member: str) -> bytes:
        try:
            with self._archive.open(self._members[member]) as file:
                content = file.read(MAX_BYTES + 1)
        except (
            zipfile.BadZipFile,
            EOFError,
            NotImplementedError,
            OSError,  # a damaged directory may point before the beginning of the file
            RuntimeError,
            ValueError,
        ) as error:
            raise CaptureError(f"{self.path}: {member}: {error}") from error
        if len(content) > MAX_BYTES:
            raise CaptureError(f"{self.path}: {member}: expected at most {MAX_BYTES} bytes")
        return content


def dtype_of(path: str | os.PathLike[str], meta: TensorMeta) -> torch.dtype:
    """Return the dtype of a tensor."""
    if meta.dtype not in DTYPES:
        raise CaptureError(f"{path}: expected a known dtype, got {meta.dtype}")
    return DTYPES[meta.dtype]


def sizes_of(sizes: list[dict[str, object]]) -> list[int]:
    """Return sizes or strides; -1 for one that no number is known of."""
    return [_number(size) for size in sizes]


def _number(size: dict[str, object]) -> int:
    value = size.get("as_int")
    expression = size.get("as_expr")
    if value is None and isinstance(expression, dict):
        hint = expression.get("hint")
        value = hint.get("as_int") if isinstance(hint, dict) else None
    return value if isinstance(value, int) else -1


def _is_model(name: str) -> bool:
    return name.startswith("models/") and name.endswith(".json") and name.count("/") == 1
