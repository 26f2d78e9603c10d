"""What it costs to run a step op by op: on one worker, beside the same step in eager PyTorch.

``python tests/execution_overhead.py`` measures the two in turn and prints a table. What it counts
are seconds of the processor, in one thread either way, which other processes disturb less.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_execution import Executor
from placeto_graphs import ExecutableStep, PlacementProblem, StepRun, colocate, parse_cluster
from placeto_workloads import TrainingStep, executable_step, library_step, training_step

ADAM = partial(torch.optim.Adam, foreach=False)

STEPS: dict[str, Callable[[], TrainingStep]] = {
    "Inception-V3, batch 8": partial(training_step, "inception-v3", batch_size=8, device="cpu"),
    "NMT-2, 8 steps, batch 32, 256 units": partial(
        training_step,
        "nmt-2",
        steps=8,
        batch_size=32,
        units=256,
        vocabulary_size=2000,
        device="cpu",
    ),
    "GPT-2, 2 layers, 256 tokens": partial(
        library_step,
        "transformers:gpt2",
        n_layer=2,
        batch_size=1,
        sequence_length=256,
        device="cpu",
        seed=0,
    ),
}


@dataclass(frozen=True)
class Row:
    """The medians of what was measured; the ratio is the median of the ratios of the rounds.

    ``between_ops`` is the median of the seconds from the end of an op to the start of the next.
    """

    name: str
    num_ops: int
    eager: float
    executed: float
    ratio: float
    between_ops: float


def measure(name: str, rounds: int) -> Row:
    """Measure a step both ways, in turn, as machines have slower moments."""
    step = STEPS[name]()
    metered = _prepared(step)
    executor = _executor(metered)
    everything_on_one = np.zeros(executor.problem.num_groups, np.int32)
    optimizer = ADAM(step.model.parameters())

    def eager() -> None:
        optimizer.zero_grad()
        outputs = step.model(*step.example_inputs, **step.keywords)
        loss = step.loss_fn(outputs) if step.loss_fn else outputs
        (loss if isinstance(loss, torch.Tensor) else loss["loss"]).backward()
        optimizer.step()

    eager()  # makes the optimizer's state
    eager_times, between = [], []
    for _ in range(rounds):
        start = time.process_time()
        eager()
        eager_times.append(time.process_time() - start)
        timeline = executor.execute(everything_on_one).timeline
        order = np.argsort(timeline.op_start)
        gaps = timeline.op_start[order][1:] - timeline.op_end[order][:-1]
        between.append(float(np.median(gaps)))
    executed = metered.seconds
    ratios = [ours / theirs for ours, theirs in zip(executed, eager_times, strict=True)]
    return Row(
        name,
        executor.problem.graph.num_ops,
        median(eager_times),
        median(executed),
        median(ratios),
        median(between),
    )


class Metered:
    """A step that notes for how many seconds of the processor each of its runs works."""

    def __init__(self, step: ExecutableStep) -> None:
        self.graph = step.graph
        self.seconds: list[float] = []
        self._step = step

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> StepRun:
        run: Any = self._step.begin(devices, op_device)
        work = run.worker

        @contextmanager
        def worker(device: int) -> Iterator[None]:
            with work(device):
                start = time.thread_time()
                yield
                self.seconds.append(time.thread_time() - start)

        run.worker = worker
        return cast(StepRun, run)


def _prepared(step: TrainingStep) -> Metered:
    return Metered(
        executable_step(
            step.model,
            step.keywords or step.example_inputs,
            loss_fn=step.loss_fn,
            optimizer=ADAM,
            target="cpu",
        )
    )


def _executor(step: ExecutableStep) -> Executor:
    graph = step.graph
    problem = PlacementProblem(
        graph=graph,
        cluster=parse_cluster("1xcpu"),
        compute_time=np.zeros((graph.num_ops, 1)),
        grouping=colocate(graph),
    )
    return Executor(problem, step, ["cpu:0"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| step | ops | eager | executed | ratio | between two ops |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in options.steps:
        row = measure(name, options.rounds)
        print(
            f"| {row.name} | {row.num_ops} | {row.eager * 1e3:.1f} ms "
            f"| {row.executed * 1e3:.1f} ms | {row.ratio:.2f} | {row.between_ops * 1e6:.0f} µs |",
            flush=True,
        )


if __name__ == "__main__":
    main()
