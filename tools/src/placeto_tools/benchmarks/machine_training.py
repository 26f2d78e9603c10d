"""A training that measures how its processes talk to each other; what `machines_table` runs.

``torchrun ... -m placeto_tools.benchmarks.machine_training PROBLEM FOLDER UPDATES`` leaves
``report.json`` and two checkpoints in the folder.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import load_problem, write_atomically
from placeto_policy import Settings, Trainer, join_processes, save_training
from placeto_policy.workers import Processes
from placeto_simulator import Simulator

REPORT = "report.json"
CHECKPOINT = "training.safetensors"
EARLY_CHECKPOINT, EARLY_UPDATES = "early.safetensors", 2
SEED = 7
SUMS = 11  # of each size, to measure one


class CommunicationReport(msgspec.Struct, frozen=True):
    """What a training by several processes took.

    Attributes
    ----------
    update_seconds : float
        The median of all updates but the first two.
    communication_share : float
        The mean over the processes of the part of the time in which they send, receive, or wait
        for others.
    calls : float
        Sums and gatherings in an update, on the mean.
    num_weights : int
        How many numbers a summed gradient has.
    number_seconds : float
        What the sum of one number takes, the median.
    weights_seconds : float
        What the sum of as many numbers as there are weights takes, the median.
    """

    update_seconds: float
    communication_share: float
    calls: float
    num_weights: int
    number_seconds: float
    weights_seconds: float


class TimedProcesses:
    """Processes of a training, with a clock on what they tell each other.

    Parameters
    ----------
    processes
        Those that train together.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.rank, self.count = processes.rank, processes.count
        self.seconds, self.calls = 0.0, 0

    def sum(self, values: torch.Tensor) -> None:
        """Add up a tensor over all processes."""
        began = time.perf_counter()
        self._processes.sum(values)
        self._count(began)

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows of all processes."""
        began = time.perf_counter()
        gathered = self._processes.gather(rows)
        self._count(began)
        return gathered

    def share(self, content: bytes) -> bytes:
        """Return the content of the first process."""
        return self._processes.share(content)

    def _count(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        self.calls += 1


def train_with_clock(problem: Path, folder: Path, updates: int) -> None:
    """Train on a problem, and leave a report and checkpoints in the folder."""
    with join_processes() as joined:
        processes = TimedProcesses(joined)
        settings = Settings(updates=updates, selection="last")
        evaluators = [Simulator(load_problem(problem), num_threads=1)]
        trainer = Trainer(evaluators, settings, seed=SEED, processes=processes)
        for _ in range(EARLY_UPDATES):  # compiles, or loads what is compiled
            trainer.update()
        save_training(trainer, folder / EARLY_CHECKPOINT)
        processes.seconds, processes.calls = 0.0, 0
        seconds = [_seconds_of(trainer.update) for _ in range(updates - EARLY_UPDATES)]
        share = processes.gather(np.array([[processes.seconds / sum(seconds)]]))
        calls = (processes.calls - 1) / len(seconds)
        num_weights = sum(weights.numel() for weights in trainer.policy.parameters())
        report = CommunicationReport(
            update_seconds=statistics.median(seconds),
            communication_share=float(share.mean()),
            calls=calls,
            num_weights=num_weights,
            number_seconds=_seconds_of_sum(processes, 1),
            weights_seconds=_seconds_of_sum(processes, num_weights),
        )
        save_training(trainer, folder / CHECKPOINT)
    if not processes.rank:
        write_atomically(folder / REPORT, msgspec.json.encode(report))


def _seconds_of_sum(processes: TimedProcesses, count: int) -> float:
    numbers = torch.zeros(count)
    return statistics.median(_seconds_of(lambda: processes.sum(numbers)) for _ in range(SUMS))


def _seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main(arguments: Sequence[str]) -> None:
    """Train as the arguments say."""
    problem, folder, updates = arguments
    torch.set_num_threads(1)
    train_with_clock(Path(problem), Path(folder), int(updates))


if __name__ == "__main__":
    main(sys.argv[1:])
