"""The problems and placements that the benchmark simulates."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    Grouping,
    OpGraph,
    PlacementProblem,
    colocate,
    colocate_by_id,
    load_pipedream_profile,
    measured_compute_time,
    merge_and_colocate,
    parse_cluster,
)

WIDTH = 16  # ops of a layer


def random_layered_problem(
    num_ops: int, num_devices: int, num_groups: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a layered random graph, whose groups are consecutive ops.

    Each op of a layer of 16 reads one to five tensors of the layer before it, and takes up to a
    millisecond; tensors have up to a megabyte.
    """
    readers = np.repeat(np.arange(WIDTH, num_ops), generator.integers(1, 6, num_ops - WIDTH))
    before = (readers // WIDTH - 1) * WIDTH
    edges = np.stack([before + generator.integers(0, WIDTH, len(readers)), readers], axis=1)
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        op_types=("op",) * num_ops,
        scopes=("",) * num_ops,
        phases=np.zeros(num_ops, np.int8),
        flops=np.zeros(num_ops),
        bytes_accessed=np.zeros(num_ops),
        parameter_bytes=np.zeros(num_ops, np.int64),
        workspace_bytes=np.zeros(num_ops, np.int64),
        colocation=np.full(num_ops, -1, np.int32),
        tensor_producer=np.arange(num_ops, dtype=np.int32),
        tensor_bytes=generator.integers(0, 10**6, num_ops),
        edges=np.unique(edges, axis=0).astype(np.int32),
    )
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(generator.random((num_ops, 1)) * 1e-3, (1, num_devices)),
        grouping=Grouping(
            group_of=(np.arange(num_ops) * num_groups // num_ops).astype(np.int32),
            group_names=tuple(f"group{group}" for group in range(num_groups)),
        ),
    )


def random_profile(num_layers: int, generator: np.random.Generator) -> str:
    """Return a profile in PipeDream's format: a chain of layers with shortcuts."""
    milliseconds = generator.random(num_layers)
    activations = generator.integers(1, 10**7, num_layers)
    parameters = generator.integers(1, 10**6, num_layers)
    lines = [
        f"node{layer} -- Layer({layer}) -- forward_compute_time={milliseconds[layer]:.3f}, "
        f"backward_compute_time={2 * milliseconds[layer]:.3f}, "
        f"activation_size={activations[layer]}, "
        f"parameter_size={parameters[layer] if layer % 2 else 0}"
        for layer in range(num_layers)
    ]
    lines += [f"\tnode{layer - 1} -- node{layer}" for layer in range(1, num_layers)]
    shortcuts = (generator.integers(2, 6) for _ in range(num_layers))
    lines += [
        f"\tnode{layer - shortcut} -- node{layer}"
        for layer, shortcut in enumerate(shortcuts)
        if layer >= 6
    ]
    return "\n".join(lines) + "\n"


def random_training_problem(
    num_ops: int, num_devices: int, num_groups: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a training step, read from a profile in PipeDream's format.

    Two layers make five ops: forward, backward, and the weights of one of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.txt"
        path.write_text(random_profile(num_ops * 2 // 5, generator))
        graph = load_pipedream_profile(path)
    cluster = parse_cluster(f"{num_devices}xv100")
    colocated = colocate(graph, [colocate_by_id])
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=measured_compute_time(graph, cluster),
        grouping=merge_and_colocate(graph, colocated, num_groups=num_groups),
    )


def random_placements(
    problem: PlacementProblem, count: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G], each group on any device."""
    shape = (count, problem.num_groups)
    return generator.integers(0, problem.num_devices, shape).astype(np.int32)


def contiguous_placements(
    problem: PlacementProblem, count: int, _: np.random.Generator
) -> NDArray[np.int32]:
    """Return int32[count, G], the first groups on the first device, and so on."""
    device = np.arange(problem.num_groups) * problem.num_devices // problem.num_groups
    return np.tile(device.astype(np.int32), (count, 1))
