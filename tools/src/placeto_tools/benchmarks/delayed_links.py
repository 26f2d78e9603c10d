"""Links between network namespaces on which every packet takes a while.

``python -m placeto_tools.benchmarks.delayed_links SECONDS NAMESPACE...`` gives each namespace a
device and passes packets on between them. What `tc ... netem delay` does in kernels that have it.
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from placeto_tools.benchmarks.machines import LINK

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MOST_BYTES = 65536
LAST_OF_DESTINATION = 19  # of an IPv4 header: the number of the machine, from 1


def open_link(number: int, namespace: str) -> int:
    """Return the descriptor of a new link, whose other end is the device of a namespace."""
    name = f"link-{number}"
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    move = ["ip", "link", "set", name, "netns", namespace, "name", LINK]
    subprocess.run(move, check=True)  # noqa: S603 (arguments of ours)
    return descriptor


def pass_on(links: Sequence[int], delay: float) -> None:
    """Read packets of all links, and write each to that of its destination when it is due."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(links, [], [], wait)
        now = time.monotonic()
        for link in ready:
            with suppress(OSError):  # no more of them, or the link is down
                while packet := os.read(link, MOST_BYTES):
                    destination = packet[LAST_OF_DESTINATION] - 1
                    if packet[0] >> 4 == 4 and destination < len(links):
                        waiting.append((now + delay, links[destination], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, link, packet = waiting.popleft()
            with suppress(OSError):  # the link is down, or its queue full: the packet is lost
                os.write(link, packet)


def main(arguments: Sequence[str]) -> None:
    """Make the links, say so, and pass packets on until the process is killed."""
    delay, *namespaces = arguments
    links = [open_link(number, name) for number, name in enumerate(namespaces)]
    print("ready", flush=True)
    pass_on(links, float(delay))


if __name__ == "__main__":
    main(sys.argv[1:])
