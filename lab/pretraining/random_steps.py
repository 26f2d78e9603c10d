"""Random training steps: graphs that no model has, in the shapes that models have.

Begin to read in `random_step`; the shapes, which layer reads the output of which, stand at the end.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph, Phase

# Number of layers, and (layer, layer that reads its output), from lower to higher.
Shape = tuple[int, list[tuple[int, int]]]

SMALLEST_WIDTH = 64
BYTES_PER_NUMBER = 4
STATES_PER_WEIGHT = 4  # the weight, its gradient, and two moments of Adam


def random_step(shape: str, seed: int) -> OpGraph:
    """Return a training step of random layers.

    Each layer has a forward and a backward op, and some have weights and their update. The backward
    op reads the inputs of the forward op and the gradients of its outputs. All ops of a layer share
    a colocation id. Widths and batch sizes vary, so that transfers take nearly all of the time in
    some graphs, and nearly none in others.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
    generator = np.random.default_rng((list(SHAPES).index(shape), seed))
    num_layers, readers = SHAPES[shape](generator)
    return _training_step(_random_layers(generator, num_layers), readers)


@dataclass(frozen=True, eq=False)
class _Layers:
    """Costs of L layers; without weights, a layer is elementwise."""

    flops: NDArray[np.float64]  # [L], of the forward op
    output_bytes: NDArray[np.int64]  # [L]
    weight_bytes: NDArray[np.int64]  # [L]


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
    """The ops of a step, as they come: columns of an `OpGraph`."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = defaultdict(list)

    def add(
        self,
        name: str,
        layer: int,
        phase: Phase,
        flops: float,
        *,
        inputs: list[int],
        output_bytes: list[int],
        parameter_bytes: int = 0,
    ) -> list[int]:
        """Add an op of a layer that reads some tensors; return the tensors that it makes."""
        columns = self.columns
        input_bytes = sum(columns["tensor_bytes"][tensor] for tensor in inputs)
        op_type = "aten.mm" if flops > input_bytes and phase != Phase.UPDATE else "aten.add"
        op = len(columns["op_names"])
        columns["op_names"].append(f"{name}.{layer}")
        columns["op_types"].append("parameter" if parameter_bytes else op_type)
        columns["scopes"].append(f"layer.{layer}")
        columns["phases"].append(phase)
        columns["flops"].append(flops)
        columns["bytes_accessed"].append(float(input_bytes + sum(output_bytes)))
        columns["parameter_bytes"].append(parameter_bytes)
        columns["colocation"].append(layer)
        columns["edges"] += [(tensor, op) for tensor in dict.fromkeys(inputs)]
        columns["tensor_producer"] += [op] * len(output_bytes)
        columns["tensor_bytes"] += output_bytes
        num_tensors = len(columns["tensor_bytes"])
        return list(range(num_tensors - len(output_bytes), num_tensors))


def _training_step(layers: _Layers, readers: list[tuple[int, int]]) -> OpGraph:
    """Return the step of layers, given which layer's output each layer reads."""
    ops = _Ops()
    weight_bytes, output_bytes = layers.weight_bytes.tolist(), layers.output_bytes.tolist()
    sources: list[list[int]] = [[] for _ in weight_bytes]
    for source, reader in readers:
        sources[reader].append(source)
    weights: list[list[int]] = []  # tensors of each layer
    outputs: list[list[int]] = []
    inputs: list[list[int]] = []  # of the forward op
    for layer, size in enumerate(weight_bytes):
        weights.append([])
        if size:
            weights[layer] = ops.add(
                "weights",
                layer,
                Phase.FORWARD,
                0.0,
                inputs=[],
                output_bytes=[size],
                parameter_bytes=STATES_PER_WEIGHT * size,
            )
        inputs.append([outputs[source][0] for source in sources[layer]] + weights[layer])
        flops, sizes = float(layers.flops[layer]), [output_bytes[layer]]
        outputs.append(
            ops.add(
                "forward", layer, Phase.FORWARD, flops, inputs=inputs[layer], output_bytes=sizes
            )
        )
    gradients: list[list[int]] = [[] for _ in weight_bytes]  # of the output of each layer
    for layer in reversed(range(len(weight_bytes))):
        sizes = [output_bytes[source] for source in sources[layer]]
        new_gradients = ops.add(
            "backward",
            layer,
            Phase.BACKWARD,
            2 * float(layers.flops[layer]),
            inputs=(gradients[layer] or outputs[layer]) + inputs[layer],
            output_bytes=sizes + [weight_bytes[layer]] * len(weights[layer]),
        )
        for source, gradient in zip(sources[layer], new_gradients, strict=False):
            gradients[source].append(gradient)
        if weights[layer]:
            flops, tensors = float(weight_bytes[layer]), weights[layer] + new_gradients[-1:]
            ops.add("update", layer, Phase.UPDATE, flops, inputs=tensors, output_bytes=[])
    return OpGraph(**ops.columns)


def chain(generator: np.random.Generator) -> Shape:
    """Return layers one after the other, some of which skip a few."""
    count = int(generator.integers(24, 160))
    readers = {(layer, layer + 1) for layer in range(count - 1)}
    share = generator.uniform(0.0, 0.3)
    for layer in range(count - 2):
        if generator.random() < share:
            readers.add((layer, min(count - 1, layer + int(generator.integers(2, 6)))))
    return count, sorted(readers)


def layered(generator: np.random.Generator) -> Shape:
    """Return ranks of layers, each of which reads some of the rank before it; all are read."""
    ranks = [int(width) for width in generator.integers(1, generator.integers(3, 10), size=25)]
    first = np.concatenate([[0], np.cumsum(ranks)]).tolist()
    density = generator.uniform(0.1, 0.5)
    readers: set[tuple[int, int]] = set()
    for rank in range(1, len(ranks)):
        sources = np.arange(first[rank - 1], first[rank])
        layers = np.arange(first[rank], first[rank + 1])
        reads = generator.random((len(sources), len(layers))) < density
        reads[generator.integers(len(sources), size=len(layers)), np.arange(len(layers))] = True
        unread = np.flatnonzero(~reads.any(axis=1))
        reads[unread, generator.integers(len(layers), size=len(unread))] = True
        source, reader = np.nonzero(reads)
        readers |= set(zip(sources[source].tolist(), layers[reader].tolist(), strict=True))
    return first[-1], sorted(readers)


def fork_join(generator: np.random.Generator) -> Shape:
    """Return modules of parallel branches, as image networks have them."""
    readers: list[tuple[int, int]] = []
    last, count = 0, 1
    max_branches = int(generator.integers(2, 8))
    for _ in range(int(generator.integers(4, 16))):
        ends = []
        for _ in range(int(generator.integers(1, max_branches + 1))):
            end = last
            for _ in range(int(generator.integers(1, 6))):
                readers.append((end, count))
                end, count = count, count + 1
            ends.append(end)
        readers += [(end, count) for end in ends]
        last, count = count, count + 1
    return count, sorted(readers)


def series_parallel(generator: np.random.Generator) -> Shape:
    """Return what comes of one edge by doing again: two in a row, or two side by side."""
    edges = [(0, 1)]
    count = 2
    parallel = generator.uniform(0.2, 0.6)
    for _ in range(int(generator.integers(40, 220))):
        index = int(generator.integers(len(edges)))
        source, reader = edges[index]
        if generator.random() >= parallel:
            edges[index] = (source, count)
        else:
            edges.append((source, count))
        edges.append((count, reader))
        count += 1
    return _in_order(count, edges)


def grid(generator: np.random.Generator) -> Shape:
    """Return layers unrolled over steps, as recurrent networks are."""
    steps, layers = int(generator.integers(6, 32)), int(generator.integers(2, 7))
    readers = []
    for step in range(steps):
        for layer in range(layers):
            cell = step * layers + layer
            if step:
                readers.append((cell - layers, cell))
            if layer:
                readers.append((cell - 1, cell))
    return steps * layers, sorted(readers)


def _in_order(count: int, edges: list[tuple[int, int]]) -> Shape:
    """Return layers with numbers by which each is read by higher ones only."""
    readers: dict[int, list[int]] = {}
    waits_for = np.zeros(count, np.int64)
    for source, reader in edges:
        readers.setdefault(source, []).append(reader)
        waits_for[reader] += 1
    order: dict[int, int] = {}
    ready = [0]
    while ready:
        layer = ready.pop()
        order[layer] = len(order)
        for reader in readers.get(layer, []):
            waits_for[reader] -= 1
            if not waits_for[reader]:
                ready.append(reader)
    return count, sorted({(order[source], order[reader]) for source, reader in edges})


SHAPES: Mapping[str, Callable[[np.random.Generator], Shape]] = MappingProxyType(
    {
        "chain": chain,
        "layered": layered,
        "fork-join": fork_join,
        "series-parallel": series_parallel,
        "grid": grid,
    }
)
