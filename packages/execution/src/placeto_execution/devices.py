"""The names of real devices, and the cores of workers."""

import os
from collections.abc import Sequence

from placeto_execution.errors import ExecutionError

KINDS = ("cpu", "cuda")


def check_device_names(names: Sequence[str], num_devices: int) -> tuple[str, ...]:
    """Return names of devices, one for each device of a cluster.

    Raises
    ------
    ExecutionError
        When there are more or fewer, or one is none of ``"cpu:0"``, ``"cuda:3"`` and so on, or
        stands there twice.

    Examples
    --------
    >>> check_device_names(["cpu:0", "cpu:1"], 2)
    ('cpu:0', 'cpu:1')
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
    return tuple(names)


def pin_to_core(name: str) -> None:
    """Let the thread that calls this run on one core, if it works for a CPU and the system can.

    ``"cpu:N"`` is the N-th core that the process may use; from the last one on, they are taken
    from the first again.
    """
    kind, _, index = name.partition(":")
    if kind == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(os.getpid()))
        os.sched_setaffinity(0, {cores[int(index) % len(cores)]})
