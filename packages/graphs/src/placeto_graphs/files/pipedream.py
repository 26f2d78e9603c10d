"""Profiles of real models in the text format of PipeDream (Narayanan et al., SOSP 2019).

A line ``node7 -- Linear(...) -- forward_compute_time=0.3, backward_compute_time=0.6,
activation_size=4096.0, parameter_size=1024.0`` describes a layer: milliseconds and bytes;
``activation_size=[a; b]`` stands for several outputs. Where PipeDream has placed a model, a line
ends with `` -- stage_id=2``. An indented line ``node6 -- node7`` says that layer 7 reads what
layer 6 makes.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from placeto_graphs.errors import GraphError, shown, within
from placeto_graphs.files.decoding import not_utf8
from placeto_graphs.files.storage import read_bytes
from placeto_graphs.schema.arrays import INT64_MAX
from placeto_graphs.schema.op_graph import OpGraph, Phase
from placeto_graphs.topology import CycleError, topological_order

MEASURED_KIND = "v100"
_REQUIRED = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_STAGE = re.compile(r" -- stage_id=([^=]*)$")
_Op = tuple[str, str, int, float, int]  # name, type, layer, seconds, bytes of weights


@dataclass(frozen=True)
class _Layer:
    name: str
    layer_type: str
    forward_seconds: float
    backward_seconds: float
    output_bytes: tuple[int, ...]
    parameter_bytes: int
    scope: str  # the stage that PipeDream's optimizer has put it in, if it did


def load_pipedream_profile(path: str | os.PathLike[str], *, kind: str = MEASURED_KIND) -> OpGraph:
    r"""Read a PipeDream profile as the graph of one training step.

    Each layer becomes a forward op ``NAME/forward`` and a backward op ``NAME/backward``. A layer
    reads all outputs of each layer before it. The backward edges run against the forward ones and
    carry gradients of the same sizes. A backward op also reads the outputs of its forward op. The
    weights of a layer are a separate op, ``NAME/parameters``, which takes no time and which both
    other ops read. Otherwise the activations of a layer would live in the storage of its weights,
    and need no memory. The two or three ops of a layer share a device through ``colocation``.

    FLOPs and bytes accessed are 0, as the profile does not have them. The scope of an op is
    ``"stage2"`` if PipeDream's optimizer put its layer into stage 2.

    Parameters
    ----------
    path
        Profile, usually called ``graph.txt``.
    kind
        Kind of device that was measured: PipeDream's published profiles are of a V100.

    Returns
    -------
    OpGraph
        Its ops are in topological order, and ``measured_time[kind]`` has their seconds.

    Raises
    ------
    GraphError
        When the file is not such a profile.
    OSError
        When the file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> lines = [
    ...     "node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, "
    ...     "activation_size=4096.0, parameter_size=0.0",
    ...     "node2 -- Linear(8, 8) -- forward_compute_time=1.5, backward_compute_time=3.0, "
    ...     "activation_size=4096.0, parameter_size=256.0",
    ...     "\tnode1 -- node2",
    ... ]
    >>> _ = Path("graph.txt").write_text("\n".join(lines))
    >>> load_pipedream_profile("graph.txt").op_names[2:]
    ('node2/forward', 'node2/backward', 'node1/backward')
    """
    content = read_bytes(path)
    with within(f"{os.fspath(path)}: "):
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None
        return _training_graph(*_parsed(lines), kind)


def _parsed(lines: Sequence[str]) -> tuple[list[_Layer], list[tuple[int, int]]]:
    """Return the layers in topological order, and pairs of (layer, layer that reads it)."""
    layers: dict[str, _Layer] = {}
    named_edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=1):
        with within(f"line {number}: "):
            if not line.strip():
                continue
            if line[0].isspace():
                edge = _parsed_edge(line)
                if edge in named_edges:
                    raise GraphError(
                        f"expected each edge once, got {shown(line.strip())} again after line "
                        f"{named_edges[edge]}"
                    )
                named_edges[edge] = number
            else:
                layer = _parsed_layer(line)
                if layer.name in layers:
                    raise GraphError(f"expected each node once, got {shown(layer.name)} again")
                layers[layer.name] = layer
    if not layers:
        raise GraphError("expected at least one line that describes a node, got none")
    return _sorted_layers(layers, named_edges)


def _parsed_layer(line: str) -> _Layer:
    line = line.rstrip()
    stage = _STAGE.search(line)
    if stage and not re.fullmatch("[0-9]{1,9}", stage[1]):
        raise GraphError(f"stage_id: expected the number of a stage, got {shown(stage[1])}")
    name, first_dashes, rest = line[: stage.start() if stage else None].partition(" -- ")
    description, last_dashes, measures = rest.rpartition(" -- ")
    if not (first_dashes and last_dashes and name.strip() and description.strip()):
        raise GraphError(f"expected NODE -- LAYER -- MEASURES, got {shown(line)}")
    values: dict[str, str] = {}
    for measure in measures.split(", "):
        key, _, value = measure.partition("=")
        if key.strip() in values:
            raise GraphError(f"{key.strip()}: expected it once, got it again")
        values[key.strip()] = value.strip()
    unknown = [key for key in values if key not in _REQUIRED]
    if unknown:
        raise GraphError(f"expected {', '.join(_REQUIRED)}, got {shown(unknown[0])}")
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise GraphError(f"{missing[0]}: expected a value, got none in {shown(measures)}")
    return _Layer(
        name=name.strip(),
        layer_type=re.split(r"[(\s]", description.strip(), maxsplit=1)[0] or description.strip(),
        forward_seconds=_number("forward_compute_time", values["forward_compute_time"]) * 1e-3,
        backward_seconds=_number("backward_compute_time", values["backward_compute_time"]) * 1e-3,
        output_bytes=_output_bytes(values["activation_size"]),
        parameter_bytes=_whole_bytes("parameter_size", values["parameter_size"]),
        scope=f"stage{int(stage[1])}" if stage else "",
    )


def _parsed_edge(line: str) -> tuple[str, str]:
    source, dashes, destination = line.strip().partition(" -- ")
    if not (dashes and source.strip() and destination.strip()):
        raise GraphError(f"expected NODE -- NODE, got {shown(line.strip())}")
    return source.strip(), destination.strip()


def _number(key: str, text: str) -> float:
    try:
        number = float(text.replace("_", "?"))  # Python takes 1_5 for 15
    except ValueError:
        raise GraphError(f"{key}: expected a number, got {shown(text)}") from None
    if not 0 <= number < np.inf:
        raise GraphError(f"{key}: expected a finite number >= 0, got {shown(text)}")
    return number


def _output_bytes(text: str) -> tuple[int, ...]:
    if text.startswith("["):
        if not text.endswith("]"):
            raise GraphError(f"activation_size: expected [A; B; ...], got {shown(text)}")
        return tuple(_whole_bytes("activation_size", part) for part in text[1:-1].split(";"))
    return (_whole_bytes("activation_size", text),)


def _whole_bytes(key: str, text: str) -> int:
    number = _number(key, text)
    if number > INT64_MAX // 2 or number != int(number):
        raise GraphError(f"{key}: expected a whole number of bytes, got {shown(text)}")
    return int(number)


def _sorted_layers(
    layers: dict[str, _Layer], named_edges: dict[tuple[str, str], int]
) -> tuple[list[_Layer], list[tuple[int, int]]]:
    numbers = {name: number for number, name in enumerate(layers)}
    for edge, line in named_edges.items():
        for name in edge:
            if name not in numbers:
                raise GraphError(f"line {line}: expected the name of a node, got {shown(name)}")
    edges = np.array(
        [(numbers[source], numbers[destination]) for source, destination in named_edges], np.int32
    ).reshape(-1, 2)
    in_file = list(layers.values())
    try:
        order = topological_order(len(layers), edges[:, 0], edges[:, 1])
    except CycleError as error:
        names = [in_file[number].name for number in error.nodes]
        raise GraphError(f"expected no cycle, got {shown(' -> '.join(names))}") from None
    position = np.argsort(order)
    return [in_file[number] for number in order], [
        (int(source), int(destination)) for source, destination in position[edges]
    ]


def _training_graph(
    layers: Sequence[_Layer], layer_edges: Sequence[tuple[int, int]], kind: str
) -> OpGraph:
    forward: list[_Op] = []
    backward: list[_Op] = []
    for layer_number, layer in enumerate(layers):
        name, size = layer.name, layer.parameter_bytes
        if size:
            forward.append((f"{name}/parameters", "Parameters", layer_number, 0.0, size))
        kind_of_op, seconds = layer.layer_type, layer.forward_seconds
        forward.append((f"{name}/forward", kind_of_op, layer_number, seconds, 0))
        kind_of_op, seconds = f"{layer.layer_type}Backward", layer.backward_seconds
        backward.append((f"{name}/backward", kind_of_op, layer_number, seconds, 0))
    ops = forward + backward[::-1]
    op_names, op_types, layer_of_op, op_seconds, parameter_bytes = zip(*ops, strict=True)
    number = {name: op for op, name in enumerate(op_names)}
    tensors, reads = _tensors(layers, layer_edges)
    return OpGraph(
        op_names=op_names,
        op_types=op_types,
        scopes=tuple(layers[layer].scope for layer in layer_of_op),
        phases=np.repeat([Phase.FORWARD, Phase.BACKWARD], [len(forward), len(backward)]),
        parameter_bytes=np.array(parameter_bytes, np.int64),
        colocation=np.array(layer_of_op, np.int32),
        tensor_producer=np.array([number[maker] for maker, _ in tensors], np.int32),
        tensor_bytes=np.array([size for _, size in tensors], np.int64),
        edges=np.array([(tensor, number[reader]) for tensor, reader in reads], np.int32),
        measured_time={kind: np.array(op_seconds)},
    )


def _tensors(
    layers: Sequence[_Layer], layer_edges: Sequence[tuple[int, int]]
) -> tuple[list[tuple[str, int]], list[tuple[int, str]]]:
    """Return (op that makes it, bytes) of each tensor, and pairs of (tensor, op that reads it)."""
    tensors: list[tuple[str, int]] = []
    reads: list[tuple[int, str]] = []

    def send(maker: str, size: int, readers: Iterable[str]) -> None:
        reads.extend((len(tensors), reader) for reader in readers)
        tensors.append((maker, size))

    followers: list[list[str]] = [[] for _ in layers]
    for source, destination in layer_edges:
        followers[source].append(layers[destination].name)
    for layer, readers in zip(layers, followers, strict=True):
        forward, backward = f"{layer.name}/forward", f"{layer.name}/backward"
        if layer.parameter_bytes:
            send(f"{layer.name}/parameters", layer.parameter_bytes, (forward, backward))
        for size in layer.output_bytes:
            send(forward, size, [*(f"{reader}/forward" for reader in readers), backward])
            for reader in readers:
                send(f"{reader}/backward", size, [backward])
    return tensors, reads
