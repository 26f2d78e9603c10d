"""Values that a step knows beforehand: of what it computes of constants, buffers and random draws.

Fake tensors have no values, but what code asks for in the middle of a step is often known: the
rates of a schedule, the offsets of a window, a mask of positions, whether a layer is left out. Such
a value is computed when it is asked for, by running the few ops again that led to it, on real
tensors. Random numbers are those that `replay` draws with the seed 0. What is assumed of other
values is in `placeto_capture.tracing.assumed_values`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.tracing.assumed_values import Assumption, assumption_of
from placeto_capture.tracing.functions import SHAPED_ALIKE, function_of
from placeto_capture.tracing.replay import Memory
from placeto_capture.tracing.trace import Call, Source, TensorRef, Trace, references

CONSTANT = "constant"  # the name of a tensor that is no parameter, buffer or input
LARGEST_BYTES = 2**26  # of all that has to be computed for a value


class KnownValues:
    """Which values a step knows, and what follows from them.

    Parameters
    ----------
    storages
        All storages of the step so far; more are added to this list.
    """

    def __init__(self, storages: Sequence[torch.UntypedStorage]) -> None:
        self._storages = storages
        self._known: set[int] = set()
        self._source_of_storage: dict[int, Source] = {}
        self._calls: dict[int, Call] = {}  # those whose results are known, by op
        self._writers: defaultdict[int, list[int]] = defaultdict(list)  # of these, by storage
        self._assumptions: dict[int, Assumption] = {}

    def add(self, source: Source) -> None:
        """Remember a source if its values may decide what runs: no weights, no measured data."""
        values = source.values.values()
        is_constant = source.op_type == "buffer" or source.name.rpartition(".")[2] == CONSTANT
        says = is_constant or not any(v.is_floating_point() or v.is_complex() for v in values)
        has_values = not any(v.is_meta or isinstance(v, FakeTensor) for v in values)
        if says and has_values and source.op_type != "parameter":
            self._known.update(source.storages)
            self._source_of_storage.update(dict.fromkeys(source.storages, source))

    def follow(self, op: int, call: Call) -> None:
        """Note an op that ran: what it makes is known if all is that it depends on."""
        made = (*call.creates, *call.writes)
        asked = call.writes if call.op_type in SHAPED_ALIKE else (*call.reads, *call.writes)
        if not self._known.issuperset(asked):
            assumption = None if call.writes else assumption_of(call)
            ref = None if assumption is None else call.outputs[assumption.output]
            if assumption is None or ref is None:
                self._known.difference_update(made)
                return
            self._assumptions[op] = assumption
            made = (ref.storage,)
        elif function_of(call.function).allocates:  # there is no value in it yet
            return
        self._known.update(made)
        self._calls[op] = call
        for storage in made:
            self._writers[storage].append(op)

    def result(self, func: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return what a function gives for tensors whose values are known.

        Parameters
        ----------
        func
            What is called.
        arguments, keywords
            With what, with references in place of tensors.

        Returns
        -------
        Any
            The result, with real tensors; None where it depends on other values, or on
            uninitialised memory, or is too much work.
        """
        read = {ref.storage for ref in references((arguments, keywords))}
        if not self._known.issuperset(read):
            return None
        ops, needed = self._slice(read)
        sizes = {storage: self._storages[storage].nbytes() for storage in needed}
        if sum(sizes.values()) > LARGEST_BYTES:
            return None
        memory = Memory(self._trace(ops, sizes), torch.device("cpu"), _value, needed)
        without_modes = _disable_current_modes()
        with without_modes, torch.no_grad(), torch.random.fork_rng(devices=[]):
            for op in ops:
                self._run(op, memory)
            return func(*memory.real(arguments), **memory.real(keywords))

    def _slice(self, storages: set[int]) -> tuple[list[int], set[int]]:
        """Return the ops that some storages got their values from, and all storages they touch."""
        needed = set(storages)
        waiting = [-self._writers[storage][-1] for storage in needed if self._writers[storage]]
        heapify(waiting)
        ops: list[int] = []
        while waiting:
            op = -heappop(waiting)
            if ops and ops[-1] == op:
                continue
            ops.append(op)
            for storage in self._touched(op):
                needed.add(storage)
                earlier = bisect_left(self._writers[storage], op)
                if earlier:
                    heappush(waiting, -self._writers[storage][earlier - 1])
        return ops[::-1], needed

    def _touched(self, op: int) -> Iterable[int]:
        call = self._calls[op]
        if op in self._assumptions:
            return call.creates
        return (*call.reads, *call.writes, *call.creates)

    def _trace(self, ops: Sequence[int], sizes: Mapping[int, int]) -> Trace:
        sources = {
            id(source): source
            for storage in sizes
            if (source := self._source_of_storage.get(storage)) is not None
        }
        return Trace([*sources.values(), *(self._calls[op] for op in ops)], sizes, {})

    def _run(self, op: int, memory: Memory) -> None:
        call = self._calls[op]
        if op not in self._assumptions:
            memory.run(call, seed=0)
            return
        assumption = self._assumptions[op]
        result: list[Any] = [None] * len(call.outputs)
        result[assumption.output] = assumption.make(op)
        memory.keep(call, result)
        memory.finish(call)


def _value(source: Source, name: str, _: TensorRef) -> torch.Tensor:
    return source.values[name].detach()
