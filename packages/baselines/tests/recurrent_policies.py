"""Policies and graphs that are small enough for tests."""

import numpy as np
import torch

from baseline_problems import cluster, op_graph, problem_of
from placeto_baselines import RnnSettings
from placeto_baselines.rnn.model import (
    Encoded,
    GraphBatch,
    GroupEmbedding,
    PlacementModel,
    Written,
    batch_of,
    chosen,
)
from placeto_graphs import PlacementProblem

SMALL = RnnSettings(
    hidden_size=16, max_groups=8, max_outputs=2, samples_per_update=10, evaluations=40
)


def chains(length: int) -> PlacementProblem:
    """Two chains of ops of half a second on two GPUs."""
    count = 2 * length
    graph = op_graph(count, [(op, op + 2) for op in range(count - 2)])
    return problem_of(graph, cluster(["k80", "k80"], bandwidth=10.0), np.full((count, 2), 0.5))


def model_of(problems: list[PlacementProblem], seed: int) -> tuple[PlacementModel, GraphBatch]:
    embedding = GroupEmbedding.of_problems(problems, SMALL.max_groups, SMALL.max_outputs)
    generator = torch.Generator().manual_seed(seed)
    model = PlacementModel(embedding.num_features, problems[0].num_devices, SMALL, generator)
    return model, batch_of(problems, embedding)


def log_probability(
    model: PlacementModel, encoded: Encoded, devices: torch.Tensor, written: Written | None = None
) -> torch.Tensor:
    """Return float32[N, B], the log-probability of placements int64[N, B, L]."""
    return chosen(model.log_probabilities(encoded, devices, written), devices, encoded)


def all_devices(num_devices: int, length: int) -> torch.Tensor:
    """Return int64[1, D ** L, L], all placements of a graph."""
    return torch.cartesian_prod(*[torch.arange(num_devices)] * length)[None]


def unequal_problems() -> list[PlacementProblem]:
    single = problem_of(op_graph(1, []), cluster(["k80", "k80"]), np.ones((1, 2)))
    return [chains(3), single, chains(2)]
