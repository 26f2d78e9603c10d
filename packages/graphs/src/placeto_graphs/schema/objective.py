"""The objective of a placement: its runtime, and a penalty where it does not fit the memory."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeto_graphs.schema.arrays import float_array, number
from placeto_graphs.schema.evaluation import EvaluationBatch

SECONDS_PER_BYTE = 2e-9
"""What memory that a device lacks costs: 2 s/GB, Addanki et al. 2019."""


def memory_penalised_runtime(
    batch: EvaluationBatch, limit: ArrayLike, scale: float = SECONDS_PER_BYTE
) -> NDArray[np.float64]:
    """Return the memory-penalised runtime of each placement.

    ``R(p) = r`` where the largest peak memory ``m`` over the devices is at most the limit ``M``,
    and ``r + c (m - M)`` where it is more (Addanki et al. 2019).

    Parameters
    ----------
    batch
        What B placements cost on D devices.
    limit : number or numbers[D]
        M, the bytes that each device has, at least 0; infinity is no limit. Of several limits the
        one that is exceeded most counts.
    scale
        c, in seconds per byte: finite, at least 0.

    Returns
    -------
    float64[B]
        Seconds.

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
    float_array("limit", limit, shape, infinity_is="no limit")
    # Whole numbers stay so: beyond 2^53 a float64 would round them.
    excess = (batch.peak_memory - np.asarray(limit)).max(axis=1, initial=0)
    penalised: NDArray[np.float64] = batch.runtime + number("scale", scale) * excess
    return penalised
