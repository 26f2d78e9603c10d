"""Several graphs as one padded batch of sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeto_baselines.devices import allowed_devices
from placeto_baselines.rnn.embedding import GroupEmbedding
from placeto_graphs import PlacementProblem


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """N graphs as sequences of up to L groups; shorter ones are padded at their end.

    Attributes
    ----------
    vectors : float32[N, L, F]
        The embedding of each group; zero where padded.
    lengths : int64[N]
        The number of groups of each graph.
    allowed : bool[N, L, D]
        Where each group can run; true where padded.
    """

    vectors: Tensor
    lengths: Tensor
    allowed: Tensor

    @property
    def mask(self) -> Tensor:
        """bool[N, L], true where there is a group."""
        places = torch.arange(self.vectors.shape[1])
        return places < self.lengths[:, None]

    def rows(self, rows: Sequence[int]) -> "GraphBatch":
        """Return some of the graphs, as long as the longest of them."""
        index = torch.as_tensor(rows)
        longest = int(self.lengths[index].max())
        return GraphBatch(
            self.vectors[index, :longest], self.lengths[index], self.allowed[index, :longest]
        )


def batch_of(problems: Sequence[PlacementProblem], embedding: GroupEmbedding) -> GraphBatch:
    """Return the graphs of some problems on equally many devices as one batch."""
    lengths = [problem.num_groups for problem in problems]
    shape = (len(problems), max(lengths))
    vectors = np.zeros((*shape, embedding.num_features), np.float32)
    allowed = np.ones((*shape, problems[0].num_devices), np.bool_)
    for row, problem in enumerate(problems):
        vectors[row, : lengths[row]] = embedding.vectors(problem)
        order = problem.group_graph.topological_order
        allowed[row, : lengths[row]] = allowed_devices(problem)[order]
    return GraphBatch(torch.from_numpy(vectors), torch.tensor(lengths), torch.from_numpy(allowed))


def placements_of(problem: PlacementProblem, devices: Tensor) -> NDArray[np.int32]:
    """Return int32[B, G], placements, for int64[B, L], devices in the order of the sequence."""
    order = problem.group_graph.topological_order
    placements = np.empty((len(devices), problem.num_groups), np.int32)
    placements[:, order] = devices[:, : problem.num_groups].numpy()
    return placements
