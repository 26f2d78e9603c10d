"""Evaluators, what placers minimise, and placers."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeto_graphs.schema.arrays import float_array, number
from placeto_graphs.schema.problem import PlacementProblem
from placeto_graphs.schema.results import EvaluationBatch, PlacementResult, ScheduleBatch

SECONDS_PER_BYTE = 2e-9
"""What memory that a device lacks costs: 2 s/GB, Addanki et al. 2019."""

MEMORY_PENALTY = 30.0
"""Further runtimes that a placement costs if a device lacks as much memory as it has."""


def memory_penalised_runtime(
    batch: EvaluationBatch, limit: ArrayLike, scale: float = SECONDS_PER_BYTE
) -> NDArray[np.float64]:
    """Return float64[B], the memory-penalised runtime of each placement in seconds.

    ``R(p) = r`` where the largest peak memory ``m`` over the devices is at most the limit ``M``,
    and ``r + c (m - M)`` where it is more (Addanki et al. 2019).

    Parameters
    ----------
    batch
        Costs of B placements on D devices.
    limit : number or number[D]
        Bytes M that all devices have, or each; infinity is no limit. Of several limits the one that
        is exceeded most counts.
    scale
        Cost ``c`` of a byte that is lacking, in seconds per byte.

    Raises
    ------
    GraphError
        When a limit or the scale is not as described, or there are several limits, and not one for
        each device.

    Examples
    --------
    >>> batch = EvaluationBatch(runtime=[1.0, 1.0], peak_memory=[[5, 9], [10, 13]])
    >>> memory_penalised_runtime(batch, limit=10, scale=0.5)
    array([1. , 2.5])
    """
    several = isinstance(limit, list | tuple) or np.ndim(limit) > 0
    shape = (batch.peak_memory.shape[1],) if several else ()
    limits = float_array("limit", limit, shape, infinity_is="no limit")
    # Whole numbers stay so: beyond 2^53 a float64 would round them.
    exact_limits = np.asarray(limit) if np.asarray(limit).dtype.kind in "iu" else limits
    excess = (batch.peak_memory - exact_limits).max(axis=1, initial=0)
    penalised: NDArray[np.float64] = batch.runtime + number("scale", scale) * excess
    return penalised


def placement_ranks(
    batch: EvaluationBatch, limit: ArrayLike, penalty: float = MEMORY_PENALTY
) -> list[tuple[bool, float]]:
    """Return the rank of each placement; the placement of the least rank is the best.

    A placement that fits the memory comes before all that do not, whatever they cost. One that
    cannot run is last.

    A rank is whether a placement lacks memory or cannot run, and its cost: ``r (1 + c x)`` for a
    runtime ``r``, in its unit, and the largest excess ``x`` of a device, as a fraction of its
    memory. Ranks are the same in any unit of time and of memory.

    Parameters
    ----------
    batch
        Costs of B placements.
    limit : number or number[D]
        Bytes of memory that all devices have, or each.
    penalty
        Factor ``c``, a number without a unit.

    Returns
    -------
    B pairs of (bool, float)
        Whether each placement lacks memory or cannot run, and its cost in the unit of the runtime.

    Examples
    --------
    >>> batch = EvaluationBatch(runtime=[2.0, 1.0], peak_memory=[[5, 9], [10, 15]])
    >>> placement_ranks(batch, limit=12, penalty=2.0)
    [(False, 2.0), (True, 1.5)]
    """
    memory = np.maximum(limit, 1)  # a device without memory lacks all of what it needs
    excess = (batch.peak_memory / memory - 1.0).max(axis=1, initial=0.0)
    costs = batch.runtime * (1.0 + penalty * excess)
    lacks = (batch.peak_memory > np.asarray(limit)).any(axis=1) | np.isinf(costs)
    return list(zip(lacks.tolist(), costs.tolist(), strict=True))


@runtime_checkable
class Evaluator(Protocol):
    """Prices placements of one problem, by simulation or by measurement.

    A placement with a group on a device that cannot run it is refused by an error. Infinity is the
    runtime of one that its devices can run, and that fails nevertheless.

    Examples
    --------
    A lower bound as an evaluator: the work of the busiest device.

    >>> class BusiestDevice:
    ...     def __init__(self, problem):
    ...         self.problem = problem
    ...
    ...     def evaluate(self, placements):
    ...         seconds = self.problem.group_graph.compute_time
    ...         rows = self.problem.check_placements(placements)
    ...         here = rows[:, :, None] == np.arange(self.problem.num_devices)
    ...         busy = np.where(here, seconds, 0.0).sum(axis=1)
    ...         return EvaluationBatch(
    ...             runtime=busy.max(axis=1), peak_memory=np.zeros(busy.shape, np.int64)
    ...         )
    >>> isinstance(BusiestDevice(problem=None), Evaluator)
    True
    """

    @property
    def problem(self) -> PlacementProblem:
        """The problem whose placements are evaluated."""

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of placements.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """


@runtime_checkable
class GeneralEvaluator(Evaluator, Protocol):
    """An evaluator that can be made for other problems, such as smaller ones (`contracted`)."""

    def for_problem(self, problem: PlacementProblem) -> Evaluator:
        """Return the evaluator of another problem, with the same settings.

        Parameters
        ----------
        problem
            Problem whose placements it evaluates.
        """


@runtime_checkable
class SchedulingEvaluator(Evaluator, Protocol):
    """An evaluator that also returns when each group runs."""

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return the costs of placements, as `evaluate` does, and when their groups run.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """


@runtime_checkable
class CriticalEvaluator(Evaluator, Protocol):
    """An evaluator that also returns the groups that determine the cost of a placement.

    A search takes those first: moving any other one alone cannot lower the cost much.
    """

    def critical_groups(self, placements: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return bool[B, G], whether each group is critical: on the critical path of the step.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """


@runtime_checkable
class Placer(Protocol):
    """Finds a placement for a problem."""

    @property
    def name(self) -> str:
        """Name of the placer in tables and on the command line."""

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best placement that the placer finds.

        Parameters
        ----------
        problem
            Problem to find a placement for.
        evaluator
            Evaluator of that problem, which prices placements.
        seed
            Seed of all random choices; equal seeds give equal results.
        """
