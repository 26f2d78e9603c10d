"""ONNX files, read with the onnx library.

Its own package is kept up and only decodes; the ops are run by PyTorch's functions that do the same
(`placeto_capture.programs.onnx_ops`). Converters that write Python code from the names in a file
are left alone. Weights are not read, nor is any other file that an ONNX file may name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from placeto_capture.errors import CaptureError
from placeto_capture.programs.importing import import_library, one_line
from placeto_capture.programs.module_tree import PATH, ModuleTree
from placeto_capture.programs.onnx_nodes import DTYPES, call_of, constant
from placeto_capture.programs.program_module import ProgramModule, ProgramStep

MAX_BYTES = 2**31  # what protobuf can decode
# Inputs of ops that are running averages, not weights.
AVERAGES = {"BatchNormalization": (3, 4)}


def onnx_step(path: str | os.PathLike[str], **sizes: int) -> ProgramStep:
    """Build a training step of an ONNX file.

    Floating-point initializers that have a dimension are its parameters, on the meta device; other
    constants have their values. What ops a training runs besides, such as dropout, is not in files
    that were written for inference.

    Parameters
    ----------
    path
        The file.
    **sizes
        The dimensions that it leaves open, by their names, with underscores in place of hyphens;
        ``batch_size`` also is the first dimension of the first input.

    Raises
    ------
    CaptureError
        When it is damaged, a size is missing, or it has ops that are not known.
    OSError
        When it cannot be read.
    """
    onnx = import_library("onnx", "onnx")
    if Path(path).stat().st_size > MAX_BYTES:
        raise CaptureError(f"{path}: expected at most {MAX_BYTES} bytes")
    try:
        model = onnx.load_model_from_string(Path(path).read_bytes())
        if model.functions:
            model = import_library("onnx.inliner", "onnx").inline_local_functions(model)
    except OSError:
        raise
    except Exception as error:
        raise CaptureError(f"{path}: expected an ONNX file, got {one_line(error)}") from error
    if not model.graph.node:
        raise CaptureError(f"{path}: expected an ONNX file, got one without ops")
    try:
        return _Reader(str(path), model, sizes).step()
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"{path}: expected an ONNX model, got {one_line(error)}") from error


class _Reader:
    """Makes a module of a model."""

    def __init__(self, path: str, model: Any, sizes: Mapping[str, int]) -> None:
        self._path = path
        self._graph = model.graph
        self._versions = {entry.domain: entry.version for entry in model.opset_import}
        self._sizes = dict(sizes)
        self._used: set[str] = set()
        self._tree = ModuleTree(path)
        self._known: dict[str, Any] = {}  # names of values: constants
        self._placed: dict[str, str] = {}  # names of values: names of tensors

    def step(self) -> ProgramStep:
        self._take_initializers()
        names, inputs = self._inputs()
        calls = [
            call_of(self._path, node, self._versions, self._tree, self._known)
            for node in self._graph.node
        ]
        outputs = [(output.name, output.name) for output in self._graph.output]
        for name in self._sizes:
            if name not in self._used:
                known = ", ".join(self._open_names()) or "none"
                raise CaptureError(
                    f"{self._path}: expected sizes among those that it leaves open ({known}), "
                    f"got {name!r}"
                )
        model = ProgramModule(self._tree.root, names, self._placed, calls, outputs)
        return ProgramStep(model.train(), tuple(inputs))

    def _take_initializers(self) -> None:
        averages = {
            node.input[place]
            for node in self._graph.node
            for place in AVERAGES.get(node.op_type, ())
            if place < len(node.input)
        }
        if self._graph.sparse_initializer:
            raise CaptureError(f"{self._path}: expected no sparse initializers")
        for number, item in enumerate(self._graph.initializer):
            dtype = DTYPES.get(item.data_type)
            if dtype is None:
                raise CaptureError(f"{self._path}: {item.name}: expected a dtype of numbers")
            if not (dtype.is_floating_point and item.dims):
                self._known[item.name] = constant(self._path, item)
                continue
            weight = torch.empty(tuple(item.dims), dtype=dtype, device="meta")
            name = item.name if PATH.fullmatch(item.name) else f"initializer_{number}"
            is_average = item.name in averages
            self._tree.add_tensor(name, weight if is_average else torch.nn.Parameter(weight))
            self._placed[item.name] = name

    def _inputs(self) -> tuple[list[str], list[torch.Tensor]]:
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for value in self._graph.input:
            if value.name in self._placed or value.name in self._known:
                continue
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type") or kind.elem_type not in DTYPES:
                raise CaptureError(f"{self._path}: {value.name}: expected a tensor of numbers")
            size = [
                self._size(value.name, place, dim, first=not names and not place)
                for place, dim in enumerate(kind.shape.dim)
            ]
            names.append(value.name)
            tensors.append(torch.empty(size, dtype=DTYPES[kind.elem_type], device="meta"))
        return names, tensors

    def _size(self, name: str, place: int, dim: Any, *, first: bool) -> int:
        if not dim.dim_param:
            if dim.dim_value < 1:
                raise CaptureError(f"{self._path}: {name}: expected sizes of at least 1")
            return int(dim.dim_value)
        wanted = dim.dim_param.replace("-", "_")
        for key in (wanted, "batch_size") if first or self._is_batch(wanted) else (wanted,):
            if key in self._sizes:
                self._used.add(key)
                if self._sizes[key] < 1:
                    raise CaptureError(f"{key}: expected at least 1, got {self._sizes[key]}")
                return self._sizes[key]
        raise CaptureError(
            f"{self._path}: expected a size for dimension {place} of {name}: --set {wanted}=N"
        )

    def _is_batch(self, name: str) -> bool:
        """Whether a name is that of the first dimension of the first input."""
        first = next(iter(self._open_names()), None)
        return first == name

    def _open_names(self) -> list[str]:
        return [
            dim.dim_param.replace("-", "_")
            for value in self._graph.input
            for dim in value.type.tensor_type.shape.dim
            if dim.dim_param
        ]
