"""The executor: placements of one problem, run for real."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from placeto_execution.clock import Clock
from placeto_execution.crew import Crew
from placeto_execution.devices import check_device_names
from placeto_execution.errors import ExecutionError
from placeto_execution.halt import Halt
from placeto_execution.inbox import Inbox
from placeto_execution.lines import DirectLines, EmulatedLines
from placeto_execution.links import Transfer
from placeto_execution.order_check import check_order
from placeto_execution.plan import Plan, plan_of
from placeto_execution.queues import FirstInFirstOut, InOrder, LowestFirst, Queue
from placeto_execution.records import timeline_of
from placeto_execution.timing import AsFastAsItCan, Paced, Timing
from placeto_execution.worker import Worker
from placeto_graphs import (
    EvaluationBatch,
    ExecutableStep,
    GraphError,
    OpGraph,
    PlacementProblem,
    StepOrder,
    StepRun,
    StepTimeline,
    error_line,
)

OrderOf = Callable[[NDArray[np.int32]], StepOrder]


@dataclass(frozen=True)
class ExecutedStep:
    """One step that has run.

    Attributes
    ----------
    timeline : `StepTimeline`
        What ran where and when.
    run : `StepRun`
        Holds what the step has left behind.
    """

    timeline: StepTimeline
    run: StepRun

    def results(self) -> Mapping[str, Any]:
        """Return by name what the step has computed and changed."""
        return self.run.results()


class Executor:
    """Runs placements of one problem on real devices (an `Evaluator`).

    Each device has a worker, a thread that runs one op at a time: by default the first one that was
    ready, as the queue of the cluster says. All runs begin from the same values; a run that fails,
    or is interrupted, is thrown away, and the step is as it was before. The threads end with
    `close`, or the ``with`` block that the executor is used in, or when a run fails.

    Parameters
    ----------
    problem
        The problem whose placements are run.
    step
        What runs; its graph is that of the problem, apart from measured times.
    devices
        The real device behind each device of the cluster, such as ``["cpu:0", "cpu:1"]``. Each
        ``"cpu:N"`` is a worker, pinned to the N-th core that this process may use where the
        system can do that; with more workers than cores, some share one.
    emulate_links
        Whether a tensor arrives only when the links of the cluster would have carried it, each of
        them one tensor after the other. No core is busy with that. Otherwise a tensor is there
        as soon as it was handed over.
    pace
        If given, the result of an op is handed on when ``pace`` times its ``compute_time`` is over,
        links and overheads take ``pace`` times what the cluster says, and times are divided by it.
        If it is large enough for ops and interpreter to keep up, only queues, links and order
        matter.
    order_of
        Gives the order for a placement of the groups, such as that of a simulated timeline; by
        default the queues decide.
    repeats
        How often `evaluate` runs a placement; the median of the runtimes counts.

    Raises
    ------
    ExecutionError
        When the step is of another graph, the devices are not as many as the cluster has or none
        that can be, or a number is not above 0.

    Examples
    --------
    Two ops of 10 ms, one after the other, on two devices; the tensor between them takes 5 ms:

    >>> import networkx as nx
    >>> from placeto_execution import EmptyStep
    >>> from placeto_graphs import Cluster, Device, colocate, from_networkx
    >>> chain = nx.DiGraph()
    >>> chain.add_edge("a", "b", bytes=50)
    >>> graph = from_networkx(chain)
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=Cluster(
    ...         devices=[Device(name, "cpu", 100, 0.0, 0.0) for name in ("left", "right")],
    ...         bandwidth=np.full((2, 2), 1e4),
    ...         latency=np.zeros((2, 2)),
    ...     ),
    ...     compute_time=np.full((2, 2), 0.01),
    ...     grouping=colocate(graph, rules=()),
    ... )
    >>> executor = Executor(problem, EmptyStep(graph), ["cpu:0", "cpu:1"], pace=4.0)
    >>> timeline = executor.execute(np.array([0, 1], np.int32)).timeline
    >>> timeline.runtime >= 0.025
    True
    >>> timeline.peak_memory
    array([50, 50])
    """

    def __init__(
        self,
        problem: PlacementProblem,
        step: ExecutableStep,
        devices: Sequence[str],
        *,
        emulate_links: bool = False,
        pace: float | None = None,
        order_of: OrderOf | None = None,
        repeats: int = 1,
    ) -> None:
        if pace is not None and not 0 < pace < float("inf"):
            raise ExecutionError(f"pace: expected a number above 0, got {pace}")
        if repeats < 1:
            raise ExecutionError(f"repeats: expected at least 1, got {repeats}")
        _check_same_graph(problem.graph, step.graph)
        self.problem = problem
        self.step = step
        self.devices = check_device_names(devices, problem.num_devices)
        self.emulate_links = emulate_links or pace is not None
        self.pace = pace
        self.order_of = order_of
        self.repeats = repeats
        self._crew = Crew(self.devices)

    def close(self) -> None:
        """End the threads; the next run begins new ones."""
        self._crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Executor({self.problem!r}, devices={list(self.devices)})"

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Run a batch of placements, one after the other.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Returns
        -------
        EvaluationBatch
            ``runtime[B]``, the median of the runs, in seconds; ``peak_memory[B, D]``, the most of
            all runs, in bytes.

        Raises
        ------
        ExecutionError
            As `execute` does.
        """
        runtime = np.empty(len(placements))
        peak_memory = np.empty((len(placements), self.problem.num_devices), np.int64)
        for row, placement in enumerate(placements):
            timelines = [self.execute(placement).timeline for _ in range(self.repeats)]
            runtime[row] = np.median([timeline.runtime for timeline in timelines])
            peak_memory[row] = np.max([timeline.peak_memory for timeline in timelines], axis=0)
        return EvaluationBatch(runtime=runtime, peak_memory=peak_memory)

    def execute(self, placement: NDArray[np.int32]) -> ExecutedStep:
        """Run one placement.

        Parameters
        ----------
        placement : int32[G]
            The device of each group.

        Raises
        ------
        ExecutionError
            When the placement is none of the problem, a device is not there, an op fails, or the
            order cannot be kept.
        """
        try:
            op_device = self.problem.expand(placement)
        except GraphError as error:
            raise ExecutionError(str(error)) from None
        plan = plan_of(self.problem.graph, op_device.tolist())
        order = None if self.order_of is None else self.order_of(placement)
        if order is not None:
            check_order(self.problem, plan, order)
        try:
            step_run = self.step.begin(self.devices, op_device)
        except Exception as error:
            raise ExecutionError(_message_of(error)) from error
        workers = self._run(plan, step_run, order)
        records = [worker.record for worker in workers]
        return ExecutedStep(timeline_of(self.problem, op_device, records), step_run)

    def _run(self, plan: Plan, step_run: StepRun, order: StepOrder | None) -> list[Worker]:
        clock = Clock(1.0 if self.pace is None else self.pace)
        inboxes = [Inbox(clock) for _ in self.devices]
        halt = Halt(inboxes)
        lines = self._lines(plan, step_run, clock, inboxes, order)
        missing_inputs = list(plan.num_inputs)
        workers = [
            Worker(
                device,
                name,
                graph=self.problem.graph,
                plan=plan,
                step_run=step_run,
                queue=self._queue(device, order),
                timing=self._timing(device, step_run, clock, halt),
                carry=lines.carry,
                clock=clock,
                inboxes=inboxes,
                halt=halt,
                missing_inputs=missing_inputs,
            )
            for device, name in enumerate(self.devices)
        ]
        self._crew.work(workers, clock, halt)
        return workers

    def _queue(self, device: int, order: StepOrder | None) -> Queue[int]:
        if order is not None:
            return InOrder(order.ops[device], key_of=int)
        if self.problem.cluster.queue == "backward-first":
            phases = self.problem.graph.phases.tolist()
            return LowestFirst(rank_of=lambda op: (-phases[op], op))
        return FirstInFirstOut()

    def _lines(
        self,
        plan: Plan,
        step_run: StepRun,
        clock: Clock,
        inboxes: Sequence[Inbox],
        order: StepOrder | None,
    ) -> DirectLines | EmulatedLines:
        if not self.emulate_links:
            return DirectLines(self.problem, plan, step_run, clock, inboxes)

        def new_queue(link: int) -> Queue[Transfer]:
            if order is None:
                return FirstInFirstOut()
            return InOrder(
                order.transfers[link], key_of=lambda each: (each.tensor, each.destination)
            )

        return EmulatedLines(self.problem, plan, step_run, inboxes, new_queue)

    def _timing(self, device: int, step_run: StepRun, clock: Clock, halt: Halt) -> Timing:
        if self.pace is None:
            return AsFastAsItCan(step_run, clock)
        seconds = self.problem.compute_time[:, device].tolist()
        overhead = self.problem.cluster.devices[device].op_overhead
        return Paced(step_run, clock, halt, seconds, overhead)


def _check_same_graph(graph: OpGraph, other: OpGraph) -> None:
    same = (
        graph.op_names == other.op_names
        and graph.op_types == other.op_types
        and np.array_equal(graph.tensor_producer, other.tensor_producer)
        and np.array_equal(graph.tensor_bytes, other.tensor_bytes)
        and np.array_equal(graph.edges, other.edges)
        and np.array_equal(graph.waits, other.waits)
    )
    if not same:
        raise ExecutionError(f"step: expected one of the problem's graph, {graph!r}, got {other!r}")


def _tensor_and_destination(transfer: Transfer) -> tuple[int, int]:
    return transfer.tensor, transfer.destination


def _message_of(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else error_line(error)
