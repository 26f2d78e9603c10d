"""Emulated links: tensors arrive when the links of a cluster would have carried them."""

import time
from multiprocessing.sharedctypes import RawArray
from typing import Any

from placeto_execution.devices import semaphores
from placeto_execution.programs import Message
from placeto_graphs import Cluster


class EmulatedLinks:
    """The links of a cluster, which the processes of all its devices share.

    Transfers of a link follow each other. Each takes the latency, and its bytes the time that the
    bandwidth gives them. If the real transfer takes longer, the tensor arrives with that.

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
    >>> links.reserve(message, 150, ready=8.0)
    (8.0, 10.0)
    >>> links.reserve(message, 50, ready=9.0)
    (10.25, 11.25)
    """

    def __init__(self, cluster: Cluster) -> None:
        self._latency: list[list[float]] = cluster.latency.tolist()
        self._bandwidth: list[list[float]] = cluster.bandwidth.tolist()
        self._overhead = [device.transfer_overhead for device in cluster.devices]
        self._free_at: Any = RawArray("d", cluster.num_links)
        self._locks = semaphores(cluster.num_links, 1)

    def reserve(self, message: Message, num_bytes: int, ready: float) -> tuple[float, float]:
        """Reserve the link of a tensor that is ready; return when it is sent, and when it arrives.

        Times are those of `time.monotonic`.
        """
        source, destination, link = message.source, message.destination, message.link
        with self._locks[link]:
            start = max(ready, self._free_at[link])
            seconds = num_bytes / self._bandwidth[source][destination]
            end = start + self._latency[source][destination] + seconds
            self._free_at[link] = end + self._overhead[source]
        return start, end

    @property
    def are_busy(self) -> bool:
        """Whether a link carries something now."""
        return max(self._free_at, default=0.0) > time.monotonic()
