"""What the processes of a test run: a training on two graphs, with a checkpoint after each update.

Called as ``training_script.py FOLDER UPDATES [fail-RANK | pause]``.
"""

import signal
import sys
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from placeto_graphs import EvaluationBatch
from placeto_policy import Settings, Trainer, UpdateSummary, join_processes, resume_training, train
from placeto_policy.workers import Processes
from scheduled_problems import ListSchedule, heavy_chain, two_chains

CHECKPOINT = "training.safetensors"
WORKERS = 4
UPDATES_BEFORE_PAUSE = 3
UPDATES_BEFORE_FAILURE = 2


class Breaks(ListSchedule):
    """Fails after some updates of the training."""

    trainer: ClassVar[Trainer | None] = None

    def evaluate(self, placements: np.ndarray) -> EvaluationBatch:
        if self.trainer is not None and self.trainer.updates >= UPDATES_BEFORE_FAILURE:
            raise RuntimeError("the evaluator broke")
        return super().evaluate(placements)


class Tell:
    """A log that prints how far the training is, and waits to be killed."""

    def __init__(self, pause: bool) -> None:
        self.pause = pause

    def write(self, summary: UpdateSummary) -> None:
        print(summary.update, flush=True)
        if self.pause and summary.update == UPDATES_BEFORE_PAUSE:
            signal.pause()


def new_or_resumed(
    folder: Path, updates: int, processes: Processes, *, broken: bool = False
) -> Trainer:
    """Return the training of the folder's checkpoint, or a new one."""
    evaluators = [
        (Breaks if broken else ListSchedule)(make()) for make in (two_chains, heavy_chain)
    ]
    if (folder / CHECKPOINT).exists():
        return resume_training(folder / CHECKPOINT, evaluators, processes=processes)
    settings = Settings(updates=updates, workers=WORKERS)
    return Trainer(evaluators, settings, seed=7, processes=processes)


def main(folder: Path, updates: int, how: str = "") -> None:
    """Train to the end."""
    group = None
    with join_processes() as processes:
        if processes.count > 1:
            group = weakref.ref(torch.distributed.group.WORLD)
        assert processes.share(b"of %d" % processes.rank) == b"of 0"
        broken = how == f"fail-{processes.rank}"
        trainer = new_or_resumed(folder, updates, processes, broken=broken)
        Breaks.trainer = trainer if broken else None
        train(
            trainer,
            logs=[Tell(how == "pause")],
            checkpoint=folder / CHECKPOINT,
            updates_between_checkpoints=1,
        )
    # Threads of a group that is left behind may abort a process that ends.
    assert group is None or group() is None


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
