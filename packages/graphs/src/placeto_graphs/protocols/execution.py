"""A step that can be run for real: the protocols by which `placeto-execution` runs one.

A step is prepared once and run many times, each time with any placement. Its ops are those of an
`OpGraph`, by the same indices, and so are its tensors. What a tensor is, in which memory it lies
and how an op computes is the step's own business; which op runs when, what is brought where, and
when a tensor is no longer needed is the business of who runs it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.schema.op_graph import OpGraph


@dataclass(frozen=True)
class StepOrder:
    """In which order D devices run their ops, and L links carry tensors.

    Attributes
    ----------
    ops : D tuples of int
        The ops of each device, the first one first.
    transfers : L tuples of (int, int)
        The (tensor, destination) of what each link carries, the first one first.

    Examples
    --------
    >>> StepOrder(ops=((0, 1), ()), transfers=((), ())).ops[0]
    (0, 1)
    """

    ops: tuple[tuple[int, ...], ...]
    transfers: tuple[tuple[tuple[int, int], ...], ...]


@runtime_checkable
class StepRun(Protocol):
    """One run of a step on devices, from what was there before it to its results.

    Each device is worked off by one thread, which alone calls `run`, `send`, `receive` and `free`
    for it, after it has entered `worker`. The threads of several devices do so at once. Who runs
    the step sees to it that an op runs after its inputs are on its device, that a tensor is sent
    after it was made, and received after it was sent.

    Examples
    --------
    An op on device 0, and the tensor that it makes on its way to device 1, where no op reads it:

    >>> def first(run: StepRun) -> None:
    ...     with run.worker(0):
    ...         run.run(0)
    ...         parcel = run.send(0, 1)
    ...         run.free(0, 0)
    ...     with run.worker(1):
    ...         run.receive(0, 1, parcel)
    ...         run.free(0, 1)
    """

    def worker(self, device: int) -> AbstractContextManager[None]:
        """Return what the thread of a device enters before it does anything for it."""

    def run(self, op: int) -> int:
        """Run an op on its device; return the bytes that the device holds more for its tensors.

        When it returns, the tensors are there.
        """

    def send(self, tensor: int, destination: int) -> Any:
        """Send a tensor from the device that made it; return what `receive` wants to have.

        Where the two devices share their memory, that is the tensor itself, and nothing is copied.
        """

    def receive(self, tensor: int, destination: int, parcel: Any) -> int:
        """Take a tensor that was sent; return the bytes that the destination holds more."""

    def free(self, tensor: int, device: int) -> int:
        """Give up a tensor on a device; return the bytes that the device holds fewer."""

    def results(self) -> Mapping[str, Any]:
        """Return by name what the step has computed and changed, when all of its ops have run.

        Raises
        ------
        ValueError
            When another run of the step has begun since.
        """


@runtime_checkable
class ExecutableStep(Protocol):
    """A step that can be run, again and again from the same beginning.

    Examples
    --------
    >>> def begun_on_one_core(step: ExecutableStep) -> StepRun:
    ...     return step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    """

    @property
    def graph(self) -> OpGraph:
        """The ops and tensors of the step."""

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> StepRun:
        """Put what is there before the step where it belongs, and return a run.

        There is one run of a step at a time. It changes nothing that the next one begins with, so
        that one that fails leaves the step as it was.

        Parameters
        ----------
        devices
            D names, such as ``"cpu:0"`` or ``"cuda:1"``.
        op_device : int32[V]
            The number of the device of each op.

        Raises
        ------
        ValueError
            When one of the devices is not there; the message is one line that says so.
        """
