"""What `torch.export.save` writes: the parts that say which ops run on what.

Fields that are not named here are ignored; those that are have to be as said. An argument of an op
is a mapping with one key, which says of what type it is (``{"as_int": 3}``).
"""

from typing import Any

import msgspec
import torch

Argument = dict[str, Any]

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}


class TensorMeta(msgspec.Struct):
    """A tensor without its values; sizes may be expressions, with what they were on export."""

    dtype: int
    sizes: list[dict[str, Any]]
    strides: list[dict[str, Any]]


class NamedArgument(msgspec.Struct):
    """An argument of an op; of kind 2 if by keyword."""

    name: str
    arg: Argument
    kind: int | None = None


class Node(msgspec.Struct):
    """A call of an op."""

    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, str] = {}


class Graph(msgspec.Struct):
    """Calls in the order in which they run, between inputs and outputs."""

    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[str, TensorMeta]


class Signature(msgspec.Struct):
    """What each input and output of the graph is; each is a mapping with one key."""

    input_specs: list[dict[str, dict[str, Any]]]
    output_specs: list[dict[str, dict[str, Any]]]


class ModuleCallSignature(msgspec.Struct):
    """How arguments and outputs of a module are nested, as JSON."""

    in_spec: str = ""
    out_spec: str = ""


class ModuleCall(msgspec.Struct):
    """A module within the one that was exported, or that itself."""

    fqn: str
    signature: ModuleCallSignature | None = None


class GraphModule(msgspec.Struct):
    """The graph, and what its inputs and outputs are to the module."""

    graph: Graph
    signature: Signature
    module_call_graph: list[ModuleCall] = []

    @property
    def nesting(self) -> ModuleCallSignature:
        """How the module itself is called, if that is known."""
        for call in self.module_call_graph:
            if call.fqn == "" and call.signature is not None:
                return call.signature
        return ModuleCallSignature()


class Program(msgspec.Struct):
    """The file ``models/model.json``."""

    graph_module: GraphModule


class Payload(msgspec.Struct):
    """Where the values of a tensor are."""

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class Payloads(msgspec.Struct):
    """The file ``data/weights/model_weights_config.json``, and that of constants."""

    config: dict[str, Payload]
