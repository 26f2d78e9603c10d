"""Clusters of every size and mixture, with memory from ample to just enough."""

from dataclasses import replace

import numpy as np

from placeto_capture.costs.memory import activation_bytes
from placeto_graphs import Cluster, OpGraph, parse_cluster

KINDS = ("k80", "p100", "v100", "a100", "h100")
COUNTS = (2, 3, 4, 5, 6, 8)
LINKS = ("bus", "pcie", "pcie-shared")
SHARE_OF_EQUAL_GPUS = 0.6
SHARE_WITH_CPU = 0.15  # the others have two kinds of GPU
SHARE_WITH_SCARCE_MEMORY = 0.25
SCARCE = (1.2, 2.0)  # memory of all GPUs, in parts of what the step keeps


def random_cluster(generator: np.random.Generator) -> Cluster:
    """Return a cluster of 2 to 8 devices.

    Parameters
    ----------
    generator
        What is drawn from.

    Examples
    --------
    >>> random_cluster(np.random.default_rng(1)).device_names
    ('v100:0', 'v100:1', 'v100:2', 'v100:3')
    """
    count = int(generator.choice(COUNTS))
    first, second = generator.choice(KINDS, size=2, replace=False).tolist()
    mixture = generator.random()
    own = int(generator.integers(1, count))
    if mixture < SHARE_OF_EQUAL_GPUS:
        spec = f"{count}x{first}"
    elif mixture < SHARE_OF_EQUAL_GPUS + SHARE_WITH_CPU:
        spec = f"1xcpu+{count - 1}x{first}"
    else:
        spec = f"{own}x{first}+{count - own}x{second}"
    return parse_cluster(spec, link=str(generator.choice(LINKS)))


def with_drawn_memory(cluster: Cluster, graph: OpGraph, generator: np.random.Generator) -> Cluster:
    """Return a cluster whose GPUs may have just enough memory for a graph, or as much as it had.

    Parameters
    ----------
    cluster
        The devices.
    graph
        What they are to hold.
    generator
        What is drawn from.

    Examples
    --------
    >>> from placeto_experiments.problem_set.random_steps import random_step
    >>> scarce = with_drawn_memory(
    ...     parse_cluster("2xv100"), random_step("chain", 0), np.random.default_rng(5)
    ... )
    >>> [device.memory_bytes for device in scarce.devices]
    [16000000000, 16000000000]
    """
    gpus = [device for device in cluster.devices if device.kind != "cpu"]
    scarce, times = generator.random(), generator.uniform(*SCARCE)
    if scarce >= SHARE_WITH_SCARCE_MEMORY:
        return cluster
    kept = int(graph.parameter_bytes.sum()) + activation_bytes(graph)
    each = max(1, int(kept * times / len(gpus)))
    return replace(
        cluster,
        devices=tuple(
            device if device.kind == "cpu" else replace(device, memory_bytes=each)
            for device in cluster.devices
        ),
    )
