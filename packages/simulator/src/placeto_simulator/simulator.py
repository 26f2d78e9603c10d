"""The simulator as an evaluator of placements."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, Moves, PlacementProblem, ScheduleBatch, Walks
from placeto_simulator.batches import loops_of, mark_critical
from placeto_simulator.errors import SimulationError
from placeto_simulator.placements import checked_placements
from placeto_simulator.state import Memory, State, new_log, new_memory, new_state
from placeto_simulator.tables import tables_of
from placeto_simulator.timeline import Timeline, timeline_of
from placeto_simulator.walking import Sets, walks_of

NO_LOG = new_log(0, 0)


class Simulator:
    """Predicts runtime and peak memory of placements of one problem (an `Evaluator`).

    Every device has a FIFO queue of runnable ops, and every link, by default one outgoing bus per
    device, a FIFO queue of transfers. Communication overlaps with compute (Addanki et al. 2019).
    Times are float64. Equal inputs give equal results on every machine and with any number of
    threads.

    Parameters
    ----------
    problem
        The problem whose placements are simulated.
    num_threads
        Number of placements of a batch that are simulated at once; by default one per core that
        this process may use. The threads run without the interpreter lock.

    Raises
    ------
    ValueError
        When the number of threads is not at least 1.

    Examples
    --------
    Two independent ops of a second each, on one device and on two:

    >>> import networkx as nx
    >>> from placeto_graphs import from_networkx, parse_cluster
    >>> graph = from_networkx(nx.empty_graph(2, create_using=nx.DiGraph))
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.ones((2, 2)),
    ... )
    >>> Simulator(problem).evaluate(np.array([[0, 0], [0, 1]])).runtime
    array([2.0000057, 1.       ])
    """

    def __init__(self, problem: PlacementProblem, num_threads: int | None = None) -> None:
        threads = _usable_cores() if num_threads is None else num_threads
        if threads < 1:
            raise ValueError(f"num_threads: expected at least 1, got {threads}")
        self.problem = problem
        self.num_threads = threads
        self._tables = tables_of(problem)
        self._loops = loops_of(problem.cluster.queue)
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None
        # As many states as batches are simulated at once, each used by one thread at a time.
        self._states: SimpleQueue[tuple[State, Memory]] = SimpleQueue()
        for _ in range(threads):
            self._states.put((new_state(self._tables), new_memory(self._tables)))

    def __repr__(self) -> str:
        return f"Simulator({self.problem!r}, num_threads={self.num_threads})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Simulator, (self.problem, self.num_threads)

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Simulate a batch of placements.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Returns
        -------
        EvaluationBatch
            ``runtime[B]`` in seconds, ``peak_memory[B, D]`` in bytes.

        Raises
        ------
        SimulationError
            When the placements have another shape or dtype, name a device that does not exist, or
            put a group where one of its ops cannot run.
        """
        rows = checked_placements(self.problem, placements)
        runtime = np.empty(len(rows))
        peak_memory = np.empty((len(rows), self.problem.num_devices), np.int64)
        no_times = np.empty((len(rows), 0))
        self._share_out(self._loops.evaluate, rows, runtime, peak_memory, no_times, no_times)
        return EvaluationBatch(runtime=runtime, peak_memory=peak_memory)

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Simulate a batch of placements, and return when each group runs.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Returns
        -------
        ScheduleBatch
            ``start[B, G]`` of the first and ``end[B, G]`` of the last op of each group, in seconds,
            beside the same as `evaluate`.

        Raises
        ------
        SimulationError
            As `evaluate` does.
        """
        rows = checked_placements(self.problem, placements)
        runtime, start, end = np.empty(len(rows)), np.empty(rows.shape), np.empty(rows.shape)
        peak_memory = np.empty((len(rows), self.problem.num_devices), np.int64)
        self._share_out(self._loops.evaluate, rows, runtime, peak_memory, start, end)
        return ScheduleBatch(runtime=runtime, peak_memory=peak_memory, start=start, end=end)

    def runtimes(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Simulate a batch of placements without memory, which is faster.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Returns
        -------
        float64[B]
            Seconds; the same as those of `evaluate`.

        Raises
        ------
        SimulationError
            As `evaluate` does.
        """
        rows = checked_placements(self.problem, placements)
        runtime = np.empty(len(rows))
        self._share_out(self._loops.runtimes, rows, runtime)
        return runtime

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from each of several placements (a `MoveEvaluator`), on a thread each.

        Parameters
        ----------
        placements : int32[C, G]
            Placements where walks start.
        moves
            Moves that each walk tries.

        Returns
        -------
        Walks
            The same as of `placeto_graphs.plain_walk`, with any number of threads.

        Raises
        ------
        SimulationError
            As `evaluate` does.
        GraphError
            When the moves are of another problem.
        """

        def run(sets: Sets, *arrays: NDArray[Any]) -> None:
            self._share_out(lambda *parts: self._loops.walk(*parts, sets), *arrays)

        return walks_of(self.problem, placements, moves, run)

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Simulate a batch of placements, and say which groups make their runtimes.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.

        Returns
        -------
        bool[B, G]
            Whether an op of the group is on the critical path: the chain of ops, each of which
            starts when it gets what it waited for, the op before it or its device, and of which
            the last one ends the step.

        Raises
        ------
        SimulationError
            As `evaluate` does.
        """
        rows = checked_placements(self.problem, placements)
        runtime, is_critical = np.empty(len(rows)), np.empty(rows.shape, np.bool_)

        def mark(*arguments: Any) -> None:
            *model, rows, runtime, is_critical = arguments
            for row, placement in enumerate(rows):
                runtime[row] = self._loops.memory(*model, placement)
                mark_critical(model[0], model[1], is_critical[row])

        self._share_out(mark, rows, runtime, is_critical)
        return is_critical

    def timeline(self, placement: NDArray[np.int32]) -> Timeline:
        """Simulate one placement and return what ran where and when.

        Parameters
        ----------
        placement : int32[G]
            The device of each group.

        Raises
        ------
        SimulationError
            As `evaluate` does.
        """
        rows = checked_placements(self.problem, np.asarray(placement)[None])
        log = new_log(self.problem.graph.num_ops, len(self.problem.graph.edges))
        state, memory = self._states.get()
        try:
            _check_done(np.array([self._loops.memory(self._tables, state, memory, log, rows[0])]))
            return timeline_of(self.problem, self._tables, state, log)
        finally:
            self._states.put((state, memory))

    def _share_out(self, simulate: Callable[..., None], *arrays: NDArray[Any]) -> None:
        """Simulate the rows of placements and results, on as many threads as there are."""
        if self._threads is None or len(arrays[0]) == 1:
            self._simulate_part(simulate, *arrays)
        else:
            parts = [np.array_split(array, self.num_threads) for array in arrays]
            list(self._threads.map(partial(self._simulate_part, simulate), *parts))
        _check_done(arrays[1])

    def _simulate_part(self, simulate: Callable[..., None], *arrays: NDArray[Any]) -> None:
        state, memory = self._states.get()
        try:
            simulate(self._tables, state, memory, NO_LOG, *arrays)
        finally:
            self._states.put((state, memory))


def _check_done(runtime: NDArray[np.float64]) -> None:
    if np.isnan(runtime).any():
        row = int(np.argmax(np.isnan(runtime)))
        raise SimulationError(f"placements[{row}]: expected every op to be done, got fewer")


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
