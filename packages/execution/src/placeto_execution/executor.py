"""The executor: placements of one problem, run for real."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from placeto_execution.devices import check_device_names, is_cuda, threads_of
from placeto_execution.errors import ExecutionError
from placeto_execution.programs import StepProgram, compile_step, topological_schedule
from placeto_execution.records import timeline_of
from placeto_graphs import (
    Cluster,
    EvaluationBatch,
    ExecutableStep,
    GraphError,
    PlacementProblem,
    StepTimeline,
)

if TYPE_CHECKING:
    from placeto_execution.processes import DeviceProcesses
    from placeto_execution.streams import StreamedDevices

Schedule = Callable[[NDArray[np.int32]], StepTimeline]


@dataclass(frozen=True)
class ExecutedStep:
    """One step that has run.

    Attributes
    ----------
    timeline : `StepTimeline`
        Times of ops, transfers and memory.
    """

    timeline: StepTimeline
    _results: Callable[[Collection[str] | None], Mapping[str, Any]]

    def results(self, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """Return by name what the step has computed and changed.

        Parameters
        ----------
        names
            Names of the results; by default all.

        Raises
        ------
        ExecutionError
            If there is no such result, or another step has begun since.
        """
        return self._results(names)


class Executor:
    """Runs placements of one problem on real devices (an `Evaluator`).

    Each ``"cpu:N"`` is a process that is pinned to a core. All are forked from this process for
    each placement that differs from the last one. They end with `close`, with the ``with`` block of
    the executor, when a run fails, or when nothing holds the executor or its last step. Tensors are
    sent from process to process. This process runs GPUs, with streams of CUDA.

    Each device follows a program that is compiled before anything runs (`compile_step`). New
    processes begin with the weights that the step has in this process. A step that trains resumes
    from its last run while its placement is the same; `placeto.PlacedModule` brings weights back
    before another one.

    Parameters
    ----------
    problem
        The problem whose placements are run.
    step
        Step that runs; its graph is that of the problem, apart from measured times.
    devices
        Real device for each device of the cluster, such as ``["cpu:0", "cpu:1"]``.
    emulated_links
        Cluster of which the links between CPUs are emulated: a tensor arrives when the link would
        have carried it. By default it arrives as fast as it can.
    schedule
        Function that returns the schedule of a placement, whose order devices keep, such as
        ``Simulator(problem).timeline``. By default ops run in topological order.

    Raises
    ------
    ExecutionError
        If the step is of another graph, the number of devices is not that of the cluster, a device
        is not there, or links of a GPU are to be emulated.

    Examples
    --------
    >>> import torch
    >>> from placeto_capture import executable_step
    >>> from placeto_graphs import parse_cluster
    >>> step = executable_step(torch.nn.Linear(4, 2), torch.ones(8, 4), target="cpu")
    >>> problem = PlacementProblem(
    ...     graph=step.graph,
    ...     cluster=parse_cluster("2xcpu"),
    ...     compute_time=np.zeros((step.graph.num_ops, 2)),
    ... )
    >>> halves = np.arange(problem.num_groups, dtype=np.int32) * 2 // problem.num_groups
    >>> with Executor(problem, step, ["cpu:0", "cpu:1"]) as executor:
    ...     executed = executor.execute(halves)
    ...     loss = executed.results(["loss"])["loss"]
    >>> executed.timeline.device_busy > 0
    array([ True,  True])
    """

    def __init__(
        self,
        problem: PlacementProblem,
        step: ExecutableStep,
        devices: Sequence[str],
        *,
        emulated_links: Cluster | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        if replace(problem.graph, measured_time={}) != replace(step.graph, measured_time={}):
            raise ExecutionError(
                f"step: expected one of the problem's graph, {problem.graph!r}, got {step.graph!r}"
            )
        self.problem = problem
        self.step = step
        self.devices = check_device_names(devices, problem.num_devices, threads_of(step))
        try:
            step.check_devices(self.devices)
        except ValueError as error:
            raise ExecutionError(str(error)) from None
        if emulated_links is not None and any(is_cuda(name) for name in self.devices):
            raise ExecutionError(
                "emulated_links: expected none with a GPU, as only links between CPUs are emulated"
            )
        self.emulated_links = emulated_links
        self.schedule = schedule or (lambda placement: topological_schedule(problem, placement))
        self._placed: _Placed | None = None
        self._num_runs = 0

    def close(self) -> None:
        """End the processes; the next run begins new ones, with what the step then is."""
        if self._placed is not None:
            self._placed.devices.close()
            self._placed = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Run a batch of placements, each after a run that does not count.

        Parameters
        ----------
        placements : int32[B, G]
            Device of each group, for each placement.

        Raises
        ------
        ExecutionError
            As `execute` does.
        """
        timelines = [self.measure(placement, 1)[0] for placement in placements]
        peaks = np.array([timeline.peak_memory for timeline in timelines], np.int64)
        return EvaluationBatch(
            runtime=np.array([timeline.runtime for timeline in timelines]),
            peak_memory=peaks.reshape(len(timelines), self.problem.num_devices),
        )

    def measure(
        self,
        placement: NDArray[np.int32],
        runs: int,
        report: Callable[[int], None] = lambda _: None,
    ) -> list[StepTimeline]:
        """Return the timelines of some runs of a placement, after one that does not count.

        Parameters
        ----------
        placement : int32[G]
            Device of each group.
        runs
            Number of runs that count.
        report
            Function that is called before each of them with the number of runs so far.

        Raises
        ------
        ExecutionError
            As `execute` does.
        """
        self.execute(placement)
        timelines = []
        for run in range(runs):
            report(run)
            timelines.append(self.execute(placement).timeline)
        return timelines

    def execute(self, placement: NDArray[np.int32]) -> ExecutedStep:
        """Run one placement.

        Parameters
        ----------
        placement : int32[G]
            Device of each group.

        Returns
        -------
        ExecutedStep
            The timeline of the step, and its results until the next run begins.

        Raises
        ------
        ExecutionError
            If the placement is none of the problem, the order of the schedule cannot be kept, an op
            fails, or a process ends. All processes have ended then.
        """
        self._num_runs += 1
        placed = self._place(placement)
        try:
            records, start = placed.devices.run(self.step.feed())
        except BaseException:
            self.close()
            raise
        timeline = timeline_of(self.problem, placed.op_device, placed.program, records, start)
        return ExecutedStep(timeline, partial(self._results, self._num_runs))

    def _place(self, placement: NDArray[np.int32]) -> "_Placed":
        if self._placed is not None and np.array_equal(self._placed.placement, placement):
            return self._placed
        from placeto_execution.processes import DeviceProcesses  # noqa: PLC0415, torch is slow
        from placeto_execution.shared_messages import EmulatedLinks  # noqa: PLC0415
        from placeto_execution.streams import StreamedDevices  # noqa: PLC0415

        self.close()
        try:
            op_device = self.problem.expand(placement)
        except GraphError as error:
            raise ExecutionError(str(error)) from None
        program = compile_step(self.schedule(placement))
        arguments = self.step, program, self.devices, op_device
        devices: DeviceProcesses | StreamedDevices
        try:
            if any(is_cuda(name) for name in self.devices):
                devices = StreamedDevices(*arguments)
            else:
                cluster = self.emulated_links
                links = None if cluster is None else EmulatedLinks(cluster)
                devices = DeviceProcesses(*arguments, links)
        except OSError as error:  # such as too many files or processes
            raise ExecutionError(f"devices: no process for each: {error}") from None
        except ValueError as error:
            raise ExecutionError(str(error)) from None
        self._placed = _Placed(placement.copy(), op_device, program, devices)
        return self._placed

    def _results(self, run: int, names: Collection[str] | None) -> Mapping[str, Any]:
        if self._placed is None or run != self._num_runs:
            raise ExecutionError(
                "results: expected to be asked for before the next run begins or the executor "
                "is closed, got asked after it"
            )
        result_names = self.step.result_names
        names = result_names if names is None else names
        for name in names:
            if name not in result_names:
                raise ExecutionError(f"results: expected names of this step, got {name!r}")
        try:
            pieces = self._placed.devices.pieces(names)
        except (ExecutionError, KeyboardInterrupt):  # all processes have ended
            self.close()
            raise
        return self.step.results(names, pieces)


@dataclass(frozen=True)
class _Placed:
    """A placement, and the devices that run it."""

    placement: NDArray[np.int32]
    op_device: NDArray[np.int32]
    program: StepProgram
    devices: "DeviceProcesses | StreamedDevices"
