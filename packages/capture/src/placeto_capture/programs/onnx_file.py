"""ONNX files: the onnx library decodes them, and functions of PyTorch run their nodes.

Begin to read at `onnx_step`. Weights are not read, nor other files, and nothing is run as code. A
value is a tensor, or a NumPy array if it follows from constants and shapes alone; the onnx
library's reference implementation computes these arrays, which give other ops sizes and axes.
"""

import ast
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.programs.onnx_ops import OPS, Attributes
from placeto_capture.programs.onnx_shapes import SHAPES
from placeto_capture.programs.step import ProgramStep
from placeto_graphs import error_line

MAX_BYTES = 2**31  # what protobuf can decode
MAX_CONSTANT = 2**26  # elements
Places = Mapping[str, Sequence[int]]  # of each type of op some of its inputs
AVERAGES: Places = {"BatchNormalization": (3, 4)}  # running averages, not weights
SETTINGS: Places = {  # whose values an op is told, not weights
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "Pad": (2,),
    "Resize": (1, 2),
    "Upsample": (1,),
}
WEIGHTS: Places = {  # that some exporters write as constants
    **dict.fromkeys(("Conv", "ConvTranspose", "LayerNormalization", "PRelu"), (1, 2)),
    "BatchNormalization": (1, 2, 3, 4),
    "Gather": (0,),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
}
PATH = re.compile(r"\w+(\.\w+){0,99}")
# Names of numbers that ONNX and PyTorch share.
NUMBERS = "bfloat16 bool double float float16 int16 int32 int64 int8 uint8"
DTYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.DataType.Value(name.upper()): getattr(torch, name) for name in NUMBERS.split()
}
# What makes constants, or a constant of the shape of a tensor.
OF_CONSTANTS = {"Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size"}
TRANSLATED = {**OPS, **SHAPES}
NAME_SCOPES = "pkg.torch.onnx.name_scopes"


def onnx_step(path: str | os.PathLike[str], /, **sizes: int) -> ProgramStep:
    """Build a training step of an ONNX file.

    Its parameters, floating-point initializers with a dimension, are on the meta device; other
    constants have their values. Hyphens in the names of sizes are underscores.
    """
    if Path(path).stat().st_size > MAX_BYTES:
        raise CaptureError(f"{path}: expected at most {MAX_BYTES} bytes")
    content = Path(path).read_bytes()
    try:
        model = onnx.load_model_from_string(content)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:
        raise CaptureError(f"{path}: expected an ONNX file, got {error_line(error)}") from error
    if not model.graph.node:
        raise CaptureError(f"{path}: expected an ONNX file, got one without ops")
    try:
        return _step(str(path), model, sizes)
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from error
    except Exception as error:
        raise CaptureError(f"{path}: expected an ONNX model, got {error_line(error)}") from error


def _step(path: str, model: onnx.ModelProto, sizes: Mapping[str, int]) -> ProgramStep:
    graph = model.graph
    _leave_out_unread(graph)
    _take_weights_of_nodes(graph)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    module = OnnxModule([output.name for output in graph.output])
    module.take_initializers(graph)
    inputs = _inputs(graph, module, sizes)
    module.inputs = list(inputs)
    module.nodes = [_node(path, node, versions.get(node.domain, 1)) for node in graph.node]
    for node in module.nodes:
        module.scope(node.scope)
    return ProgramStep(module.train(), tuple(inputs.values()))


@dataclass(frozen=True)
class _Node:
    """A function that runs in the name of a module, and the values that it takes and gives."""

    scope: str
    function: Callable[..., Any]
    inputs: Sequence[str]
    outputs: Sequence[str]


class Scope(nn.Module):
    """A module that runs the functions that it is given."""

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class OnnxModule(nn.Module):
    """Runs the nodes of a graph in order, each in the module that it was written for."""

    def __init__(self, outputs: Sequence[str]) -> None:
        super().__init__()
        self.inputs: list[str] = []
        self.nodes: list[_Node] = []
        self.constants: dict[str, Any] = {}
        self.tensor_of_value: dict[str, str] = {}  # names of parameters and buffers
        self._outputs = list(outputs)

    def forward(self, *inputs: torch.Tensor) -> Any:
        scopes = dict(self.named_modules())
        tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values = {**self.constants, **dict(zip(self.inputs, inputs, strict=True)), "": None}
        values |= {value: tensors[name] for value, name in self.tensor_of_value.items()}
        last_use: dict[str, _Node | None] = {
            name: node for node in self.nodes for name in node.inputs
        }
        last_use.update(dict.fromkeys(["", *self._outputs]))
        for node in self.nodes:
            arguments = [values[name] for name in node.inputs]
            # What nothing reads any more is in memory no longer than in the module of the file.
            for name in set(node.inputs):
                if last_use[name] is node:
                    del values[name]
            run = partial(scopes[node.scope], node.function) if node.scope else node.function
            result = run(*arguments)
            if not isinstance(result, (list, tuple)):
                result = [result, *[None] * (len(node.outputs) - 1)]
            named = zip(node.outputs, result, strict=True)
            values.update((name, value) for name, value in named if name in last_use)
            del arguments, result
        outputs = {name: values[name] for name in self._outputs}
        if len(outputs) == 1 and "loss" not in outputs:
            return next(iter(outputs.values()))
        return outputs

    def scope(self, path: str) -> nn.Module:
        """Return the module at a path, which may be new."""
        module: nn.Module = self
        for name in path.split(".") if path else ():
            # Not setattr: a name may be that of anything that modules have.
            child = module._modules.get(name)
            module._modules[name] = module = Scope() if child is None else child
        return module

    def take_initializers(self, graph: onnx.GraphProto) -> None:
        """Take constants with their values, and weights without."""
        averages, settings = _inputs_at(graph, AVERAGES), _inputs_at(graph, SETTINGS)
        if graph.sparse_initializer:
            raise CaptureError("expected no sparse initializers")
        for index, item in enumerate(graph.initializer):
            dtype = DTYPES.get(item.data_type)
            if dtype is None:
                raise CaptureError(f"{item.name}: expected a dtype of numbers")
            if not (dtype.is_floating_point and item.dims) or item.name in settings:
                self.constants[item.name] = _constant(item)
                continue
            weight = torch.empty(tuple(item.dims), dtype=dtype, device="meta")
            name = item.name if PATH.fullmatch(item.name) else f"initializer_{index}"
            path, _, last = name.rpartition(".")
            if item.name in averages:
                self.scope(path)._buffers[last] = weight
            else:
                self.scope(path)._parameters[last] = nn.Parameter(weight)
            self.tensor_of_value[item.name] = name


def _inputs_at(graph: onnx.GraphProto, places: Places) -> set[str]:
    """Return the names of what ops have at some of their places, and at no others."""
    at_places: set[str] = set()
    elsewhere: set[str] = set()
    for node in graph.node:
        for place, name in enumerate(node.input):
            (at_places if place in places.get(node.op_type, ()) else elsewhere).add(name)
    return at_places - elsewhere


def _leave_out_unread(graph: onnx.GraphProto) -> None:
    """Leave out the names of further outputs that nothing reads, such as the mask of a dropout."""
    read = {name for node in graph.node for name in node.input}
    read.update(output.name for output in graph.output)
    for node in graph.node:
        for place, name in enumerate(node.output):
            if place and name not in read:
                node.output[place] = ""


def _take_weights_of_nodes(graph: onnx.GraphProto) -> None:
    """Let weights that are the values of nodes be initializers."""
    weights = _inputs_at(graph, WEIGHTS)
    constants = [node for node in graph.node if node.op_type == "Constant"]
    for node in constants:
        if node.output[0] in weights and node.attribute[0].name == "value":
            node.attribute[0].t.name = node.output[0]
            graph.initializer.append(node.attribute[0].t)
            graph.node.remove(node)


def _inputs(
    graph: onnx.GraphProto, module: OnnxModule, sizes: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return tensors on the meta device for the inputs, by name."""
    fixed = {*module.tensor_of_value, *module.constants}
    values = [value for value in graph.input if value.name not in fixed]
    shapes = [_open_names(value) for value in values]
    open_names = [name for names in shapes for name in names if name]
    batch = shapes[0][0] if shapes and shapes[0] else ""
    if batch and batch not in sizes and "batch_size" in sizes:
        sizes = {batch: sizes["batch_size"]} | {
            name: size for name, size in sizes.items() if name != "batch_size" or name in open_names
        }
    for name in sizes:
        if name not in open_names:
            raise CaptureError(
                f"expected sizes among those that it leaves open "
                f"({', '.join(open_names) or 'none'}), got {name!r}"
            )
    tensors: dict[str, torch.Tensor] = {}
    for value in values:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or kind.elem_type not in DTYPES:
            raise CaptureError(f"{value.name}: expected a tensor of numbers")
        if not kind.HasField("shape"):
            raise CaptureError(f"{value.name}: expected a number of dimensions; export it with one")
        shape = []
        for place, (dim, name) in enumerate(zip(kind.shape.dim, _open_names(value), strict=True)):
            size = sizes.get(name) if name else dim.dim_value
            if size is None:
                raise CaptureError(
                    f"expected a size for dimension {place} of {value.name}: --set {name}=N"
                )
            if size < 1:
                raise CaptureError(f"{value.name}: expected sizes of at least 1, got {size}")
            shape.append(size)
        tensors[value.name] = torch.empty(shape, dtype=DTYPES[kind.elem_type], device="meta")
    return tensors


def _open_names(value: onnx.ValueInfoProto) -> list[str]:
    """Return the names of the open sizes of an input, of their own or by place, else empty."""
    names = []
    for place, dim in enumerate(value.type.tensor_type.shape.dim):
        name = dim.dim_param or f"{value.name}_{place}"
        names.append("" if dim.HasField("dim_value") else re.sub(r"\W", "_", name))
    return names


def _constant(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """Return the values of a tensor that has them in itself."""
    name = tensor.name or "constant"
    if tensor.data_location == tensor.EXTERNAL:
        raise CaptureError(f"{name}: expected values in the file itself")
    if math.prod(tensor.dims) > MAX_CONSTANT:
        raise CaptureError(f"{name}: expected a smaller constant")
    return np.asarray(numpy_helper.to_array(tensor))


def _node(path: str, node: onnx.NodeProto, version: int) -> _Node:
    is_known = node.op_type in TRANSLATED or node.op_type in OF_CONSTANTS
    if node.domain not in {"", "ai.onnx"} or not is_known:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        raise CaptureError(f"expected ops on tensors that are known, got {name!r}")
    return _Node(_scope(node), _function(path, node, version), list(node.input), list(node.output))


def _function(path: str, node: onnx.NodeProto, version: int) -> Callable[..., Any]:
    op_type, serialized = node.op_type, node.SerializeToString()
    translated, node_attributes = TRANSLATED.get(op_type), _attributes(node)
    schema_attributes = onnx.defs.get_schema(op_type, version).attributes.values()
    defaults = {
        attribute.name: _value(attribute.default_value)
        for attribute in schema_attributes
        if attribute.default_value.type
    }
    attributes = Attributes(node_attributes, defaults, list(node.output), version)

    def run(*inputs: Any) -> Any:
        try:
            is_constant = not any(isinstance(value, torch.Tensor) for value in inputs)
            if op_type == "Size" and not is_constant:
                return np.asarray(inputs[0].numel(), np.int64)
            if op_type == "Shape" and not is_constant:
                axes = slice(node_attributes.get("start", 0), node_attributes.get("end"))
                return np.asarray(list(inputs[0].shape)[axes], np.int64)
            if is_constant or translated is None:
                return _computed(onnx.NodeProto.FromString(serialized), version, inputs)
            result = translated(attributes, *inputs)
            attributes.check()
        except (CaptureError, TypeError) as error:  # the latter of inputs that are not known
            raise CaptureError(f"{path}: {op_type}: {error}") from error
        return result

    return run


def _computed(node: onnx.NodeProto, version: int, inputs: tuple[Any, ...]) -> Any:
    """Return a constant that follows from constants."""
    if node.op_type == "Constant":
        return _written_constant(node.attribute[0])
    _check_size(node.op_type, inputs)
    arrays = {n: np.asarray(v) for n, v in zip(node.input, inputs, strict=True) if n}
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
    graph = helper.make_graph([node], "constants", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        outputs: Any = ReferenceEvaluator(model).run(None, arrays)
    except Exception as error:
        raise CaptureError(error_line(error)) from error
    values = iter(outputs)
    return [next(values) if name else None for name in node.output]


def _written_constant(attribute: onnx.AttributeProto) -> Any:
    if attribute.name == "value":
        return _constant(attribute.t)
    if attribute.name not in {"value_float", "value_floats", "value_int", "value_ints"}:
        raise CaptureError(f"expected numbers, got {attribute.name}")
    dtype = np.float32 if "float" in attribute.name else np.int64
    return np.asarray(helper.get_attribute_value(attribute), dtype)


def _check_size(op_type: str, inputs: tuple[Any, ...]) -> None:
    """Check that a constant does not fill the memory."""
    count: float = 0
    if op_type == "Range":
        start, limit, delta = (float(value) for value in inputs)
        count = (limit - start) / delta if delta else math.inf
    elif op_type == "Tile":
        count = inputs[0].size * math.prod(map(int, inputs[1].ravel()))
    elif op_type in {"ConstantOfShape", "Expand"}:
        count = math.prod(map(int, inputs[-1].ravel()))
    if count > MAX_CONSTANT:
        raise CaptureError(f"expected a constant of at most {MAX_CONSTANT} elements")


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    attributes = {}
    for attribute in node.attribute:
        if attribute.type in {attribute.GRAPH, attribute.GRAPHS}:
            raise CaptureError(f"{node.op_type}: expected no graph within the graph")
        if node.op_type in OF_CONSTANTS and attribute.name == "value":
            continue
        attributes[attribute.name] = _value(attribute)
    if "to" in attributes:
        if attributes["to"] not in DTYPES:
            raise CaptureError(f"{node.op_type}: expected a dtype of numbers")
        attributes["to"] = DTYPES[attributes["to"]]
    return attributes


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _scope(node: onnx.NodeProto) -> str:
    """Return the path of the module that a node was written for, as PyTorch's exporters note it."""
    segments = [segment for segment in node.name.split("/")[1:-1] if segment]
    path = segments[-1] if segments and "." in segments[-1] else ".".join(segments)
    for entry in node.metadata_props:
        if entry.key == NAME_SCOPES:
            try:
                names = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                names = None
            # The last name is the op itself.
            path = str(names[-2]) if isinstance(names, list) and len(names) > 1 else ""
    return path if PATH.fullmatch(path) else ""
