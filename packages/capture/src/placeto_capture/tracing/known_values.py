"""Values that a step knows beforehand, or that are assumed: a pass over what was recorded.

A value that follows from constants is computed, by running the few ops that led to it on real
tensors. Of others it is assumed that numbers are finite, and choices by unknown scores fair. In an
optimizer's step, norms and the numbers of its state are 1.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.errors import CaptureWarning
from placeto_capture.tracing.fake_results import UNSCALE
from placeto_capture.tracing.functions import ALLOCATIONS, SHAPED_ALIKE
from placeto_capture.tracing.origins import model_line
from placeto_capture.tracing.replay import Slots, StorageMemory, prepared
from placeto_capture.tracing.trace import Call, Placeholder, View, views_in

CONSTANT = "constant"  # the name of a tensor that is no parameter, buffer or input
LARGEST_BYTES = 2**26  # of all that has to be computed for a value


class KnownValues:
    """Which values a step knows, and what follows from them; storages may be added later."""

    def __init__(self, storages: Sequence[torch.UntypedStorage]) -> None:
        self._storages = storages
        self._known: set[int] = set()
        self._placeholder_of_storage: dict[int, Placeholder] = {}
        self._calls: dict[int, Call] = {}  # those whose results are known, by op
        self._assumptions: dict[int, Assumption] = {}
        self._numbers_of_state: dict[int, View] = {}  # by storage
        self._has_norms = False  # whether some are assumed

    def add(self, placeholder: Placeholder) -> None:
        """Note a placeholder if its values may decide what runs: no weights, no measured data."""
        values = placeholder.values.values()
        is_constant = (
            placeholder.op_type == "buffer" or placeholder.name.rpartition(".")[2] == CONSTANT
        )
        is_decisive = is_constant or not any(
            v.is_floating_point() or v.is_complex() for v in values
        )
        has_values = not any(v.is_meta or isinstance(v, FakeTensor) for v in values)
        if is_decisive and has_values and placeholder.op_type != "parameter":
            self._known.update(placeholder.storages)
            self._placeholder_of_storage.update(dict.fromkeys(placeholder.storages, placeholder))

    def add_state(self, view: View) -> None:
        """Note a tensor of an optimizer's state, which is known if it is one number."""
        if not view.size:
            self._known.add(view.storage)
            self._numbers_of_state[view.storage] = view

    def follow(self, op: int, call: Call) -> None:
        """Note an op that ran: what it makes is known if all is that it depends on."""
        if call.function is UNSCALE:  # numbers are finite, so that what is found stays as it was
            self._known.difference_update(view.storage for view in call.arguments[0])
            return
        changed = (*call.creates, *call.writes)
        dependencies = call.writes if call.op_type in SHAPED_ALIKE else (*call.reads, *call.writes)
        if not self._known.issuperset(dependencies):
            assumption = None if call.writes else assumption_of(call)
            if assumption is None:
                self._known.difference_update(changed)
                return
            self._assumptions[op] = assumption
            self._has_norms |= call.op_type in NORMS
            changed = tuple(view.storage for view in [call.outputs[assumption[0]]] if view)
        elif call.op_type in ALLOCATIONS:  # there is no value in it yet
            return
        self._known.update(changed)
        self._calls[op] = call

    def result(
        self,
        func: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        norm: float = 1.0,
    ) -> Any:
        """Return what a function gives for known views; None for others, or too much work.

        Norms in an optimizer's step are as large as ``norm``.
        """
        read = {view.storage for view in views_in((arguments, keywords))}
        if not self._known.issuperset(read):
            return None
        ops, storages = self._slice(read)
        sizes = {storage: self._storages[storage].nbytes() for storage in storages}
        if sum(sizes.values()) > LARGEST_BYTES:
            return None
        memory = StorageMemory(torch.device("cpu"), sizes, Slots())
        without_modes = _disable_current_modes()
        with without_modes, torch.no_grad(), torch.random.fork_rng(devices=[]):
            for storage in storages & self._placeholder_of_storage.keys():
                placeholder = self._placeholder_of_storage[storage]
                for name, view in placeholder.tensors.items():
                    memory.tensor(view).copy_(placeholder.values[name].detach())
            for storage in storages & self._numbers_of_state.keys():
                memory.tensor(self._numbers_of_state[storage]).fill_(1)
            for op in ops:
                self._run(op, memory, norm)
            call = Call(func, arguments, keywords)
            args, values = prepared(call, memory.slots).arguments(memory)
            return func(*args, **values)

    def answer(self, func: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return `result` with fake tensors in place of real ones."""
        result = self.result(func, arguments, keywords)
        if isinstance(result, bool) and self._has_norms:
            others = (self.result(func, arguments, keywords, norm) for norm in OTHER_NORMS)
            if any(other != result for other in others):
                warnings.warn(
                    "optimizer: captured as if norms were 1, by which its step decides what it "
                    f"does{model_line()}",
                    CaptureWarning,
                    stacklevel=2,
                )
        return pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype),
            result,
        )

    def _slice(self, storages: set[int]) -> tuple[list[int], set[int]]:
        """Return the ops that some storages got their values from, and all storages they touch."""
        touched, ops = set(storages), []
        for op, call in reversed(self._calls.items()):
            if not touched.isdisjoint((*call.creates, *call.writes)):
                ops.append(op)
                read = () if op in self._assumptions else (*call.reads, *call.writes)
                touched.update((*read, *call.creates))
        return ops[::-1], touched

    def _run(self, op: int, memory: StorageMemory, norm: float) -> None:
        call = self._calls[op]
        if op not in self._assumptions:
            memory.run(call, seed=0)
            return
        output, make = self._assumptions[op]
        result: list[Any] = [None] * len(call.outputs)
        result[output] = make(op) * norm if call.op_type in NORMS else make(op)
        memory.keep(prepared(call, memory.slots), result)


aten = torch.ops.aten

NORMS = {"aten.linalg_vector_norm", "aten.norm"}
OTHER_NORMS = 2**-10, 2**10  # with which a decision is made once more

# Tests of numbers that are false of finite ones, and what equal ones say.
_TESTS = {aten.isinf.default, aten.isnan.default, aten.isneginf.default, aten.isposinf.default}
_EQUALITIES = dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), True)
_EQUALITIES |= dict.fromkeys((aten.ne.Scalar, aten.ne.Tensor), False)

# Functions that choose, and which of their results are the indices of what is chosen.
_CHOICES = {
    **dict.fromkeys((aten.argmax.default, aten.argmin.default, aten.multinomial.default), 0),
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.topk.default), 1),
    **dict.fromkeys((aten.sort.default, aten.sort.stable), 1),
}

# The output of a call that is assumed, as values are not known, and its value for a seed.
Assumption = tuple[int, Callable[[int], torch.Tensor]]


def assumption_of(call: Call) -> Assumption | None:
    """Return what is assumed of a call; None if nothing is."""
    answer = _says_of_finite_numbers(call)
    view = call.outputs[0] if call.outputs else None
    if answer is not None and view is not None:
        size = view.size
        return 0, lambda _seed: torch.full(size, answer)
    if call.update > 0 and call.op_type in NORMS and view is not None and not view.size:
        return 0, lambda _seed: torch.ones(())
    chosen = _CHOICES.get(call.function)
    if chosen is not None:
        return chosen, lambda seed: _drawn(call, chosen, seed)
    return None


def _says_of_finite_numbers(call: Call) -> bool | None:
    if call.function in _TESTS:
        return False
    if call.function in _EQUALITIES:
        first, second = call.arguments
        if first == second:  # only what is no number differs from itself
            return _EQUALITIES[call.function]
        if isinstance(second, float) and abs(second) == float("inf"):
            return not _EQUALITIES[call.function]
    return None


def _drawn(call: Call, chosen: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def scores(value: Any) -> Any:
        return torch.rand(value.size, generator=generator) if isinstance(value, View) else value

    torch.manual_seed(seed)  # of what draws itself
    keywords = {name: scores(value) for name, value in call.keywords.items()}
    result = call.function(*map(scores, call.arguments), **keywords)
    indices: torch.Tensor = result[chosen] if isinstance(result, tuple) else result
    return indices
