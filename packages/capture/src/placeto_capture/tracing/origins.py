"""Where an op comes from: a module, the forward op of a gradient op, a backward pass, a draw."""

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.costs.op_classes import OpClass, class_of_type
from placeto_capture.tracing.trace import Call, Op
from placeto_graphs import Phase

# Code that is not the model's: PyTorch's own modules, and this package.
LIBRARY_FOLDERS = (Path(torch.__file__).parent, Path(__file__).parents[1])

LEFT_MODULE = "_placeto_left_module"  # an attribute of errors: the innermost module that they left


class ModuleScopes:
    """Follows the calls of modules, by name, and of those in them."""

    def __init__(self) -> None:
        self.paths: list[str] = []  # of the modules that are being called, the innermost last
        # Is called when a module has returned that no other one has called.
        self.after_outermost: Callable[[], None] = lambda: None

    def innermost(self, outside: str) -> str:
        """Return the path of the innermost module that is being called, else another one."""
        return self.paths[-1] if self.paths else outside

    def follow(self, modules: Mapping[str, nn.Module]) -> None:
        followed: set[nn.Module] = set()
        for name, root in modules.items():
            for path, module in root.named_modules(followed, name):
                self._follow(path, module)

    def _follow(self, path: str, module: nn.Module) -> None:
        def enter(_module: nn.Module, _args: Any) -> None:
            self.paths.append(path)

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            self.paths.pop()
            error = sys.exc_info()[1]
            if error is not None and not hasattr(error, LEFT_MODULE):
                # An error that was kept here would keep the variables of what it has left.
                setattr(error, LEFT_MODULE, path)
            if not self.paths:
                self.after_outermost()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)


def model_line(error: BaseException | None = None) -> str:
    """Return the innermost line of a model's code that runs or failed, if any, in parentheses."""
    walk = traceback.walk_stack(None) if error is None else traceback.walk_tb(error.__traceback__)
    for frame, line in walk if error is None else reversed(list(walk)):
        file = Path(frame.f_code.co_filename)
        is_ours = str(frame.f_globals.get("__name__")).startswith("placeto")
        if file.is_absolute() and not (is_ours or _is_of_library(file)):
            return f" (line {line} of {file.name})"
    return ""


def is_run_by_engine() -> bool:
    """Return whether autograd itself runs an op, not a function or hook that is someone's own."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "_engine_run_backward":
        if not _is_of_library(Path(frame.f_code.co_filename)):
            return False
        frame = frame.f_back
    return True


def _is_of_library(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in LIBRARY_FOLDERS)


LEAF_NUMBER = 2**64 - 1  # of the nodes that accumulate the gradients of leaves


class AutogradNodes:
    """Follows which op, told by index and scope, each node of autograd's graph was made for."""

    def __init__(self) -> None:
        self._op_of_node: dict[int, tuple[int, str]] = {}
        self._with_node: set[int] = set()
        self._next_node = _next_number()
        self._last_op: tuple[int, str] | None = None

    def before_op(self, arguments: Iterable[torch.Tensor]) -> int | None:
        """Return the number of the next op's node, if any; those before are the last op's."""
        if not torch.is_grad_enabled():
            return None
        end = _next_number()
        has_node = any(argument.requires_grad for argument in arguments)
        if self._last_op is not None:
            new_nodes = range(self._next_node, end - has_node)
            self._op_of_node.update(dict.fromkeys(new_nodes, self._last_op))
        self._next_node = end
        return end - 1 if has_node else None

    def after_op(self, op: int, scope: str, node: int | None) -> None:
        """Note the op that ran, and that a node is its."""
        self._last_op = op, scope
        if node is not None:
            self._op_of_node.setdefault(node, self._last_op)
            self._with_node.add(op)

    def has_node(self, op: int) -> bool:
        """Return whether gradients pass through an op."""
        return op in self._with_node

    def running(self) -> tuple[int, str] | torch.Tensor | None:
        """Return the op that the running node is of, or the leaf whose gradient it adds up."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None
        sequence_number = node._sequence_nr()
        if sequence_number == LEAF_NUMBER:
            leaf: torch.Tensor = node.variable
            return leaf
        return self._op_of_node.get(sequence_number)


def _next_number() -> int:
    sequence_number: int = torch._C._autograd._get_sequence_nr()
    return sequence_number


Gradients = Iterable[torch.Tensor | None]


@dataclass
class _Node:
    """The ops of a node of autograd, with the sums that autograd makes of its results after it."""

    previous_op: int | None  # the op that ran right before
    ops: list[int] = field(default_factory=list)
    computes_again: bool = False  # activations
    copies: bool = True  # and nothing else, as the gradient of a slice does into zeros


class BackwardPasses:
    """Follows what comes before the node of autograd that runs.

    Autograd comes to a node when its gradients are there, and all ops of the node that made them if
    that has computed activations again. Of several such nodes it runs the one whose forward op ran
    last, and adds its result before the next. As other devices may run others meanwhile, this order
    is kept only where it saves memory and costs little: in the gradient of a weight, and between
    copies.
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
        self.comes_after = []
        for maker in makers:
            node = self._node_of.get(maker)
            self.comes_after += node.ops if node is not None and node.computes_again else [maker]
        if is_leaf:
            for maker in makers:
                self._wait_in_turn(maker)

    def _add_sum(self, op: int, accumulated: int, added: int) -> None:
        self._terms[op] = accumulated, added
        if self._node_of[added].copies:
            self._wait(added, accumulated)
        first = self._node_of[accumulated]
        if accumulated not in self._terms and first.copies and first.previous_op is not None:
            self._wait(accumulated, first.previous_op)

    def _wait_in_turn(self, total: int) -> None:
        while total in self._terms:
            total, added = self._terms[total]
            self._wait(added, total)

    def _wait(self, added: int, earlier: int) -> None:
        for op in self._node_of[added].ops:
            if op > earlier:
                self.turns[op] = max(earlier, self.turns.get(op, earlier))


def nodes_behind(roots: Iterable[Any]) -> set[Any]:
    """Return the nodes of autograd's graph behind some tensors, or edges of gradients."""
    waiting = [
        (root if isinstance(root, GradientEdge) else get_gradient_edge(root)).node for root in roots
    ]
    visited: set[Any] = set(waiting)
    while waiting:
        next_nodes = {node for node, _ in waiting.pop().next_functions if node is not None}
        waiting += next_nodes - visited
        visited |= next_nodes
    return visited


# It is tagged as one that draws, and is called where nothing is dropped.
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class RandomDraws:
    """Numbers the draws of a step by the state of the generator, which fake tensors do not move.

    Code that sets it back, such as `torch.utils.checkpoint`, gets the same numbers again.
    """

    def __init__(self) -> None:
        self._number_of_state: dict[bytes, int] = {}

    def number(self, func: Any) -> int | None:
        """Return the number of the draw of a function, if it draws, and let the generator go on."""
        if torch.Tag.nondeterministic_seeded not in func.tags or func is ATTENTION:
            return None
        with _disable_current_modes():
            state = torch.get_rng_state().numpy().tobytes()
            torch.rand(())
        return self._number_of_state.setdefault(state, len(self._number_of_state))
