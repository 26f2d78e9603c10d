"""What it would cost to move single groups of one placement to other devices."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import EvaluationBatch
from placeto_graphs import PlacementProblem
from placeto_simulator.errors import SimulationError
from placeto_simulator.tables import Tables

NUM_CHECKPOINTS = 5


class IncrementalSimulation:
    """Simulates moves of single groups, starting where a move begins to make a difference.

    Until the first op is done whose tensors a group reads, it does not matter where the group is.
    So a few states of the simulated step are kept, and a move goes on from the last one before
    that. All results are those of `Simulator.evaluate`, to the last bit. Made by
    `Simulator.incremental`; one thread at a time may use it.

    Parameters
    ----------
    problem
        The problem whose placements are simulated.
    tables
        The same as arrays.
    inputs
        Where moves of each group begin to make a difference.
    cannot_run : bool[G, D]
        Where an op of a group has no compute time on a device.
    placement : int32[G]
        The placement to start from, which can run.

    Examples
    --------
    >>> import networkx as nx
    >>> from placeto_graphs import colocate, from_networkx, parse_cluster
    >>> from placeto_simulator import Simulator
    >>> graph = from_networkx(nx.empty_graph(3, create_using=nx.DiGraph))
    >>> problem = PlacementProblem(
    ...     graph=graph,
    ...     cluster=parse_cluster("2xk80"),
    ...     compute_time=np.full((3, 2), 0.5),
    ...     grouping=colocate(graph),
    ... )
    >>> simulation = Simulator(problem).incremental(np.array([0, 0, 0]))
    >>> simulation.moves(2).runtime
    array([1.5000114, 1.0000057])
    >>> simulation.try_move(2, 1).runtime
    array([1.0000057])
    >>> simulation.commit()
    >>> simulation.placement
    array([0, 0, 1], dtype=int32)
    """

    def __init__(
        self,
        problem: PlacementProblem,
        tables: Tables,
        inputs: "Inputs",
        cannot_run: NDArray[np.bool_],
        placement: NDArray[np.int32],
    ) -> None:
        # Numba takes half a second to import, which only simulating needs.
        from placeto_simulator import checkpoints  # noqa: PLC0415
        from placeto_simulator.state import new_memory  # noqa: PLC0415
        from placeto_simulator.state import new_state  # noqa: PLC0415

        self._problem = problem
        self._tables = tables
        self._cannot_run = cannot_run
        self._checkpoints = checkpoints
        # The move that may be committed occupies one of them, while the other is simulated with.
        self._states = [(new_state(tables), new_memory(tables)) for _ in range(2)]
        self._saved = checkpoints.new_checkpoints(tables, NUM_CHECKPOINTS)
        self._inputs = inputs
        self._placement = placement.copy()
        self._peak_memory = np.empty(problem.num_devices, np.int64)
        self._runtime = checkpoints.simulate(
            tables, *self._states[0], self._saved, self._placement, self._peak_memory
        )
        self._simulated: _Move | None = None  # the last or best move, in one of the states
        self._tried: _Move | None = None

    @property
    def placement(self) -> NDArray[np.int32]:
        """A copy of the placement int32[G] that moves start from."""
        return self._placement.copy()

    def try_move(self, group: int, device: int) -> EvaluationBatch:
        """Simulate the placement with one group on another device.

        Parameters
        ----------
        group, device
            Which group, and where to.

        Returns
        -------
        EvaluationBatch
            Of one placement. The placement that moves start from stays as it is until `commit`.

        Raises
        ------
        SimulationError
            When there is no such group or device, or an op of the group cannot run there.
        """
        self._check_group(group)
        self._check_device(group, device)
        move = self._simulated
        if move is None or (move.group, move.device) != (group, device):
            move = self._move(group, device)
            self._simulated = move
        self._tried = move
        return EvaluationBatch(runtime=np.array([move.runtime]), peak_memory=move.peak_memory[None])

    def moves(self, group: int) -> EvaluationBatch:
        """Simulate the placement with one group on each of the D devices in turn.

        The fastest of them is kept: trying it afterwards takes no further simulation.

        Parameters
        ----------
        group
            Which group.

        Returns
        -------
        EvaluationBatch
            Of D placements. The runtime is infinity where an op of the group cannot run.

        Raises
        ------
        SimulationError
            When there is no such group.
        """
        self._check_group(group)
        self._simulated = self._tried = None
        num_devices = self._problem.num_devices
        runtime = np.full(num_devices, np.inf)
        peak_memory = np.zeros((num_devices, num_devices), np.int64)
        for device in range(num_devices):
            if not self._cannot_run[group, device]:
                move = self._move(group, device)
                runtime[device], peak_memory[device] = move.runtime, move.peak_memory
                if self._simulated is None or move.runtime < self._simulated.runtime:
                    self._simulated = move
        return EvaluationBatch(runtime=runtime, peak_memory=peak_memory)

    def commit(self) -> None:
        """Adopt the move that was tried last.

        Raises
        ------
        SimulationError
            When none was tried since the last `commit` or call of `moves`.
        """
        move = self._tried
        if move is None:
            raise SimulationError("commit: expected a move that was tried before, got none")
        self._simulated = self._tried = None
        if move.state is not None:
            self._checkpoints.adopt(
                *self._states[move.state], self._saved, move.state, move.shared_moments
            )
            self._placement[move.group] = move.device
            self._runtime, self._peak_memory = move.runtime, move.peak_memory

    def _move(self, group: int, device: int) -> "_Move":
        """Simulate a move, with the state that `_simulated` does not need."""
        if device == self._placement[group]:
            return _Move(group, device, self._runtime, self._peak_memory, None, 0)
        state = 1 if self._simulated is not None and self._simulated.state == 0 else 0
        placement = self._placement.copy()
        placement[group] = device
        peak_memory = np.empty(self._problem.num_devices, np.int64)
        runtime, shared_moments = self._checkpoints.simulate_move(
            self._tables,
            *self._states[state],
            self._saved,
            state,
            placement,
            self._inputs.producers[group],
            bool(self._inputs.begin_at_zero[group]),
            peak_memory,
        )
        return _Move(group, device, runtime, peak_memory, state, shared_moments)

    def _check_group(self, group: int) -> None:
        num_groups = self._problem.num_groups
        if not 0 <= group < num_groups:
            raise SimulationError(f"group: expected one from 0 to {num_groups - 1}, got {group!r}")

    def _check_device(self, group: int, device: int) -> None:
        num_devices = self._problem.num_devices
        name = self._problem.grouping.group_names[group]
        if not 0 <= device < num_devices:
            raise SimulationError(
                f"device: expected one from 0 to {num_devices - 1} for group {name!r}, "
                f"got {device!r}"
            )
        if self._cannot_run[group, device]:
            raise SimulationError(
                f"device: expected one that can run every op of group {name!r}, "
                f"got {device} ({self._problem.cluster.device_names[device]!r})"
            )


class _Move(NamedTuple):
    """A group, the device that it was moved to, and what was found out."""

    group: int
    device: int
    runtime: float
    peak_memory: NDArray[np.int64]
    state: int | None  # where it was simulated; nowhere if the group already was on that device
    shared_moments: int


class Inputs(NamedTuple):
    """Where the steps before and after a move of each group begin to differ.

    Attributes
    ----------
    producers : G arrays uint32[]
        The ops outside of each group whose tensors are read in it.
    begin_at_zero : bool[G]
        Whether the group has ops without inputs.
    """

    producers: list[NDArray[np.uint32]]
    begin_at_zero: NDArray[np.bool_]


def inputs_of_groups(problem: PlacementProblem) -> Inputs:
    """Return where moves of each group begin to make a difference."""
    graph, group_of, num_groups = problem.graph, problem.grouping.group_of, problem.num_groups
    reader_group = group_of[graph.edge_consumers].astype(np.int64)
    outside = group_of[graph.edge_producers] != reader_group
    pairs = np.unique(reader_group[outside] * graph.num_ops + graph.edge_producers[outside])
    starts = np.searchsorted(pairs, np.arange(1, num_groups) * graph.num_ops)
    without_inputs = np.bincount(graph.edge_consumers, minlength=graph.num_ops) == 0
    begin_at_zero = np.zeros(num_groups, np.bool_)
    begin_at_zero[group_of[without_inputs]] = True
    return Inputs(
        producers=np.split((pairs % graph.num_ops).astype(np.uint32), starts),
        begin_at_zero=begin_at_zero,
    )
