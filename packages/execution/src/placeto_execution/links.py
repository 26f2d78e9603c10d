"""Emulated links: bytes leave a process when the links of a cluster would have carried them."""

import time
from collections.abc import Sequence
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from placeto_execution.programs import Message
from placeto_graphs import Cluster


class EmulatedLinks:
    """The links of a cluster, each a token bucket that the processes of all its devices share.

    A bucket fills with the bandwidth of the link, from the latency of a transfer on. Each chunk of
    a tensor leaves when there is a token for each of its bytes. Transfers of a link follow each
    other. The real transfer of the last chunk comes on top.

    Parameters
    ----------
    cluster
        Has the links.

    Examples
    --------
    >>> import numpy as np
    >>> from placeto_graphs import Device
    >>> cluster = Cluster(
    ...     devices=[Device(name, "cpu", 10**9, 0.0, 0.25) for name in ("left", "right")],
    ...     bandwidth=np.full((2, 2), 100.0),
    ...     latency=np.full((2, 2), 0.5),
    ... )
    >>> links = EmulatedLinks(cluster)
    >>> message = Message(op=0, tensor=0, source=0, destination=1, link=0)
    >>> links.reserve(message, [100, 50], ready=8.0)
    Reservation(start=8.0, leaves=[9.5, 10.0])
    >>> links.reserve(message, [50], ready=9.0)
    Reservation(start=10.25, leaves=[11.25])
    """

    def __init__(self, cluster: Cluster) -> None:
        self._latency: list[list[float]] = cluster.latency.tolist()
        self._bandwidth: list[list[float]] = cluster.bandwidth.tolist()
        self._overhead = [device.transfer_overhead for device in cluster.devices]
        self._free_at: Any = RawArray("d", cluster.num_links)
        self._locks = [get_context("fork").Lock() for _ in range(cluster.num_links)]

    def reserve(self, message: Message, chunk_bytes: Sequence[int], ready: float) -> "Reservation":
        """Reserve the link of a message, from when it is free.

        Parameters
        ----------
        message
            A tensor.
        chunk_bytes
            Number of bytes of its chunks.
        ready
            Time from which on it could be sent, by `time.monotonic`.
        """
        source, destination, link = message.source, message.destination, message.link
        bandwidth = self._bandwidth[source][destination]
        with self._locks[link]:
            start = max(ready, self._free_at[link])
            first = start + self._latency[source][destination]
            leaves = [first + total / bandwidth for total in accumulate(chunk_bytes)]
            self._free_at[link] = (leaves or [first])[-1] + self._overhead[source]
        return Reservation(start, leaves)

    @property
    def are_busy(self) -> bool:
        """Whether a link carries something now."""
        return max(self._free_at, default=0.0) > time.monotonic()


class Reservation(NamedTuple):
    """When a link carries a message; seconds of `time.monotonic`.

    Attributes
    ----------
    start : float
        When it takes it.
    leaves : list of float
        When each chunk leaves.
    """

    start: float
    leaves: list[float]
