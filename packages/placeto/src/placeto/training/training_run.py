"""A training, from its last checkpoint to its end or to a request to stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from placeto.errors import RunError, writing
from placeto.stopping import StopRequest
from placeto.training.run_folder import RunFolder
from placeto_policy import (
    JsonLinesLog,
    PolicyError,
    TensorBoardLog,
    Trainer,
    UpdateSummary,
    save_training,
)
from placeto_policy.workers import Processes

Report = Callable[[UpdateSummary], None]


def run_training(
    trainer: Trainer,
    folder: RunFolder,
    stop: StopRequest,
    *,
    updates_between_checkpoints: int,
    report: Report,
) -> bool:
    """Make the updates that are left, with logs and checkpoints; return True if all were made.

    Of several processes, the first one writes. After a request to stop, all of them stop at a
    checkpoint after the current update. A killed training loses at most
    ``updates_between_checkpoints`` updates.
    """
    with _logs(trainer, folder) as write:
        while trainer.updates < trainer.settings.updates:
            try:
                summary = trainer.update()
                stopping = agreed_to_stop(trainer.processes, stop)
            except PolicyError as error:
                raise RunError(str(error)) from error
            if trainer.processes.rank == 0:
                write(summary)
                report(summary)
            done = trainer.updates == trainer.settings.updates
            if stopping or done or trainer.updates % updates_between_checkpoints == 0:
                with writing(folder.checkpoint):
                    save_training(trainer, folder.checkpoint)
            if stopping and not done:
                return False
    return True


@contextmanager
def _logs(trainer: Trainer, folder: RunFolder) -> Iterator[Report]:
    if trainer.processes.rank:
        yield lambda _summary: None
        return
    with writing(folder.path):
        lines = JsonLinesLog(folder.log, updates=trainer.updates)
        board = TensorBoardLog(folder.tensorboard, updates=trainer.updates)

    def write(summary: UpdateSummary) -> None:
        with writing(folder.path):
            lines.write(summary)
            board.write(summary)

    try:
        yield write
    finally:
        with suppress(OSError):
            board.__exit__()


def agreed_to_stop(processes: Processes, stop: StopRequest) -> bool:
    """Return True if any process has a request to stop: all stop at the same update."""
    wishes = torch.tensor([float(stop.requested)])
    processes.sum(wishes)
    return bool(wishes[0] > 0)
