"""The devices of this machine, as a user names them."""

from dataclasses import dataclass
from typing import Literal

CPU = "cpu"


@dataclass(frozen=True)
class RealDevices:
    """The devices of this machine that a step runs on.

    Attributes
    ----------
    names : tuple of str
        Names such as ``"cpu:0"`` and ``"cuda:1"``.
    threads : int
        Number of threads of one op on each CPU.

    Examples
    --------
    >>> RealDevices(("cpu:0", "cuda:0")).kinds
    ('cpu', 'cuda')
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
