"""The tensors of a running step that are on one device."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import torch

from placeto_capture.tracing.op_graph import TensorsOfTrace
from placeto_capture.tracing.prepared_calls import Slots, StorageMemory
from placeto_capture.tracing.trace import Placeholder, Trace, View, whole_storage


class StepParts:
    """The parts of all storages of a step, numbered through.

    Versions of a part that ops make of each other are the same memory.

    Attributes
    ----------
    views : list of `View`
        The bytes of each part.
    num_bytes : list of int
        Number of bytes of each part.
    of_storage : dict of int to list of int
        The parts of each storage.
    of_tensor : list of tuple of int
        The parts that each tensor of the graph is. What an optimizer keeps for a weight belongs to
        the weight's first tensor.
    last_op : dict of int to int
        Last op that makes each part; a part that no op makes is not there.
    """

    def __init__(self, trace: Trace, tensors: TensorsOfTrace) -> None:
        self.views: list[View] = []
        self.num_bytes: list[int] = []
        self.of_storage: defaultdict[int, list[int]] = defaultdict(list)
        for storage in range(len(trace.storage_bytes)):  # a storage is one part
            self.of_storage[storage].append(storage)
            self.views.append(whole_storage(storage, trace.storage_bytes[storage]))
            self.num_bytes.append(trace.storage_bytes[storage])
        self.of_tensor: list[tuple[int, ...]] = []
        with_state: set[int] = set()  # placeholders
        for version in tensors.made:
            parts: list[int] = []
            if version.storage is not None:
                parts += self.of_storage[version.storage]
            placeholder = trace.ops[version.producer]
            if isinstance(placeholder, Placeholder) and version.producer not in with_state:
                with_state.add(version.producer)
                for storage in placeholder.storages[1:]:
                    parts += self.of_storage[storage]
            self.of_tensor.append(tuple(parts))
        self.last_op = {
            part: version.producer
            for version, parts in zip(tensors.made, self.of_tensor, strict=True)
            for part in parts
        }

    def storages_of(self, tensors: Collection[int]) -> set[int]:
        """Return the storages of which some tensors are parts."""
        return {self.views[part].storage for tensor in tensors for part in self.of_tensor[tensor]}


class DeviceMemory(StorageMemory):
    """The storages of a step on a device, and how many tensors of the graph hold their parts.

    A part of a storage is there while a tensor holds it, and a storage while a part of it is.
    Several versions of a part, which an op in place makes of each other, are the same memory. Each
    device has a storage of its own for what it has of a storage.
    """

    def __init__(
        self,
        device: torch.device,
        storage_bytes: Sequence[int] | Mapping[int, int],
        slots: Slots,
        parts: StepParts,
    ) -> None:
        super().__init__(device, storage_bytes, slots)
        self._parts = parts
        self._num_holds: dict[int, int] = {}  # of each part
        self._num_held: dict[int, int] = {}  # parts of each storage

    def drop_unless_held(self, storage: int) -> None:
        """Forget a storage, unless a tensor holds some of it."""
        if not self._num_held.get(storage):
            self.drop(storage)

    def hold(self, part: int) -> int:
        """Count one more that holds a part; return the bytes that are held more."""
        count = self._num_holds.get(part, 0)
        self._num_holds[part] = count + 1
        if count:
            return 0
        storage = self._parts.views[part].storage
        self._num_held[storage] = self._num_held.get(storage, 0) + 1
        self.owner(storage)
        return self._parts.num_bytes[part]

    def release(self, part: int) -> int:
        """Count one fewer, and drop what nobody holds; return the bytes that are held fewer."""
        self._num_holds[part] -= 1
        if self._num_holds[part]:
            return 0
        storage = self._parts.views[part].storage
        self._num_held[storage] -= 1
        self.drop_unless_held(storage)
        return self._parts.num_bytes[part]
