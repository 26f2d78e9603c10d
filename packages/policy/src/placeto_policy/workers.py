"""The processes that train together: one, or several that `torchrun` started."""

import hashlib
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed

# Its functions have the group that there is when they are first imported as their default, and keep
# it, with its threads, until the process ends, which one of them may then turn into an abort. The
# first step of Adam would import them while there is a group.
import torch.distributed.nn.functional
from numpy.typing import NDArray
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from placeto_policy.errors import PolicyError

FAILED = "placeto_policy/failed"
LEFT = "placeto_policy/left"
DEFAULT_TIMEOUT = timedelta(minutes=30)
FAREWELL = timedelta(seconds=5)
# A machine whose link or power fails sends nothing. The system probes a silent one every 5 s after
# the first 10, and closes its connections after 30, which also limits the wait for an answer.
SECONDS_OF_SILENCE, SECONDS_UNTIL_ASKED, SECONDS_BETWEEN = 30, 10, 5
DESCRIPTORS = "/dev/fd"


class LostProcessError(PolicyError):
    """Another process was killed, or its machine does not answer."""


class Processes(Protocol):
    """Processes that share the episodes of a training."""

    @property
    def rank(self) -> int:
        """Index of this process."""
        ...

    @property
    def count(self) -> int:
        """Number of processes."""
        ...

    def sum(self, values: torch.Tensor) -> None:
        """Add up a tensor of equal shape over all processes, in place."""
        ...

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows of all processes, which may have unequal numbers of them."""
        ...

    def share(self, content: bytes) -> bytes:
        """Return the content of the first process."""
        ...


def check_same(processes: Processes, training: str, policy: torch.nn.Module) -> None:
    """Check that all processes have the same training.

    Sums of gradients of different trainings would be of no policy, without any other error.

    Parameters
    ----------
    processes
        Processes, each of which calls this.
    training
        Text that identifies the training, but for the policy.
    policy
        Policy of the training, whose weights must be equal.

    Raises
    ------
    PolicyError
        When one of them has another training than the first.
    """
    content = hashlib.sha256(training.encode())
    for tensor in policy.state_dict().values():
        content.update(tensor.numpy().tobytes())
    digest = content.digest()[:6]  # a float holds so many bits exactly
    digests = processes.gather(np.array([[float(int.from_bytes(digest, "big"))]]))[:, 0]
    if (digests != digests[0]).any():
        other = int(np.argmax(digests != digests[0]))
        raise PolicyError(
            f"processes: expected the same training in all {len(digests)}, got another seed, "
            f"number of updates, policy, settings or graphs in process {other} than in process 0"
        )


class OneProcess:
    """All episodes in this process.

    Examples
    --------
    >>> OneProcess().count
    1
    """

    rank = 0
    count = 1

    def sum(self, values: torch.Tensor) -> None:
        """Leave a sum of one as it is."""

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows."""
        return rows

    def share(self, content: bytes) -> bytes:
        """Return the content."""
        return content


class GlooProcesses:
    """Processes that meet over `torch.distributed` with the gloo backend.

    Made by `join_processes`.
    """

    def __init__(self, store: Store, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self._store = store

    def sum(self, values: torch.Tensor) -> None:
        """Add up a tensor by all-reduce, which returns the same sum in every process."""
        with self._named_failures():
            torch.distributed.all_reduce(values)

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows of all processes, in the order of their ranks."""
        with self._named_failures():
            counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            torch.distributed.all_gather(counts, torch.tensor([len(rows)]))
            most = max(int(count) for count in counts)
            padded = torch.zeros(most, rows.shape[1], dtype=torch.float64)
            padded[: len(rows)] = torch.from_numpy(rows)
            parts = [torch.empty_like(padded) for _ in range(self.count)]
            torch.distributed.all_gather(parts, padded)
        return np.concatenate(
            [part.numpy()[: int(count)] for part, count in zip(parts, counts, strict=True)]
        )

    def share(self, content: bytes) -> bytes:
        """Return the content of the first process, by broadcast."""
        size = torch.tensor([len(content)])
        with self._named_failures():
            torch.distributed.broadcast(size, src=0)
            own = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
            shared = torch.empty(int(size), dtype=torch.uint8) if self.rank else own
            torch.distributed.broadcast(shared, src=0)
        return shared.numpy().tobytes()

    def report(self, error: BaseException) -> None:
        """Store the reason why this process ends, for the errors of the others."""
        text = " ".join(f"process {self.rank}: {type(error).__name__}: {error}".split())
        with suppress(RuntimeError):  # the store may be gone, too
            self._store.compare_set(FAILED, "", text)

    def leave(self) -> None:
        """Wait in the first process, which may have the store, until all have read the reason."""
        with suppress(RuntimeError):  # the store may be gone
            left = self._store.add(LEFT, 1)
            end = time.monotonic() + FAREWELL.total_seconds()
            while self.rank == 0 and left < self.count and time.monotonic() < end:
                time.sleep(0.02)
                left = self._store.add(LEFT, 0)

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._reason(error) from error

    def _reason(self, error: RuntimeError) -> PolicyError:
        try:
            self._store.wait([FAILED], FAREWELL)
            reason = self._store.get(FAILED).decode()
        except RuntimeError:
            text = f"another process went away without a word: {first_sentence(error)}"
            return LostProcessError(f"process {self.rank}: {text}")
        return PolicyError(f"process {self.rank}: the run ended in another process: {reason}")


@contextmanager
def join_processes(timeout: timedelta = DEFAULT_TIMEOUT) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, on one machine or on many.

    Without `torchrun` there is one process. If a process fails inside, each of the others ends with
    its reason, and `torchrun` with the rank of the first that failed. If a process was killed, or
    its machine has not answered for half a minute, the others end with a `LostProcessError`.

    Parameters
    ----------
    timeout
        Longest wait for the other processes at any time.

    Examples
    --------
    A script for ``torchrun --nproc-per-node 8 train.py``:

    >>> from placeto_policy import Settings, Trainer, train
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> with join_processes() as processes:
    ...     trainer = Trainer(
    ...         [BusiestDevice(two_chains())], Settings(updates=2), processes=processes
    ...     )
    ...     _ = train(trainer)
    """
    if not torch.distributed.is_torchelastic_launched():
        yield OneProcess()
        return
    try:
        store, rank, count = next(rendezvous("env://", timeout=timeout))
        torch.distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=count, timeout=timeout
        )
    except RuntimeError as error:
        text = f"expected all processes to join: {first_sentence(error)}"
        raise LostProcessError(f"processes: {text}") from error
    give_up_silent_machines()
    processes = GlooProcesses(store, rank, count)
    try:
        yield processes
    except LostProcessError:
        torch.distributed.destroy_process_group()
        raise
    except BaseException as error:
        processes.report(error)
        torch.distributed.destroy_process_group()  # the others notice
        processes.leave()
        raise
    torch.distributed.destroy_process_group()


def first_sentence(error: RuntimeError) -> str:
    """Return the message of an error of gloo, without its source line and advice."""
    return re.sub(r"^\[[^]]*\] *", "", str(error)).partition(". ")[0]


def give_up_silent_machines() -> None:
    """Let the system probe all connections of this process: gloo only has its timeout."""
    for name in os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else ():
        with suppress(OSError):  # closed since
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if connection.family in {socket.AF_INET, socket.AF_INET6}:
                        _watch(connection)


def _watch(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = (SECONDS_OF_SILENCE - SECONDS_UNTIL_ASKED) // SECONDS_BETWEEN
    values = {
        "TCP_KEEPIDLE": SECONDS_UNTIL_ASKED,
        "TCP_KEEPINTVL": SECONDS_BETWEEN,
        "TCP_KEEPCNT": probes,
        "TCP_USER_TIMEOUT": 1000 * SECONDS_OF_SILENCE,  # of what was sent
    }
    for name, value in values.items():
        if hasattr(socket, name):  # systems have some of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
