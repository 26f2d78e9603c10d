"""From the nodes of an ONNX graph to calls of functions on tensors.

A value is a tensor, or a NumPy array where it follows from constants and shapes alone: those are
computed by the reference implementation of the onnx library, and tell other ops sizes and axes.
"""

import ast
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from placeto_capture.errors import CaptureError
from placeto_capture.programs.importing import one_line
from placeto_capture.programs.module_tree import ModuleTree, Scope
from placeto_capture.programs.onnx_layers import LAYERS
from placeto_capture.programs.onnx_ops import OPS
from placeto_capture.programs.onnx_shapes import SHAPES
from placeto_capture.programs.program_module import Call, Value

MAX_CONSTANT = 2**26  # elements
# The numbers of TensorProto.DataType.
DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
TRANSLATED = {**OPS, **LAYERS, **SHAPES}
# What makes constants, or a constant of the shape of a tensor.
OF_CONSTANTS = {"Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size"}
DOMAINS = ("", "ai.onnx")
NAME_SCOPES = "pkg.torch.onnx.name_scopes"


def constant(owner: str, tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values of a TensorProto that has them in itself."""
    if tensor.data_location == tensor.EXTERNAL:
        raise CaptureError(
            f"{owner}: {tensor.name or 'constant'}: expected values in the file itself"
        )
    if math.prod(tensor.dims) > MAX_CONSTANT:
        raise CaptureError(f"{owner}: {tensor.name or 'constant'}: expected a smaller constant")
    helper = importlib.import_module("onnx.numpy_helper")
    return np.asarray(helper.to_array(tensor))


def call_of(
    owner: str,
    node: Any,
    versions: Mapping[str, int],
    tree: ModuleTree,
    known: Mapping[str, Any],
) -> Call:
    """Return the call of a node.

    Parameters
    ----------
    owner
        The file, for error messages.
    node
        A NodeProto.
    versions
        Of the sets of ops, by domain.
    tree
        In whose modules it runs.
    known
        Constants by name.

    Raises
    ------
    CaptureError
        When the op is not known.
    """
    if node.domain not in DOMAINS or node.op_type not in {*TRANSLATED, *OF_CONSTANTS}:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        raise CaptureError(f"{owner}: expected ops on tensors that are known, got {name!r}")
    arguments = [None if not name else known.get(name, Value(name)) for name in node.input]
    return Call(
        _scope(node, tree),
        _function(owner, node, versions.get(node.domain, 1)),
        tuple(arguments),
        {},
        list(node.output) if len(node.output) > 1 else [node.output[0]],
    )


def _function(owner: str, node: Any, version: int) -> Callable[..., Any]:
    attributes = _attributes(owner, node)
    translated = TRANSLATED.get(node.op_type)
    serialized = node.SerializeToString()
    outputs = len(node.output)

    def run(*inputs: Any) -> Any:
        try:
            if node_type in {"Shape", "Size"} and isinstance(inputs[0], torch.Tensor):
                return _shape(node_type, inputs[0], attributes)
            if not any(isinstance(value, torch.Tensor) for value in inputs):
                return _folded(serialized, node_type, version, inputs, outputs)
            assert translated is not None  # noqa: S101 (constants have no tensors)
            return translated(list(inputs), {**attributes, "version": version, "outputs": outputs})
        except CaptureError as error:
            raise CaptureError(f"{owner}: {node_type}: {error}") from error

    node_type = node.op_type
    return run


def _folded(
    serialized: bytes, node_type: str, version: int, inputs: tuple[Any, ...], outputs: int
) -> Any:
    """Compute a constant of constants."""
    if node_type in {"ConstantOfShape", "Expand", "Range", "Tile"}:
        _check_size(node_type, inputs)
    onnx = importlib.import_module("onnx")
    node = onnx.NodeProto.FromString(serialized)
    if node_type == "Constant":
        return _constant_of(node)
    names = list(node.input)
    helper = onnx.helper
    given = {name: value for name, value in zip(names, inputs, strict=True) if name}
    graph = helper.make_graph(
        [node],
        "constants",
        [helper.make_tensor_value_info(n, _onnx_type(v), v.shape) for n, v in given.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        found = importlib.import_module("onnx.reference").ReferenceEvaluator(model).run(None, given)
    except Exception as error:
        raise CaptureError(one_line(error)) from error
    return found[0] if outputs == 1 else found


def _constant_of(node: Any) -> Any:
    attribute = node.attribute[0]
    if attribute.name == "value":
        return constant("Constant", attribute.t)
    helper = importlib.import_module("onnx.helper")
    value = helper.get_attribute_value(attribute)
    if attribute.name not in {"value_float", "value_floats", "value_int", "value_ints"}:
        raise CaptureError(f"expected numbers, got {attribute.name}")
    return np.asarray(value, np.float32 if "float" in attribute.name else np.int64)


def _check_size(node_type: str, inputs: tuple[Any, ...]) -> None:
    if node_type == "Range":
        start, limit, delta = (float(value) for value in inputs)
        count = (limit - start) / delta if delta else math.inf
    elif node_type == "Tile":
        count = inputs[0].size * math.prod(map(int, inputs[1].ravel()))
    else:
        count = math.prod(map(int, inputs[-1].ravel()))
    if count > MAX_CONSTANT:
        raise CaptureError(f"expected a constant of at most {MAX_CONSTANT} elements")


def _onnx_type(value: Any) -> int:
    helper = importlib.import_module("onnx.helper")
    return int(helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype))


def _shape(node_type: str, tensor: torch.Tensor, attributes: Mapping[str, Any]) -> Any:
    if node_type == "Size":
        return np.asarray(tensor.numel(), np.int64)
    sizes = list(tensor.shape)[attributes.get("start", 0) : attributes.get("end")]
    return np.asarray(sizes, np.int64)


def _attributes(owner: str, node: Any) -> dict[str, Any]:
    helper = importlib.import_module("onnx.helper")
    found = {}
    for attribute in node.attribute:
        if attribute.type in {attribute.GRAPH, attribute.GRAPHS}:
            raise CaptureError(f"{owner}: {node.op_type}: expected no graph within the graph")
        if node.op_type in OF_CONSTANTS and attribute.name == "value":
            continue
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    if "to" in found:
        if found["to"] not in DTYPES:
            raise CaptureError(f"{owner}: {node.op_type}: expected a dtype of numbers")
        found["to"] = DTYPES[found["to"]]
    return found


def _scope(node: Any, tree: ModuleTree) -> Scope:
    """Return the module that a node was written for, as the exporters of PyTorch note it."""
    for entry in node.metadata_props:
        if entry.key == NAME_SCOPES:
            return tree.module(_last_scope(entry.value))
    parts = [part for part in node.name.split("/")[1:-1] if part]
    return tree.module(parts[-1] if parts and "." in parts[-1] else ".".join(parts))


def _last_scope(text: str) -> str:
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not (isinstance(names, list) and len(names) > 1):
        return ""
    return str(names[-2])  # the last one is the op itself
