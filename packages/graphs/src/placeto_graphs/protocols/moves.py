"""Walks through the placements of a problem: many moves in one call of an evaluator."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.protocols.evaluation import (
    MEMORY_PENALTY,
    CriticalEvaluator,
    Evaluator,
    placement_ranks,
)
from placeto_graphs.schema.arrays import Record, check_rows_differ, float_array, int_array, number
from placeto_graphs.schema.problem import PlacementProblem

_DEFAULT: Any = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Moves(Record):
    """The moves that C walks try, N each, one after the other.

    A move takes the groups of a set to a device. It is accepted if the placement then costs at most
    ``allowance`` more than before, in the unit of the runtime; otherwise the groups go back. With
    allowances of ``-T log(u)``, ``u`` uniform between 0 and 1, that is the criterion of simulated
    annealing at temperature ``T`` (Metropolis et al. 1953); with allowances of 0 it is hill
    climbing.

    A critical move depends on the present placement. It picks one pair of neighbours whose first
    group is critical (`CriticalEvaluator`) and whose second group is on another device. It takes
    the set with the first group to the device of the second.

    By default no move is critical, and memory that a device lacks costs what it does in
    `placement_ranks`.

    Attributes
    ----------
    set_of : int32[C, N]
        The set of groups that each move takes, from 0 to S - 1. Of a critical move it is a level of
        ``set_with``.
    device : int32[C, N]
        The device that each move takes them to. That of a critical move does not count.
    allowance : float64[C, N]
        Increase of the cost up to which each move is accepted, in the unit of the runtime, at least
        0; infinity accepts any.
    first_member : int32[S + 1]
        Start of each of the S sets in ``members``; the last entry is the end.
    members : int32[K]
        The groups of the sets, one set after the other, each at most once in a set.
    pick : float64[C, N]
        Position of the pair of neighbours that a critical move picks, as a fraction of all that it
        may pick: from 0 to below 1. Infinity, the default, for any other move.
    neighbours : int32[P, 2]
        Pairs of groups that critical moves pick; none unless given.
    set_with : int32[L, G]
        The set with each of the G groups at each of L levels; none unless given.
    memory_penalty : float
        Factor of the memory that a device lacks, as `placement_ranks` has it. A search raises it
        where nothing fits.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    Group 0 to device 1, then groups 0 and 1 to device 2:

    >>> moves = Moves(
    ...     set_of=[[0, 1]], device=[[1, 2]], allowance=[[0.0, 0.0]],
    ...     first_member=[0, 1, 3], members=[0, 0, 1],
    ... )
    >>> moves.num_walks, moves.num_moves, moves.num_sets
    (1, 2, 2)
    """

    set_of: NDArray[np.int32]
    device: NDArray[np.int32]
    allowance: NDArray[np.float64]
    first_member: NDArray[np.int32]
    members: NDArray[np.int32]
    pick: NDArray[np.float64] = _DEFAULT
    neighbours: NDArray[np.int32] = _DEFAULT
    set_with: NDArray[np.int32] = _DEFAULT
    memory_penalty: float = MEMORY_PENALTY

    def __post_init__(self) -> None:
        self._check("members", int_array, np.int32, (None,))
        self._check("first_member", int_array, np.int32, (None,))
        first, end = self.first_member, len(self.members)
        if not len(first) or (first[0], first[-1]) != (0, end) or (np.diff(first) < 1).any():
            raise GraphError(
                f"first_member: expected rising positions from 0 to {end}, got {first}"
            )
        sets = np.repeat(np.arange(self.num_sets, dtype=np.int32), np.diff(first))
        check_rows_differ("members", np.stack([sets, self.members], axis=1), "(set, group)")
        last = self.num_sets - 1
        self._check("set_of", int_array, np.int32, (None, None), maximum=last)
        shape = self.set_of.shape
        self._check("device", int_array, np.int32, shape)
        self._check("allowance", float_array, shape, infinity_is="any")
        self._check("memory_penalty", number)
        never = np.full(shape, np.inf)
        self._check("pick", float_array, shape, infinity_is="not critical", default=never)
        self._check("neighbours", int_array, np.int32, (None, 2), default=[])
        self._check("set_with", int_array, np.int32, (None, None), maximum=last, default=[])
        levels = self.set_of[self.is_critical]
        if (self.pick[self.is_critical] >= 1).any():
            raise GraphError(f"pick: expected numbers below 1, or infinity, got {self.pick.max()}")
        if levels.size and levels.max() >= len(self.set_with):
            raise GraphError(
                f"set_of: expected levels from 0 to {len(self.set_with) - 1} of critical moves, "
                f"got {levels.max()}"
            )

    @property
    def is_critical(self) -> NDArray[np.bool_]:
        """bool[C, N], which moves are critical moves."""
        is_critical: NDArray[np.bool_] = np.isfinite(self.pick)
        return is_critical

    @property
    def num_walks(self) -> int:
        """C, the number of walks."""
        return len(self.set_of)

    @property
    def num_moves(self) -> int:
        """N, the number of moves of each walk."""
        return int(self.set_of.shape[1])

    @property
    def num_sets(self) -> int:
        """S, the number of sets of groups."""
        return len(self.first_member) - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Walks(Record):
    """Results of C walks of N moves through placements of G groups on D devices.

    The best placement is the first of the lowest cost of the start and all that was accepted. One
    that fits the memory of its devices comes before all that do not.

    Attributes
    ----------
    placement : int32[C, G]
        The device of each group at the end of each walk.
    cost : float64[C, 1 + N]
        Cost of the start, and of the placement that each move led to, as `placement_ranks` has it,
        in the unit of the runtime. It is infinite where it is more than is allowed, and how much is
        not known. It is NaN where a move was not tried, as it changes nothing, or a group cannot
        run there.
    best_placement : int32[C, G]
        The device of each group in the best placement of each walk.
    best_runtime : float64[C]
        Runtime of the best placements in seconds.
    best_peak_memory : int64[C, D]
        The most bytes that each device holds with the best placements.
    """

    placement: NDArray[np.int32]
    cost: NDArray[np.float64]
    best_placement: NDArray[np.int32]
    best_runtime: NDArray[np.float64]
    best_peak_memory: NDArray[np.int64]

    @property
    def evaluations(self) -> int:
        """Number of placements that were evaluated, the starts included."""
        return int((~np.isnan(self.cost)).sum())

    def evaluations_until(self, cost: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return int64[C], the evaluations until each walk first had a cost, that one included.

        Walks count one after the other.

        Parameters
        ----------
        cost : float64[C]
            A cost of each walk, in the unit of the runtime.
        """
        counts = np.cumsum(~np.isnan(self.cost)).reshape(self.cost.shape)
        first = np.argmax(self.cost == cost[:, None], axis=1)
        evaluations: NDArray[np.int64] = counts[np.arange(len(first)), first]
        return evaluations


@runtime_checkable
class MoveEvaluator(Evaluator, Protocol):
    """An evaluator that tries many moves in one call, such as in compiled code."""

    def walk(self, placements: NDArray[np.int32], moves: Moves) -> Walks:
        """Walk from each of several placements, as `plain_walk` does.

        Parameters
        ----------
        placements : int32[C, G]
            The start of each walk: the device of each group.
        moves
            Moves of C walks.
        """


def plain_walk(evaluator: Evaluator, placements: NDArray[np.int32], moves: Moves) -> Walks:
    """Walk from each of several placements with any evaluator, one placement at a time.

    Parameters
    ----------
    evaluator
        Evaluator of the problem.
    placements : int32[C, G]
        The start of each walk: the device of each group.
    moves
        Moves of C walks.

    Raises
    ------
    GraphError
        When `check_moves` refuses the moves, or some are critical, and the evaluator does not say
        which groups are.

    Examples
    --------
    >>> from placeto_graphs.testing import LoadEvaluator, example_problem
    >>> evaluator = LoadEvaluator(example_problem(2, ("k80", "k80")))
    >>> to_the_second = Moves(
    ...     set_of=[[0, 1]], device=[[1, 1]], allowance=[[0.0, 0.0]],
    ...     first_member=[0, 1, 2], members=[0, 1],
    ... )
    >>> walks = plain_walk(evaluator, np.array([[0, 0]]), to_the_second)
    >>> walks.placement, walks.evaluations
    (array([[1, 0]], dtype=int32), 3)
    """
    problem = evaluator.problem
    cannot_run = check_moves(problem, placements, moves)
    limits = problem.cluster.memory_bytes
    penalty = moves.memory_penalty
    placement = np.array(placements, np.int32)
    cost = np.full((moves.num_walks, 1 + moves.num_moves), np.nan)
    best_placement = placement.copy()
    best_runtime = np.empty(moves.num_walks)
    best_peak_memory = np.empty((moves.num_walks, problem.num_devices), np.int64)
    for walk in range(moves.num_walks):
        batch = evaluator.evaluate(placement[walk][None])
        best_rank = placement_ranks(batch, limits, penalty)[0]
        present_cost = cost[walk, 0] = best_rank[1]
        best_runtime[walk], best_peak_memory[walk] = batch.runtime[0], batch.peak_memory[0]
        pairs = None
        for move in range(moves.num_moves):
            chosen_set, device = moves.set_of[walk, move], moves.device[walk, move]
            if moves.is_critical[walk, move]:
                if pairs is None:
                    pairs = _pairs_to_pick(evaluator, placement[walk], moves.neighbours)
                if not len(pairs):
                    continue
                group, neighbour = pairs[int(moves.pick[walk, move] * len(pairs))]
                chosen_set, device = moves.set_with[chosen_set, group], placement[walk, neighbour]
            start, end = moves.first_member[chosen_set], moves.first_member[chosen_set + 1]
            tried = placement[walk].copy()
            tried[moves.members[start:end]] = device
            if cannot_run[chosen_set, device] or np.array_equal(tried, placement[walk]):
                continue
            batch = evaluator.evaluate(tried[None])
            rank = placement_ranks(batch, limits, penalty)[0]
            new_cost = cost[walk, 1 + move] = rank[1]
            if new_cost > present_cost + moves.allowance[walk, move]:
                continue
            placement[walk], present_cost, pairs = tried, new_cost, None
            if rank < best_rank:
                best_rank, best_placement[walk] = rank, tried
                best_runtime[walk], best_peak_memory[walk] = batch.runtime[0], batch.peak_memory[0]
    return Walks(
        placement=placement,
        cost=cost,
        best_placement=best_placement,
        best_runtime=best_runtime,
        best_peak_memory=best_peak_memory,
    )


def _pairs_to_pick(
    evaluator: Evaluator, placement: NDArray[np.int32], neighbours: NDArray[np.int32]
) -> NDArray[np.int32]:
    if not isinstance(evaluator, CriticalEvaluator):
        raise GraphError(
            "pick: expected no critical moves, as the evaluator has no critical_groups"
        )
    is_critical = evaluator.critical_groups(placement[None])[0]
    group, neighbour = neighbours.T
    pairs: NDArray[np.int32] = neighbours[
        is_critical[group] & (placement[group] != placement[neighbour])
    ]
    return pairs


def check_moves(
    problem: PlacementProblem, placements: NDArray[np.int32], moves: Moves
) -> NDArray[np.bool_]:
    """Return bool[S, D], true where a group of a set cannot run.

    Parameters
    ----------
    problem
        Problem with G groups and D devices.
    placements : int32[C, G]
        The start of each walk.
    moves
        Moves of S sets of groups.

    Raises
    ------
    GraphError
        When the moves are of another number of walks, or of groups or devices that the problem does
        not have.
    """
    if len(placements) != moves.num_walks:
        raise GraphError(
            f"set_of: expected moves of {len(placements)} walks, got {moves.num_walks}"
        )
    for name, values, end in (
        ("members", moves.members, problem.num_groups),
        ("neighbours", moves.neighbours, problem.num_groups),
        ("device", moves.device, problem.num_devices),
    ):
        if values.size and values.max() >= end:
            raise GraphError(f"{name}: expected numbers from 0 to {end - 1}, got {values.max()}")
    if moves.is_critical.any() and moves.set_with.shape[1] != problem.num_groups:
        raise GraphError(
            f"set_with: expected {problem.num_groups} groups, got {moves.set_with.shape[1]}"
        )
    nowhere = np.isinf(problem.group_graph.compute_time)
    return np.logical_or.reduceat(nowhere[moves.members], moves.first_member[:-1], axis=0)
