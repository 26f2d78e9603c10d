"""Profiles of real models in the text format of PipeDream (Narayanan et al., SOSP 2019).

A line ``node7 -- Linear(...) -- forward_compute_time=0.3, backward_compute_time=0.6,
activation_size=4096.0, parameter_size=1024.0`` describes a layer: milliseconds and bytes;
``activation_size=[a; b]`` stands for several outputs. Where PipeDream has placed a model, a line
ends with `` -- stage_id=2``. An indented line ``node6 -- node7`` says that layer 7 reads what
layer 6 makes.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placeto_graphs.digraphs import CycleError, topological_order
from placeto_graphs.errors import GraphError, short_repr, within
from placeto_graphs.files.storage import opened
from placeto_graphs.schema.arrays import INT64_MAX
from placeto_graphs.schema.op_graph import OpGraph, Phase

MEASURED_KIND = "v100"
_REQUIRED = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_STAGE = re.compile(r" -- stage_id=([^=]*)$")
_ITEM = re.compile(r"__getitem__\(([0-9]{1,9})\)")


@dataclass(frozen=True)
class _Layer:
    name: str
    layer_type: str
    forward_seconds: float
    backward_seconds: float
    output_bytes: tuple[int, ...]
    parameter_bytes: int
    scope: str  # the stage that PipeDream's optimizer has put it in, if it did
    item: int | None  # the one output that it reads of a layer with several

    def reads(self, output: int, outputs: int) -> bool:
        return self.item is None or self.item >= outputs or self.item == output


def load_pipedream_profile(path: str | os.PathLike[str], *, kind: str = MEASURED_KIND) -> OpGraph:
    """Read a PipeDream profile as the graph of one training step.

    Each layer becomes a forward op ``NAME/forward`` and a backward op ``NAME/backward``. A layer
    ``__getitem__(i)`` reads output i of the layer before it, and others read all outputs. The
    backward edges run against the forward ones and carry gradients of the same sizes. A backward op
    also reads the outputs of its forward op. The weights of a layer are a separate op,
    ``NAME/parameters``, which takes no time and which both other ops read. It has the memory of
    their gradient, too. The two or three ops of a layer share a device through ``colocation``.

    FLOPs and bytes accessed are 0, as the profile does not have them. The scope of an op is
    ``"stage2"`` if PipeDream's optimizer put its layer into stage 2.

    Ops are in topological order, and ``measured_time[kind]`` has their seconds. PipeDream's
    published profiles are of a V100.

    Parameters
    ----------
    path
        Name of the text file.
    kind
        Kind of the device that the profile was measured on.

    Raises
    ------
    GraphError
        When the file is not a profile; the message names the line.
    OSError
        When the file cannot be read.
    """
    with opened(path, lambda content: content.decode().splitlines()) as lines:
        return _training_graph(*_parsed(lines), kind)


def _parsed(lines: Sequence[str]) -> tuple[list[_Layer], list[tuple[int, int]]]:
    """Return the layers in topological order, and pairs of (layer, layer that reads it)."""
    layers: dict[str, _Layer] = {}
    line_of_layer: dict[str, int] = {}
    line_of_edge: dict[tuple[str, str], int] = {}
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        with within(f"line {line_number}: "):
            if line[0].isspace():
                entity, name = "edge", line.strip()
                first_line = line_of_edge.setdefault(_parsed_edge(name), line_number)
            else:
                layer = _parsed_layer(line)
                entity, name = "node", layer.name
                first_line = line_of_layer.setdefault(name, line_number)
                layers[name] = layer
            if first_line != line_number:
                raise GraphError(
                    f"expected each {entity} once, got {short_repr(name)} again after line "
                    f"{first_line}"
                )
    if not layers:
        raise GraphError("expected at least one line that describes a node, got none")
    return _sorted_layers(layers, line_of_edge)


def _parsed_layer(line: str) -> _Layer:
    line = line.rstrip()
    stage = _STAGE.search(line)
    if stage and not re.fullmatch("[0-9]{1,9}", stage[1]):
        raise GraphError(f"stage_id: expected the number of a stage, got {short_repr(stage[1])}")
    name, first_dashes, rest = line[: stage.start() if stage else None].partition(" -- ")
    description, last_dashes, measures = rest.rpartition(" -- ")
    if not (first_dashes and last_dashes and name.strip() and description.strip()):
        raise GraphError(f"expected NODE -- LAYER -- MEASURES, got {short_repr(line)}")
    values: dict[str, str] = {}
    for measure in measures.split(", "):
        key, _, value = (text.strip() for text in measure.partition("="))
        if key in values:
            raise GraphError(f"{key}: expected it once, got it again")
        if key not in _REQUIRED:
            raise GraphError(f"expected {', '.join(_REQUIRED)}, got {short_repr(key)}")
        values[key] = value
    for key in _REQUIRED:
        if key not in values:
            raise GraphError(f"{key}: expected a value, got none in {short_repr(measures)}")
    outputs = values["activation_size"]
    if outputs.startswith("[") and not outputs.endswith("]"):
        raise GraphError(f"activation_size: expected [A; B; ...], got {short_repr(outputs)}")
    sizes = outputs[1:-1].split(";") if outputs.startswith("[") else [outputs]
    item = _ITEM.fullmatch(description.strip())
    return _Layer(
        name=name.strip(),
        layer_type=re.split(r"[(\s]", description.strip(), maxsplit=1)[0] or description.strip(),
        forward_seconds=_number("forward_compute_time", values["forward_compute_time"]) * 1e-3,
        backward_seconds=_number("backward_compute_time", values["backward_compute_time"]) * 1e-3,
        output_bytes=tuple(_whole_bytes("activation_size", size) for size in sizes),
        parameter_bytes=_whole_bytes("parameter_size", values["parameter_size"]),
        scope=f"stage{int(stage[1])}" if stage else "",
        item=int(item[1]) if item else None,
    )


def _parsed_edge(text: str) -> tuple[str, str]:
    source, dashes, destination = text.partition(" -- ")
    if not (dashes and source.strip() and destination.strip()):
        raise GraphError(f"expected NODE -- NODE, got {short_repr(text)}")
    return source.strip(), destination.strip()


def _number(key: str, text: str) -> float:
    try:
        amount = float(text.replace("_", "?"))  # Python takes 1_5 for 15
    except ValueError:
        raise GraphError(f"{key}: expected a number, got {short_repr(text)}") from None
    if not 0 <= amount < np.inf:
        raise GraphError(f"{key}: expected a finite number >= 0, got {short_repr(text)}")
    return amount


def _whole_bytes(key: str, text: str) -> int:
    size = _number(key, text)
    if size > INT64_MAX // 2 or size != int(size):
        raise GraphError(f"{key}: expected a whole number of bytes, got {short_repr(text)}")
    return int(size)


def _sorted_layers(
    layers: Mapping[str, _Layer], line_of_edge: Mapping[tuple[str, str], int]
) -> tuple[list[_Layer], list[tuple[int, int]]]:
    index_of_layer = {name: index for index, name in enumerate(layers)}
    for edge, line in line_of_edge.items():
        for name in edge:
            if name not in index_of_layer:
                raise GraphError(
                    f"line {line}: expected the name of a node, got {short_repr(name)}"
                )
    edges = np.array([[index_of_layer[end] for end in edge] for edge in line_of_edge], np.int32)
    edges = edges.reshape(-1, 2)
    in_file = list(layers.values())
    try:
        order = topological_order(len(layers), *edges.T)
    except CycleError as error:
        names = [in_file[index].name for index in error.nodes]
        raise GraphError(f"expected no cycle, got {short_repr(' -> '.join(names))}") from None
    sorted_edges = np.argsort(order)[edges].tolist()
    return [in_file[index] for index in order], [(source, to) for source, to in sorted_edges]


def _training_graph(
    layers: Sequence[_Layer], layer_edges: Sequence[tuple[int, int]], kind: str
) -> OpGraph:
    ops: list[tuple[str, str, int, float, int]] = []  # name, type, layer, seconds, bytes of weights
    parameters, forward, backward = dict[int, int](), dict[int, int](), dict[int, int]()
    for index, layer in enumerate(layers):
        if layer.parameter_bytes:
            parameters[index] = len(ops)
            ops.append(
                (f"{layer.name}/parameters", "Parameters", index, 0.0, 2 * layer.parameter_bytes)
            )
        forward[index] = len(ops)
        ops.append((f"{layer.name}/forward", layer.layer_type, index, layer.forward_seconds, 0))
    for index, layer in reversed(list(enumerate(layers))):
        backward[index], type_ = len(ops), f"{layer.layer_type}Backward"
        ops.append((f"{layer.name}/backward", type_, index, layer.backward_seconds, 0))
    tensors: list[tuple[int, int]] = []  # op that makes it, bytes
    edges: list[tuple[int, int]] = []

    def send(maker: int, size: int, readers: Iterable[int]) -> None:
        edges.extend((len(tensors), reader) for reader in readers)
        tensors.append((maker, size))

    successors_of: list[list[int]] = [[] for _ in layers]
    for source, destination in layer_edges:
        successors_of[source].append(destination)
    for index, layer in enumerate(layers):
        forward_op, backward_op = forward[index], backward[index]
        if index in parameters:
            send(parameters[index], layer.parameter_bytes, [forward_op, backward_op])
        count = len(layer.output_bytes)
        for output, size in enumerate(layer.output_bytes):
            readers = [
                reader for reader in successors_of[index] if layers[reader].reads(output, count)
            ]
            send(forward_op, size, [*(forward[reader] for reader in readers), backward_op])
            for reader in readers:
                send(backward[reader], size, [backward_op])
    op_names, op_types, layer_of_op, op_seconds, parameter_bytes = zip(*ops, strict=True)
    makers, sizes = zip(*tensors, strict=True)
    is_backward = np.arange(len(ops)) >= len(ops) - len(layers)
    return OpGraph(
        op_names=op_names,
        op_types=op_types,
        scopes=tuple(layers[layer].scope for layer in layer_of_op),
        phases=np.where(is_backward, Phase.BACKWARD, Phase.FORWARD),
        parameter_bytes=np.array(parameter_bytes),
        colocation=np.array(layer_of_op),
        tensor_producer=np.array(makers),
        tensor_bytes=np.array(sizes),
        edges=np.array(edges),
        measured_time={kind: np.array(op_seconds)},
    )
