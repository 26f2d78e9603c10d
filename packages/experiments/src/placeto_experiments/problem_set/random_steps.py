"""Random training steps: graphs that no model has, in the shapes that models have."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_experiments.problem_set.shapes import SHAPES
from placeto_graphs import OpGraph, Phase
from placeto_workloads.errors import WorkloadError

SMALLEST_WIDTH = 64
BYTES_PER_NUMBER = 4
STATES_PER_WEIGHT = 4  # the weight, its gradient, and two moments of Adam


def random_step(shape: str, seed: int) -> OpGraph:
    """Return a training step of random layers.

    Each layer has a forward op, a backward op, which reads what its forward op read and the
    gradients of what it made, and where it has weights, these and their update; all ops of a layer
    share a colocation id. How wide layers are and how large the batch is decides what they compute
    and send: in some graphs transfers are nearly all, in others nearly nothing.

    Parameters
    ----------
    shape
        One of `SHAPES`.
    seed
        Fixes every random choice.

    Raises
    ------
    WorkloadError
        When there is no such shape.

    Examples
    --------
    >>> random_step("chain", seed=0)
    OpGraph(ops=406, tensors=418, edges=710)
    """
    if shape not in SHAPES:
        raise WorkloadError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
    generator = np.random.default_rng((list(SHAPES).index(shape), seed))
    num_layers, readers = SHAPES[shape](generator)
    return _training_step(_random_layers(generator, num_layers), readers)


@dataclass(frozen=True, eq=False)
class _Layers:
    """What each of L layers does.

    Attributes
    ----------
    flops : float64[L]
        Of the forward op.
    output_bytes, weight_bytes : int64[L]
        Without weights, a layer is elementwise.
    """

    flops: NDArray[np.float64]
    output_bytes: NDArray[np.int64]
    weight_bytes: NDArray[np.int64]


def _random_layers(generator: np.random.Generator, count: int) -> _Layers:
    width = SMALLEST_WIDTH * 2 ** (generator.uniform(0, 4) + generator.uniform(0, 2, count))
    batch = 2 ** generator.uniform(5, 12)
    share_with_weights = generator.uniform(0.3, 1.0)
    has_weights = generator.random(count) < share_with_weights
    uneven = generator.lognormal(0.0, 0.5, count)
    return _Layers(
        flops=uneven * np.where(has_weights, 2 * batch * width**2, batch * width),
        output_bytes=(uneven * batch * width * BYTES_PER_NUMBER).astype(np.int64),
        weight_bytes=np.where(has_weights, width**2 * BYTES_PER_NUMBER, 0).astype(np.int64),
    )


class _Ops:
    """The ops of a step, as they come."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.types: list[str] = []
        self.phases: list[Phase] = []
        self.flops: list[float] = []
        self.bytes_accessed: list[float] = []
        self.parameter_bytes: list[int] = []
        self.layer: list[int] = []
        self.producer: list[int] = []  # of each tensor
        self.tensor_bytes: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def add(
        self,
        name: str,
        layer: int,
        phase: Phase,
        flops: float,
        *,
        reads: list[int],
        makes: list[int],
        weights: int = 0,
    ) -> list[int]:
        """Add an op of a layer, which reads tensors; return those that it makes of such sizes."""
        op = len(self.names)
        read = sum(self.tensor_bytes[tensor] for tensor in reads)
        self.names.append(f"{name}.{layer}")
        self.types.append(_type_of(name, product=flops > read))
        self.phases.append(phase)
        self.flops.append(flops)
        self.bytes_accessed.append(float(read + sum(makes)))
        self.parameter_bytes.append(weights)
        self.layer.append(layer)
        self.edges += [(tensor, op) for tensor in dict.fromkeys(reads)]
        first = len(self.producer)
        self.producer += [op] * len(makes)
        self.tensor_bytes += makes
        return list(range(first, len(self.producer)))

    def graph(self) -> OpGraph:
        """Return the graph."""
        return OpGraph(
            op_names=tuple(self.names),
            op_types=tuple(self.types),
            scopes=tuple(f"layer.{layer}" for layer in self.layer),
            phases=np.array(self.phases, np.int8),
            flops=np.array(self.flops),
            bytes_accessed=np.array(self.bytes_accessed),
            parameter_bytes=np.array(self.parameter_bytes, np.int64),
            workspace_bytes=np.zeros(len(self.names), np.int64),
            colocation=np.array(self.layer, np.int32),
            tensor_producer=np.array(self.producer, np.int32),
            tensor_bytes=np.array(self.tensor_bytes, np.int64),
            edges=np.array(self.edges, np.int32).reshape(-1, 2),
        )


def _type_of(name: str, *, product: bool) -> str:
    if name == "weights":
        return "parameter"
    return "aten.mm" if product and name != "update" else "aten.add"


def _training_step(layers: _Layers, readers: list[tuple[int, int]]) -> OpGraph:
    """Return the step of layers, given which layer's output each layer reads."""
    ops = _Ops()
    count = len(layers.flops)
    sources: list[list[int]] = [[] for _ in range(count)]
    for source, reader in readers:
        sources[reader].append(source)
    weights, outputs = _forward(ops, layers, sources)
    _backward(ops, layers, sources, weights, outputs)
    return ops.graph()


def _forward(
    ops: _Ops, layers: _Layers, sources: list[list[int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Add the weights and forward ops; return the tensors of the weights and outputs."""
    weights: list[list[int]] = []
    outputs: list[list[int]] = []
    for layer, own in enumerate(sources):
        size, flops = int(layers.weight_bytes[layer]), float(layers.flops[layer])
        held = STATES_PER_WEIGHT * size
        made = [size] if size else []
        weights.append(
            ops.add("weights", layer, Phase.FORWARD, 0.0, reads=[], makes=made, weights=held)
            if size
            else []
        )
        inputs = [outputs[source][0] for source in own]
        output = [int(layers.output_bytes[layer])]
        outputs.append(
            ops.add(
                "forward", layer, Phase.FORWARD, flops, reads=inputs + weights[layer], makes=output
            )
        )
    return weights, outputs


def _backward(
    ops: _Ops,
    layers: _Layers,
    sources: list[list[int]],
    weights: list[list[int]],
    outputs: list[list[int]],
) -> None:
    """Add the backward ops, each with a gradient for every input, and the updates of weights."""
    arriving: list[list[int]] = [[] for _ in sources]
    for layer in reversed(range(len(sources))):
        inputs = [outputs[source][0] for source in sources[layer]]
        sizes = [int(layers.output_bytes[source]) for source in sources[layer]]
        gradient = [int(layers.weight_bytes[layer])] if weights[layer] else []
        made = ops.add(
            "backward",
            layer,
            Phase.BACKWARD,
            2 * float(layers.flops[layer]),
            reads=(arriving[layer] or outputs[layer]) + inputs + weights[layer],
            makes=sizes + gradient,
        )
        for source, tensor in zip(sources[layer], made, strict=False):
            arriving[source].append(tensor)
        if weights[layer]:
            flops = float(layers.weight_bytes[layer])
            ops.add(
                "update", layer, Phase.UPDATE, flops, reads=weights[layer] + made[-1:], makes=[]
            )
