"""The update of a weight is one op where it is fused, with the memory of its implementation."""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from placeto_capture import capture
from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.step_spec import StepSpec
from placeto_capture.tracing.updates import CLASSES_OF_UPDATES
from placeto_graphs import Phase


class Normalised(torch.optim.Optimizer):
    """Each weight changes by its gradient in units of its norm, as with LARS."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad / torch.linalg.vector_norm(weight.grad))


# Optimizers without products of matrices, by a class of ops that their updates have.
OPTIMIZERS: dict[OpClass, Callable[..., torch.optim.Optimizer]] = {
    OpClass.ELEMENTWISE: torch.optim.Adam,
    OpClass.REDUCTION: Normalised,
    OpClass.COPY: torch.optim.Rprop,
}


@pytest.mark.parametrize("op_class", OPTIMIZERS)
def test_an_update_as_ready_without_products_is_one_op(op_class: OpClass) -> None:
    model, optimizer = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), OPTIMIZERS[op_class]
    trace = trace_step(StepSpec(model, torch.ones(5, 4), optimizer=optimizer, updates="as-ready"))
    updates = [call for call in trace.calls if call.update]
    assert [call.op_type for call in updates] == ["placeto.update"] * 4
    classes = {class_of_type(call.op_type) for update in updates for call in update.merged_calls}
    assert op_class in classes <= CLASSES_OF_UPDATES


def test_each_class_of_updates_is_looked_at_here() -> None:
    assert OPTIMIZERS.keys() == CLASSES_OF_UPDATES


class LivePeak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the most bytes of new tensors that are in memory at once, while PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0
        self._tensors: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.inplace_view not in func.tags and not func._schema.is_mutable:
            leaves = pytree.tree_leaves(result)
            self._tensors += [weakref.ref(x) for x in leaves if isinstance(x, torch.Tensor)]
        storages = [x.untyped_storage() for ref in self._tensors if (x := ref()) is not None]
        sizes = {storage._cdata: storage.nbytes() for storage in storages}
        self.num_bytes = max(self.num_bytes, sum(sizes.values()))
        return result


FACTORIES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW with all moments": partial(torch.optim.AdamW, amsgrad=True),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("name", FACTORIES)
def test_an_update_has_the_memory_that_it_has_in_pytorch(name: str, is_fused: bool) -> None:
    model, batch = nn.Linear(32, 16, bias=False), torch.ones(5, 32)
    factory = partial(FACTORIES[name], fused=is_fused, foreach=False)
    graph = capture(model, batch, optimizer=factory)
    optimizer = factory(model.parameters())
    for _ in range(2):  # the first step makes the state
        model(batch).mean().backward()
        with LivePeak() as live:
            optimizer.step()
    updates = np.flatnonzero(graph.phases == Phase.UPDATE)
    living = np.zeros(graph.num_ops, np.int64)
    for tensor, consumers in enumerate(graph.consumers_of_tensor):
        first, last = graph.tensor_producer[tensor], max(consumers, default=-1)
        if first in updates:
            living[first : max(first, last) + 1] += graph.tensor_bytes[tensor]
    assert (living + graph.workspace_bytes).max() == live.num_bytes
    assert (live.num_bytes == 0) == is_fused
