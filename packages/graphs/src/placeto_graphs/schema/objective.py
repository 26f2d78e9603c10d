"""The objective of a placement: its runtime, and a penalty where it does not fit the memory."""

import numpy as np
from numpy.typing import ArrayLike
from numpy.typing import NDArray

from placeto_graphs.schema.evaluation import EvaluationBatch

SECONDS_PER_BYTE = 2e-9  # 2 s/GB, Addanki et al. 2019


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
    limit : int or int64[D]
        M, the bytes that each device has; of several limits the one that is exceeded most counts.
    scale
        c, in seconds per byte.

    Returns
    -------
    float64[B]
        Seconds.

    Raises
    ------
    ValueError
        When there are several limits, and not one for each device.

    Examples
    --------
    >>> batch = EvaluationBatch(runtime=[1.0, 1.0], peak_memory=[[5, 9], [10, 13]])
    >>> memory_penalised_runtime(batch, limit=10, scale=0.5)
    array([1. , 2.5])
    """
    limits = np.asarray(limit)
    num_devices = batch.peak_memory.shape[1]
    if limits.shape not in {(), (num_devices,)}:
        raise ValueError(f"limit: expected one, or {num_devices} of them, got {limits.shape}")
    excess = (batch.peak_memory - limits).max(axis=1, initial=0)
    penalised: NDArray[np.float64] = batch.runtime + scale * excess
    return penalised
