"""Real devices as a user names them, and the cores and semaphores of their processes."""

import errno
import mmap
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import Any, Literal

from placeto_execution.errors import ExecutionError
from placeto_graphs import ExecutableStep

CPU = "cpu"
KINDS = (CPU, "cuda")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where Linux keeps semaphores)


@dataclass(frozen=True)
class RealDevices:
    """The devices of this machine that a step runs on.

    Attributes
    ----------
    names
        Names, such as ``"cpu:0"`` and ``"cuda:1"``.
    threads
        Number of threads of an op on each CPU.
    """

    names: tuple[str, ...]
    threads: int = 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each device, ``"cpu"`` or ``"cuda"``."""
        return tuple(name.partition(":")[0] for name in self.names)

    @property
    def are_cpus(self) -> bool:
        """Whether all of them are CPUs."""
        return set(self.kinds) == {CPU}

    @property
    def target(self) -> Literal["cpu", "gpu"]:
        """Target of the capture of a step that runs on all of them."""
        return "cpu" if self.are_cpus else "gpu"


def check_device_names(names: Sequence[str], num_devices: int, threads: int = 1) -> tuple[str, ...]:
    """Return names of devices, one for each device of a cluster; warn if CPUs share cores.

    Parameters
    ----------
    names
        Names, such as ``["cpu:0", "cuda:1"]``.
    num_devices
        Number of devices of the cluster.
    threads
        Number of threads of an op on each CPU.

    Raises
    ------
    ExecutionError
        If there are more or fewer names, one is no name of a device, or one comes twice.
    """
    if len(names) != num_devices:
        raise ExecutionError(
            f"devices: expected {num_devices}, as many as the cluster has, got {len(names)}"
        )
    for position, name in enumerate(names):
        kind, _, index = name.partition(":")
        if kind not in KINDS or not (index.isascii() and index.isdecimal()):
            raise ExecutionError(
                f"devices[{position}]: expected cpu:NUMBER or cuda:NUMBER, got {name!r}"
            )
        if name in names[:position]:
            raise ExecutionError(f"devices[{position}]: expected each device once, got {name!r}")
    if sharing := sharing_cores(names, threads):
        warnings.warn(
            f"devices: {', '.join(sharing)} share cores, as this process may use "
            f"{len(_usable_cores())}, so that measured times are longer than those of "
            f"{threads} of their own for each",
            stacklevel=3,
        )
    return tuple(names)


def sharing_cores(names: Sequence[str], threads: int) -> list[str]:
    """Return the CPUs among devices that share a core with another one; see `pin_to_cores`."""
    cores = {name: _cores_of(name, threads) for name in names if not is_cuda(name)}
    devices_of_core = Counter(chain.from_iterable(cores.values()))
    return [name for name in cores if any(devices_of_core[core] > 1 for core in cores[name])]


def threads_of(step: ExecutableStep) -> int:
    """Return the number of threads of an op on each CPU; 1 of a step that does not tell."""
    threads: int = getattr(step, "threads_per_device", 1)
    return threads


def is_cuda(name: str) -> bool:
    """Return whether a device of this name is a GPU."""
    return name.startswith("cuda")


def pin_to_cores(name: str, count: int) -> None:
    """Let the thread that calls this, and those that it starts, run on some cores.

    ``"cpu:N"`` has the N-th so many of the cores that the process may use; after the last one
    the first follows.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _cores_of(name, count))


def semaphores(count: int, value: int = 0) -> list[Any]:
    """Return semaphores for processes that are forked later.

    Raises
    ------
    ExecutionError
        If the shared memory has no room for them.
    """
    try:
        return [get_context("fork").Semaphore(value) for _ in range(count)]
    except OSError as error:
        if error.errno != errno.ENOSPC or not os.path.isdir(SHARED_MEMORY):
            raise  # systems other than Linux limit the number of semaphores
        raise ExecutionError(
            f"{SHARED_MEMORY}: expected {count * mmap.PAGESIZE:,} bytes for semaphores of device "
            f"processes, got {shutil.disk_usage(SHARED_MEMORY).free:,} free; delete files "
            "there, or make it larger (of a container: --shm-size)"
        ) from None


def _cores_of(name: str, count: int) -> set[int]:
    cores, first = _usable_cores(), int(name.partition(":")[2]) * count
    return {cores[(first + offset) % len(cores)] for offset in range(count)}


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(os.getpid()))
    return list(range(os.cpu_count() or 1))
