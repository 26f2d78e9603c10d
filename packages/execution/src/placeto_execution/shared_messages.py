"""Messages of a step and emulated links, in memory that all processes share."""

import mmap
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch

from placeto_execution.devices import semaphores
from placeto_execution.programs import Message
from placeto_graphs import Cluster

ALIGNMENT = 64  # bytes
SPIN = 1e-3  # seconds for which a waiting process keeps its core, as it takes time to wake one


class SharedMessages:
    """Messages that processes leave for each other; to be made before the processes are forked.

    Each message is put, announced and taken once in a step. The messages of two devices are
    announced in the order of their ids, and a semaphore counts them. On a processor that
    reorders writes, the semaphore also makes all of a message visible before its announcement.

    The memory has no name that could be left behind, and is given back when all processes have
    ended.
    """

    def __init__(
        self, messages: Sequence[Message], num_devices: int, *, share_cores: bool = False
    ) -> None:
        self._messages = messages
        self._share_cores = share_cores and hasattr(os, "sched_yield")
        self._pairs = [(message.source, message.destination) for message in messages]
        # Of each pair of devices: its messages in a step, the semaphore of its announcements, and
        # the announcements that were acquired in all steps so far.
        self._num_per_step = Counter(self._pairs)
        counters = semaphores(len(self._num_per_step))
        self._announcements = dict(zip(self._num_per_step, counters, strict=True))
        self._num_acquired = Counter[tuple[int, int]]()
        self._required: list[int] = []  # announcements of its pair up to that of each message
        num_so_far = Counter[tuple[int, int]]()
        for pair in self._pairs:
            num_so_far[pair] += 1
            self._required.append(num_so_far[pair])
        self._arrival: Any = RawArray("d", len(messages))
        self._offset: Any = RawArray("q", len(messages))  # in the file of its source
        self._tensors: dict[int, list[torch.Tensor]] = {}  # of each message
        self._mapped = [torch.empty(0, dtype=torch.uint8)] * num_devices
        self._num_bytes = 0  # of all messages of this process
        self._files: list[int] = []
        try:
            for _ in range(num_devices):
                self._files.append(_nameless_file())
        except OSError:
            self.close()
            raise

    def put(self, message_id: int, buffers: Sequence[torch.Tensor]) -> None:
        """Write a message, which other processes see when it is announced."""
        if message_id not in self._tensors:
            self._offset[message_id] = self._num_bytes
            self._num_bytes += sum(_aligned(buffer.nbytes) for buffer in buffers)
            file = self._files[self._messages[message_id].source]
            if self._num_bytes > os.fstat(file).st_size:
                os.ftruncate(file, 2 * self._num_bytes)
        for target, buffer in zip(self._tensors_of(message_id, buffers), buffers, strict=True):
            target.copy_(buffer)

    def announce(self, message_id: int, arrival: float) -> None:
        """Let a message be there from a time of `time.monotonic` on."""
        self._arrival[message_id] = arrival
        self._announcements[self._pairs[message_id]].release()

    def has_come(self, message_id: int) -> bool:
        """Return whether a message is there."""
        if not self._is_announced(message_id):
            return False
        return bool(self._arrival[message_id] <= time.monotonic())

    def wait(self, message_id: int) -> None:
        """Return when a message is there; after a while, sleep until it is announced."""
        until = time.monotonic() + SPIN
        while not self.has_come(message_id):
            if self._share_cores:
                os.sched_yield()
            elif time.monotonic() > until and self._is_announced(message_id, is_awaited=True):
                time.sleep(max(0.0, self._arrival[message_id] - time.monotonic() - SPIN))

    def _is_announced(self, message_id: int, *, is_awaited: bool = False) -> bool:
        pair = self._pairs[message_id]
        while self._num_acquired[pair] < self._required[message_id]:
            if not self._announcements[pair].acquire(is_awaited):
                return False
            self._num_acquired[pair] += 1
        return True

    def take(self, message_id: int, buffers: Sequence[torch.Tensor]) -> None:
        """Read a message that has come."""
        pair = self._pairs[message_id]
        self._required[message_id] += self._num_per_step[pair]  # in the next step
        for buffer, values in zip(buffers, self._tensors_of(message_id, buffers), strict=True):
            buffer.copy_(values)

    def close(self) -> None:
        self._tensors.clear()
        self._mapped.clear()
        while self._files:
            os.close(self._files.pop())

    def _tensors_of(self, message_id: int, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if message_id not in self._tensors:
            source, start, tensors = self._messages[message_id].source, self._offset[message_id], []
            for buffer in buffers:
                end = start + buffer.nbytes
                if end > len(self._mapped[source]):
                    size = os.fstat(self._files[source]).st_size
                    mapped = mmap.mmap(self._files[source], size)
                    self._mapped[source] = torch.frombuffer(mapped, dtype=torch.uint8)
                values = self._mapped[source][start:end]
                tensors.append(values.view(buffer.dtype).view(buffer.shape))
                start += _aligned(buffer.nbytes)
            self._tensors[message_id] = tensors
        return self._tensors[message_id]


class EmulatedLinks:
    """The links of a cluster, which the processes of all its devices share.

    A link sends one transfer after the other, for the time that the bandwidth gives their bytes. A
    tensor arrives the latency later, or when the real transfer is done if that takes longer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._latency: list[list[float]] = cluster.latency.tolist()
        self._bandwidth: list[list[float]] = cluster.bandwidth.tolist()
        self._overhead = [device.transfer_overhead for device in cluster.devices]
        self._free_at: Any = RawArray("d", cluster.num_links)
        self._locks = semaphores(cluster.num_links, 1)

    def reserve(self, message: Message, num_bytes: int, ready: float) -> tuple[float, float]:
        """Reserve the link of a tensor that is ready; return when it is sent, and when it arrives.

        Times are those of `time.monotonic`.
        """
        source, destination, link = message.source, message.destination, message.link
        with self._locks[link]:
            start = max(ready, self._free_at[link])
            sent = start + num_bytes / self._bandwidth[source][destination]
            self._free_at[link] = sent + self._overhead[source]
        return start, sent + self._latency[source][destination]

    @property
    def are_busy(self) -> bool:
        """Whether a link carries something now."""
        return max(self._free_at, default=0.0) > time.monotonic()


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("placeto")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
