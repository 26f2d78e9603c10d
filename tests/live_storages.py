"""Peak memory of a step: of the storages that are there, and of a graph as it is simulated."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from placeto_graphs import OpGraph, PlacementProblem, colocate, parse_cluster
from placeto_simulator import Simulator


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of tensors: those that are there, and those that ops return.

    Memory that a kernel allocates for itself depends on the processor, and is not counted. Under a
    mode, autograd adds up gradients in new tensors, as captured graphs do.
    """

    def __init__(self, tensors: Iterable[object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._storages = WeakSet[torch.UntypedStorage]()
        self._add(tensors)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._add(pytree.tree_leaves(result))
        return result

    def _add(self, leaves: Iterable[object]) -> None:
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        self._storages.update(tensor.untyped_storage() for tensor in tensors)
        num_bytes = sum(storage.nbytes() for storage in self._storages)
        self.peak_bytes = max(self.peak_bytes, num_bytes)


def peak_of_graph(graph: OpGraph, queue: str = "fifo") -> int:
    """Return the simulated peak of a step on one device, in bytes."""
    problem = PlacementProblem(
        graph=graph,
        cluster=replace(parse_cluster("1xcpu"), queue=queue),
        compute_time=np.ones((graph.num_ops, 1)),
        grouping=colocate(graph),
    )
    placement = np.zeros((1, problem.num_groups), np.int32)
    return int(Simulator(problem).evaluate(placement).peak_memory[0, 0])
