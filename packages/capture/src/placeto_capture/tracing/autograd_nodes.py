"""To which forward op a gradient op belongs.

Autograd makes a node of its graph for each op that it has to differentiate, and numbers the nodes:
when the op is called, right before it runs, or right after it, as for a write through a view. A
node knows its number when it runs in the backward pass.
"""

from typing import Any

import torch

from placeto_capture.tracing.trace import tensor_leaves

LEAF_NUMBER = 2**64 - 1  # of the nodes that accumulate the gradients of leaves


class AutogradNodes:
    """Follows which op each node of autograd's graph was made for.

    Ops are told by their index and scope.
    """

    def __init__(self) -> None:
        self._op_of_node: dict[int, tuple[int, str]] = {}
        self._next_node = _next_number()
        self._last_op: tuple[int, str] | None = None

    def before_op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Return the number of the node of the op that is about to run, if it has one.

        The nodes before it that are nobody's yet belong to the op that ran last.
        """
        if not torch.is_grad_enabled():
            return None
        end = _next_number()
        leaves = tensor_leaves((args, tuple(kwargs.values())))
        has_node = any(leaf is not None and leaf.requires_grad for leaf in leaves)
        if self._last_op is not None:
            left = range(self._next_node, end - has_node)
            self._op_of_node.update(dict.fromkeys(left, self._last_op))
        self._next_node = end
        return end - 1 if has_node else None

    def after_op(self, op: int, scope: str, node: int | None) -> None:
        """Note the op that ran, and that a node is its."""
        self._last_op = op, scope
        if node is not None:
            self._op_of_node.setdefault(node, self._last_op)

    def running(self) -> tuple[int, str] | torch.Tensor | None:
        """Return what the node that runs now was made for.

        That is an op, or the leaf whose gradient it accumulates; None where no node runs, or one
        that nothing recorded was made for.
        """
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        if number == LEAF_NUMBER:
            leaf: torch.Tensor = node.variable
            return leaf
        return self._op_of_node.get(number)


def _next_number() -> int:
    number: int = torch._C._autograd._get_sequence_nr()
    return number
