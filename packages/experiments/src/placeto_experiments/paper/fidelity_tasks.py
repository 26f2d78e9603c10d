"""Trials that run placements on CPU devices of this machine, beside the simulator."""

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from placeto.placing.placers import make_placer
from placeto.problems.options import ProblemOptions, SourceOptions
from placeto.problems.runnable_steps import runnable_problem, runnable_source
from placeto.trials.records import Measured, MeasuredPlacement, Profiled, Record
from placeto.trials.trials import Graph, Trial, Watch, Workspace, measuring_name
from placeto_capture import executable_step
from placeto_execution import Executor
from placeto_execution.measuring.calibration import Calibration
from placeto_execution.measuring.contention import contended_timeline, profile_beside
from placeto_execution.measuring.measured_steps import MeasuredSteps, run_steps
from placeto_execution.measuring.profiles import (
    profile_in_place,
    with_measured_times,
    with_overheads,
)
from placeto_execution.measuring.real_devices import RealDevices
from placeto_graphs import ExecutableStep, PlacementProblem, StepTimeline, save_problem
from placeto_simulator import Simulator

WORKERS = RealDevices(("cpu:0", "cpu:1"))
BESIDE = "cpu beside cpu"  # the kind whose times are those of a CPU while the other one is busy
PROFILE_RUNS = 9
SEARCHES = ("expert", "metis", "heft", "m-etf", "m-sct", "local-search", "pretrained")
NUM_RANDOM = 4
NUM_NEIGHBOURS = 8
NEIGHBOURHOOD = 0.08  # of the groups are elsewhere than in the best placement
SIZES = (4, 1 << 20)  # bytes of the tensors that say how fast links are


@dataclass(frozen=True)
class RunnableModel:
    """A model whose steps run on two CPU devices of this machine."""

    source: str
    sizes: tuple[tuple[str, Any], ...]
    num_groups: int | None = None

    def placed(self) -> tuple[PlacementProblem, ExecutableStep]:
        """Return the problem with the times of a cost model, and the step."""
        options = ProblemOptions()
        options = replace(options, grouping=replace(options.grouping, num_groups=self.num_groups))
        found = runnable_source(self.source, SourceOptions(dict(self.sizes)))
        return runnable_problem(found, options, WORKERS)

    def profiled(self) -> PlacementProblem:
        """Measure the ops, and what it takes to transfer a tensor; return the problem with that."""
        problem, step = self.placed()
        profiles = {"cpu": profile_in_place(step, WORKERS.names[0], PROFILE_RUNS)}
        one, other = WORKERS.names
        beside = profile_beside(step, one, other, PROFILE_RUNS, np.random.default_rng(0))
        problem = with_measured_times(problem, profiles)
        calibration = Calibration(WORKERS.names, executable_step, PROFILE_RUNS)
        there, back = calibration.links(SIZES)
        cluster = with_overheads(problem.cluster, profiles)
        measured = {**problem.graph.measured_time, BESIDE: beside.seconds}
        latency = np.array([[0.0, there.latency], [back.latency, 0.0]])
        bandwidth = np.array([[np.inf, there.bandwidth], [back.bandwidth, np.inf]])
        return replace(
            problem,
            graph=replace(problem.graph, measured_time=measured),
            cluster=replace(cluster, latency=latency, bandwidth=bandwidth),
        )


@dataclass(frozen=True)
class Profile:
    """Measures a model, and leaves its problem in the folder."""

    kind: ClassVar[str] = "profile"

    problem: str
    model: RunnableModel

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return how long that took."""
        watch.update(f"{self.problem}: measuring its ops ...")
        began = time.perf_counter()
        problem = self.model.profiled()
        path = workspace.problem_file(self.problem)
        path.parent.mkdir(exist_ok=True)
        save_problem(problem, path)
        return Profiled(
            ops=problem.graph.num_ops,
            seconds=time.perf_counter() - began,
        )


def profiling(graph: Graph, model: RunnableModel) -> Trial:
    """Return the trial that measures a model, which all others of it need."""
    return Trial(measuring_name(graph.name), Profile(graph.name, model), measured=True)


@dataclass(frozen=True)
class MeasurePlacements:
    """Runs some placements, over real links or emulated ones of one speed."""

    graph: Graph
    model: RunnableModel
    # Part of a step that is cut in two halves in which the busier emulated link carries tensors;
    # None for real links
    share: float | None
    runs: int  # number of runs of each placement that count

    @property
    def kind(self) -> str:
        """The model: its steps take about equally long."""
        return self.graph.name

    def run(self, workspace: Workspace, watch: Watch) -> Record:
        """Return what each placement came to."""
        problem, emulated = workspace.problem(self.graph), None
        if self.share is not None:
            problem = with_links_of_share(problem, self.share)
            # Real latency comes on top of what is emulated.
            emulated = replace(problem.cluster, latency=np.zeros((2, 2)))
        _, step = self.model.placed()
        placements = placements_of(problem)
        rows = []
        with Executor(
            problem,
            step,
            WORKERS.names,
            emulated_links=emulated,
            schedule=lambda placement: _simulated(problem, placement),
        ) as executor:
            for number, (name, placement) in enumerate(placements):
                watch.update(f"{name}, {number + 1} of {len(placements)}")
                simulated = _simulated(problem, placement)
                measured = run_steps(executor, simulated, placement, self.runs)
                rows.append(
                    MeasuredPlacement(
                        placement=name,
                        simulated=measured.simulated.runtime,
                        measured=measured.runtime,
                        slowed=contended_timeline(
                            problem, problem.graph.measured_time[BESIDE], placement, _simulated
                        ).runtime,
                        own_times=_with_own_times(measured, placement),
                    )
                )
        return Measured(
            ops=problem.graph.num_ops,
            op_seconds=float(problem.compute_time[:, 0].sum()),
            rows=rows,
        )


def _simulated(problem: PlacementProblem, placement: NDArray[np.int32]) -> StepTimeline:
    return Simulator(problem, num_threads=1).timeline(placement)


def _with_own_times(measured: MeasuredSteps, placement: NDArray[np.int32]) -> float:
    """Return the simulated runtime if ops take as long as they did in these very runs."""
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


def halves(problem: PlacementProblem, part: float) -> NDArray[np.int32]:
    """Return int32[G]: the first groups on one device, the others on the second one."""
    cut = round(problem.num_groups * part)
    return (np.arange(problem.num_groups) >= cut).astype(np.int32)


def placements_of(problem: PlacementProblem) -> list[tuple[str, NDArray[np.int32]]]:
    """Return placements of a problem, from bad ones to good ones, by name."""
    generator = np.random.default_rng(0)
    simulator = Simulator(problem, num_threads=1)
    found: list[tuple[str, NDArray[np.int32]]] = [
        ("single", np.zeros(problem.num_groups, np.int32)),
        *((f"first {part:.0%}", halves(problem, part)) for part in (0.25, 0.4, 0.5, 0.6, 0.75)),
    ]
    for number in range(NUM_RANDOM):
        draw = generator.integers(0, 2, problem.num_groups, np.int32)
        found.append((f"random {number}", draw))
    for name in SEARCHES:
        budget = 5000 if name == "local-search" else None
        result = make_placer(name, problem, budget).place(problem, simulator, seed=0)
        found.append((name, result.placement))
    _, best = min(found, key=lambda each: float(simulator.runtimes(each[1][None])[0]))
    for number in range(NUM_NEIGHBOURS):
        moved = generator.random(problem.num_groups) < NEIGHBOURHOOD
        found.append((f"neighbour {number}", np.where(moved, 1 - best, best).astype(np.int32)))
    return found
