"""A step whose ops compute nothing: what is left of a step is its queues, links and order."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import OpGraph


class EmptyStep:
    """A step of any graph, to be run at a given pace (an `ExecutableStep`).

    Its tensors take the memory that the graph says, in the books alone.

    Parameters
    ----------
    graph
        The graph.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx
    >>> step = EmptyStep(from_networkx(nx.path_graph(2, create_using=nx.DiGraph)))
    >>> dict(step.begin(["cpu:0"], np.zeros(2, np.int32)).results())
    {}
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> "EmptyRun":
        """Return a run on any devices."""
        del devices
        return EmptyRun(self.graph, op_device)


class EmptyRun:
    """One run of a step whose ops compute nothing (a `StepRun`)."""

    def __init__(self, graph: OpGraph, op_device: NDArray[np.int32]) -> None:
        resident = graph.parameter_bytes[graph.tensor_producer] > 0
        self._home: list[int] = op_device[graph.tensor_producer].tolist()
        self._copy_bytes: list[int] = graph.tensor_bytes.tolist()
        self._home_bytes: list[int] = np.where(resident, 0, graph.tensor_bytes).tolist()
        self._op_bytes: list[int] = [
            sum(self._home_bytes[tensor] for tensor in graph.tensors_of_op[op].tolist())
            for op in range(graph.num_ops)
        ]

    @contextmanager
    def worker(self, device: int) -> Iterator[None]:
        """Let a thread work for a device."""
        del device
        yield

    def run(self, op: int) -> int:
        """Return the bytes of what an op would make."""
        return self._op_bytes[op]

    def send(self, tensor: int, destination: int) -> None:
        """Send nothing."""

    def receive(self, tensor: int, destination: int, parcel: Any) -> int:
        """Return the bytes of a copy."""
        del destination, parcel
        return self._copy_bytes[tensor]

    def free(self, tensor: int, device: int) -> int:
        """Return the bytes that a tensor has taken on a device."""
        return (self._home_bytes if device == self._home[tensor] else self._copy_bytes)[tensor]

    def results(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}
