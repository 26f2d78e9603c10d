"""What it costs a training on several machines to lose one of them.

``python -m placeto_tools.benchmarks.lost_machines`` prints it. The machines are network namespaces
of this host: it asks for root and `ip`. Each runs torchrun, over and over until the training is
done. At random times one of them is lost, and comes back after a while; in the end the weights have
to be those of a training that lost none.
"""

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product, takewhile
from pathlib import Path
from subprocess import Popen
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file

from placeto_tools.benchmarks.machines import Machines, environment, torchrun
from placeto_tools.benchmarks.machines_table import (
    add_problem_options,
    apart,
    ending_in_one_line,
    saved_problem,
)
from placeto_tools.errors import RunError
from placeto_tools.tables import TextTable
from placeto_tools.training.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

# All its processes are killed; or, as when power fails, its link goes down before they are. How
# often, and for how many seconds: the others give up a machine that says nothing after thirty.
KILLED, CUT_OFF = "killed", "cut off"
SHARES = {KILLED: 0.75, CUT_OFF: 0.25}
SECONDS_AWAY = {KILLED: 2.0, CUT_OFF: 40.0}
PATIENCE = 600.0  # seconds without an update
COLUMNS = (
    "a machine is",
    "which",
    ">times",
    ">updates lost, mean",
    ">largest",
    ">seconds until it went on, median",
    ">largest",
)
MESSAGE = re.compile(r"placeto: error: (.*)")
NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Loss:
    """One loss of a machine.

    Attributes
    ----------
    way : text
        How, of `SHARES`.
    number : int
        Which machine.
    updates : int
        How many updates had to be made again.
    seconds : float
        From when the machine was back until the next update was made.
    """

    way: str
    number: int
    updates: int
    seconds: float


class KeptTraining:
    """A training by one process on each machine, which are started again whenever they end.

    Parameters
    ----------
    machines
        Where.
    problem
        A problem file.
    folder
        Of the training.
    said
        A file for what its processes print.
    updates, checkpoint_every
        As for ``placeto train``.
    """

    def __init__(
        self,
        machines: Machines,
        problem: Path,
        folder: Path,
        said: IO[bytes],
        *,
        updates: int,
        checkpoint_every: int,
    ) -> None:
        self._machines = machines
        self._arguments = [
            *("-m", "placeto_tools.main", "train", str(problem), "-o", str(folder), "--go-on"),
            *(f"--updates={updates}", f"--checkpoint-every={checkpoint_every}"),
        ]
        self._log = RunFolder(folder).log
        self._said = said
        self._away: set[int] = set()
        self._processes = [self._start(number) for number in range(machines.count)]

    @property
    def is_done(self) -> bool:
        """Whether all processes have ended well."""
        return all(process.poll() == 0 for process in self._processes)

    def lines(self) -> list[bytes]:
        """Return what was logged, a line for each update; no two are ever alike."""
        lines = self._log.read_bytes().splitlines(keepends=True) if self._log.exists() else []
        return [line for line in lines if line.endswith(b"\n")]

    def has(self, updates: int) -> bool:
        """Return whether more updates than that are logged."""
        return len(self.lines()) > updates

    def messages(self) -> list[str]:
        """Return the lines in which processes said why they ended, each once."""
        self._said.seek(0)
        found = MESSAGE.findall(self._said.read().decode(errors="replace"))
        return sorted({NUMBERS.sub("N", text) for text in found})

    def keep(self, seconds: float) -> None:
        """Let it train for some time; start what ended badly."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_done:
            for number, process in enumerate(self._processes):
                if process.poll() and number not in self._away:
                    self._processes[number] = self._start(number)
            time.sleep(0.02)

    def keep_until(self, reached: Callable[[], bool]) -> None:
        """Let it train until something is so, or it is done.

        Raises
        ------
        RunError
            When nothing is logged for a long time.
        """
        lines, began = self.lines(), time.monotonic()
        while not (reached() or self.is_done):
            self.keep(0.02)
            if (now := self.lines()) != lines:
                lines, began = now, time.monotonic()
            if time.monotonic() - began > PATIENCE:
                raise RunError(f"no update in {PATIENCE:.0f} s: {'; '.join(self.messages())}")

    def lose(self, number: int, way: str) -> Loss:
        """Lose a machine, get it back after a while, and wait until the training goes on."""
        self._away.add(number)
        if way == CUT_OFF:
            self._machines.unplug(number)
        self._machines.kill(number)
        self.keep(SECONDS_AWAY[way])
        if way == CUT_OFF:
            self._machines.plug(number)
        before, file = self.lines(), self._log.stat().st_ino
        back = time.monotonic()
        self._away.clear()
        # A training that goes on replaces its log by the lines up to its checkpoint.
        self.keep_until(
            lambda: (
                self._log.stat().st_ino != file and len(self.lines()) > alike(before, self.lines())
            )
        )
        return Loss(way, number, len(before) - alike(before, self.lines()), time.monotonic() - back)

    def _start(self, number: int) -> "Popen[Any]":
        command = torchrun(number, self._machines.count, 1, self._arguments)
        return self._machines.start(
            number, command, env=environment(), stdout=self._said, stderr=self._said
        )


def alike(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """Return how many lines two logs begin with that are the same.

    Examples
    --------
    >>> alike([b"a", b"b", b"c"], [b"a", b"d"])
    1
    """
    pairs = zip(before, after, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def lose_often(
    training: KeptTraining, machines: int, times: int, checkpoint_every: int, seed: int
) -> list[Loss]:
    """Lose machines of a training after random parts of up to two intervals of checkpoints."""
    generator = np.random.default_rng(seed)
    losses: list[Loss] = []
    training.keep_until(partial(training.has, 0))
    while len(losses) < times and not training.is_done:
        number = int(generator.integers(machines))
        way = str(generator.choice(list(SHARES), p=list(SHARES.values())))
        part, whole = math.modf(generator.uniform(0, 2 * checkpoint_every))
        began, first = time.monotonic(), len(training.lines())
        training.keep_until(partial(training.has, first + int(whole)))
        training.keep(part * (time.monotonic() - began) / (1 + whole))
        if not training.is_done:
            losses.append(training.lose(number, way))
            print(losses[-1], file=sys.stderr)
    training.keep_until(lambda: False)
    return losses


def table_of(losses: Sequence[Loss]) -> TextTable:
    """Return what each way of losing each machine cost."""
    rows = []
    for way, is_first in product(SHARES, (True, False)):
        found = [loss for loss in losses if (loss.way, loss.number == 0) == (way, is_first)]
        if found:
            rows.append([way, "the first" if is_first else "another", *_cells(found)])
    return TextTable("", COLUMNS, [*rows, ["all", "", *_cells(losses)]])


def _cells(losses: Sequence[Loss]) -> list[str]:
    updates, seconds = [loss.updates for loss in losses], [loss.seconds for loss in losses]
    return [
        str(len(losses)),
        f"{statistics.mean(updates):.1f}",
        str(max(updates)),
        f"{statistics.median(seconds):.0f}",
        f"{max(seconds):.0f}",
    ]


def check(losses: Sequence[Loss], checkpoint_every: int, folder: Path, undisturbed: Path) -> str:
    """Compare what is in the folders of two trainings, of which one lost machines; say how it does.

    Raises
    ------
    RunError
        When more than an interval of checkpoints was lost at once, or the results differ.
    """
    most = max(loss.updates for loss in losses)
    if most > checkpoint_every:
        raise RunError(f"expected at most {checkpoint_every} updates lost at once, got {most}")
    disturbed, expected = (_tensors(path) for path in (folder, undisturbed))
    if disturbed.keys() != expected.keys():
        raise RunError(f"checkpoint: expected the {len(expected)} tensors of no loss, got others")
    if not (difference := apart(disturbed, expected)) == 0:  # nor is what is no number
        raise RunError(f"checkpoint: expected that of no loss, got {difference:.1e} apart")
    numbers = [
        json.loads(line)["update"] for line in RunFolder(folder).log.read_text().splitlines()
    ]
    if numbers != list(range(1, len(numbers) + 1)):
        raise RunError(f"log: expected each update once and in order, got {numbers}")
    return f"From the checkpoint of an undisturbed training it is {difference:g} in parts of each."


def _tensors(folder: Path) -> dict[str, "Tensor"]:
    """Return all that a training ends with; its policy alone is that of its best update."""
    return {name: each.double() for name, each in load_file(RunFolder(folder).checkpoint).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train undisturbed, train with losses, and print what these cost."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.lost_machines", description=__doc__
    )
    add_problem_options(parser)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--times", type=int, default=20, help="that a machine is lost")
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--checkpoint-every", type=int, default=5, help="updates")
    parser.add_argument("--seed", type=int, default=0, help="of when which machine is lost")
    options = parser.parse_args(arguments)
    with (
        ending_in_one_line(parser.prog),
        saved_problem(options) as problem,
        tempfile.TemporaryDirectory() as folders,
        tempfile.TemporaryFile() as unread,
        tempfile.TemporaryFile() as said,
        Machines(options.machines) as machines,
    ):
        every = options.checkpoint_every
        start = partial(
            KeptTraining, machines, problem, updates=options.updates, checkpoint_every=every
        )
        undisturbed, disturbed = Path(folders, "undisturbed"), Path(folders, "disturbed")
        start(undisturbed, unread).keep_until(lambda: False)
        training = start(disturbed, said)
        losses = lose_often(training, machines.count, options.times, every, options.seed)
        compared = check(losses, every, disturbed, undisturbed)
        checkpoints = f"a checkpoint every {every} of {options.updates} updates"
        print(f"{options.machines} machines, {checkpoints}\n")
        print(f"{table_of(losses).markdown()}\n\n{compared} What processes said when they ended:\n")
        print("\n".join(f"- {message}" for message in training.messages()))


if __name__ == "__main__":
    main()
