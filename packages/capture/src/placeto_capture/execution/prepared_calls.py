"""Calls of a trace, prepared: their arguments are filled in, not looked for, each time they run.

Each distinct look at a storage (`View`) has a number, its slot. A device keeps the tensor of a
slot from when it is first needed until its storage is given up.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from placeto_capture.tracing.trace import Call, View, views_in


class Tensors(Protocol):
    """Where arguments come from: the memory of one device."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        ...

    @property
    def of_slot(self) -> Sequence[torch.Tensor | None]:
        """The tensor of each slot, if it is there."""
        ...

    def look(self, slot: int) -> torch.Tensor:
        """Make the tensor of a slot."""
        ...


Fill = Callable[[Tensors], Any]


class Slots:
    """Numbers the distinct looks at storages.

    Attributes
    ----------
    views : list of `View`
        View of each slot.
    of_storage : dict of int to list of int
        The slots of each storage.
    """

    def __init__(self) -> None:
        self.views: list[View] = []
        self.of_storage: defaultdict[int, list[int]] = defaultdict(list)
        self._slot_of_view: dict[View, int] = {}

    def slot(self, view: View) -> int:
        """Return the number of a look, which may be new."""
        if view not in self._slot_of_view:
            self._slot_of_view[view] = len(self.views)
            self.of_storage[view.storage].append(len(self.views))
            self.views.append(view)
        return self._slot_of_view[view]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to run on any device.

    Attributes
    ----------
    kernel
        Function of the call, without the wrapper that PyTorch puts around it.
    positions : list
        Its positional arguments; what depends on the device is missing.
    holes : tuple of (int, int)
        The position and slot of each argument that is a tensor.
    other_positions, other_keywords : tuples of (int or text, function)
        Functions that make the other arguments that depend on the device.
    keywords : dict
        The keyword arguments that do not.
    made : tuple of (int, int)
        Place among the tensors that it returns, and slot, of each that is kept.
    rng_index : int or None
        As in `Call`.
    takes_generator : bool
        True if it takes a generator of random numbers.
    """

    kernel: Any
    positions: list[Any]
    holes: tuple[tuple[int, int], ...]
    other_positions: tuple[tuple[int, Fill], ...]
    keywords: dict[str, Any]
    other_keywords: tuple[tuple[str, Fill], ...]
    made: tuple[tuple[int, int], ...]
    rng_index: int | None
    takes_generator: bool

    def arguments(self, tensors: Tensors) -> tuple[list[Any], dict[str, Any]]:
        """Return what it is called with on a device."""
        args = self.positions.copy()
        of_slot = tensors.of_slot
        for position, slot in self.holes:
            tensor = of_slot[slot]
            args[position] = tensors.look(slot) if tensor is None else tensor
        for position, fill in self.other_positions:
            args[position] = fill(tensors)
        if not self.other_keywords:
            return args, self.keywords
        return args, {**self.keywords, **{key: fill(tensors) for key, fill in self.other_keywords}}


def prepared(call: Call, slots: Slots) -> PreparedCall:
    """Return a call, or a part of one, ready to run."""
    looked_at = {view.storage for view in views_in((call.arguments, call.keywords))}
    made: dict[int, tuple[int, int]] = {}  # of each storage
    for place, view in enumerate(call.outputs):
        if view is not None and view.storage in call.creates and view.storage not in looked_at:
            made.setdefault(view.storage, (place, slots.slot(view)))
    fills = {place: _fill(value, slots) for place, value in enumerate(call.arguments)}
    keyword_fills = {key: _fill(value, slots) for key, value in call.keywords.items()}
    return PreparedCall(
        kernel=getattr(call.function, "_op", call.function),
        positions=list(call.arguments),
        holes=tuple(
            (place, slots.slot(value))
            for place, value in enumerate(call.arguments)
            if isinstance(value, View)
        ),
        other_positions=tuple(
            (place, fill)
            for place, fill in fills.items()
            if fill is not None and not isinstance(call.arguments[place], View)
        ),
        keywords={key: call.keywords[key] for key, fill in keyword_fills.items() if fill is None},
        other_keywords=tuple((key, fill) for key, fill in keyword_fills.items() if fill),
        made=tuple(made.values()),
        rng_index=call.rng_index,
        takes_generator=_takes_generator(call.function),
    )


def _fill(value: Any, slots: Slots) -> Fill | None:
    """Return what gives an argument on a device; None for what is the same on all of them."""
    if isinstance(value, View):
        slot = slots.slot(value)
        return lambda tensors: _tensor(tensors, slot)
    if isinstance(value, torch.Tensor):  # a constant, whose values the op itself holds
        return lambda tensors: value.detach().to(tensors.device, copy=True)
    if isinstance(value, torch.device):
        return lambda tensors: tensors.device
    if isinstance(value, (list, tuple)):
        fills = [_fill(item, slots) for item in value]
        if any(fills):
            kind = type(value)
            pairs = list(zip(value, fills, strict=True))
            return lambda tensors: kind(fill(tensors) if fill else item for item, fill in pairs)
    return None


def _tensor(tensors: Tensors, slot: int) -> torch.Tensor:
    tensor = tensors.of_slot[slot]
    return tensors.look(slot) if tensor is None else tensor


def _takes_generator(function: Any) -> bool:
    schema = getattr(function, "_schema", None)
    return schema is not None and any(each.name == "generator" for each in schema.arguments)
