"""Several processes on this machine that train together, as torchrun starts them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType
from typing import IO

from placeto_tools.errors import RunError
from placeto_tools.stopping import PARENT_VARIABLE
from placeto_tools.stopping import SIGNALS

RUN_VARIABLE = "TORCHELASTIC_RUN_ID"  # by which torchrun marks its processes
SECONDS_TO_END = 30.0  # for the others, when the first has ended


def worker_rank() -> int | None:
    """Return the rank of this process among those that torchrun or `run_workers` started."""
    return int(os.environ.get("RANK", "0")) if RUN_VARIABLE in os.environ else None


def run_workers(arguments: Sequence[str], count: int) -> int:
    """Run a ``placeto`` command in several processes, and return the exit code of the first.

    They find each other as under torchrun (the variables of `torch.distributed`, rendezvous
    ``env://``). The first writes to this standard output and error. Ctrl-C is passed on to it
    alone; it tells the others.

    Parameters
    ----------
    arguments
        Those of the command.
    count
        How many processes.

    Raises
    ------
    RunError
        When a process ended without saying why.
    """
    with tempfile.TemporaryFile() as unread:  # what the others write
        processes = [
            subprocess.Popen(  # noqa: S603 (this very command)
                [sys.executable, "-m", "placeto_tools.main", *arguments],
                env=environment,
                start_new_session=True,  # so that a terminal's Ctrl-C reaches this process alone
                stdout=unread if rank else None,
                stderr=unread if rank else None,
            )
            for rank, environment in enumerate(_environments(count))
        ]
        try:
            return _wait(processes, unread)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def _wait(processes: Sequence["subprocess.Popen[bytes]"], unread: IO[bytes]) -> int:
    first = processes[0]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if first.poll() is None:
            first.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        code = first.wait()
        codes = [code, *(process.wait(SECONDS_TO_END) for process in processes[1:])]
    except subprocess.TimeoutExpired:
        raise RunError(f"a worker did not end within {SECONDS_TO_END:.0f} s of the first") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        raise RunError(f"worker 0 was ended by signal {-code} ({signal.Signals(-code).name})")
    if code == 0 and any(codes):
        unread.seek(0)
        lines = unread.read().decode(errors="replace").splitlines()
        raise RunError(f"a worker ended with exit code {max(codes)}: {lines[-1] if lines else ''}")
    return code


def _environments(count: int) -> list[dict[str, str]]:
    shared = {
        RUN_VARIABLE: f"placeto-{os.getpid()}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        PARENT_VARIABLE: str(os.getpid()),
    }
    return [
        {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(count)
    ]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
