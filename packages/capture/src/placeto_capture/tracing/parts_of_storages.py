"""Which parts of storages each op of a trace reads, and which it changes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from placeto_capture.tracing.functions import OVERWRITES, function_of
from placeto_capture.tracing.storage_parts import StorageParts, whole_storage
from placeto_capture.tracing.trace import Call, TensorRef, Trace, references


@dataclass
class _Access:
    """The tensors of one storage that a call looks at, and those that it changes."""

    read: set[TensorRef] = field(default_factory=set)
    written: set[TensorRef] = field(default_factory=set)


@dataclass(frozen=True)
class Use:
    """How a call uses the parts of a storage.

    Attributes
    ----------
    read : tuple of int
        The parts that it reads: also those that it changes without overwriting all of their bytes.
    written : tuple of int
        The parts that it changes.
    """

    read: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def all(self) -> set[int]:
        """The parts that it reads or changes."""
        return {*self.read, *self.written}


class PartsOfStorages:
    """The parts of all storages of a trace, and how its ops use them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._accesses = [_accesses(op) if isinstance(op, Call) else {} for op in trace.ops]
        refs: defaultdict[int, set[TensorRef]] = defaultdict(set)
        for accesses in self._accesses:
            for storage, access in accesses.items():
                refs[storage] |= access.read | access.written
        self._parts = [
            StorageParts(whole_storage(storage, num_bytes), refs[storage])
            for storage, num_bytes in enumerate(trace.storage_bytes)
        ]

    def parts(self, storage: int) -> list[TensorRef]:
        """Return the bytes of each part of a storage."""
        return self._parts[storage].parts

    def sizes(self, storage: int) -> list[int]:
        """Return how many bytes each part of a storage has."""
        return self._parts[storage].sizes

    def used(self, op: int, storage: int) -> Use:
        """Return how an op uses a storage that it reads or writes."""
        access = self._accesses[op][storage]
        looks = [self._parts[storage].shown(ref) for ref in access.written]
        # What is not wholly overwritten is still there afterwards, as if it had been read.
        kept = {part for look in looks if not look.is_exact for part in look.parts}
        read = {part for ref in access.read for part in self._parts[storage].shown(ref).parts}
        written = {part for look in looks for part in look.parts}
        return Use(tuple(sorted(read | kept)), tuple(sorted(written)))

    def created(self, op: int, storage: int) -> Iterable[int]:
        """Return the parts that an op makes of a storage: those that it writes, or all."""
        call, access = self._trace.ops[op], self._accesses[op].get(storage)
        is_written = access is not None and isinstance(call, Call) and not call.parts
        return self.used(op, storage).written if is_written else range(len(self.sizes(storage)))


def _accesses(call: Call) -> dict[int, _Access]:
    """Return what a call, or each of its parts, looks at and changes in each storage."""
    accesses: defaultdict[int, _Access] = defaultdict(_Access)
    for part in call.parts or (call,):
        function = function_of(part.function)
        written = list(references(function.written(part.arguments, part.keywords)))
        read = list(references((part.arguments, part.keywords)))
        for ref in written:
            accesses[ref.storage].written.add(ref)
            if function.name in OVERWRITES:
                read.remove(ref)
        for ref in read:
            accesses[ref.storage].read.add(ref)
    return accesses
