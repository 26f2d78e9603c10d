"""Simulated steps beside measured ones: ``python lab/fidelity.py inception-v3 --runs 3``.

Two devices of this machine run some placements of each model, so keep it idle. The tables are those
of docs/fidelity.md.
"""

import argparse
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from placeto.placing.placers import make_placer
from placeto.problems.making import make_problem, runnable_source, step_on
from placeto.problems.options import SourceOptions
from placeto.problems.sources import Source, SourceModel
from placeto.texts import TextTable, seconds_text, share_text
from placeto_capture import executable_step
from placeto_execution import Executor
from placeto_execution.calibration import Calibration
from placeto_execution.devices import RealDevices
from placeto_execution.measuring import (
    MeasuredSteps,
    StepProfile,
    executor_on,
    profile_in_place,
    with_overheads,
)
from placeto_graphs import ExecutableStep, PlacementProblem, StepTimeline
from placeto_simulator import Simulator

SHARES = (None, 0.4)  # None: real links
SINGLE = "single"  # the placement on one device
# Models in sizes of which a step takes some tenths of a second on one core.
MODELS: Mapping[str, Mapping[str, int]] = {
    "inception-v3": {"batch_size": 1},
    "nasnet": {"batch_size": 2, "image_size": 128},
    "nmt-2": {"steps": 8, "batch_size": 32, "units": 256, "vocabulary_size": 2000},
    "cifar10:3": {"filters": 2, "cells_per_stage": 1},
    "ptb:3": {"units": 16, "vocabulary_size": 100},
    "nmt:3": {"units": 32, "vocabulary_size": 1000},
    "transformers:resnet": {"batch_size": 2},
    "transformers:gpt2": {"n_layer": 2, "batch_size": 2, "sequence_length": 64, "vocab_size": 5000},
}
# With a GPU: those of table 1, in sizes of which a step takes some seconds on some cores.
GPU_MODELS: Mapping[str, Mapping[str, int]] = {
    "inception-v3": {"batch_size": 16},
    "nasnet": {"batch_size": 16},
    "nmt-2": {"steps": 16, "batch_size": 64, "units": 1024, "vocabulary_size": 10_000},
}
TWO_CPUS = RealDevices(("cpu:0", "cpu:1"))
BESIDE = "cpu beside cpu"  # kind of a CPU while the other CPU is busy
PROFILE_RUNS = 7
SEARCHES = ("expert", "metis", "heft", "m-etf", "m-sct", "local-search", "pretrained")
NUM_RANDOM = 2
NUM_NEIGHBOURS = 6
NEIGHBOURHOOD = 0.08  # fraction of the groups that are moved from the best placement
ROUNDS = 4  # of simulating contention, after which the seconds of a step hardly change
SIZES = (4, 1 << 20)  # bytes of the tensors that measure links


@dataclass(frozen=True)
class RunnableModel:
    """A model whose steps run on two devices of this machine."""

    source: str
    sizes: Mapping[str, int]
    devices: RealDevices = TWO_CPUS

    def _model(self) -> SourceModel:
        return runnable_source(self.source, SourceOptions(dict(self.sizes)))

    def step(self) -> ExecutableStep:
        """Return the step."""
        return step_on(self._model(), self.devices)

    def profiled(self) -> PlacementProblem:
        """Measure the seconds of ops and transfers; return the problem with them."""
        model, step = self._model(), self.step()
        first, second = names = self.devices.names
        profiles: dict[str, StepProfile] = {}
        for kind, name in zip(self.devices.kinds, names, strict=True):
            if kind not in profiles:
                profiles[kind] = profile_in_place(step, name, PROFILE_RUNS)
        measured = {kind: profile.seconds for kind, profile in profiles.items()}
        if self.devices.are_cpus:
            beside = profile_beside(step, first, second, PROFILE_RUNS, np.random.default_rng(0))
            measured[BESIDE] = beside.seconds
        calibration = Calibration(names, executable_step, PROFILE_RUNS, self.devices.threads)
        cluster = calibration.cluster(calibration.links(SIZES), self.devices.kinds)
        graph = replace(step.graph, measured_time=measured)
        source = Source(model.name, graph, rules=model.rules, num_groups=model.num_groups)
        return make_problem(source, with_overheads(cluster, profiles))


class Measured(NamedTuple):
    """Seconds of a step with one placement."""

    placement: str  # its name
    # Simulated: as it is, with measured slowdown of concurrent ops, and with op times of these runs
    simulated: float
    slowed: float  # NaN on a GPU
    own_times: float
    measured: float


def measure_placements(
    model: RunnableModel, problem: PlacementProblem, share: float | None, runs: int
) -> list[Measured]:
    """Run some placements, each so many times, over real links or emulated ones of one speed.

    The busier emulated link carries tensors for this share of a step in two halves.
    """
    emulated = None
    if share is not None:
        problem = with_links_of_share(problem, share)
        # Real latency comes on top of what is emulated.
        emulated = replace(problem.cluster, latency=np.zeros((2, 2)))
    step, simulator = model.step(), Simulator(problem, num_threads=1)
    beside = problem.graph.measured_time.get(BESIDE)
    rows = []
    with Executor(
        problem,
        step,
        model.devices.names,
        emulated_links=emulated,
        schedule=simulator.timeline,
    ) as executor:
        for name, placement in placements_of(problem).items():
            print(f"{model.source}: {name}", file=sys.stderr)
            timelines = executor.measure(placement, runs)
            measured = MeasuredSteps(simulator.timeline(placement), timelines)
            slowed = np.nan
            if beside is not None:
                slowed = contended_timeline(problem, beside, placement).runtime
            rows.append(
                Measured(
                    placement=name,
                    simulated=measured.simulated.runtime,
                    slowed=slowed,
                    own_times=_with_own_times(measured, placement),
                    measured=measured.runtime,
                )
            )
    return rows


def _with_own_times(measured: MeasuredSteps, placement: NDArray[np.int32]) -> float:
    """Return the simulated runtime with the op times of these runs."""
    problem = measured.simulated.problem
    seconds = np.repeat(measured.op_seconds[:, None], problem.num_devices, axis=1)
    seconds[problem.compute_time == 0] = 0.0
    same = replace(problem, compute_time=seconds)
    return float(Simulator(same, num_threads=1).runtimes(placement[None])[0])


def with_links_of_share(problem: PlacementProblem, share: float) -> PlacementProblem:
    """Return a problem on two devices whose links are busy for a share of a step cut in halves.

    The share is of the runtime of that placement while bytes take no time.
    """
    free = replace(problem, cluster=replace(problem.cluster, bandwidth=np.full((2, 2), np.inf)))
    timeline = Simulator(free, num_threads=1).timeline(halves(problem, 0.5))
    sizes = problem.graph.tensor_bytes[timeline.transfer_tensor]
    busiest = np.bincount(timeline.transfer_link, sizes).max()
    bandwidth = np.full((2, 2), busiest / (share * timeline.runtime))
    return replace(problem, cluster=replace(problem.cluster, bandwidth=bandwidth))


def halves(problem: PlacementProblem, share: float) -> NDArray[np.int32]:
    """Return int32[G]: the first groups on one device, the others on the second one."""
    cut = round(problem.num_groups * share)
    return (np.arange(problem.num_groups) >= cut).astype(np.int32)


def placements_of(problem: PlacementProblem) -> dict[str, NDArray[np.int32]]:
    """Return placements of a problem, from bad ones to good ones, by name."""
    generator = np.random.default_rng(0)
    simulator = Simulator(problem, num_threads=1)
    placements = {SINGLE: np.zeros(problem.num_groups, np.int32)}
    first, second = (device.kind for device in problem.cluster.devices)
    if second != first:
        placements["CPU only"] = np.ones(problem.num_groups, np.int32)
    for share in (0.25, 0.5, 0.75):
        placements[f"first {share:.0%}"] = halves(problem, share)
    for index in range(NUM_RANDOM):
        placements[f"random {index}"] = generator.integers(0, 2, problem.num_groups, np.int32)
    for name in SEARCHES:
        budget = 5000 if name == "local-search" else None
        result = make_placer(name, problem, budget).place(problem, simulator, seed=0)
        placements[name] = result.placement
    candidates = np.stack(list(placements.values()))
    best = candidates[simulator.runtimes(candidates).argmin()]
    for index in range(NUM_NEIGHBOURS):
        is_moved = generator.random(problem.num_groups) < NEIGHBOURHOOD
        placements[f"neighbour {index}"] = np.where(is_moved, 1 - best, best).astype(np.int32)
    return placements


def profile_beside(
    step: ExecutableStep, device: str, busy_device: str, runs: int, generator: np.random.Generator
) -> StepProfile:
    """Run a step with all ops on one device, while another one runs that step again and again."""
    alone = profile_in_place(step, device, 1)
    profiles = []
    with _busy(step, busy_device):
        for _ in range(runs):
            threading.Event().wait(generator.random() * float(alone.runtimes[0]))
            profiles.append(profile_in_place(step, device, 1))
    return StepProfile(
        np.concatenate([profile.op_seconds for profile in profiles]),
        np.concatenate([profile.runtimes for profile in profiles]),
    )


@contextmanager
def _busy(step: ExecutableStep, device: str) -> Iterator[None]:
    is_over = threading.Event()

    def work() -> None:
        with executor_on(step, [device]) as executor:
            placement = np.zeros(executor.problem.num_groups, np.int32)
            while not is_over.is_set():
                executor.execute(placement)

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            yield
        finally:
            is_over.set()
        worker.result()  # raises its error


def contended_timeline(
    problem: PlacementProblem, beside: NDArray[np.float64], placement: NDArray[np.int32]
) -> StepTimeline:
    """Simulate a step in which ops are slower while the other device is busy.

    An op takes ``a`` seconds alone, and ``b`` while the other device is busy. If it overlaps with
    others for ``o`` seconds, it takes ``a + o (1 - a / b)``. The overlaps are those of the last
    simulated step; in the first one nothing is slower.
    """
    if problem.num_devices != 2:
        raise ValueError(f"problem: expected two devices, got {problem.num_devices}")
    op_device = problem.expand(placement)
    alone = problem.compute_time[np.arange(len(op_device)), op_device]
    slowed = np.where(beside > alone, 1 - alone / np.maximum(beside, np.finfo(float).tiny), 0.0)
    timeline = Simulator(problem, num_threads=1).timeline(placement)
    for _ in range(ROUNDS):
        seconds = alone + overlaps(timeline) * slowed
        costly = replace(problem, compute_time=np.stack([seconds, seconds], axis=1))
        timeline = Simulator(costly, num_threads=1).timeline(placement)
    return timeline


def overlaps(timeline: StepTimeline) -> NDArray[np.float64]:
    """Return float64[V], for how many seconds of each op the other one of two devices is busy."""
    shared = np.zeros(len(timeline.op_start))
    for device in range(2):
        is_on_device = timeline.op_device == device
        starts = np.sort(timeline.op_start[~is_on_device])
        ends = np.sort(timeline.op_end[~is_on_device])
        if len(starts):  # ops of a device follow each other
            times = np.stack([starts, ends], axis=1).ravel()
            so_far = np.concatenate([[0.0], np.cumsum(ends - starts)])
            busy = np.repeat(so_far, 2)[1:-1]  # seconds of the other device until each of the times
            busy_at_start = np.interp(timeline.op_start[is_on_device], times, busy)
            busy_at_end = np.interp(timeline.op_end[is_on_device], times, busy)
            shared[is_on_device] = busy_at_end - busy_at_start
    return shared


def runnable_models(chosen: Sequence[str], devices: RealDevices = TWO_CPUS) -> list[RunnableModel]:
    """Return models that run on two devices of this machine: the chosen ones, or all."""
    sizes_of_model = MODELS if devices.are_cpus else GPU_MODELS
    return [
        RunnableModel(source, sizes_of_model[source], devices)
        for source in chosen or sizes_of_model
    ]


def row_of(
    model: str, share: float | None, problem: PlacementProblem, rows: list[Measured]
) -> list[str]:
    """Return errors relative to the measured runtime, and the excess of the chosen placement."""
    simulated, slowed, own_times, measured = np.array([row[1:] for row in rows]).T
    errors = np.abs(np.stack([simulated, slowed, own_times]) / measured - 1)
    chosen = measured[simulated.argmin()]
    return [
        model,
        "real" if share is None else share_text(share),
        seconds_text(float(problem.compute_time[:, 0].mean())),
        f"{share_text(errors[0].mean())} ({share_text(errors[0].max())})",
        f"{spearmanr(simulated, measured).statistic:.2f}",
        "" if np.isnan(slowed).any() else share_text(errors[1].mean()),
        share_text(errors[2].mean()),
        share_text(chosen / measured.min() - 1),
        f"{next(row.measured for row in rows if row.placement == SINGLE) / chosen:.2f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each model and speed of links, and the seconds of each placement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--devices", default=",".join(TWO_CPUS.names), help="two devices")
    parser.add_argument("--threads", type=int, default=1, help="of one op on each CPU")
    parser.add_argument("--runs", type=int, default=3, help="of each placement that count")
    options = parser.parse_args(arguments)
    devices = RealDevices(tuple(options.devices.split(",")), options.threads)
    shares = SHARES if devices.are_cpus else SHARES[:1]  # links of GPUs are not emulated
    rows, steps = [], []
    for model in runnable_models(options.models, devices):
        problem = model.profiled()
        for share in shares:
            measured = measure_placements(model, problem, share, options.runs)
            rows.append(row_of(model.source, share, problem, measured))
            for step in measured:
                seconds = (seconds_text(step.measured), seconds_text(step.simulated))
                steps.append([*rows[-1][:2], step.placement, *seconds])
    columns = [*("model", "links", ">time of an op", ">error (worst)", ">rank correlation")]
    columns += [">with slowdown", ">with times of the same run", ">chosen placement", ">speed-up"]
    print(TextTable("", columns, rows).markdown())
    print(
        TextTable("", ["model", "links", "placement", ">measured", ">simulated"], steps).markdown()
    )


if __name__ == "__main__":
    main()
