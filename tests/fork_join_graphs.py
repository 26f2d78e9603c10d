"""Synthetic graphs that fork into parallel branches and join again, a few times over."""

import networkx as nx
import numpy as np

from placeto_graphs import PlacementProblem, from_networkx, parse_cluster

MEGABYTE = 10**6


def fork_join_problem(seed: int, num_devices: int = 2) -> PlacementProblem:
    """Return a graph of random branches and costs, of which each op is a group."""
    generator = np.random.default_rng(seed)
    graph = nx.DiGraph()
    seconds: list[float] = []

    def add(milliseconds: float, *sources: int) -> int:
        seconds.append(1e-3 * milliseconds)
        graph.add_node(len(seconds) - 1, outputs={})
        for source in sources:
            name = len(graph.nodes[source]["outputs"])  # a tensor for each reader
            graph.nodes[source]["outputs"][name] = int(generator.integers(1, 4)) * MEGABYTE
            graph.add_edge(source, len(seconds) - 1, tensors=[name])
        return len(seconds) - 1

    end = add(1.0)
    for _ in range(generator.integers(2, 4)):
        ends = []
        for _ in range(generator.integers(2, 5)):
            branch = end
            for _ in range(generator.integers(1, 4)):
                branch = add(float(generator.uniform(5, 15)), branch)
            ends.append(branch)
        end = add(1.0, *ends)
    ops = from_networkx(graph)
    return PlacementProblem(
        graph=ops,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(np.array(seconds)[:, None], (1, num_devices)),
    )
