"""The gradient of a weight that many ops read, summed in one op.

Autograd adds the terms of a gradient two at a time, as they come: there is the sum so far and one
more term. TensorFlow adds all terms in one op by default (``AggregationMethod.ADD_N``, and so did
the graphs of Addanki et al. 2019): each waits in memory until the last one is there. What is
computed is the same, up to the order in which numbers are added.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from typing import get_args

import torch

from placeto_graphs import Phase
from placeto_workloads.capture.trace import Call
from placeto_workloads.capture.trace import Source
from placeto_workloads.capture.trace import TensorRef
from placeto_workloads.capture.trace import Trace

GradientSums = Literal["as-they-come", "at-once"]
GRADIENT_SUMS: tuple[GradientSums, ...] = get_args(GradientSums)
SUFFIX = ".grad"  # of the names of gradients among the results of a trace


@torch.library.custom_op("placeto::add_n", mutates_args=())
def add_n(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors of one shape.

    Examples
    --------
    >>> add_n([torch.ones(2), torch.ones(2), torch.ones(2)])
    tensor([3., 3., 3.])
    """
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


ADD = torch.ops.aten.add.Tensor
ADD_N = torch.ops.placeto.add_n.default


def with_sums_at_once(trace: Trace) -> Trace:
    """Return a trace in which the gradient of a weight with three terms or more is one sum of them.

    The sum stands where the last addition stood, has the FLOPs of all of them, and reads and writes
    each term and the result once. As the update, it belongs to the weight. An addition whose result
    something else reads, or whose terms are written again, stays.
    """
    additions = _Additions(trace)
    sums: dict[int, Call] = {}
    removed: dict[int, int] = {}  # op, and the sum that takes its place
    for owner, ref in _gradients(trace):
        last = additions.maker(ref)
        if last is None or last in sums:
            continue
        terms, merged = additions.terms(last)
        if len(terms) > 2:
            sums[last] = replace(
                additions.sum_of(last, len(merged) + 1, terms),
                scope=trace.ops[owner].scope,
                belongs_to=owner,
            )
            removed.update(dict.fromkeys(merged, last))
    kept = [op for op in range(len(trace.ops)) if op not in removed]
    place = {op: index for index, op in enumerate(kept)}
    place.update({op: place[last] for op, last in removed.items()})
    ops = [_moved(sums.get(op, trace.ops[op]), place) for op in kept]
    return replace(trace, ops=ops)


class _Additions:
    """Which ops of a trace add two tensors, and which of their results only another one reads."""

    def __init__(self, trace: Trace) -> None:
        self._calls = {op: call for op, call in enumerate(trace.ops) if isinstance(call, Call)}
        self._maker: dict[int, int] = {}
        self._num_uses = Counter(ref.storage for ref in trace.results.values())
        self._written: set[int] = set()
        for op, call in self._calls.items():
            self._maker.update(dict.fromkeys(call.creates, op))
            self._num_uses.update(call.reads)
            self._written.update(call.writes)

    def maker(self, ref: TensorRef) -> int | None:
        """Return the addition in the backward phase that made a tensor, all of it and no more."""
        op = self._maker.get(ref.storage)
        if op is None:
            return None
        call = self._calls[op]
        if call.function is not ADD or call.keywords or len(call.reads) != 2:
            return None
        same = call.outputs == (ref,) and all(
            isinstance(term, TensorRef) and (term.size, term.dtype) == (ref.size, ref.dtype)
            for term in call.arguments
        )
        lasting = self._written.isdisjoint((*call.reads, *call.creates))
        return op if same and lasting and call.phase == Phase.BACKWARD else None

    def terms(self, last: int) -> tuple[list[TensorRef], list[int]]:
        """Return the terms that are added up to the result of an addition, and by which others."""
        terms: list[TensorRef] = []
        merged: list[int] = []
        waiting = [*reversed(self._calls[last].arguments)]
        while waiting:
            term = waiting.pop()
            addition = self.maker(term) if self._num_uses[term.storage] == 1 else None
            if addition is None:
                terms.append(term)
            else:
                merged.append(addition)
                waiting += reversed(self._calls[addition].arguments)
        return terms, merged

    def sum_of(self, last: int, number: int, terms: Sequence[TensorRef]) -> Call:
        """Return the sum of terms in place of so many additions, of which one is the last."""
        call = self._calls[last]
        touched = {*terms, *(ref for ref in call.outputs if ref is not None)}
        return replace(
            call,
            function=ADD_N,
            arguments=(list(terms),),
            reads=tuple(dict.fromkeys(term.storage for term in terms)),
            flops=number * call.flops,
            bytes_accessed=sum(ref.num_bytes for ref in touched),
        )


def _gradients(trace: Trace) -> Iterator[tuple[int, TensorRef]]:
    """Yield the op of each weight that has a gradient, and its gradient."""
    for op, source in enumerate(trace.ops):
        if isinstance(source, Source):
            for name in source.tensors:
                if name + SUFFIX in trace.results:
                    yield op, trace.results[name + SUFFIX]


def _moved(op: Source | Call, place: dict[int, int]) -> Source | Call:
    if isinstance(op, Source) or op.belongs_to is None:
        return op
    return replace(op, belongs_to=place[op.belongs_to])
