"""A training from where it stands to its end, with its log and its checkpoints."""

import os
from collections.abc import Sequence

from placeto_policy.checkpoint import save_training
from placeto_policy.logs import Log
from placeto_policy.trainer import Trainer, UpdateSummary


def train(
    trainer: Trainer,
    *,
    logs: Sequence[Log] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    updates_between_checkpoints: int = 10,
) -> list[UpdateSummary]:
    """Make the updates that are left of a training.

    Parameters
    ----------
    trainer
        A new training, or one that was resumed.
    logs
        Where each update is taken down; of several processes, the first one does it.
    checkpoint
        The file from which `resume_training` goes on if the run is interrupted.
    updates_between_checkpoints
        How many updates are at most lost then.

    Returns
    -------
    list of UpdateSummary
        What each update did.

    Examples
    --------
    >>> from placeto_policy import Settings
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=5))
    >>> train(trainer, checkpoint="training.safetensors")[-1].update
    5
    """
    summaries = []
    while trainer.updates < trainer.settings.updates:
        summary = trainer.update()
        summaries.append(summary)
        if trainer.processes.rank == 0:
            for log in logs:
                log.write(summary)
        is_last = trainer.updates == trainer.settings.updates
        if checkpoint and (is_last or trainer.updates % updates_between_checkpoints == 0):
            save_training(trainer, checkpoint)
    return summaries
