"""Runs the calls of a trace on real tensors.

Calls are prepared: arguments are filled in each time. Each distinct view of a storage is a slot,
whose tensor a device keeps until the storage is given up (`StorageMemory`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from placeto_capture.tracing.cpu_kernels import KERNELS_OF_ANY_DEVICE
from placeto_capture.tracing.trace import Call, View, tensor_leaves, views_in


class Slots:
    """Numbers the distinct views of storages."""

    def __init__(self) -> None:
        self.views: list[View] = []  # of each slot
        self.of_storage: defaultdict[int, list[int]] = defaultdict(list)  # slots of each
        self._slot_of_view: dict[View, int] = {}

    def slot(self, view: View) -> int:
        """Return the number of a view, which may be new."""
        if view not in self._slot_of_view:
            self._slot_of_view[view] = len(self.views)
            self.of_storage[view.storage].append(len(self.views))
            self.views.append(view)
        return self._slot_of_view[view]


def view_of(storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """Return a view of a storage, wherever it is."""
    tensor = torch.empty(0, dtype=view.dtype, device=storage.device)
    tensor.set_(storage, view.offset, view.size, view.stride)
    if view.is_conjugated:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if view.is_negated else tensor


class StorageMemory:
    """The storages of a trace that are on one device, each made when it is first needed."""

    def __init__(
        self, device: torch.device, storage_bytes: Sequence[int] | Mapping[int, int], slots: Slots
    ) -> None:
        self.device = device
        self.slots = slots
        self._of_slot: dict[int, torch.Tensor] = {}  # those that have been looked at
        self._storage_bytes = storage_bytes
        self._owner: dict[int, torch.Tensor] = {}  # a tensor of each storage that is there

    def owner(self, storage: int) -> torch.Tensor:
        """Return a tensor that keeps a storage alive; one that is not there begins empty."""
        owner = self._owner.get(storage)
        if owner is None:
            num_bytes = self._storage_bytes[storage]
            owner = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._owner[storage] = owner
        return owner

    def put(self, storage: int, owner: torch.Tensor) -> None:
        """Let a storage be that of a tensor, whatever it was before."""
        self.drop(storage)
        self._owner[storage] = owner

    def drop(self, storage: int) -> None:
        for slot in self.slots.of_storage[storage]:
            self._of_slot.pop(slot, None)
        self._owner.pop(storage, None)

    def look(self, slot: int) -> torch.Tensor:
        """Return the tensor of a slot, and keep it."""
        tensor = self._of_slot.get(slot)
        if tensor is None:
            tensor = self._of_slot[slot] = self.tensor(self.slots.views[slot])
        return tensor

    def tensor(self, view: View) -> torch.Tensor:
        return view_of(self.owner(view.storage).untyped_storage(), view)

    def run(self, call: Call, seed: int) -> None:
        """Run a call; what it draws follows from a seed and from which draw it is."""
        for single_call in call.single_calls:
            ready = prepared(single_call, self.slots)
            args, keywords = ready.arguments(self)
            if single_call.rng_index is not None:
                torch.manual_seed(seed + single_call.rng_index)
            self.keep(ready, ready.kernel(*args, **keywords))

    def keep(self, call: "PreparedCall", result: Any) -> None:
        """Take over what a call returned."""
        leaves = tensor_leaves(result) if call.output_slots else []
        for place, slot in call.output_slots:
            tensor = leaves[place]
            if tensor is not None:
                self._take_over(slot, tensor)

    def _take_over(self, slot: int, tensor: torch.Tensor) -> None:
        view = self.slots.views[slot]
        if (
            tensor.stride() == view.stride
            and tensor.shape == view.size
            and tensor.storage_offset() == view.offset
            and tensor.untyped_storage().nbytes() == self._storage_bytes[view.storage]
            and not (view.is_conjugated or view.is_negated)
        ):
            self.put(view.storage, tensor)
            self._of_slot[slot] = tensor
        else:  # a kernel may lay out its result in another way than fake tensors say
            self.tensor(view).copy_(tensor)


Fill = Callable[[StorageMemory], Any]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to run on any device."""

    kernel: Any  # function of the call, without the wrapper that PyTorch puts around it
    call_arguments: tuple[Any, ...]  # arguments and keywords
    fill: Fill | None  # what makes those on a device, if they depend on it
    # Place among the tensors that it returns, and slot, of each that is kept.
    output_slots: tuple[tuple[int, int], ...]
    rng_index: int | None  # as in `Call`
    takes_generator: bool  # True if it takes a generator of random numbers

    def arguments(self, memory: StorageMemory) -> Any:
        """Return the arguments and keywords that it is called with on a device."""
        return self.fill(memory) if self.fill else self.call_arguments


def prepared(call: Call, slots: Slots) -> PreparedCall:
    """Return a call, or a part of one, ready to run."""
    looked_at = {view.storage for view in views_in((call.arguments, call.keywords))}
    output_of_storage: dict[int, tuple[int, int]] = {}  # of each storage
    for place, view in enumerate(call.outputs):
        if view is not None and view.storage in call.creates and view.storage not in looked_at:
            output_of_storage.setdefault(view.storage, (place, slots.slot(view)))
    call_arguments = call.arguments, call.keywords
    return PreparedCall(
        kernel=KERNELS_OF_ANY_DEVICE.get(call.function)
        or getattr(call.function, "_op", call.function),
        call_arguments=call_arguments,
        fill=fill_of(call_arguments, slots),
        output_slots=tuple(output_of_storage.values()),
        rng_index=call.rng_index,
        takes_generator="generator" in str(getattr(call.function, "_schema", "")),
    )


def fill_of(value: Any, slots: Slots) -> Fill | None:
    """Return what gives an argument on a device; None for what is the same on all of them."""
    if isinstance(value, View):
        slot = slots.slot(value)
        return lambda memory: memory.look(slot)
    if isinstance(value, torch.Tensor):  # a constant, whose values the op itself holds
        return lambda memory: value.detach().to(memory.device, copy=True)
    if isinstance(value, torch.device):
        return lambda memory: memory.device
    if isinstance(value, (list, tuple)):
        fills = [fill_of(item, slots) for item in value]
        if any(fills):
            kind = type(value)
            pairs = list(zip(value, fills, strict=True))
            return lambda memory: kind(fill(memory) if fill else item for item, fill in pairs)
    if isinstance(value, dict):
        fill_of_key = {key: fill_of(item, slots) for key, item in value.items()}
        if any(fill_of_key.values()):
            return lambda memory: {
                key: fill(memory) if fill else value[key] for key, fill in fill_of_key.items()
            }
    return None
