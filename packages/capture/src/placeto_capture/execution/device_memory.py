"""The tensors of a running step that are on one device."""

from collections.abc import Mapping, Sequence

import torch

from placeto_capture.tracing.op_graph import TensorsOfTrace
from placeto_capture.tracing.replay import Slots, StorageMemory
from placeto_capture.tracing.trace import Placeholder, Trace


def storages_of_tensors(trace: Trace, tensors: TensorsOfTrace) -> list[tuple[int, ...]]:
    """Return the storages of each tensor of the graph.

    What an optimizer keeps for a weight belongs to the weight's first tensor.
    """
    storages_of: list[tuple[int, ...]] = []
    with_state: set[int] = set()  # placeholders
    for version in tensors.made:
        storages = () if version.storage is None else (version.storage,)
        placeholder = trace.ops[version.producer]
        if isinstance(placeholder, Placeholder) and version.producer not in with_state:
            with_state.add(version.producer)
            storages = placeholder.storages
        storages_of.append(storages)
    return storages_of


class DeviceMemory(StorageMemory):
    """The storages of a step on a device, and how many tensors of the graph hold each.

    A storage is there while a tensor holds it. Several versions of one, which an op in place makes
    of each other, are the same memory. Each device has a storage of its own.
    """

    def __init__(
        self, device: torch.device, storage_bytes: Sequence[int] | Mapping[int, int], slots: Slots
    ) -> None:
        super().__init__(device, storage_bytes, slots)
        self._num_holds: dict[int, int] = {}

    def drop_unless_held(self, storage: int) -> None:
        """Forget a storage, unless a tensor holds it."""
        if not self._num_holds.get(storage):
            self.drop(storage)

    def hold(self, storage: int) -> int:
        """Count one more that holds a storage; return the bytes that are held more."""
        count = self._num_holds.get(storage, 0)
        self._num_holds[storage] = count + 1
        if count:
            return 0
        self.owner(storage)
        return self._storage_bytes[storage]

    def release(self, storage: int) -> int:
        """Count one fewer, and drop what nobody holds; return the bytes that are held fewer."""
        self._num_holds[storage] -= 1
        if self._num_holds[storage]:
            return 0
        self.drop(storage)
        return self._storage_bytes[storage]
