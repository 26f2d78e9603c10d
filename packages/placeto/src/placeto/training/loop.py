"""A training, from its last checkpoint to its end or to a request to stop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from placeto.errors import RunError, writing
from placeto.training.folder import TrainingFolder
from placeto_policy import (
    JsonLinesLog,
    PolicyError,
    TensorBoardLog,
    Trainer,
    UpdateSummary,
    save_training,
)
from placeto_policy.workers import Processes


def run_training(
    trainer: Trainer,
    checkpoint: Path,
    logs: Sequence[JsonLinesLog | TensorBoardLog],
    stopping: Callable[[], bool],
    *,
    updates_between_checkpoints: int,
    report: Callable[[UpdateSummary], None],
) -> bool:
    """Make the updates that are left; return True if all were made, False if it is to stop."""
    while trainer.updates < trainer.settings.updates:
        try:
            summary = trainer.update()
            ends = agreed_to_stop(trainer.processes, stopping)
        except PolicyError as error:
            raise RunError(str(error)) from error
        if trainer.processes.rank == 0:
            with writing(checkpoint.parent):
                for log in logs:
                    log.write(summary)
            report(summary)
        done = trainer.updates == trainer.settings.updates
        if ends or done or trainer.updates % updates_between_checkpoints == 0:
            with writing(checkpoint):
                save_training(trainer, checkpoint)
        if ends and not done:
            return False
    return True


@contextmanager
def open_logs(
    folder: TrainingFolder, trainer: Trainer
) -> Iterator[list[JsonLinesLog | TensorBoardLog]]:
    """Open the logs of a training, which the first process writes."""
    if trainer.processes.rank:
        yield []
        return
    with writing(folder.path):
        lines = JsonLinesLog(folder.log, updates=trainer.updates)
        board = TensorBoardLog(folder.tensorboard, updates=trainer.updates)
    try:
        yield [lines, board]
    finally:
        with suppress(OSError):
            board.__exit__()


def agreed_to_stop(processes: Processes, stopping: Callable[[], bool]) -> bool:
    """Return True if any process has a request to stop: all stop at the same update."""
    wishes = torch.tensor([float(stopping())])
    processes.sum(wishes)
    return bool(wishes[0] > 0)
