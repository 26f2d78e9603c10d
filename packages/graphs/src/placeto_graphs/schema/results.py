"""Costs of placements, and results of placers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeto_graphs.errors import GraphError
from placeto_graphs.schema.arrays import Record, float_array, int_array, integer, number
from placeto_graphs.schema.cluster import Cluster


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationBatch(Record):
    """Costs of B placements on D devices.

    Attributes
    ----------
    runtime : float64[B]
        Seconds of one step; infinity for a placement that cannot run.
    peak_memory : int64[B, D]
        The most bytes that each device holds at one time.

    Examples
    --------
    >>> EvaluationBatch(runtime=[0.5, 0.25], peak_memory=[[100, 0], [60, 40]]).peak_memory.shape
    (2, 2)
    """

    runtime: NDArray[np.float64]
    peak_memory: NDArray[np.int64]

    def __post_init__(self) -> None:
        self._check("runtime", float_array, (None,), infinity_is="it cannot run")
        self._check("peak_memory", int_array, np.int64, (len(self.runtime), None))


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleBatch(EvaluationBatch):
    """Costs of B placements of G groups, and when each group runs.

    Attributes
    ----------
    start : float64[B, G]
        Start of the first op of each group, seconds.
    end : float64[B, G]
        End of the last op of each group, seconds.

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
        self._check("start", float_array, (len(self.runtime), None))
        self._check("end", float_array, self.start.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacementResult(Record):
    """Result of a placer: its best placement, and what finding it took.

    Attributes
    ----------
    placement : int32[G]
        The device of each group.
    runtime : float
        Seconds of one step with that placement, as the evaluator gives it.
    peak_memory : int64[D]
        The most bytes that each device holds at one time.
    evaluations : int
        Number of placements that were evaluated.
    seconds : float
        Wall time of the search.
    curve : float64[K, 2]
        Rows of (evaluations so far, best runtime so far in seconds); the first column never falls.

    Examples
    --------
    >>> PlacementResult(
    ...     placement=[0, 1], runtime=0.25, peak_memory=[60, 40],
    ...     evaluations=2, seconds=0.001, curve=[[1, 0.5], [2, 0.25]],
    ... ).curve[-1]
    array([2.  , 0.25])
    """

    placement: NDArray[np.int32]
    runtime: float
    peak_memory: NDArray[np.int64]
    evaluations: int
    seconds: float
    curve: NDArray[np.float64]

    def __post_init__(self) -> None:
        self._check("placement", int_array, np.int32, (None,))
        self._check("runtime", number, infinity_is="it cannot run")
        self._check("peak_memory", int_array, np.int64, (None,))
        self._check("evaluations", integer)
        self._check("seconds", number)
        self._check("curve", float_array, (None, 2), infinity_is="none can run so far")
        curve = self.curve
        falls = np.diff(curve[:, 0]) < 0
        if falls.any():
            row = int(np.argmax(falls)) + 1
            raise GraphError(
                f"curve[{row}, 0]: expected at least {curve[row - 1, 0]:g} placements, "
                f"got {curve[row, 0]:g}"
            )

    def fits(self, cluster: Cluster) -> bool:
        """Return whether no device holds more than its memory; otherwise it runs out of memory.

        Parameters
        ----------
        cluster
            Cluster of the problem, with D devices.

        Raises
        ------
        GraphError
            When the cluster has another number of devices.
        """
        if cluster.num_devices != len(self.peak_memory):
            raise GraphError(
                f"cluster: expected {len(self.peak_memory)} devices, got {cluster.num_devices}"
            )
        return bool((self.peak_memory <= cluster.memory_bytes).all())
