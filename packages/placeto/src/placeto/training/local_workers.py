"""Processes that train together, on one machine or several: torchrun's own launcher starts them."""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from placeto.errors import (
    LOST,
    RUN_FAILED,
    STOPPED,
    InputError,
    LostRunError,
    RunError,
)
from placeto.stopping import PARENT_VARIABLE

# Of variables that give options of the command a value: what they say is in the folder by then.
OPTION_VARIABLES = "PLACETO_TRAIN_"
RUN_VARIABLE = "TORCHELASTIC_RUN_ID"  # by which torchrun marks its processes
SECONDS_TO_STOP = 3600  # for the update that Ctrl-C interrupts; before PyTorch 2.12 it is 30
SECONDS_TO_MEET = 600  # for machines, as torchrun waits
SECONDS_TO_ANSWER = 60  # for the store of the host


@dataclass(frozen=True)
class Machines:
    """Several machines whose processes train together.

    Parameters
    ----------
    count
        Number of machines.
    host
        Machine where they meet, by a name or address that the others can reach.
    port
        Port that is free there.
    """

    count: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.count} machines at {self.host}:{self.port}"

    @property
    def local_address(self) -> str:
        """Address of this machine: launchers sort machines by it, so that the host is first."""
        return self.host if self.is_host() else f"~{socket.gethostname()}"

    def wait(self) -> None:
        """Wait until the host listens, if that is another machine.

        Raises
        ------
        InputError
            When the host has no address.
        RunError
            When it does not listen for ten minutes, or another service listens there.
        """
        end = time.monotonic() + SECONDS_TO_MEET
        while True:
            is_host = self.is_host()
            try:
                self._connect()
                self._greet()
            except OSError as error:
                if is_host:
                    return  # the port is free
                if time.monotonic() > end:
                    raise RunError(f"{self}: expected the host to listen: {error}") from None
                time.sleep(1)
            else:
                return

    def is_host(self) -> bool:
        """Return True if the address of the host is one of this machine."""
        try:
            family, *_ = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as connection:
                connection.connect((self.host, self.port))  # sends nothing
                return bool(connection.getsockname()[0] == connection.getpeername()[0])
        except socket.gaierror as error:
            raise InputError(f"--rendezvous {self.host}: {error.strerror}") from None
        except OSError:
            return False  # the network is away

    def _connect(self) -> None:
        socket.create_connection((self.host, self.port), timeout=5).close()

    def _greet(self) -> None:
        """Connect as the launcher does, which would wait for any other service without end."""
        is_store = threading.Event()
        timeout = timedelta(seconds=SECONDS_TO_ANSWER)

        def greet() -> None:
            with suppress(RuntimeError):
                TCPStore(self.host, self.port, is_master=False, timeout=timeout)
                is_store.set()

        threading.Thread(target=greet, daemon=True).start()
        if not is_store.wait(SECONDS_TO_ANSWER):
            self._connect()  # the host has not gone away since
            raise RunError(f"{self}: another service uses this port; name a free port")


def worker_rank() -> int | None:
    """Return the rank of this process among those that torchrun or `run_workers` started."""
    return int(os.environ.get("RANK", "0")) if RUN_VARIABLE in os.environ else None


def is_first_of_its_machine() -> bool:
    """Return whether this process is the first of those on its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def run_workers(command: Sequence[str], count: int, machines: Machines | None = None) -> int:
    """Run a program with its arguments in several processes, and return the exit code.

    The first of this machine writes to this standard output and error. Ctrl-C is passed on to all
    of them; each reads its rank by `worker_rank`.

    Parameters
    ----------
    command
        The program and its arguments.
    count
        Number of processes on this machine.
    machines
        Machines that run the same, for a training on several.

    Raises
    ------
    LostRunError
        When a process of one of several machines was killed or lost.
    RunError
        If a process ended, and the first one did not say why.
    """
    with TemporaryDirectory() as folder, _environment_of_workers(machines):
        config = LaunchConfig(
            min_nodes=machines.count if machines else 1,
            max_nodes=machines.count if machines else 1,
            nproc_per_node=count,
            run_id="placeto" if machines else f"placeto-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{machines.host}:{machines.port}" if machines else "127.0.0.1:0",
            rdzv_configs={"join_timeout": SECONDS_TO_MEET},
            local_addr=machines.local_address if machines else "127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(folder, dict.fromkeys(range(1, count), Std.ALL)),
        )
        try:
            elastic_launch(config, command[0])(*command[1:])
        except SignalException:
            return STOPPED
        except RendezvousTimeoutError:
            raise RunError(
                f"{machines}: expected all of them within {SECONDS_TO_MEET // 60} minutes; "
                "start the same command on each"
            ) from None
        except RendezvousError as error:
            reason = str(error) or "another machine ended the training"
            raise LostRunError(f"{machines}: {reason}") from None
        except ChildFailedError as error:
            return _exit_code(error, Path(folder), can_resume=machines is not None)
    return 0


def _exit_code(error: ChildFailedError, folder: Path, *, can_resume: bool) -> int:
    """Return the exit code of the first process, which wrote why, or raise what another wrote."""
    failures = {failure.local_rank: failure for failure in error.failures.values()}
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    if can_resume and all(code < 0 or code == LOST for code in codes.values()):
        raise LostRunError("a process of the training was killed or lost")
    if codes.get(0, 0) > 0:
        return RUN_FAILED if codes[0] == LOST else codes[0]  # after a line of its own
    if list(folder.glob("*/*/0/error.json")):
        return RUN_FAILED
    rank, failure = min(failures.items(), key=lambda each: each[1].timestamp)
    if failure.exitcode < 0:
        raise RunError(f"worker {rank} was ended by {failure.signal_name()}")
    (path,) = folder.glob(f"*/*/{rank}/stderr.log")
    *_, line = ["", *path.read_text(errors="replace").splitlines()]
    raise RunError(f"worker {rank} ended: {line}")


@contextmanager
def _environment_of_workers(machines: Machines | None) -> Iterator[None]:
    """Set what workers inherit, and silence the launcher, which tells of each signal."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(OPTION_VARIABLES) and not machines:
            del os.environ[name]
    if machines:
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # a machine can join again
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SECONDS_TO_STOP))
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
