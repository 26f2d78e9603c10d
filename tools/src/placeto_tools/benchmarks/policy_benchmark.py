"""Speed of training and placing with a policy.

``python -m placeto_tools.benchmarks.policy_benchmark`` prints it.
It stands here and not in the package of the policy, because it needs the simulator, too.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from placeto_graphs import (
    EvaluationBatch,
    PlacementProblem,
    ScheduleBatch,
    SchedulingEvaluator,
    colocate,
    load_problem,
    merge_and_colocate,
    parse_cluster,
)
from placeto_policy import PlacetoPlacer, Settings, Trainer
from placeto_simulator import Simulator
from placeto_workloads import cost_model, load


def inception_problem(num_groups: int, num_devices: int, **sizes: int) -> PlacementProblem:
    """Return the problem of Inception-V3 on so many K80s; sizes are those of the registry."""
    graph = load("inception-v3", **sizes)
    cluster = parse_cluster(f"{num_devices}xk80")
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=np.stack([cost_model(graph, device.kind) for device in cluster.devices], 1),
        grouping=merge_and_colocate(graph, colocate(graph), num_groups=num_groups),
    )


class Stopwatch:
    """Adds up what parts of a training take by a clock, each without the parts inside it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._inside: list[float] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure one part."""
        self._inside.append(0.0)
        began = self._clock()
        try:
            yield
        finally:
            taken = self._clock() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - self._inside.pop()
            if self._inside:
                self._inside[-1] += taken

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Measure every call of a function of an object."""
        function = getattr(owner, attribute)

        def watched(*inputs: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*inputs, **options)

        setattr(owner, attribute, watched)


class WatchedEvaluator:
    """An evaluator whose time is measured."""

    def __init__(
        self, evaluator: SchedulingEvaluator, stopwatch: Stopwatch, name: str = "simulator"
    ) -> None:
        self.problem = evaluator.problem
        self._name = name
        self._evaluator = evaluator
        self._stopwatch = stopwatch

    def evaluate(self, placements: Any) -> EvaluationBatch:
        """Evaluate a batch."""
        with self._stopwatch.part(self._name):
            return self._evaluator.evaluate(placements)

    def schedule(self, placements: Any) -> ScheduleBatch:
        """Evaluate a batch, and say when groups are at work."""
        with self._stopwatch.part(self._name):
            return self._evaluator.schedule(placements)


@dataclass(frozen=True)
class Row:
    """What was measured on one problem: medians, and seconds of each component per step."""

    num_ops: int
    num_groups: int
    num_devices: int
    training_steps_per_second: float
    components: dict[str, float]
    greedy_seconds: float


@dataclass(frozen=True)
class PolicyReport:
    """What was measured, and on what."""

    machine: str
    problems: Sequence[Row]

    def markdown(self) -> str:
        """Return the problems as a table."""
        names = list(self.problems[0].components)
        lines = [
            f"{self.machine}\n",
            f"| ops | groups | devices | training steps/s | {' | '.join(names)} | greedy pass "
            "| steps/s |",
            f"|---:|---:|---:|---:|{'---:|' * len(names)}---:|---:|",
        ]
        for row in self.problems:
            parts = " | ".join(f"{row.components[name] * 1e6:.0f} µs" for name in names)
            lines.append(
                f"| {row.num_ops:,} | {row.num_groups} | {row.num_devices} "
                f"| {row.training_steps_per_second:,.0f} | {parts} | {row.greedy_seconds:.3f} s "
                f"| {row.num_groups / row.greedy_seconds:,.0f} |"
            )
        return "\n".join(lines)


def measure(problem: PlacementProblem, updates: int, seed: int) -> Row:
    """Measure training steps per second, where they spend their time, and a greedy pass."""
    settings = Settings(updates=10 * updates)
    trainer = Trainer([Simulator(problem)], settings, seed=seed)
    trainer.update()  # compiles, or loads what is compiled
    rates = [trainer.update().evaluations_per_second for _ in range(updates)]
    policy = trainer.policy
    placer, simulator = PlacetoPlacer(policy=policy), Simulator(problem)
    passes = [placer.place(problem, simulator).seconds for _ in range(5)]
    return Row(
        problem.graph.num_ops,
        problem.num_groups,
        problem.num_devices,
        statistics.median(rates),
        components(problem, updates, seed),
        statistics.median(passes),
    )


def components(problem: PlacementProblem, updates: int, seed: int) -> dict[str, float]:
    """Return the seconds per step of each part of another training."""
    stopwatch = Stopwatch()
    evaluator = WatchedEvaluator(Simulator(problem), stopwatch)
    trainer = Trainer([evaluator], Settings(updates=10 * updates), seed=seed)
    trainer.update()
    stopwatch.seconds.clear()
    stopwatch.watch(trainer, "_run_own_workers", "episodes, network")
    stopwatch.watch(trainer.environments[0], "step", "environment")
    stopwatch.watch(trainer, "_add_gradient", "gradient")
    stopwatch.watch(trainer, "_apply_gradient", "Adam")
    before = trainer.evaluations
    with stopwatch.part("rest"):
        for _ in range(updates):
            trainer.update()
    steps = trainer.evaluations - before
    return {name: seconds / steps for name, seconds in stopwatch.seconds.items()}


def measured(arguments: Sequence[str] | None = None) -> PolicyReport:
    """Measure on problem files, or on Inception-V3."""
    parser = argparse.ArgumentParser(
        prog="placeto_tools.benchmarks.policy_benchmark", description=__doc__
    )
    parser.add_argument("problems", nargs="*", help="problem files instead of Inception-V3")
    parser.add_argument("--groups", type=int, default=128, help="of Inception-V3")
    parser.add_argument("--devices", type=int, nargs="+", default=(2, 4), help="of the same")
    parser.add_argument("--updates", type=int, default=10, help="timed updates of each training")
    parser.add_argument("--seed", type=int, default=0, help="of policies and episodes")
    options = parser.parse_args(arguments)
    problems = [load_problem(path) for path in options.problems] or [
        inception_problem(options.groups, devices) for devices in options.devices
    ]
    rows = []
    for problem in problems:
        print(f"measuring {problem}", file=sys.stderr)
        rows.append(measure(problem, options.updates, options.seed))
    machine = f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}"
    return PolicyReport(machine, rows)


if __name__ == "__main__":
    print(measured().markdown())
