"""Random graphs of groups and random states on them."""

import networkx as nx
import numpy as np
import torch

from placeto_graphs import PlacementProblem
from placeto_policy import States, graph_features_of
from scheduled_problems import problem_of


def random_problem(
    num_groups: int, num_devices: int, generator: np.random.Generator
) -> PlacementProblem:
    """Return a problem on a random graph, whose groups have no special order."""
    graph = nx.DiGraph()
    names = generator.permutation(num_groups).tolist()
    for name in range(num_groups):
        graph.add_node(name, seconds=float(generator.random()), outputs={})
    for later in range(1, num_groups):
        for earlier in range(later):
            if generator.random() < 0.3:
                source, reader = names[earlier], names[later]  # with a tensor for each reader
                graph.nodes[source]["outputs"][reader] = int(generator.integers(1, 10**10))
                graph.add_edge(source, reader, tensors=[reader])
    return problem_of(graph, num_devices)


def random_states(problem: PlacementProblem, count: int, generator: np.random.Generator) -> States:
    """Return states with any placement, current group, visited groups, lookahead and schedule."""
    shape = (count, problem.num_groups)
    return States(
        graph_features=graph_features_of(problem),
        placement=torch.from_numpy(generator.integers(0, problem.num_devices, shape)),
        current=torch.from_numpy(generator.integers(0, problem.num_groups, count)),
        visited=torch.from_numpy(generator.random(shape) < 0.5),
        lookahead=torch.from_numpy(generator.random((count, problem.num_devices)).astype("f4")),
        schedule=torch.from_numpy(generator.random((*shape, 3)).astype("f4")),
    )
