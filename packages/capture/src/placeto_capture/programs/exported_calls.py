"""From the nodes of an exported graph to calls of ops."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from placeto_capture.errors import CaptureError
from placeto_capture.programs.exported_ops import op_named
from placeto_capture.programs.exported_schema import DTYPES, MEMORY_FORMATS, Argument, Graph, Node
from placeto_capture.programs.module_tree import ModuleTree
from placeto_capture.programs.program_module import Call, Value

HIGHER_ORDER = "torch.ops.higher_order."
# Ops that run a part of the graph as it is: how many arguments stand before that part.
WRAPPERS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
PLAIN = {
    "as_bool": bool,
    "as_bools": list[bool],
    "as_float": float,
    "as_float_lists": list[list[float]],
    "as_floats": list[float],
    "as_int": int,
    "as_int_lists": list[list[int]],
    "as_ints": list[int],
    "as_string": str,
    "as_strings": list[str],
}
SYMBOLS = ("as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool")
LISTS = ("as_optional_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools")
OF_ROOT = re.compile(r"""^L(\['self'\]|__self__)?\.?(_modules)?""")
DEEPEST = 20


def calls_of(owner: str, graph: Graph, tree: ModuleTree, depth: int = 0) -> list[Call]:
    """Return the calls of a graph.

    Parameters
    ----------
    owner
        What the graph comes from, for error messages.
    graph
        The graph.
    tree
        In whose modules they run.
    depth
        In how many other graphs this one is.

    Raises
    ------
    CaptureError
        When a node is no op of ATen, or has an argument that is neither tensor nor number.
    """
    if depth > DEEPEST:
        raise CaptureError(f"{owner}: expected at most {DEEPEST} graphs within each other")
    calls: list[Call] = []
    for node in graph.nodes:
        if node.target.startswith(HIGHER_ORDER):
            calls += _wrapped(owner, node, tree, depth)
            continue
        op = op_named(owner, node.target)
        if op is not None:
            calls.append(_call(owner, node, op, tree))
    return calls


def _call(owner: str, node: Node, op: Callable[..., Any], tree: ModuleTree) -> Call:
    place = f"{owner}: {node.target}"
    positional = tuple(_value(place, item.arg) for item in node.inputs if item.kind != 2)
    named = {item.name: _value(place, item.arg) for item in node.inputs if item.kind == 2}
    if isinstance(op, torch._ops.OpOverload) and any(item.kind is None for item in node.inputs):
        positional, named = (), {item.name: _value(place, item.arg) for item in node.inputs}
    return Call(
        tree.module(scope_of(node.metadata.get("nn_module_stack", ""))),
        op,
        positional,
        named,
        _results(place, node.outputs),
    )


def _wrapped(owner: str, node: Node, tree: ModuleTree, depth: int) -> list[Call]:
    """Return the calls of a graph within a graph, with what it is given and gives renamed."""
    before = WRAPPERS.get(node.target.removeprefix(HIGHER_ORDER))
    if before is None:
        raise CaptureError(f"{owner}: expected an op of ATen, got {node.target!r}")
    _, inner = _only(owner, node.inputs[before].arg, "as_graph")
    graph = msgspec.convert(inner["graph"], Graph)
    given = [_value(owner, item.arg) for item in node.inputs[before + 1 :]]
    takes = [_name(_value(owner, argument)) for argument in graph.inputs]
    gives = [_value(owner, argument) for argument in graph.outputs]
    wanted = _results(owner, node.outputs)
    names = wanted[0] if len(wanted) == 1 and isinstance(wanted[0], list) else wanted
    rename = Call(tree.root, _as_they_are, tuple(given), {}, [takes])
    back = Call(tree.root, _as_they_are, tuple(gives), {}, [list(names)])
    enabled = True
    if before == 1:
        enabled = bool(_value(owner, node.inputs[0].arg))
    inside = calls_of(owner, graph, tree, depth + 1)
    return [rename, *(call.with_gradients(enabled) for call in inside), back]


def _as_they_are(*values: Any) -> list[Any]:
    return list(values)


def scope_of(stack: str) -> str:
    """Return the path of the innermost module of a stack as exported programs write it.

    Examples
    --------
    >>> scope_of("L__self__,,torch.nn.Sequential;L__self___0,0,torch.nn.Linear")
    '0'
    """
    last = stack.rpartition(";")[2]
    path = last.partition(",")[2].rpartition(",")[0]
    return re.sub(r"@\d+", "", OF_ROOT.sub("", path)).strip(".")


def _value(owner: str, argument: Argument) -> Any:
    """Return an argument: a plain value, or `Value` for what the program computes."""
    ((kind, value),) = argument.items()
    if kind in PLAIN:
        return msgspec.convert(value, PLAIN[kind])
    if kind in READERS:
        return READERS[kind](value)
    if kind in LISTS:
        return [_symbol(owner, item) for item in value]
    if kind in SYMBOLS:
        return _symbol(owner, value)
    raise CaptureError(f"{owner}: expected arguments that are tensors or numbers, got {kind}")


def _nested(item: Any) -> Any:
    return [_nested(part) for part in item] if isinstance(item, list) else Value(str(item["name"]))


def _symbol(owner: str, item: Argument) -> Any:
    return Value(str(item["as_name"])) if "as_name" in item else _value(owner, item)


def _results(owner: str, outputs: list[Argument]) -> list[Any]:
    """Return the names of results; a list for an op that gives a list, "" for none."""
    return [_names(_value(owner, output)) for output in outputs]


def _names(value: Any) -> Any:
    return [_name(item) for item in value] if isinstance(value, list) else _name(value)


def _name(value: Any) -> str:
    return value.name if isinstance(value, Value) else ""


def _only(owner: str, argument: Argument, wanted: str) -> tuple[str, Any]:
    ((kind, value),) = argument.items()
    if kind != wanted:
        raise CaptureError(f"{owner}: expected {wanted}, got {kind}")
    return kind, value


READERS: dict[str, Callable[[Any], Any]] = {
    "as_none": lambda _: None,
    "as_tensor": _nested,
    "as_tensors": _nested,
    "as_nested_tensors": _nested,
    "as_scalar_type": lambda value: DTYPES[value],
    "as_memory_format": lambda value: MEMORY_FORMATS[value],
    "as_layout": lambda _: torch.strided,
    "as_device": lambda _: torch.device("cpu"),  # all is captured as on one device
    "as_complex": lambda value: complex(value["real"], value["imag"]),
}
