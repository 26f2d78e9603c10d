"""Values that a step knows beforehand: of what it computes of constants, buffers and random draws.

Fake tensors have no values, but what code asks for in the middle of a step is often known: the
rates of a schedule, the offsets of a window, a mask of positions, whether a layer is left out. Such
a value is computed when it is asked for, by running the few ops again that led to it, on real
tensors. Random numbers are those that `replay` draws with the seed 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from placeto_workloads.capture.replay import Memory
from placeto_workloads.capture.trace import Call
from placeto_workloads.capture.trace import Source
from placeto_workloads.capture.trace import TensorRef
from placeto_workloads.capture.trace import Trace

CONSTANT = "constant"  # the name of a tensor that is no parameter, buffer or input
LARGEST_BYTES = 2**26  # of all that has to be computed for a value


class KnownValues:
    """Which values a step knows, and what follows from them."""

    def __init__(self) -> None:
        self._storages: set[int] = set()

    def add(self, source: Source) -> None:
        """Remember a source if its values may decide what runs: no weights, no measured data."""
        values = source.values.values()
        is_constant = source.op_type == "buffer" or source.name.rpartition(".")[2] == CONSTANT
        says = is_constant or not any(v.is_floating_point() or v.is_complex() for v in values)
        has_values = not any(v.is_meta or isinstance(v, FakeTensor) for v in values)
        if says and has_values and source.op_type != "parameter":
            self._storages.update(source.storages)

    def result(
        self,
        func: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        ops: Sequence[Source | Call],
        storage_bytes: Sequence[int],
    ) -> Any:
        """Return what a function gives for tensors whose values are known.

        Parameters
        ----------
        func
            What is called.
        arguments, keywords
            With what, with references in place of tensors.
        ops
            What ran so far.
        storage_bytes
            The size of each storage.

        Returns
        -------
        Any
            The result, with real tensors; None where it depends on other values, or on
            uninitialised memory, or is too much work.
        """
        leaves = pytree.tree_leaves((arguments, keywords))
        read = {leaf.storage for leaf in leaves if isinstance(leaf, TensorRef)}
        slice_, needed = _slice(read, ops)
        made = {storage for call in slice_ for storage in call.creates}
        if not needed - made <= self._storages:
            return None
        if sum(storage_bytes[storage] for storage in needed) > LARGEST_BYTES:
            return None
        sources = [op for op in ops if isinstance(op, Source)]
        trace = Trace([*sources, *slice_], list(storage_bytes), {})
        memory = Memory(trace, torch.device("cpu"), _value, needed)
        without_modes = _disable_current_modes()
        with without_modes, torch.no_grad(), torch.random.fork_rng(devices=[]):
            for call in slice_:
                memory.run(call, seed=0)
            return func(*memory.real(arguments), **memory.real(keywords))


def _value(source: Source, name: str, _: TensorRef) -> torch.Tensor:
    return source.values[name].detach()


def _slice(storages: set[int], ops: Sequence[Source | Call]) -> tuple[list[Call], set[int]]:
    """Return the calls that some storages got their values from, and all storages they touch."""
    needed, calls = set(storages), []
    for op in reversed(ops):
        if isinstance(op, Call) and not needed.isdisjoint((*op.creates, *op.writes)):
            calls.append(op)
            needed.update(op.reads, op.writes, op.creates)
    return calls[::-1], needed
