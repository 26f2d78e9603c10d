"""What training on several machines takes, and that it comes to the same weights.

``python -m placeto_tools.benchmarks.machines_table`` prints it. The machines are network namespaces
of this host: it asks for root and `ip`. They share its processors, so that more of them are no
faster; what the table shows is what talking to each other costs.
"""

import argparse
import math
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import torch

from placeto_graphs import save_problem
from placeto_policy import load_policy
from placeto_tools.benchmarks.machine_training import (
    CHECKPOINT,
    EARLY_CHECKPOINT,
    EARLY_UPDATES,
    REPORT,
    CommunicationReport,
)
from placeto_tools.benchmarks.machines import Machines, environment, torchrun, what_is_missing
from placeto_tools.errors import RunError, exit_code, one_line
from placeto_tools.problems.grouping_options import GroupingOptions
from placeto_tools.problems.making import read_problem
from placeto_tools.problems.problem_options import ProblemOptions
from placeto_tools.tables import TextTable, seconds_text, share_text

WORKER = "placeto_tools.benchmarks.machine_training"
DELAYS = (0.0, 1e-4, 1e-3, 1e-2)
# Sums of other parts in another order round differently, and a hidden unit that is at work by a
# rounding error learns from a state that it would not have seen: two updates came to 8e-4 at most.
ROUNDING = 1e-2
COLUMNS = (
    ">machines",
    ">processes on each",
    ">delay",
    ">updates/s",
    ">in communication",
    ">sum of one number",
    ">sum of the weights",
    ">weights apart from as many processes on one machine",
    f">from one process, after {EARLY_UPDATES} updates",
)
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Measured:
    """A training on machines, and the weights that it came to early and at its end."""

    machines: int
    processes: int
    delay: float
    report: CommunicationReport
    early_weights: Weights
    weights: Weights

    @property
    def count(self) -> int:
        """How many processes there were."""
        return self.machines * self.processes

    def cells(self, on_one: "Measured", alone: "Measured") -> list[str]:
        """Return the row of the table; beside what machine and process it is compared with."""
        report = self.report
        return [
            str(self.machines),
            str(self.processes),
            f"{1e3 * self.delay:g} ms" if self.machines > 1 else "",
            f"{1 / report.update_seconds:.2f}",
            share_text(report.communication_share),
            seconds_text(report.number_seconds),
            seconds_text(report.weights_seconds),
            f"{apart(self.weights, on_one.weights):g}",
            f"{apart(self.early_weights, alone.early_weights):.1e}",
        ]


def apart(weights: Weights, others: Weights) -> float:
    """Return the largest difference of two policies, in parts of each tensor's largest number.

    It is no number where a weight is none.

    Examples
    --------
    >>> apart({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 4.0])})
    0.5
    """
    differences = [
        (weights[name] - other).abs().max() / other.abs().max().clamp(min=1e-30)
        for name, other in others.items()
    ]
    return float(torch.stack(differences).max())


def measure(problem: Path, machines: int, processes: int, delay: float, updates: int) -> Measured:
    """Train on a problem file, on so many machines with so many processes each.

    Raises
    ------
    RunError
        When a process failed; the message ends with its last lines.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as said,
        Machines(machines, delay if machines > 1 else 0.0) as joined,
    ):
        worker = ["-m", WORKER, str(problem), folder, str(updates)]
        alone = machines * processes == 1
        started = [
            joined.start(
                number,
                [sys.executable, *worker]
                if alone
                else torchrun(number, machines, processes, worker),
                env=environment(),
                stdout=said,
                stderr=said,
            )
            for number in range(machines)
        ]
        codes = [process.wait() for process in started]
        if any(codes):
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise RunError(f"a training on {machines} machines failed: {' '.join(lines[-5:])}")
        report = msgspec.json.decode(Path(folder, REPORT).read_bytes(), type=CommunicationReport)
        early, last = (
            load_policy(Path(folder, name)).state_dict() for name in (EARLY_CHECKPOINT, CHECKPOINT)
        )
    return Measured(machines, processes, delay, report, early, last)


def shapes(machines: Sequence[int], processes: Sequence[int]) -> list[tuple[int, int]]:
    """Return numbers of machines and of processes on each, before each those it is compared with.

    Examples
    --------
    >>> shapes([2], [1, 2])
    [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2)]
    """
    several = list(product(machines, processes))
    counts = sorted({1} | {each * on_each for each, on_each in several})
    return [
        shape
        for count in counts
        for shape in [(1, count), *(shape for shape in several if math.prod(shape) == count)]
    ]


def measured_rows(
    problem: Path, chosen: Sequence[tuple[int, int]], delays: Sequence[float], updates: int
) -> Iterator[list[str]]:
    """Yield the rows of the table for each of some `shapes`.

    Raises
    ------
    RunError
        When weights are further apart than rounding explains.
    """
    on_one: dict[int, Measured] = {}
    for machines, processes in chosen:
        for delay in delays if machines > 1 else (0.0,):
            found = measure(problem, machines, processes, delay, updates)
            if machines == 1:
                on_one[processes] = found
            check_equal(found, on_one[found.count], on_one[1])
            yield found.cells(on_one[found.count], on_one[1])


def check_equal(found: Measured, on_one: Measured, alone: Measured) -> None:
    """Check that a training came to the weights of the same processes on one machine.

    Raises
    ------
    RunError
        When they differ at all, or by more than rounding from those of one process.
    """
    what = f"weights of {found.processes} processes on each of {found.machines} machines"
    if not (difference := apart(found.weights, on_one.weights)) == 0:
        raise RunError(f"{what}: expected those of one machine, got {difference:.1e} apart")
    if not (difference := apart(found.early_weights, alone.early_weights)) <= ROUNDING:
        raise RunError(f"{what}: expected those of one process early, got {difference:.1e} apart")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each row as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.machines_table", description=__doc__
    )
    add_problem_options(parser)
    parser.add_argument("--machines", type=int, nargs="+", default=(2, 4))
    parser.add_argument("--processes", type=int, nargs="+", default=(1, 2), help="on each")
    parser.add_argument("--updates", type=int, default=20, help="of each training")
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS, help="in seconds")
    options = parser.parse_args(arguments)
    with ending_in_one_line(parser.prog), saved_problem(options) as problem:
        print(
            f"{options.updates} updates each\n\n{TextTable('', COLUMNS, []).markdown()}", flush=True
        )
        chosen = shapes(options.machines, options.processes)
        for cells in measured_rows(problem, chosen, options.delays, options.updates):
            print(f"| {' | '.join(cells)} |", flush=True)


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which problem to train on."""
    parser.add_argument("source", nargs="?", default="cifar10:3", help="SOURCE to train on")
    parser.add_argument("--groups", type=int, default=16)


@contextmanager
def saved_problem(options: argparse.Namespace) -> Iterator[Path]:
    """Print what is trained on and with what; give the file of the problem."""
    if missing := what_is_missing():
        raise RunError(missing)
    grouping = GroupingOptions(num_groups=options.groups)
    problem = read_problem(options.source, ProblemOptions(cluster="2xk80", grouping=grouping))
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}")
    print(f"{options.source}, {problem.num_groups} groups, 2xk80")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.json.gz")
        save_problem(problem, path)
        yield path


@contextmanager
def ending_in_one_line(program: str) -> Iterator[None]:
    """End the process with one line where something fails or it is asked to stop."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (RunError, ValueError, OSError, KeyboardInterrupt) as error:
        print(f"{program}: error: {one_line(error)}", file=sys.stderr)
        sys.exit(exit_code(error))
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
