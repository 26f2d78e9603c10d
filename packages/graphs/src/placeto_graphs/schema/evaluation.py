"""What placements cost, what a placer found, and the protocols that join the packages."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.schema.arrays import float_array, int_array, integer, number
from placeto_graphs.schema.cluster import Cluster
from placeto_graphs.schema.problem import PlacementProblem
from placeto_graphs.schema.record import Record, set_field


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationBatch(Record):
    """What each of B placements costs on D devices.

    Attributes
    ----------
    runtime : float64[B]
        Seconds of one step; infinity for a placement that cannot run.
    peak_memory : int64[B, D]
        The most bytes that each device holds at one time.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> EvaluationBatch(runtime=[0.5, 0.25], peak_memory=[[100, 0], [60, 40]]).peak_memory.shape
    (2, 2)
    """

    runtime: NDArray[np.float64]
    peak_memory: NDArray[np.int64]

    def __post_init__(self) -> None:
        runtime = float_array("runtime", self.runtime, (None,), infinity_is="it cannot run")
        set_field(self, "runtime", runtime)
        peak_memory = int_array("peak_memory", self.peak_memory, np.int64, (len(runtime), None))
        set_field(self, "peak_memory", peak_memory)


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleBatch(EvaluationBatch):
    """What each of B placements of G groups costs, and when each group is at work.

    Attributes
    ----------
    start : float64[B, G]
        When the first op of each group starts, seconds.
    end : float64[B, G]
        When the last op of each group ends, seconds.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> schedule = ScheduleBatch(
    ...     runtime=[0.5], peak_memory=[[100, 0]], start=[[0.0, 0.25]], end=[[0.25, 0.5]]
    ... )
    >>> schedule.end - schedule.start
    array([[0.25, 0.25]])
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = (len(self.runtime), None)
        start = float_array("start", self.start, shape)
        set_field(self, "start", start)
        set_field(self, "end", float_array("end", self.end, start.shape))


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacementResult(Record):
    """What a placer found.

    Attributes
    ----------
    placement : int32[G]
        The device of each group.
    runtime : float
        Seconds of one step with that placement, as the evaluator gives it.
    peak_memory : int64[D]
        The most bytes that each device holds at one time.
    evaluations : int
        How many placements were sampled on the way.
    seconds : float
        How long the search took.
    curve : float64[K, 2]
        Rows of (placements sampled so far, best runtime so far in seconds); the first column
        never falls.

    Raises
    ------
    GraphError
        When a field is not as described.

    Examples
    --------
    >>> result = PlacementResult(
    ...     placement=[0, 1],
    ...     runtime=0.25,
    ...     peak_memory=[60, 40],
    ...     evaluations=2,
    ...     seconds=0.001,
    ...     curve=[[1, 0.5], [2, 0.25]],
    ... )
    >>> result.curve[-1]
    array([2.  , 0.25])
    """

    placement: NDArray[np.int32]
    runtime: float
    peak_memory: NDArray[np.int64]
    evaluations: int
    seconds: float
    curve: NDArray[np.float64]

    def __post_init__(self) -> None:
        set_field(self, "placement", int_array("placement", self.placement, np.int32, (None,)))
        runtime = float_array("runtime", self.runtime, (), infinity_is="it cannot run")
        set_field(self, "runtime", float(runtime))
        set_field(
            self, "peak_memory", int_array("peak_memory", self.peak_memory, np.int64, (None,))
        )
        set_field(self, "evaluations", integer("evaluations", self.evaluations))
        set_field(self, "seconds", number("seconds", self.seconds))
        curve = float_array("curve", self.curve, (None, 2), infinity_is="none can run so far")
        falls = np.diff(curve[:, 0]) < 0
        if falls.any():
            row = int(np.argmax(falls)) + 1
            raise GraphError(
                f"curve[{row}, 0]: expected at least {curve[row - 1, 0]:g} placements, "
                f"got {curve[row, 0]:g}"
            )
        set_field(self, "curve", curve)

    def fits(self, cluster: Cluster) -> bool:
        """Return whether no device holds more than its memory; otherwise it runs out of memory.

        Parameters
        ----------
        cluster
            The D devices that the placement is for.

        Raises
        ------
        GraphError
            When the cluster has another number of devices.

        Examples
        --------
        >>> from placeto_graphs import parse_cluster
        >>> result = PlacementResult(
        ...     placement=[0, 1],
        ...     runtime=0.25,
        ...     peak_memory=[20_000_000_000, 40],
        ...     evaluations=1,
        ...     seconds=0.001,
        ...     curve=[[1, 0.25]],
        ... )
        >>> result.fits(parse_cluster("2xk80")), result.fits(parse_cluster("2xa100"))
        (False, True)
        """
        if cluster.num_devices != len(self.peak_memory):
            raise GraphError(
                f"cluster: expected {len(self.peak_memory)} devices, got {cluster.num_devices}"
            )
        memory = [device.memory_bytes for device in cluster.devices]
        return bool((self.peak_memory <= memory).all())


@runtime_checkable
class Evaluator(Protocol):
    """Says what placements of one problem cost, by simulation or by measurement.

    Examples
    --------
    A lower bound as an evaluator: the work of the busiest device.

    >>> class BusiestDevice:
    ...     def __init__(self, problem):
    ...         self.problem = problem
    ...
    ...     def evaluate(self, placements):
    ...         seconds = self.problem.group_graph.compute_time
    ...         here = placements[:, :, None] == np.arange(self.problem.num_devices)
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
        ...

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        """Return what each placement costs.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        ...


@runtime_checkable
class SchedulingEvaluator(Evaluator, Protocol):
    """An evaluator that also says when each group is at work.

    Examples
    --------
    >>> def first_groups(evaluator: SchedulingEvaluator, placement):
    ...     return evaluator.schedule(placement[None]).start[0].argsort()
    """

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        """Return what each placement costs, as `evaluate` does, and when its groups are at work.

        Parameters
        ----------
        placements : int32[B, G]
            The device of each group, one placement a row.
        """
        ...


@runtime_checkable
class Placer(Protocol):
    """Finds a placement for a problem.

    Examples
    --------
    >>> class FirstDevice:
    ...     name = "first"
    ...
    ...     def place(self, problem, evaluator, *, seed=0):
    ...         placement = np.zeros(problem.num_groups, np.int32)
    ...         found = evaluator.evaluate(placement[None])
    ...         return PlacementResult(
    ...             placement=placement,
    ...             runtime=found.runtime[0],
    ...             peak_memory=found.peak_memory[0],
    ...             evaluations=1,
    ...             seconds=0.0,
    ...             curve=[[1, found.runtime[0]]],
    ...         )
    >>> isinstance(FirstDevice(), Placer)
    True
    """

    @property
    def name(self) -> str:
        """What the placer is called in tables and on the command line."""
        ...

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        """Return the best placement that the placer finds.

        Parameters
        ----------
        problem
            What to place.
        evaluator
            Says what placements of that problem cost.
        seed
            Fixes every random choice.
        """
        ...
