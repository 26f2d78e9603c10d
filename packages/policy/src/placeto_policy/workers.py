"""The processes that train together: one, or several that `torchrun` started; and threads."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed

# Its functions have the group that there is when they are first imported as their default, and keep
# it, with its threads, until the process ends, which one of them may then turn into an abort. The
# first step of Adam would import them while there is a group.
import torch.distributed.nn.functional

from placeto_policy.errors import PolicyError

Item = TypeVar("Item")


class Processes:
    """Processes that share the episodes of a training: this one, or the group that it joined.

    Attributes
    ----------
    rank, count : int
        Index of this process, and number of processes.
    """

    def __init__(self) -> None:
        is_joined = torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank() if is_joined else 0
        self.count = torch.distributed.get_world_size() if is_joined else 1

    def sum(self, tensor: torch.Tensor) -> None:
        """Add up a tensor of equal shape over all processes, in place."""
        if self.count > 1:
            with _one_line():
                torch.distributed.all_reduce(tensor)

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """Return what all processes have, in the order of their ranks."""
        if self.count == 1:
            return list(items)
        items_of_processes: list[list[Item]] = [[] for _ in range(self.count)]
        with _one_line():
            torch.distributed.all_gather_object(items_of_processes, list(items))
        return list(itertools.chain.from_iterable(items_of_processes))


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the processes that `torchrun` started, on one machine or on many.

    Without `torchrun` there is one process. If a process ends, `torchrun` ends the others.

    Examples
    --------
    A script for ``torchrun --nproc-per-node 8 train.py``:

    >>> from placeto_policy import Settings, Trainer
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> with join_processes() as processes:
    ...     trainer = Trainer(
    ...         [BusiestDevice(two_chains())], Settings(updates=2), processes=processes
    ...     )
    ...     trainer.update().update
    1
    """
    if not torch.distributed.is_torchelastic_launched():
        yield Processes()
        return
    with _one_line():
        torch.distributed.init_process_group("gloo")
    try:
        yield Processes()
    finally:
        torch.distributed.destroy_process_group()


def check_same(processes: Processes, training: str, policy: torch.nn.Module) -> None:
    """Check that all processes have the same training, which a text and a policy identify.

    Sums of gradients of different trainings would be of no policy, without any other error.
    """
    content = hashlib.sha256(training.encode())
    for tensor in policy.state_dict().values():
        content.update(tensor.numpy().tobytes())
    digests = processes.gather([content.digest()])
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise PolicyError(
                f"processes: expected the same training in all {len(digests)}, got another seed, "
                f"number of updates, policy, settings or graphs in process {rank} than in "
                "process 0"
            )


@contextmanager
def _one_line() -> Iterator[None]:
    """Raise a failure of the group, such as a process that went away, as the package's error."""
    try:
        yield
    except RuntimeError as error:
        raise PolicyError(f"processes: expected an answer of all: {error}") from error


@contextmanager
def one_thread_of_torch() -> Iterator[None]:
    """Run torch on one thread; the evaluator and other processes have the other cores.

    Threads of torch spin between small operations, and would occupy the cores. One thread also
    computes the same on any number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
