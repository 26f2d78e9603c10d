"""Logs of a training: a file of JSON lines, and scalars for TensorBoard."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from placeto_graphs import write_atomically
from placeto_policy.errors import PolicyError
from placeto_policy.trainer import UpdateSummary


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
    >>> from placeto_policy import Settings, Trainer
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=3))
    >>> log = JsonLinesLog("training.jsonl")
    >>> for _ in range(3):
    ...     log.write(trainer.update())
    >>> with open("training.jsonl") as file:
    ...     print([json.loads(line)["update"] for line in file])
    [1, 2, 3]
    """

    def __init__(self, path: str | os.PathLike[str], updates: int = 0) -> None:
        self._path = Path(path)
        if self._path.exists():
            _keep_updates(self._path, updates)

    def write(self, summary: UpdateSummary) -> None:
        """Append a line with the numbers of ``summary``."""
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
    >>> from placeto_policy import Settings, Trainer
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> trainer = Trainer([BusiestDevice(two_chains())], Settings(updates=1))
    >>> with TensorBoardLog("runs") as log:  # doctest: +SKIP
    ...     log.write(trainer.update())
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
        """Add a point to each curve, with the numbers of ``summary``."""
        for name, scalar in asdict(summary).items():
            if name != "update":
                self._writer.add_scalar(name, scalar, summary.update)


def _keep_updates(path: Path, updates: int) -> None:
    lines = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["update"] <= updates:
                lines.append(line)
        except (ValueError, KeyError, TypeError):
            raise PolicyError(f"{path}: expected a log of updates, got {line[:40]!r}") from None
    write_atomically(path, "".join(lines).encode())
