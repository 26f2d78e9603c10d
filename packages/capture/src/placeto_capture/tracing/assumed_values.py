"""What is assumed of values that a step does not know.

All numbers are finite, so that tests for infinities and for what is no number have one answer. And
what is chosen by unknown scores, such as the experts that a router sends a word to, may be one as
well as another: the scores are drawn, independent and alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from placeto_capture.tracing.trace import Call, TensorRef

aten = torch.ops.aten

# What tests say of finite numbers.
_TESTS = {
    aten.isinf.default: False,
    aten.isnan.default: False,
    aten.isneginf.default: False,
    aten.isposinf.default: False,
}
_EQUALITIES = {
    aten.eq.Scalar: True,
    aten.eq.Tensor: True,
    aten.ne.Scalar: False,
    aten.ne.Tensor: False,
}

# Functions that choose, and which of their results are the indices of what is chosen.
_CHOICES = {
    aten.argmax.default: 0,
    aten.argmin.default: 0,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.multinomial.default: 0,
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.topk.default: 1,
}


@dataclass(frozen=True)
class Assumption:
    """What a call gives of values that are not known.

    Attributes
    ----------
    output : int
        Which of the tensors that it returns is assumed.
    make : function of a seed
        Returns that tensor.
    """

    output: int
    make: Callable[[int], torch.Tensor]


def assumption_of(call: Call) -> Assumption | None:
    """Return what is assumed of a call; None if nothing is."""
    says = _says_of_finite_numbers(call)
    ref = call.outputs[0] if call.outputs else None
    if says is not None and ref is not None:
        size = ref.size
        return Assumption(0, lambda _seed: torch.full(size, says))
    chosen = _CHOICES.get(call.function)
    if chosen is not None:
        return Assumption(chosen, lambda seed: _drawn(call, chosen, seed))
    return None


def _says_of_finite_numbers(call: Call) -> bool | None:
    if call.function in _TESTS:
        return _TESTS[call.function]
    if call.function in _EQUALITIES:
        left, right = call.arguments
        if left == right:  # only what is no number differs from itself
            return _EQUALITIES[call.function]
        if isinstance(right, float) and abs(right) == float("inf"):
            return not _EQUALITIES[call.function]
    return None


def _drawn(call: Call, chosen: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def scores(value: Any) -> Any:
        return (
            torch.rand(value.size, generator=generator) if isinstance(value, TensorRef) else value
        )

    torch.manual_seed(seed)  # of what draws itself
    keywords = {name: scores(value) for name, value in call.keywords.items()}
    result = call.function(*map(scores, call.arguments), **keywords)
    indices: torch.Tensor = result[chosen] if isinstance(result, tuple) else result
    return indices
