"""Machines that are network namespaces of this host, to see what several would do.

Each has an address, a link and processes of its own; they share processors, memory and disks.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from placeto_tools.errors import RunError
from placeto_tools.stopping import StopRequest

NAMESPACES = Path("/run/netns")
PREFIX = "placeto"
LINK = "link0"  # the name that each machine has for its link
PORT = 29500
SECONDS_TO_END = 10.0


class Machines:
    """Some machines that are joined by a switch, for as long as they are used.

    Without a delay the switch is a bridge of the kernel. With one it is a process
    (`placeto_tools.benchmarks.delayed_links`), so that no module of the kernel is needed.

    Parameters
    ----------
    count
        How many.
    delay
        Seconds that every packet takes from one to another.

    Raises
    ------
    RunError
        When this system does not let us make machines; the message says what is missing.

    Examples
    --------
    >>> with Machines(2) as machines:  # doctest: +SKIP
    ...     machines.start(0, ["hostname", "-I"]).wait()
    10.77.0.1
    """

    def __init__(self, count: int, delay: float = 0.0) -> None:
        self.count = count
        self._delay = delay
        self._names = [f"{PREFIX}-{os.getpid()}-{number}" for number in range(count)]
        self._switch = f"{PREFIX}-{os.getpid()}-switch"
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Machines":
        missing = what_is_missing()
        if missing:
            raise RunError(missing)
        try:
            _remove_left_over()
            for name in (*self._names, self._switch):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            if self._delay:
                self._join_by_process()
            else:
                self._join_by_bridge()
            for number, name in enumerate(self._names):
                _ip("-n", name, "address", "add", f"{address_of(number)}/24", "dev", LINK)
                self.plug(number)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def start(self, number: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a process on a machine; options are those of `subprocess.Popen`."""
        return self._start(self._names[number], command, options)

    def kill(self, number: int) -> None:
        """Kill all processes of a machine at once, as nobody asks them before."""
        _kill_all(self._names[number])

    def unplug(self, number: int) -> None:
        """Take the link of a machine down: nothing reaches it or leaves it any more."""
        _ip("-n", self._names[number], "link", "set", LINK, "down")

    def plug(self, number: int) -> None:
        """Take the link of a machine up."""
        _ip("-n", self._names[number], "link", "set", LINK, "up")

    def _start(
        self, name: str, command: Sequence[str], options: dict[str, Any]
    ) -> "subprocess.Popen[Any]":
        # A session of its own, so that Ctrl-C in a terminal reaches this process alone.
        with _interrupts_kept():  # else nothing would wait for its end
            process = subprocess.Popen(  # noqa: S603 (what a benchmark asks for)
                [_path_of_ip(), "netns", "exec", name, *command], start_new_session=True, **options
            )
            self._processes.append(process)
        return process

    def _join_by_bridge(self) -> None:
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self._names):
            plug = f"plug{number}"
            end = ("peer", "name", LINK, "netns", name)
            _ip("-n", self._switch, "link", "add", plug, "type", "veth", *end)
            _ip("-n", self._switch, "link", "set", plug, "master", "bridge0", "up")

    def _join_by_process(self) -> None:
        module = "placeto_tools.benchmarks.delayed_links"
        process = self._start(
            self._switch,
            [sys.executable, "-m", module, str(self._delay), *self._names],
            {"stdout": subprocess.PIPE},
        )
        if not process.stdout or not process.stdout.readline():
            raise RunError("delayed links: expected /dev/net/tun, which did not open")

    def _remove(self) -> None:
        for name in (self._switch, *self._names):
            _remove(name)
        for process in self._processes:
            with process:  # waits for its end, and closes its pipes
                pass


def address_of(number: int) -> str:
    """Return the address of a machine."""
    return f"10.77.0.{number + 1}"


def torchrun(number: int, machines: int, processes: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts the processes of one machine, for `Machines.start`.

    Parameters
    ----------
    number
        Which machine; the first one holds the rendezvous.
    machines
        How many there are.
    processes
        How many each has.
    arguments
        What each runs: ``-m``, a module and its arguments.
    """
    # That an address of a namespace is one's own is not to be seen from the name of the host.
    is_host = "true" if number == 0 else "false"
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={machines}", f"--nproc-per-node={processes}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={address_of(0)}:{PORT}"),
        *(f"--rdzv-conf=is_host={is_host}", f"--local-addr={address_of(number)}"),
        "--monitor-interval=0.1",
        *arguments,
    ]


def environment() -> dict[str, str]:
    """Return the environment of processes on machines: these packages, their own link."""
    return {
        **os.environ,
        "GLOO_SOCKET_IFNAME": LINK,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
        # A machine that comes back else waits for what torchrun told its forerunner only.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # of each socket that closes, with a traceback
    }


def what_is_missing() -> str:
    """Return what keeps this system from making machines, in one line; nothing if all is there."""
    if os.geteuid() != 0:
        return "network namespaces: expected to run as root, who may make them"
    if not shutil.which("ip"):
        return "network namespaces: expected the command ip (package iproute2), got none"
    name = f"{PREFIX}-{os.getpid()}-trial"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "end0", "type", "veth", "peer", "name", "end1")
    except RunError as error:
        return f"network namespaces: {error}"
    finally:
        _remove(name)
    return ""


def _path_of_ip() -> str:
    return shutil.which("ip") or "ip"


def _ip(*arguments: str) -> str:
    with _interrupts_kept():  # else what it is making would be there after it was to be removed
        done = subprocess.run(  # noqa: S603 (arguments of ours)
            [_path_of_ip(), *arguments],
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
    if done.returncode:
        raise RunError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C or a termination take effect when a block has ended, not within it."""
    with StopRequest() as stop:
        yield
    if stop.requested:
        raise KeyboardInterrupt


def _kill_all(name: str) -> None:
    began = time.monotonic()
    while processes := _ip("netns", "pids", name).split():
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        if time.monotonic() - began > SECONDS_TO_END:
            raise RunError(f"{name}: processes {' '.join(processes)} do not end")
        time.sleep(0.01)


def _remove(name: str) -> None:
    if (NAMESPACES / name).exists():
        _kill_all(name)
        _ip("netns", "delete", name)


def _remove_left_over() -> None:
    """Remove the namespaces of commands that were killed and could not do it."""
    for path in NAMESPACES.glob(f"{PREFIX}-*-*"):
        process = path.name.split("-")[1]
        if process.isdecimal() and not Path("/proc", process).exists():
            _remove(path.name)
