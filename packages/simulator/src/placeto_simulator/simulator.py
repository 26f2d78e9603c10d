"""The simulator as an evaluator of placements."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch, Moves, PlacementProblem, ScheduleBatch, Walks
from placeto_simulator.batches import Batch, batch_of, evaluation_of, loop_of, walks_of
from placeto_simulator.errors import SimulationError
from placeto_simulator.tables import State, new_state, tables_of
from placeto_simulator.timeline import Timeline, timeline_of

OPS_OF_SLOW_STEP = 100_000  # ... on, Ctrl-C does not wait: no step is simulated on its thread

# One for each number of threads; simulators share them.
thread_pool = cache(ThreadPoolExecutor)
if hasattr(os, "register_at_fork"):  # a forked process has the pools, and not their threads
    os.register_at_fork(after_in_child=thread_pool.cache_clear)


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
        self._loop = loop_of(problem.cluster.queue)
        self._idle_states: list[State] = []

    def __repr__(self) -> str:
        return f"Simulator({self.problem!r}, num_threads={self.num_threads})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Simulator, (self.problem, self.num_threads)

    def for_problem(self, problem: PlacementProblem) -> "Simulator":
        """Return a simulator of another problem with as many threads.

        Parameters
        ----------
        problem
            Problem whose placements it simulates.
        """
        return Simulator(problem, self.num_threads)

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
        GraphError
            When the placements have another shape or dtype, name a device that does not exist, or
            put a group where one of its ops cannot run.
        """
        return evaluation_of(self._simulate(placements))

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return also when each group starts and ends, float64[B, G]: its first and its last op.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        batch = self._simulate(placements, times=True)
        return ScheduleBatch(
            runtime=batch.runtime, peak_memory=batch.peak_memory, start=batch.start, end=batch.end
        )

    def runtimes(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the runtimes of `evaluate` alone, float64[B] in seconds, which is faster.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        return self._simulate(placements, tracks_memory=False).runtime

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return bool[B, G], the groups with an op on the critical path (`Timeline`).

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        return self._simulate(placements, path=True).is_critical

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk as `placeto_graphs.plain_walk` does, from each of several placements on a thread.

        Parameters
        ----------
        placements : int32[C, G]
            The start of each walk: the device of each group.
        moves
            Moves of C walks.

        Raises
        ------
        GraphError
            When the placements or moves are not of the problem (`placeto_graphs.check_moves`).
        """
        return walks_of(self._simulate(placements, moves=moves))

    def timeline(self, placement: NDArray[np.int32]) -> Timeline:
        """Simulate one placement, and return what ran where and when.

        Parameters
        ----------
        placement : int32[G]
            The device of each group.
        """
        batch = batch_of(self.problem, np.asarray(placement)[None], path=True)
        with self._state() as state:
            self._loop(self._tables, state, batch, 0, 1)
            _check_done(batch.runtime)
            return timeline_of(self.problem, self._tables, state)

    def _simulate(self, placements: NDArray[np.int32], **options: Any) -> Batch:
        """Simulate a batch on as many threads as there are; `batch_of` lists the options."""
        batch = batch_of(self.problem, placements, **options)

        def run(begin: int, end: int) -> None:
            with self._state() as state:
                self._loop(self._tables, state, batch, begin, end)

        count = len(batch.runtime)
        threads = min(self.num_threads, count)
        if threads == 1 and self.problem.graph.num_ops < OPS_OF_SLOW_STEP:
            run(0, count)
        else:
            ends = np.linspace(0, count, threads + 1).astype(int).tolist()
            list(thread_pool(self.num_threads).map(run, ends[:-1], ends[1:]))
        _check_done(batch.runtime)
        return batch

    @contextmanager
    def _state(self) -> Iterator[State]:
        """Lend a state to one thread; there are as many as batches were simulated at once."""
        try:
            state = self._idle_states.pop()
        except IndexError:
            state = new_state(self._tables)
        try:
            yield state
        finally:
            self._idle_states.append(state)


def _check_done(runtime: NDArray[np.float64]) -> None:
    if np.isnan(runtime).any():
        row = int(np.argmax(np.isnan(runtime)))
        raise SimulationError(f"placements[{row}]: expected every op to be done, got fewer")


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
