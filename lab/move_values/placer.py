"""A placer that improves a placement from coarse groups to fine ones, by what moves are worth."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from move_values.features import MoveFeatures, Simulated
from move_values.network import MoveValues
from placeto_graphs import (
    CriticalEvaluator,
    EvaluationBatch,
    Evaluator,
    MoveEvaluator,
    Moves,
    PlacementProblem,
    PlacementResult,
    Placer,
    memory_penalised_runtime,
    plain_walk,
)
from placeto_policy.errors import PolicyError
from placeto_policy.workers import one_thread_of_torch

LEAST_GAIN = 1e-3  # of a round, in parts of the cost; two in a row below it end a level
Visit = Callable[["Level", Simulated, NDArray[np.float32], float], None]


@dataclass(frozen=True, kw_only=True)
class MoveValuePlacer:
    """Improves a placement round by round, level by level, by what a network says of its moves.

    It starts from the best of some placements: those of the placers that are given, everything on
    one device, for each device, and two random ones, in the problem's coarsest groups. A round asks
    the network once what all moves of groups to devices are worth, and tries the most promising
    ones one after the other; those that lower the cost stay. When rounds gain nothing, the groups
    of the next finer level go on from there.

    Parameters
    ----------
    values
        The network.
    starts
        Placers whose placements it may start from, such as list schedulers.
    rounds
        Of a level, at most.
    moves
        That a round tries, at most.
    noise
        How far the order of moves is left to chance: the scale of Gumbel noise on the logarithm of
        what they promise.

    Raises
    ------
    PolicyError
        In `place`, when the evaluator does not say which groups are critical.

    Examples
    --------
    >>> from placeto_policy.example import BusiestDevice, two_chains
    >>> problem = two_chains()
    >>> placer = MoveValuePlacer(values=MoveValues())
    >>> placer.place(problem, BusiestDevice(problem)).runtime
    3.0
    """

    values: MoveValues
    starts: Sequence[Placer] = ()
    rounds: int = 6
    moves: int = 96
    noise: float = 0.1
    name: str = field(default="move-values", init=False)

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best placement of all that were tried.

        Parameters
        ----------
        problem
            What to place.
        evaluator
            A `CriticalEvaluator` of the problem; best one that walks, a `MoveEvaluator`.
        seed
            Fixes every random choice.
        """
        costs = Costs(problem, evaluator)
        generator = np.random.default_rng(seed)
        with one_thread_of_torch():
            for level in levels_of(problem):
                if not costs.evaluations:
                    costs.offer(self.first(level, costs, generator))
                improve(level, costs, self, generator)
        return costs.result()

    def first(
        self, level: "Level", costs: "Costs", generator: np.random.Generator
    ) -> NDArray[np.int32]:
        """Return int32[N, G], placements to start from."""
        problem = costs.evaluator.problem
        rows = [each.place(problem, costs.evaluator).placement for each in self.starts]
        runs_all = np.isfinite(problem.group_graph.compute_time).all(axis=0)
        rows += [np.full(problem.num_groups, device) for device in np.flatnonzero(runs_all)]
        rows += [level.random_placement(generator)[level.group_of] for _ in range(2)]
        return np.array(rows, np.int32)


class Level:
    """One level of a problem of G groups: C groups, each of which is a set of those."""

    def __init__(self, problem: PlacementProblem, level: int) -> None:
        coarse = problem.at_level(level)
        self.features = MoveFeatures(coarse)
        self.num_groups = coarse.num_groups
        self.group_of: NDArray[np.int32] = coarse.grouping.group_of[problem.grouping.first_ops]
        self.members = np.argsort(self.group_of, kind="stable").astype(np.int32)
        sizes = np.bincount(self.group_of, minlength=coarse.num_groups)
        self.first_member = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        self.cannot_run = ~np.isfinite(coarse.group_graph.compute_time)

    def random_placement(self, generator: np.random.Generator) -> NDArray[np.int32]:
        """Return int32[C], a device that can run it for each group of the level."""
        keys = np.where(self.cannot_run, -1.0, generator.random(self.cannot_run.shape))
        devices: NDArray[np.int32] = keys.argmax(axis=1).astype(np.int32)
        return devices

    def of(self, placement: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return int32[C], a placement of the problem's groups whose sets are on one device."""
        return placement[self.members[self.first_member[:-1]]]

    def simulated(self, placement: NDArray[np.int32], costs: "Costs") -> Simulated:
        """Return what the features of a placement int32[G] are made of."""
        found, critical = costs.look(placement)
        is_critical = np.zeros(self.num_groups, np.bool_)
        is_critical[self.group_of[critical]] = True
        return Simulated(
            self.of(placement), float(found.runtime[0]), found.peak_memory[0], is_critical
        )


def levels_of(problem: PlacementProblem) -> Iterator[Level]:
    """Yield the levels of a problem, from coarse to fine, up to its own groups."""
    for number in range(problem.level + 1):
        yield Level(problem, number)


def improve(
    level: Level,
    costs: "Costs",
    placer: MoveValuePlacer,
    generator: np.random.Generator,
    visit: Visit | None = None,
) -> None:
    """Improve the best placement so far by moves of a level's groups.

    ``visit`` is called with each placement that a round begins with, its features and its cost.
    """
    costs.settle(level)
    without_gain = 0
    for _ in range(placer.rounds):
        simulated = level.simulated(costs.placement, costs)
        before = costs.cost
        features = level.features(simulated)
        if visit:
            visit(level, simulated, features, before)
        worth = placer.values.worth(features)
        worth += placer.noise * generator.gumbel(size=worth.shape)
        worth[level.cannot_run] = -np.inf
        worth[np.arange(level.num_groups), simulated.placement] = -np.inf
        most = min(placer.moves, level.num_groups, int(np.isfinite(worth).sum()))
        if not most:
            return
        best = np.argpartition(-worth, most - 1, axis=None)[:most]
        groups, devices = np.divmod(best[np.argsort(-worth.ravel()[best])], worth.shape[1])
        costs.walk(level, groups, devices)
        without_gain = 0 if costs.cost < before * (1 - LEAST_GAIN) else without_gain + 1
        if without_gain == 2:
            return


class Costs:
    """What placements of a problem cost: where the placer is, and the best one so far."""

    def __init__(self, problem: PlacementProblem, evaluator: Evaluator) -> None:
        if not isinstance(evaluator, CriticalEvaluator):
            raise PolicyError(
                f"evaluator: expected one that says which groups are critical, with a method "
                f"`critical_groups`, got {type(evaluator).__name__}"
            )
        self.evaluator = evaluator
        self._memory = problem.cluster.memory_bytes
        self._began = time.perf_counter()
        self.evaluations = 0
        self.cost = np.inf
        self.placement = np.zeros(problem.num_groups, np.int32)
        self._best_cost = np.inf
        self._best: tuple[NDArray[np.int32], float, NDArray[np.int64]] | None = None
        self._curve: list[tuple[int, float]] = []

    def of(self, found: EvaluationBatch) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtimes."""
        return memory_penalised_runtime(found, self._memory)

    def offer(self, placements: NDArray[np.int32]) -> None:
        """Evaluate placements int32[B, G], and keep the best."""
        found = self.evaluator.evaluate(placements)
        self.evaluations += len(placements)
        costs = self.of(found)
        self._keep(placements, found, costs)

    def look(self, placement: NDArray[np.int32]) -> tuple[EvaluationBatch, NDArray[np.bool_]]:
        """Return what one placement costs, and bool[G], which groups are critical."""
        self.evaluations += 2
        rows = placement[None]
        return self.evaluator.evaluate(rows), self.evaluator.critical_groups(rows)[0]

    def settle(self, level: Level) -> None:
        """Go to a placement of a level: each set goes where its first group is."""
        settled = level.of(self.placement)[level.group_of]
        if (settled != self.placement).any():
            self.cost = np.inf
            self.offer(settled[None])

    def walk(self, level: Level, groups: NDArray[np.int64], devices: NDArray[np.int64]) -> None:
        """Try moves of a level's groups one after the other; keep those that lower the cost."""
        moves = Moves(
            set_of=groups[None].astype(np.int32),
            device=devices[None].astype(np.int32),
            allowance=np.zeros((1, len(groups))),
            first_member=level.first_member,
            members=level.members,
        )
        start = self.placement[None]
        if isinstance(self.evaluator, MoveEvaluator):
            walks = self.evaluator.walk(start, moves)
        else:
            walks = plain_walk(self.evaluator, start, moves)
        self.evaluations += walks.evaluations
        found = EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
        self._keep(walks.best_placement, found, self.of(found))

    def _keep(
        self,
        placements: NDArray[np.int32],
        found: EvaluationBatch,
        costs: NDArray[np.float64],
    ) -> None:
        row = int(costs.argmin())
        cost = float(costs[row])
        if cost < self.cost:
            self.cost, self.placement = cost, placements[row].copy()
        if cost < self._best_cost or self._best is None:
            self._best_cost = cost
            self._best = self.placement, float(found.runtime[row]), found.peak_memory[row]
        self._curve.append((self.evaluations, self._best_cost))

    def result(self) -> PlacementResult:
        """Return the best placement."""
        if self._best is None:
            raise PolicyError("evaluator: expected a placement that was evaluated, got none")
        placement, runtime, peak_memory = self._best
        return PlacementResult(
            placement=placement,
            runtime=runtime,
            peak_memory=peak_memory,
            evaluations=self.evaluations,
            seconds=time.perf_counter() - self._began,
            curve=np.array(self._curve, np.float64),
        )
