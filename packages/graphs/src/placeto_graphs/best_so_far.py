"""The best placement of a search so far, and how its cost fell."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.protocols.evaluation import placement_ranks
from placeto_graphs.protocols.moves import Moves, Walks
from placeto_graphs.schema.problem import PlacementProblem
from placeto_graphs.schema.results import EvaluationBatch, PlacementResult


class BestSoFar:
    """Keeps the best of the placements that were evaluated, and the curve of its cost.

    A placement that fits the memory of its devices comes before all that do not, whatever they cost
    (`placement_ranks`). Of equally good placements the first is kept. The curve rises if the first
    placement that fits costs more than one that does not.

    Parameters
    ----------
    problem
        Problem whose placements are evaluated.

    Attributes
    ----------
    evaluations : int
        Number of placements that were evaluated.
    rank : (bool, float)
        Rank of the best placement (`placement_ranks`); (True, infinity) as long as none can run.
    runtime : float
        Runtime of the best placement, in seconds; infinity as long as none can run.
    placement : int32[G] or None
        The best placement; None as long as none can run.
    curve : list of (int, float)
        The evaluations after which a better placement was known, and the cost of its rank.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.evaluations = 0
        self.rank = (True, float("inf"))
        self.placement: NDArray[np.int32] | None = None
        self.curve: list[tuple[int, float]] = []
        self.runtime = float("inf")
        self._peak_memory = np.zeros(problem.num_devices, np.int64)
        self._limits = problem.cluster.memory_bytes

    @property
    def fits(self) -> bool:
        """True if the best placement fits the memory of its devices."""
        return not self.rank[0]

    @property
    def cost(self) -> float:
        """Cost of the best placement (`placement_ranks`): its runtime in seconds, if it fits."""
        return self.rank[1]

    def add(
        self, placements: NDArray[np.int32], batch: EvaluationBatch
    ) -> list[tuple[bool, float]]:
        """Count placements that were evaluated, and keep the best of them.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        batch
            Costs of the B placements.

        Returns
        -------
        B pairs of (bool, float)
            Ranks of the placements (`placement_ranks`).
        """
        count = len(placements)
        return self._add(placements, batch, range(1, count + 1), count)

    def add_walks(self, walks: Walks, moves: Moves) -> None:
        """Count the placements of walks, and keep the best of them.

        Parameters
        ----------
        walks
            Results of C walks.
        moves
            Moves that the walks tried; their ``memory_penalty`` tells which costs of ``walks`` are
            those of the best placements.
        """
        batch = EvaluationBatch(runtime=walks.best_runtime, peak_memory=walks.best_peak_memory)
        ranks = placement_ranks(batch, self._limits, moves.memory_penalty)
        evaluations_until = walks.evaluations_until(np.array([cost for _, cost in ranks])).tolist()
        self._add(walks.best_placement, batch, evaluations_until, walks.evaluations)

    def result(self, seconds: float) -> PlacementResult:
        """Return the best placement as the result of a placer.

        Parameters
        ----------
        seconds
            Wall time of the search in seconds.

        Raises
        ------
        GraphError
            When no placement that was evaluated can run.
        """
        if self.placement is None:
            raise GraphError("evaluator: expected a placement that can run, got none")
        return PlacementResult(
            placement=self.placement,
            runtime=self.runtime,
            peak_memory=self._peak_memory,
            evaluations=self.evaluations,
            seconds=seconds,
            curve=np.array([*self.curve, (self.evaluations, self.cost)]),
        )

    def _add(
        self,
        placements: NDArray[np.int32],
        batch: EvaluationBatch,
        evaluations_until: Iterable[int],
        count: int,
    ) -> list[tuple[bool, float]]:
        """Keep the best of some placements, each known after so many of ``count`` evaluations."""
        ranks = placement_ranks(batch, self._limits)
        for row, (rank, evaluations) in enumerate(zip(ranks, evaluations_until, strict=True)):
            if rank < self.rank:
                self.rank = rank
                self.placement = placements[row].copy()
                self.runtime = float(batch.runtime[row])
                self._peak_memory = batch.peak_memory[row].copy()
                self.curve.append((self.evaluations + evaluations, rank[1]))
        self.evaluations += count
        return ranks
