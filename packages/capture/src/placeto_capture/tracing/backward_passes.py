"""Follows autograd through the backward passes of a step, for what an op has to wait for.

Tensors do not say it where an op has saved values alone, or gradients that have been there for
long. Begin to read at `BackwardPasses`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.trace import Call, Op
from placeto_graphs import Phase

Gradients = Iterable[torch.Tensor | None]


@dataclass
class _Node:
    """The ops of a node of autograd, with the sums that autograd makes of its results after it."""

    after: int | None  # the op that ran right before
    ops: list[int] = field(default_factory=list)
    computes_again: bool = False  # activations
    copies: bool = True  # and nothing else, as the gradient of a slice does into zeros


class BackwardPasses:
    """Follows what comes before the node of autograd that runs.

    Autograd comes to a node when the gradients that go into it are there. If the node that made
    them has computed activations again, it has freed those that it alone needs. The next node
    therefore waits for all of its ops. A pass inside of a node begins when its roots are there,
    which that node has computed again.

    Several nodes may have their gradients at once, as those of slices of one tensor do. Autograd
    then runs the one whose forward op ran last, and adds its result before it comes to the next.
    Other nodes may run at the same time on other devices. So this order is kept only where it saves
    memory and costs little. That is where the sum is the gradient of a weight, with which all of
    them share a device, and where a node only copies.
    """

    def __init__(self, makers_of: Callable[[Gradients], list[int]]) -> None:
        self.comes_after: list[int] = []  # ops that come before the node, if one runs
        self.turns: dict[int, int] = {}  # of ops that wait for their turn the last op before that
        self._makers_of = makers_of  # returns the ops that made some tensors
        self._last_op: int | None = None
        self._node = _Node(None)
        self._node_of: dict[int, _Node] = {}
        self._terms: dict[int, tuple[int, int]] = {}  # of each sum, in the order of the ops

    def begin(self, ops: Sequence[Op]) -> None:
        """Note that a pass begins; one right after another one waits for the last op of that."""
        if ops[-1].phase == Phase.BACKWARD:
            self.comes_after = [len(ops) - 1]

    def after_op(self, op: int, call: Call, makers: Iterable[int]) -> None:
        """Note an op that the node has run, and the ops that made what it reads."""
        node = self._node_of[op] = self._node
        terms = sorted(set(makers))
        if call.op_type in ("aten.add", "aten.add_") and len(terms) == 2:
            nodes = [self._node_of.get(term) for term in terms]
            if None not in nodes and nodes[0] is not nodes[1]:
                self._add_sum(op, *terms)
        elif class_of_type(call.op_type) != OpClass.COPY:
            node.copies = False
        node.ops.append(op)
        node.computes_again |= torch.is_grad_enabled()
        self._last_op = op

    def run(
        self, run_backward: Callable[..., Any], roots: Sequence[Any], *args: Any, **keywords: Any
    ) -> Any:
        """Run a backward pass, which may be inside a node of another one."""
        begun_by: list[int] = []
        if torch._C._current_autograd_node() is not None:
            begun_by = self._makers_of(root for root in roots if isinstance(root, torch.Tensor))
        outside = self.comes_after, self._node
        handles = [
            node.register_prehook(partial(self._reach, begun_by, hasattr(node, "variable")))
            for node in nodes_behind(roots)
        ]
        try:
            return run_backward(roots, *args, **keywords)
        finally:
            self.comes_after, self._node = outside
            for handle in handles:
                handle.remove()

    def _reach(self, begun_by: list[int], is_leaf: bool, gradients: Gradients) -> None:
        """Note that a node is about to run, and the gradients that go into it."""
        self._node = _Node(self._last_op)
        makers = [*begun_by, *self._makers_of(gradients)]
        self.comes_after = [op for maker in makers for op in self._ops_with(maker)]
        if is_leaf:
            for maker in makers:
                self._wait_in_turn(maker)

    def _ops_with(self, maker: int) -> list[int]:
        """Return the ops that have to be done where an op has made a gradient."""
        node = self._node_of.get(maker)
        return node.ops if node is not None and node.computes_again else [maker]

    def _add_sum(self, op: int, before: int, added: int) -> None:
        self._terms[op] = before, added
        if self._node_of[added].copies:
            self._wait(added, before)
        first = self._node_of[before]
        if before not in self._terms and first.copies and first.after is not None:
            self._wait(before, first.after)

    def _wait_in_turn(self, total: int) -> None:
        while total in self._terms:
            total, added = self._terms[total]
            self._wait(added, total)

    def _wait(self, added: int, before: int) -> None:
        for op in self._node_of[added].ops:
            if op > before:
                self.turns[op] = max(before, self.turns.get(op, before))


def nodes_behind(roots: Iterable[Any]) -> set[Any]:
    """Return the nodes of autograd's graph behind some tensors, or edges of gradients."""
    waiting = [
        (root if isinstance(root, GradientEdge) else get_gradient_edge(root)).node for root in roots
    ]
    seen: set[Any] = set(waiting)
    while waiting:
        before = {node for node, _ in waiting.pop().next_functions if node is not None}
        waiting += before - seen
        seen |= before
    return seen
