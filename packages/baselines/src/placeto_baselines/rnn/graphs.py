"""How the policy reads graphs: a vector for each group, and several graphs as one padded batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeto_baselines.devices import allowed_devices
from placeto_baselines.errors import BaselineError
from placeto_graphs import PlacementProblem

LARGEST = float(np.log1p(2.0**40))  # brings the logarithms of sizes below 1, up to a terabyte


@dataclass(frozen=True)
class GroupEmbedding:
    """Turns the groups of a graph into the sequence of vectors that the policy reads.

    The vector of a group has the fraction of its ops of each type, the logarithms of the sizes of
    its largest outputs, padded with zeros, and its neighbours in both directions (Mirhoseini et al.
    2017; 2018). Groups are ordered topologically, and if several are possible, by index. Neighbours
    are named by their place in that order: **the same graph with other group numbers may have
    another embedding, and get another placement**. That a policy should not depend on this is the
    point of Addanki et al. (2019).
    """

    op_types: tuple[str, ...]  # that are told apart; all others share a place
    max_groups: int  # of the longest sequence
    max_outputs: int  # sizes of outputs that are kept

    @classmethod
    def of_problems(
        cls, problems: Iterable[PlacementProblem], max_groups: int, max_outputs: int
    ) -> "GroupEmbedding":
        """Return the embedding that tells apart the op types of some problems."""
        op_types = {name for problem in problems for name in problem.graph.op_types}
        return cls(tuple(sorted(op_types)), max_groups, max_outputs)

    @property
    def num_features(self) -> int:  # F
        return len(self.op_types) + 1 + self.max_outputs + 2 * self.max_groups

    def vectors(self, problem: PlacementProblem) -> NDArray[np.float32]:
        """Return float32[G, F], the vectors of the groups in topological order."""
        order = problem.group_graph.topological_order
        if len(order) > self.max_groups:
            raise BaselineError(
                f"problem: expected at most {self.max_groups} groups (max_groups), "
                f"got {len(order)}; merge them first"
            )
        parts = [self._types(problem)[order], self._outputs(problem)[order]]
        return np.concatenate([*parts, *self._neighbours(problem)], axis=1).astype(np.float32)

    def _types(self, problem: PlacementProblem) -> NDArray[np.float64]:
        column = {name: index for index, name in enumerate(self.op_types)}
        other = len(self.op_types)
        columns = np.array([column.get(name, other) for name in problem.graph.op_types])
        counts = np.zeros((problem.num_groups, other + 1))
        np.add.at(counts, (problem.grouping.group_of, columns), 1)
        parts: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
        return parts

    def _outputs(self, problem: PlacementProblem) -> NDArray[np.float64]:
        graph = problem.graph
        makers = problem.grouping.group_of[graph.tensor_producer]
        sizes = np.zeros((problem.num_groups, self.max_outputs))
        filled = np.zeros(problem.num_groups, int)
        for tensor in np.argsort(-graph.tensor_bytes, kind="stable"):
            group = makers[tensor]
            if filled[group] < self.max_outputs:
                sizes[group, filled[group]] = np.log1p(graph.tensor_bytes[tensor]) / LARGEST
                filled[group] += 1
        return sizes

    def _neighbours(self, problem: PlacementProblem) -> list[NDArray[np.float64]]:
        groups = problem.group_graph
        place = np.empty(groups.num_groups, int)
        place[groups.topological_order] = np.arange(groups.num_groups)
        sources, readers = place[groups.edges[:, 0]], place[groups.edges[:, 1]]
        reads, sends = np.zeros((2, groups.num_groups, self.max_groups))
        reads[readers, sources] = 1
        sends[sources, readers] = 1
        return [reads, sends]


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """N graphs as sequences of up to L groups; shorter ones are padded at their end."""

    vectors: Tensor  # float32[N, L, F], the embedding of each group; zero where padded
    lengths: Tensor  # int64[N]
    allowed: Tensor  # bool[N, L, D], where each group can run; true where padded

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
