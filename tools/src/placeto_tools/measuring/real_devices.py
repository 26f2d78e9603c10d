"""The devices of this machine, as a user names them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

CPU = "cpu"
DEFAULT_DEVICES = "cpu:0,cpu:1"


@dataclass(frozen=True)
class RealDevices:
    """The devices of this machine that a step runs on.

    Attributes
    ----------
    names : texts
        Such as ``"cpu:0"`` and ``"cuda:1"``.
    threads : int
        How many threads work on one op on each CPU.

    Examples
    --------
    >>> RealDevices(("cpu:0", "cuda:0")).kinds
    ('cpu', 'cuda')
    """

    names: tuple[str, ...]
    threads: int = 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each device, ``"cpu"`` or ``"cuda"``."""
        return tuple(name.partition(":")[0] for name in self.names)

    @property
    def are_cpus(self) -> bool:
        """Whether all of them are."""
        return set(self.kinds) == {CPU}


def devices_options(function: Callable[..., Any]) -> Any:
    """Add ``--devices`` and ``--threads`` as one argument ``devices``."""

    @wraps(function)
    def gathered(*args: Any, devices: str, threads: int, **named: Any) -> Any:
        names = tuple(part.strip() for part in devices.split(","))
        return function(*args, devices=RealDevices(names, threads), **named)

    named_devices = click.option(
        "--devices",
        default=DEFAULT_DEVICES,
        show_default=True,
        metavar="NAME,NAME,...",
        help="Devices of this machine: cpu:NUMBER, a worker on that core, or cuda:NUMBER.",
    )
    threads = click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="How many threads work on one op on each CPU.",
    )
    return named_devices(threads(gathered))
