"""The problem of several copies of a step, and the ops that join them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeto_graphs.schema.grouping import Grouping
from placeto_graphs.schema.op_graph import FREE, OpGraph, Phase, columns_of_ops
from placeto_graphs.schema.problem import PlacementProblem


class AddedOp(NamedTuple):
    """An op that joins copies."""

    op_type: str
    name: str
    neighbour: int  # an op of a copy; they are in one group
    phase: Phase
    moved_bytes: int  # read and written
    flops: float


class Joint:
    """The problem of k copies of V ops and T tensors, to which ops that join them are added.

    Op v of copy r has the number r V + v, and its tensor t the number r T + t.

    Attributes
    ----------
    graph
        The graph of the first copy.
    reads : int64[3, k T]
        The tensor that ops of each phase read instead of each tensor of the copies.
    edges
        Pairs of a tensor and an added op that reads it.
    waits
        Pairs of an op and one that has to be done before it.
    held_tensors
        Tensors that stay until the step ends.
    """

    def __init__(self, problems: Sequence[PlacementProblem]) -> None:
        self.graph = graph = problems[0].graph
        self._problems = problems
        self._tensors: list[tuple[int, int]] = []  # op that makes it, bytes
        self._ops: list[AddedOp] = []
        self.reads = np.tile(np.arange(len(problems) * graph.num_tensors), (len(Phase), 1))
        self.edges: list[tuple[int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self.held_tensors = self._of_copies(graph.held_tensors, graph.num_tensors).tolist()

    def add(self, op: AddedOp, tensors: Iterable[int]) -> int:
        """Add an op that reads tensors; return its number."""
        number = len(self._problems) * self.graph.num_ops + len(self._ops)
        self._ops.append(op)
        self.edges += [(tensor, number) for tensor in tensors]
        return number

    def make(self, op: int, num_bytes: int) -> int:
        """Add a tensor that an op makes; return its number."""
        self._tensors.append((op, num_bytes))
        return len(self._problems) * self.graph.num_tensors + len(self._tensors) - 1

    def of_copies(self, op: int) -> list[int]:
        """Return the number that an op of the graph has in each copy."""
        return [copy * self.graph.num_ops + op for copy in range(len(self._problems))]

    def problem(
        self, time_per_byte: NDArray[np.float64], measured_per_byte: Mapping[str, float]
    ) -> PlacementProblem:
        """Return the problem of all ops.

        ``time_per_byte``, float64[D], is the seconds of added ops for each byte that they move;
        ``measured_per_byte`` has those on each kind of device that was measured.
        """
        source, ops, count = self._problems[0], self._ops, len(self._problems)
        graphs = [problem.graph for problem in self._problems]
        graph = graphs[0]
        neighbours = [op.neighbour for op in ops]
        moved_bytes = np.array([op.moved_bytes for op in ops], np.float64)
        scopes = graph.scopes * count
        added = {
            "op_types": [op.op_type for op in ops],
            "scopes": [scopes[neighbour] for neighbour in neighbours],
            "phases": [op.phase for op in ops],
            "flops": [op.flops for op in ops],
            "bytes_accessed": moved_bytes,
        }
        columns = columns_of_ops(graphs, added)
        edges = self._of_copies(graph.edges, [graph.num_tensors, graph.num_ops])
        edges[:, 0] = self.reads[columns["phases"][edges[:, 1]], edges[:, 0]]
        colocation = self._of_copies(graph.colocation, graph.colocation.max() + 1)
        colocation[np.tile(graph.colocation == FREE, count)] = FREE
        columns["colocation"] = np.append(colocation, colocation[neighbours])
        producers = self._of_copies(graph.tensor_producer, graph.num_ops)
        joined_graph = OpGraph(
            **columns,
            op_names=(*_numbered(graph.op_names, count), *(op.name for op in ops)),
            tensor_producer=_appended([producers], [op for op, _ in self._tensors]),
            tensor_bytes=_appended(
                [graph.tensor_bytes for graph in graphs], [size for _, size in self._tensors]
            ),
            edges=_appended([edges], self.edges),
            waits=np.unique(
                _appended([self._of_copies(graph.waits, graph.num_ops)], self.waits), axis=0
            ),
            held_tensors=np.unique(np.array(self.held_tensors, np.int32)),
            measured_time={
                kind: _appended(
                    [graph.measured_time[kind] for graph in graphs], moved_bytes * per_byte
                )
                for kind, per_byte in measured_per_byte.items()
            },
            tokens=sum(graph.tokens for graph in graphs),
        )

        def of_all(grouping: Grouping) -> Grouping:
            group_of = self._of_copies(grouping.group_of, grouping.num_groups)
            return Grouping(
                group_of=np.append(group_of, group_of[neighbours]),
                group_names=_numbered(grouping.group_names, count),
            )

        hierarchy = source.hierarchy
        return PlacementProblem(
            graph=joined_graph,
            cluster=source.cluster.for_collectives,
            compute_time=_appended(
                [problem.compute_time for problem in self._problems],
                moved_bytes[:, None] * time_per_byte,
            ),
            grouping=of_all(source.grouping),
            hierarchy=None if hierarchy is None else tuple(map(of_all, hierarchy)),
        )

    def _of_copies(self, numbers: NDArray[np.int32], step: ArrayLike) -> NDArray[np.int32]:
        """Return the numbers of each copy, which are a step higher than those of the one before."""
        copies = range(len(self._problems))
        return np.concatenate([numbers + np.multiply(copy, step) for copy in copies]).astype(
            np.int32
        )


def _numbered(names: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(f"{name}#{copy}" for copy in range(count) for name in names)


def _appended(parts: Sequence[NDArray[Any]], added: ArrayLike) -> NDArray[Any]:
    dtype, shape = parts[0].dtype, parts[0].shape[1:]
    return np.concatenate([*parts, np.array(added, dtype).reshape(-1, *shape)])
