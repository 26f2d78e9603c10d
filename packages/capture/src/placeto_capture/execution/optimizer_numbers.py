"""The numbers that an optimizer computes in Python, such as Adam's corrections of its bias.

A captured step has those of one step as constants. For the next step, the same optimizer takes that
step with one tiny weight for each group of weights, and its calls are recorded. New settings of its
groups, as of a schedule of learning rates, change the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.step_spec import OptimizerFactory

Number = int | float | complex


@dataclass(frozen=True)
class NumberedCall:
    """A function that was called, and the numbers among its arguments, by place or keyword."""

    function: Any
    numbers: dict[int | str, Number]


class OptimizerNumbers:
    """An optimizer that takes the steps of a large one, with tiny weights.

    Parameters
    ----------
    factory
        Makes the optimizer.
    weights
        All weights of the model, in its order. Only how many dimensions they have, of what dtype
        they are and whether they get gradients is asked.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        The settings of its groups are those of the next step.
    group_of_weight : W of int or None
        The group of each weight; None for one that is in none.
    initial_state : list of dict of str to float
        State of the optimizer for a weight of each group before its first step, where it says
        so; known after that step.

    Raises
    ------
    CaptureError
        If the optimizer is made for other weights than those that it is given.

    Examples
    --------
    >>> numbers = OptimizerNumbers(torch.optim.SGD, [nn.Parameter(torch.ones(3, 2))])
    >>> (update,) = numbers.step()
    >>> [(str(call.function), call.numbers) for call in update]
    [('aten.add_.Tensor', {'alpha': -0.001})]
    """

    def __init__(self, factory: OptimizerFactory, weights: Sequence[nn.Parameter]) -> None:
        tiny = [
            nn.Parameter(torch.zeros((1,) * each.dim(), dtype=each.dtype), each.requires_grad)
            for each in weights
        ]
        self.optimizer = factory(tiny)
        self.group_of_weight: list[int | None] = [None] * len(tiny)
        place = {id(weight): number for number, weight in enumerate(tiny)}
        for number, group in enumerate(self.optimizer.param_groups):
            group.update({name: False for name in ("foreach", "fused") if name in group})
            for weight in group["params"]:
                if id(weight) not in place:
                    raise CaptureError(
                        "optimizer: expected a function that makes one for the weights that it is "
                        "given, got one that makes it for others"
                    )
                self.group_of_weight[place[id(weight)]] = number
            group["params"] = [each for each in group["params"] if each.requires_grad][:1]
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        self.initial_state: list[dict[str, float]] = []

    def step(self) -> list[list[NumberedCall]]:
        """Take a step; return what is called for a weight of each group."""
        groups = self.optimizer.param_groups
        weights = [group["params"] for group in groups]
        is_first = not self.initial_state
        calls = []
        try:
            for chosen in range(len(groups)):
                for number, group in enumerate(groups):
                    group["params"] = weights[number] if number == chosen else []
                with _Watch() as watch:
                    for value in self._state(weights[chosen]).values():
                        watch.note(value)
                    self.optimizer.step()
                calls.append(watch.calls)
                if is_first:
                    state = self._state(weights[chosen]).items()
                    self.initial_state.append({key: watch.first_value(each) for key, each in state})
        finally:
            for group, own in zip(groups, weights, strict=True):
                group["params"] = own
        return calls

    def names_of_state(self, group: int) -> list[str]:
        """Return the names of what the optimizer keeps for a weight of a group."""
        self._begin()
        return list(self._state(self.optimizer.param_groups[group]["params"]))

    def go_on_from(self, state: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
        """Let the numbers be those that follow what the optimizer keeps for a weight of each group.

        That is the number of the step, and whatever else it keeps as one number.
        """
        self._begin()
        for group, kept in state.items():
            for name, own in self._state(self.optimizer.param_groups[group]["params"]).items():
                if not kept[name].dim():
                    own.copy_(kept[name])

    def _begin(self) -> None:
        """Take the first step, which makes what the optimizer keeps."""
        if not self.initial_state:
            self.step()

    def _state(self, weights: Sequence[nn.Parameter]) -> dict[str, torch.Tensor]:
        """Return the tensors that the optimizer keeps for the only one of these weights."""
        kept = self.optimizer.state.get(weights[0], {}) if weights else {}
        return {key: value for key, value in kept.items() if isinstance(value, torch.Tensor)}


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is called, but for what a trace does not have."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[NumberedCall] = []
        self._first_values: dict[int, tuple[torch.UntypedStorage, float]] = {}

    def note(self, value: torch.Tensor) -> None:
        """Note what a tensor holds, unless its memory is known already."""
        storage = value.untyped_storage()
        if value.numel() == 1 and storage._cdata not in self._first_values:
            with torch.utils._python_dispatch._disable_current_modes():
                self._first_values[storage._cdata] = storage, float(value.real)

    def first_value(self, tensor: torch.Tensor) -> float:
        """Return what a tensor held at first; 0.0 where that is not known."""
        return self._first_values.get(tensor.untyped_storage()._cdata, (None, 0.0))[1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_value = func is torch.ops.aten._local_scalar_dense.default
        if func.namespace == "aten" and not func.is_view and not is_value:
            self.calls.append(NumberedCall(func, numbers_among(args, kwargs)))
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self.note(result)
        return result


def numbers_among(args: Sequence[Any], keywords: dict[str, Any]) -> dict[int | str, Number]:
    """Return the numbers among arguments, by place or keyword."""
    named: list[tuple[int | str, Any]] = [*enumerate(args), *keywords.items()]
    return {
        name: value
        for name, value in named
        if isinstance(value, Number) and not isinstance(value, bool)
    }
