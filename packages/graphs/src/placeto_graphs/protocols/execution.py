"""A step that can be run for real: the protocols by which `placeto-execution` runs one.

A step is prepared once and run many times, each time with any placement. Its ops are those of an
`OpGraph`, by the same indices, and so are its tensors. How an op computes and in which memory a
tensor lies is up to the step. Which op runs when, what is sent where, and when a tensor is given
up is up to the caller.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.schema.op_graph import OpGraph


@runtime_checkable
class DeviceStep(Protocol):
    """The part of a step that is on one device, in the process that runs this device.

    The caller runs an op after its inputs are on the device. It takes the buffers of a tensor after
    the tensor was made or has arrived, and frees each tensor once.
    """

    def entered(self) -> AbstractContextManager[None]:
        """Return the context in which a thread runs the device."""

    def begin(self, feed: Any) -> None:
        """Put what is there before the step where it belongs.

        Parameters
        ----------
        feed
            Value that `ExecutableStep.feed` returned.
        """

    def run(self, op: int) -> int:
        """Run an op.

        Parameters
        ----------
        op
            Index of the op in the graph.

        Returns
        -------
        int
            Bytes that the device holds more for the tensors of the op.
        """

    def buffers(self, tensor: int, destination: int) -> Sequence[Any]:
        """Return what another device has to get of a tensor, as contiguous torch tensors.

        Parameters
        ----------
        tensor
            Index of the tensor in the graph, which is on this device.
        destination
            Index of the other device.
        """

    def expect(self, tensor: int) -> tuple[Sequence[Any], int]:
        """Make room for a tensor of another device.

        Parameters
        ----------
        tensor
            Index of the tensor in the graph.

        Returns
        -------
        sequence of torch tensors
            Buffers to be filled, like those of the source.
        int
            Bytes that the device holds more.
        """

    def arrived(self, tensor: int) -> None:
        """Take a tensor whose buffers are filled.

        Parameters
        ----------
        tensor
            Index of the tensor in the graph.
        """

    def free(self, tensor: int) -> int:
        """Give up a tensor; return the bytes that the device holds fewer.

        Parameters
        ----------
        tensor
            Index of the tensor in the graph.
        """

    def pieces(self, names: Collection[str]) -> Mapping[Any, Any]:
        """Return the device's pieces of some results, after the step has run.

        Parameters
        ----------
        names
            Names of results (`ExecutableStep.result_names`).
        """


@runtime_checkable
class ExecutableStep(Protocol):
    """A step that can be run, again and again."""

    @property
    def graph(self) -> OpGraph:
        """The ops and tensors of the step."""

    def check_devices(self, devices: Sequence[str]) -> None:
        """Refuse devices on which the step cannot run.

        Parameters
        ----------
        devices : D texts
            Names such as ``"cpu:0"`` or ``"cuda:1"``.

        Raises
        ------
        ValueError
            When the step cannot run on one of them; the message is one line.
        """

    def on_device(
        self, device: int, devices: Sequence[str], op_device: NDArray[np.int32]
    ) -> DeviceStep:
        """Return the part of the step that is on one of D devices.

        Parameters
        ----------
        device
            Index of the device, from 0 to D - 1.
        devices : D texts
            Names such as ``"cpu:0"`` or ``"cuda:1"``.
        op_device : int32[V]
            Index of the device of each op.
        """

    def feed(self) -> Any:
        """Return what all devices get before the next run; it can be pickled."""

    @property
    def result_names(self) -> Collection[str]:
        """Names of all results of the step."""

    def results(self, names: Collection[str], pieces: Mapping[Any, Any]) -> Mapping[str, Any]:
        """Return some results, put together from the pieces of all devices.

        Parameters
        ----------
        names
            Names of results (`result_names`).
        pieces
            Union of the mappings that `DeviceStep.pieces` of all devices return for these names.
        """
