"""`train`: a training to its end, with logs and checkpoints."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from placeto_graphs import write_atomically
from placeto_policy.checkpoint import save_training
from placeto_policy.errors import PolicyError
from placeto_policy.trainer import Trainer, UpdateSummary


class Log(Protocol):
    """A record of updates."""

    def write(self, summary: UpdateSummary) -> None:
        """Record an update."""
        ...


class JsonLinesLog:
    """A text file with one JSON object for each update.

    Parameters
    ----------
    path
        File. Its lines are kept.
    updates
        Number of updates so far. Lines of later ones, which a run wrote after its last checkpoint,
        are dropped.

    Examples
    --------
    >>> from placeto_policy import Settings, Trainer, train
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=3))
    >>> _ = train(trainer, logs=[JsonLinesLog("training.jsonl")])
    >>> with open("training.jsonl") as file:
    ...     print([json.loads(line)["update"] for line in file])
    [1, 2, 3]
    """

    def __init__(self, path: str | os.PathLike[str], updates: int = 0) -> None:
        self._path = Path(path)
        if self._path.exists():
            _keep_updates(self._path, updates)

    def write(self, summary: UpdateSummary) -> None:
        """Append a line."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(summary)) + "\n")


class TensorBoardLog:
    """Scalars for TensorBoard; needs the extra ``tensorboard``.

    Parameters
    ----------
    folder
        Folder for TensorBoard.
    updates
        Number of updates so far. Later ones in the folder are superseded.

    Raises
    ------
    PolicyError
        When tensorboard is not installed.

    Examples
    --------
    >>> from placeto_policy import Settings, Trainer, train
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=1))
    >>> with TensorBoardLog("runs") as log:  # doctest: +SKIP
    ...     _ = train(trainer, logs=[log])
    """

    def __init__(self, folder: str | os.PathLike[str], updates: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)
        except ImportError:
            raise PolicyError(
                "TensorBoardLog: expected tensorboard to be installed, as the extra "
                "placeto-policy[tensorboard] does"
            ) from None
        self._writer = SummaryWriter(os.fspath(folder), purge_step=updates + 1)

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, summary: UpdateSummary) -> None:
        """Add a point to each curve."""
        for name, value in asdict(summary).items():
            if name != "update":
                self._writer.add_scalar(name, value, summary.update)


def train(
    trainer: Trainer,
    *,
    logs: Sequence[Log] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    updates_between_checkpoints: int = 10,
) -> list[UpdateSummary]:
    """Make the remaining updates of a training.

    Parameters
    ----------
    trainer
        New training, or one that was resumed.
    logs
        Records of updates. The first of several processes writes them.
    checkpoint
        File from which `resume_training` resumes an interrupted run.
    updates_between_checkpoints
        Number of updates that an interruption loses at most.

    Returns
    -------
    list of UpdateSummary
        Summaries of these updates.

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


def _keep_updates(path: Path, updates: int) -> None:
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["update"] <= updates:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            raise PolicyError(f"{path}: expected a log of updates, got {line[:40]!r}") from None
    write_atomically(path, "".join(kept).encode())
