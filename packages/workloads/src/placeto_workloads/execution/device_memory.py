"""The tensors of a running step that are on one device."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch

from placeto_workloads.capture.trace import TensorRef
from placeto_workloads.capture.trace import tensor_leaves
from placeto_workloads.execution.prepared_calls import PreparedCall
from placeto_workloads.execution.prepared_calls import Slots


class DeviceMemory:
    """The storages of a step on a device, and how many tensors of the graph hold each of them.

    A storage is there while a tensor holds it. Several versions of one storage, which an op in
    place makes of each other, are the same memory. On devices that share their memory, what one
    sends the other is one storage, which is gone when both have given it up.

    Parameters
    ----------
    device
        Where the tensors are.
    storage_bytes
        The size of each storage.
    slots
        The looks at storages.
    """

    def __init__(
        self, device: torch.device, storage_bytes: Sequence[int] | Mapping[int, int], slots: Slots
    ) -> None:
        self.device = device
        self.of_slot: list[torch.Tensor | None] = [None] * len(slots.refs)
        self._slots = slots
        self._storage_bytes = storage_bytes
        self._owner: dict[int, torch.Tensor] = {}  # a tensor of each storage that is there
        self._num_holds: dict[int, int] = {}

    def owner(self, storage: int) -> torch.Tensor:
        """Return a tensor that keeps a storage alive."""
        return self._owner[storage]

    def put(self, storage: int, owner: torch.Tensor) -> None:
        """Let a storage be that of a tensor, whatever it was before."""
        for slot in self._slots.of_storage[storage]:
            self.of_slot[slot] = None
        self._owner[storage] = owner

    def allocate(self, storage: int) -> torch.Tensor:
        """Put memory without values in the place of a storage."""
        size = self._storage_bytes[storage]
        owner = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.put(storage, owner)
        return owner

    def drop(self, storage: int) -> None:
        """Forget a storage."""
        for slot in self._slots.of_storage[storage]:
            self.of_slot[slot] = None
        del self._owner[storage]

    def hold(self, storage: int) -> int:
        """Count one more that holds a storage; return the bytes that are held more."""
        count = self._num_holds.get(storage, 0)
        self._num_holds[storage] = count + 1
        return 0 if count else self._storage_bytes[storage]

    def release(self, storage: int) -> int:
        """Count one fewer, and drop what nobody holds; return the bytes that are held fewer."""
        self._num_holds[storage] -= 1
        if self._num_holds[storage]:
            return 0
        self.drop(storage)
        return self._storage_bytes[storage]

    def look(self, slot: int) -> torch.Tensor:
        """Make the tensor of a slot, and keep it."""
        ref = self._slots.refs[slot]
        tensor = self.of_slot[slot] = self.tensor(ref)
        return tensor

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """Return a look at a storage that is there."""
        tensor = torch.empty(0, dtype=ref.dtype, device=self.device)
        tensor.set_(self._owner[ref.storage].untyped_storage(), ref.offset, ref.size, ref.stride)
        if ref.is_conjugated:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if ref.is_negated else tensor

    def keep(self, call: PreparedCall, result: Any) -> None:
        """Take over what a call returned."""
        if isinstance(result, torch.Tensor):
            for _, slot in call.made:
                self._take_over(slot, result)
        elif call.made:
            leaves = list(tensor_leaves(result))
            for place, slot in call.made:
                tensor = leaves[place]
                if tensor is not None:
                    self._take_over(slot, tensor)

    def _take_over(self, slot: int, tensor: torch.Tensor) -> None:
        ref = self._slots.refs[slot]
        if (
            tensor.stride() == ref.stride
            and tensor.shape == ref.size
            and tensor.storage_offset() == ref.offset
            and tensor.untyped_storage().nbytes() == self._storage_bytes[ref.storage]
            and not (ref.is_conjugated or ref.is_negated)
        ):
            self._owner[ref.storage] = self.of_slot[slot] = tensor
        else:  # a kernel may lay out its result in another way than fake tensors say
            self.allocate(ref.storage)
            self.tensor(ref).copy_(tensor)
