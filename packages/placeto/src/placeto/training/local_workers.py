"""Several processes on this machine that train together: torchrun's own launcher starts them."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from placeto.errors import RUN_FAILED, STOPPED, RunError
from placeto.stopping import PARENT_VARIABLE

# Of variables that give options of the command a value: what they say is in the folder by then.
OPTION_VARIABLES = "PLACETO_TRAIN_"
RUN_VARIABLE = "TORCHELASTIC_RUN_ID"  # by which torchrun marks its processes
SECONDS_TO_STOP = 3600  # for the update that Ctrl-C interrupts; before PyTorch 2.12 it is 30


def worker_rank() -> int | None:
    """Return the rank of this process among those that torchrun or `run_workers` started."""
    return int(os.environ.get("RANK", "0")) if RUN_VARIABLE in os.environ else None


def is_first_of_its_machine() -> bool:
    """Return whether this process is the first of those on its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def run_workers(command: Sequence[str], count: int) -> int:
    """Run a program with its arguments in several processes, and return the exit code.

    The first writes to this standard output and error. Ctrl-C is passed on to all of them; each
    reads its rank by `worker_rank`.

    Raises
    ------
    RunError
        If a process ended, and the first one did not say why.
    """
    with TemporaryDirectory() as folder, _environment_of_workers():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id=f"placeto-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(folder, dict.fromkeys(range(1, count), Std.ALL)),
        )
        try:
            elastic_launch(config, command[0])(*command[1:])
        except SignalException:
            return STOPPED
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            if codes.get(0, 0) > 0:
                return codes[0]  # after a line of its own
            if list(Path(folder).glob("*/*/0/error.json")):
                return RUN_FAILED
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:
                raise RunError(f"worker {rank} was ended by {failure.signal_name()}") from None
            (path,) = Path(folder).glob(f"*/*/{rank}/stderr.log")
            *_, line = ["", *path.read_text(errors="replace").splitlines()]
            raise RunError(f"worker {rank} ended: {line}") from None
    return 0


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Set what workers inherit, and silence the launcher, which tells of each signal."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(OPTION_VARIABLES):
            del os.environ[name]
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
