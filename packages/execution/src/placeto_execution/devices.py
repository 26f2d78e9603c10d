"""The names of real devices, and the cores of their processes."""

import os
import warnings
from collections.abc import Sequence

from placeto_execution.errors import ExecutionError

KINDS = ("cpu", "cuda")


def check_device_names(names: Sequence[str], num_devices: int) -> tuple[str, ...]:
    """Return names of devices, one for each device of a cluster.

    Warns
    -----
    UserWarning
        If there are more CPUs among them than this process may use cores.

    Raises
    ------
    ExecutionError
        If there are more or fewer, or one is none of ``"cpu:0"``, ``"cuda:3"`` and so on, or
        stands there twice.

    Examples
    --------
    >>> check_device_names(["cpu:0", "cuda:1"], 2)
    ('cpu:0', 'cuda:1')
    """
    if len(names) != num_devices:
        raise ExecutionError(
            f"devices: expected {num_devices}, as many as the cluster has, got {len(names)}"
        )
    for number, name in enumerate(names):
        kind, _, index = name.partition(":")
        if kind not in KINDS or not (index.isascii() and index.isdecimal()):
            raise ExecutionError(
                f"devices[{number}]: expected cpu:NUMBER or cuda:NUMBER, got {name!r}"
            )
        if name in names[:number]:
            raise ExecutionError(f"devices[{number}]: expected each device once, got {name!r}")
    if share_cores(names):
        warnings.warn(
            f"devices: {num_cpus(names)} CPU devices share {len(_usable_cores())} cores, so that "
            "measured times are longer than those of as many cores",
            stacklevel=3,
        )
    return tuple(names)


def share_cores(names: Sequence[str]) -> bool:
    """Return whether there are more CPUs among devices than this process may use cores."""
    return num_cpus(names) > len(_usable_cores())


def num_cpus(names: Sequence[str]) -> int:
    """Return how many devices are CPUs."""
    return sum(not is_cuda(name) for name in names)


def is_cuda(name: str) -> bool:
    """Return whether a device of this name is a GPU."""
    return name.startswith("cuda")


def pin_to_cores(name: str, count: int) -> None:
    """Let the thread that calls this, and those that it starts, run on some cores.

    ``"cpu:N"`` has the N-th so many of the cores that the process may use; after the last one
    the first follows.
    """
    cores, first = _usable_cores(), int(name.partition(":")[2]) * count
    if hasattr(os, "sched_setaffinity"):
        own = {cores[(first + number) % len(cores)] for number in range(count)}
        os.sched_setaffinity(0, own)


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(os.getpid()))
    return list(range(os.cpu_count() or 1))
