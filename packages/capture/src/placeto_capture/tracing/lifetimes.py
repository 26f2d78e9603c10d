"""The time that PyTorch has a storage in memory: until nothing refers to it any more."""

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_capture.tracing.trace import Call, Placeholder, Trace
from placeto_capture.tracing.updates import with_calls

# What is too small for an op: parts of the peak of a step, and bytes, those of the smallest block
# that PyTorch's allocator of GPUs hands out.
SMALL_DIFFERENCE = 0.02
SMALL_STORAGE = 0.002
SMALLEST_BLOCK = 512


class Lifetimes:
    """Follows which storages, to which others are added, something but the tracer refers to."""

    def __init__(self, storages: Sequence[torch.UntypedStorage]) -> None:
        self.living: list[int] = []  # those that lived when they were looked at last
        self.deaths: dict[int, int] = {}  # the number of ops that had run when each died
        self._storages = storages
        self._num_seen = 0
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        self._without_tensor: list[int] = []

    def follow(self, tensor: torch.Tensor, storage: int) -> None:
        """Note a tensor of a storage."""
        # When the tensor goes its storage is still there.
        gone = self._without_tensor
        self._tensors.append(weakref.ref(tensor, lambda _: gone.append(storage)))

    def before_op(self, op: int) -> None:
        """Note the storages that have died before an op."""
        while self._without_tensor:
            storage = self._without_tensor.pop()
            if not self.lives(storage):
                self.deaths[storage] = op

    def lives(self, storage: int) -> bool:
        """Return whether something but the tracer refers to a storage."""
        count: int = torch._C._storage_Use_Count(self._storages[storage]._cdata)
        return count > 1

    def look(self) -> None:
        """Note the storages that live now."""
        candidates = (*self.living, *range(self._num_seen, len(self._storages)))
        self.living = [storage for storage in candidates if self.lives(storage)]
        self._num_seen = len(self._storages)


def with_state(trace: Trace) -> Trace:
    """Return a trace whose inputs that an op changes, such as caches, are buffers there.

    Gradients of before that go during the step stay inputs.
    """
    writer = {storage: call for call in reversed(trace.calls) for storage in call.writes}
    ops = [*trace.ops]
    for op, placeholder in enumerate(trace.ops):
        if not isinstance(placeholder, Placeholder) or placeholder.is_resident:
            continue
        storage = placeholder.storages[0]
        goes_in_step = placeholder.creates and storage in trace.deaths
        if storage in writer and not goes_in_step:
            scope = placeholder.scope or writer[storage].scope
            ops[op] = replace(placeholder, op_type="buffer", scope=scope)
    return replace(trace, ops=ops)


@contextmanager
def without_collection() -> Iterator[None]:
    """Let no tensors die by chance: those in cycles, when Python's garbage collector runs."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def with_frees(trace: Trace) -> Trace:
    """Return a trace with ops ``"placeto.free"``, which read what is kept until then, at the peak.

    Each is on the device of the op that has written the storage last, and takes no time.
    """
    calls: defaultdict[int, list[Call]] = defaultdict(list)
    for life in _kept_at_the_peak(trace):
        calls[life.end].append(_free(trace, life))
    return with_calls(trace, calls) if calls else trace


class _Life(NamedTuple):
    """The life of a storage: its first and last writer, the op after its last reader, its end."""

    storage: int
    num_bytes: int
    maker: int
    last_writer: int
    unread: int
    end: int


def _kept_at_the_peak(trace: Trace) -> list[_Life]:
    """Return the lives without which the peak would be too low."""

    def curve(begin: str, lives: Iterable[_Life]) -> NDArray[np.int64]:
        """Return int64[V], the bytes of lives from where they begin while each op runs."""
        changes = np.zeros(len(trace.ops) + 1, np.int64)
        for life in lives:
            changes[getattr(life, begin)] += life.num_bytes
            changes[life.end] -= life.num_bytes
        return changes.cumsum()[:-1]

    lives = _lives(trace)
    real = curve("maker", lives)
    real += sum(
        trace.bytes_before(placeholder.storages)
        for placeholder in trace.placeholders
        if not placeholder.creates
    )
    read = real - curve("unread", lives)
    kept_lives: list[_Life] = []
    while real.max(initial=0) > (1 + SMALL_DIFFERENCE) * read.max(initial=0):
        op = int(real.argmax())
        min_bytes = max(SMALLEST_BLOCK, SMALL_STORAGE * real[op])
        at_peak = (life for life in lives if life.unread <= op < life.end)
        added_lives = [
            life for life in at_peak if life.num_bytes >= min_bytes and life not in kept_lives
        ]
        if not added_lives:
            break
        kept_lives += added_lives
        read += curve("unread", added_lives)
    return kept_lives


def _lives(trace: Trace) -> list[_Life]:
    """Return the lives of the storages that ops make."""
    maker_of_storage: dict[int, int] = {}
    writer: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for op, call in enumerate(trace.ops):
        maker_of_storage.update(dict.fromkeys(call.creates, op))
        writer.update(dict.fromkeys((*call.creates, *call.writes), op))
        last_use.update(dict.fromkeys((*call.reads, *call.writes, *call.creates), op))
    lives = []
    for storage, maker in maker_of_storage.items():
        unread = len(trace.ops) if storage in trace.held_storages else last_use[storage] + 1
        end = max(unread, trace.deaths.get(storage, 0))
        num_bytes = trace.storage_bytes[storage]
        lives.append(_Life(storage, num_bytes, maker, writer[storage], unread, end))
    return lives


def _free(trace: Trace, life: _Life) -> Call:
    earlier_ops = range(life.maker, life.end)[::-1]
    last = next((op for op in earlier_ops if isinstance(trace.ops[op], Call)), life.maker)
    return Call(
        None,
        reads=(life.storage,),
        scope=trace.ops[life.last_writer].scope,
        phase=trace.ops[min(life.end, len(trace.ops) - 1)].phase,  # so that it is in its turn
        belongs_to=life.last_writer,
        waits_for=(last,),
    )
