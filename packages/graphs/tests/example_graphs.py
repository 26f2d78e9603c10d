"""Small graphs by hand, for tests that name every op, and what all tests expect of errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from placeto_graphs import GraphError, OpGraph, PlacementProblem, parse_cluster


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect an error of one line that begins with a message."""
    with pytest.raises(GraphError) as caught:
        yield
    assert str(caught.value)[: len(message)] == message
    assert "\n" not in str(caught.value)


def plain_graph(
    op_names: list[str], tensor_producer: Any, tensor_bytes: Any, edges: Any, **changes: Any
) -> OpGraph:
    """Return a graph of which nothing but the tensors matters."""
    names: Any = op_names
    return OpGraph(
        op_names=names,
        tensor_producer=tensor_producer,
        tensor_bytes=tensor_bytes,
        edges=edges,
        **changes,
    )


def diamond(**changes: Any) -> OpGraph:
    """Return a graph in which 0 feeds 1 and 2, and both feed 3."""
    fields: dict[str, Any] = {
        "op_names": ["split", "left", "right", "join"],
        "op_types": ["split", "conv", "conv", "add"],
        "scopes": ["", "left", "right", ""],
        "phases": [0, 0, 0, 0],
        "flops": [0.0, 1e9, 2e9, 1e6],
        "bytes_accessed": [1e3, 1e6, 1e6, 1e3],
        "parameter_bytes": [0, 400, 800, 0],
        "workspace_bytes": [0, 10, 20, 0],
        "colocation": [-1, -1, -1, -1],
        "tensor_producer": [0, 0, 1, 2],
        "tensor_bytes": [100, 200, 300, 400],
        "edges": [[0, 1], [1, 2], [2, 3], [3, 3]],
        "measured_time": {"k80": [1e-3, 2e-3, 3e-3, 4e-3]},
    }
    return OpGraph(**(fields | changes))


def diamond_problem(**changes: Any) -> PlacementProblem:
    graph = diamond()
    fields: dict[str, Any] = {
        "graph": graph,
        "cluster": parse_cluster("2xk80"),
        "compute_time": np.stack([graph.measured_time["k80"]] * 2, axis=1),
    }
    return PlacementProblem(**(fields | changes))
