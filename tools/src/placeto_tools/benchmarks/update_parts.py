"""What an update takes of one core, part by part, and what that makes of more cores and machines.

``python -m placeto_tools.benchmarks.update_parts`` prints both tables. Seconds are those that the
process takes on one core, so that other processes change little. The second table is computed:
`docs/scale.md` has the formula.
"""

import argparse
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from placeto_graphs import PlacementProblem
from placeto_policy import Settings, Trainer
from placeto_simulator import Simulator
from placeto_tools.benchmarks.policy_benchmark import Stopwatch, WatchedEvaluator, inception_problem
from placeto_tools.tables import TextTable, seconds_text

SIMULATION, NETWORK, GRADIENT, ADAM = "simulation", "network forward", "gradient", "Adam"
HOW_SHARED = {
    SIMULATION: "episodes, over processes",
    NETWORK: "episodes, over processes",
    GRADIENT: "episodes, over processes",
    ADAM: "not at all",
}
FLOAT_BYTES, ROW_BYTES = 4, 8  # of a gradient, and of a number of a worker's report


@dataclass(frozen=True)
class UpdateParts:
    """What an update takes on one core.

    Attributes
    ----------
    seconds : mapping
        By the name of the part.
    workers : int
        How many episodes an update has.
    sums : int
        How many gradients are summed in it.
    num_weights : int
        How many numbers each has.
    report_bytes : int
        What a worker reports of its episode.
    """

    seconds: dict[str, float]
    workers: int
    sums: int
    num_weights: int
    report_bytes: int

    @property
    def total(self) -> float:
        """The seconds of all parts."""
        return sum(self.seconds.values())

    def with_workers(self, workers: int) -> "UpdateParts":
        """Return the parts of an update with another number of episodes."""
        times = {name: workers / self.workers if name != ADAM else 1.0 for name in self.seconds}
        seconds = {name: times[name] * seconds for name, seconds in self.seconds.items()}
        return replace(self, seconds=seconds, workers=workers)

    def computing(self, processes: int, *, without: Sequence[str] = ()) -> float:
        """Return the seconds of an update without communication; some parts may take nothing.

        Examples
        --------
        >>> parts = UpdateParts({GRADIENT: 8.0, ADAM: 1.0}, 8, 16, 1000, 100)
        >>> [parts.computing(processes) for processes in (1, 2, 3, 8)]
        [9.0, 5.0, 4.0, 2.0]
        """
        each = math.ceil(self.workers / processes) / self.workers
        shares = {name: each if name != ADAM else 1.0 for name in self.seconds}
        return sum(
            shares[name] * seconds for name, seconds in self.seconds.items() if name not in without
        )

    def communication(self, processes: int, latency: float, bandwidth: float) -> float:
        """Return the seconds in which processes send; latency in s, bandwidth in B/s.

        Sums and gatherings go around a ring of P processes: 2 (P - 1) messages of a P-th of the
        numbers each, and P - 1 messages of the reports of a process.

        Examples
        --------
        >>> parts = UpdateParts({GRADIENT: 8.0, ADAM: 1.0}, 8, 16, 1000, 100)
        >>> [round(parts.communication(processes, 0.01, 1e9), 2) for processes in (1, 2, 8)]
        [0.0, 0.36, 2.52]
        """
        part = FLOAT_BYTES * self.num_weights / processes
        reports = self.report_bytes * math.ceil(self.workers / processes)
        summed = 2 * self.sums * (latency + part / bandwidth) + 2 * latency  # whether to stop
        gathered = 2 * latency + reports / bandwidth  # how many there are, and the reports
        return (processes - 1) * (summed + gathered)


def measure(problem: PlacementProblem, updates: int) -> UpdateParts:
    """Measure a training at its beginning, when nearly all placements are new."""
    torch.set_num_threads(1)
    stopwatch = Stopwatch(time.process_time)
    settings = Settings(updates=10 * updates)
    evaluator = WatchedEvaluator(Simulator(problem, num_threads=1), stopwatch, SIMULATION)
    trainer = Trainer([evaluator], settings)
    trainer.update()  # compiles, or loads what is compiled
    stopwatch.seconds.clear()
    stopwatch.watch(trainer, "_run_own_workers", NETWORK)
    stopwatch.watch(trainer, "_add_gradient", GRADIENT)
    stopwatch.watch(trainer, "_apply_gradient", ADAM)
    for _ in range(updates):
        trainer.update()
    return UpdateParts(
        seconds={name: stopwatch.seconds[name] / updates for name in HOW_SHARED},
        workers=settings.workers,
        sums=trainer.steps_per_update,
        num_weights=sum(weights.numel() for weights in trainer.policy.parameters()),
        report_bytes=ROW_BYTES * (6 + 2 * problem.num_groups),
    )


@dataclass(frozen=True)
class Place:
    """Where a training would run: processes of one core each, and what is between them.

    Attributes
    ----------
    name : text
        For the table.
    processes : int
        How many.
    latency, bandwidth : float
        In s and B/s.
    """

    name: str
    processes: int
    latency: float
    bandwidth: float


def places(latency: float) -> list[Place]:
    """Return those of the table; the latency is that between processes of a machine."""
    return [
        Place("one core", 1, 0.0, math.inf),
        *(Place(f"{count} cores", count, latency, 5e9) for count in (2, 4, 8, 64)),
        Place("8 machines, 0.1 ms, 10 Gb/s", 8, 1e-4, 1.25e9),
        Place("8 machines, 1 ms, 1 Gb/s", 8, 1e-3, 1.25e8),
        Place("8 machines, 10 ms, 1 Gb/s", 8, 1e-2, 1.25e8),
        Place("64 machines, 0.1 ms, 10 Gb/s", 64, 1e-4, 1.25e9),
    ]


def tables(parts: UpdateParts, chosen: Sequence[Place]) -> list[TextTable]:
    """Return what was measured, and what that makes of places to train in.

    Where there are more processes than episodes in an update, it is one with more episodes.
    """
    measured = [
        [name, seconds_text(seconds), HOW_SHARED[name]] for name, seconds in parts.seconds.items()
    ]
    rows = []
    for place in chosen:
        count = place.processes
        there = parts if count <= parts.workers else parts.with_workers(count)
        talking = there.communication(count, place.latency, place.bandwidth)
        usual = there.computing(count) + talking
        least = there.computing(count, without=(NETWORK, GRADIENT)) + talking
        seconds = [seconds_text(value) if value else "none" for value in (talking, usual, least)]
        rows.append([place.name, str(there.workers), *seconds, f"{there.total / usual:.1f}"])
    sent = FLOAT_BYTES * parts.num_weights * parts.sums
    title = f"{parts.workers} episodes, {parts.sums} sums of {parts.num_weights:,} weights"
    return [
        TextTable(f"{title}, {sent / 1e6:.1f} MB", ["part", ">an update", "shared"], measured),
        TextTable(
            "",
            [
                "where",
                ">episodes",
                ">communication",
                ">an update",
                ">the same if network and gradient took nothing",
                ">times as fast as one core",
            ],
            rows,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.update_parts", description=__doc__
    )
    parser.add_argument("--groups", type=int, default=128, help="of Inception-V3")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument(
        "--latency", type=float, default=50e-6, help="between processes of a machine, in s"
    )
    options = parser.parse_args(arguments)
    parts = measure(inception_problem(options.groups, options.devices), options.updates)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}\n")
    print("\n\n".join(table.markdown() for table in tables(parts, places(options.latency))))


if __name__ == "__main__":
    main()
