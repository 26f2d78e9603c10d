"""How long a step lasts because ops that could run side by side are too many for the devices."""

import numpy as np

from placeto_baselines.bounds.paths import Paths
from placeto_baselines.bounds.relaxed_ops import relax_ops
from placeto_graphs import PlacementProblem


def crowding_bound(problem: PlacementProblem, paths: Paths) -> float:
    """Return a lower bound from regions between ops (`bounds.regions`) and windows of time.

    Devices are told apart by their number and speed only, so that it holds for any of them, for
    any links and any order in which a device takes its ops. It needs no solver.
    """
    # Numba takes half a second to import.
    from placeto_baselines.bounds import (  # noqa: PLC0415
        regions,
        windows,
    )

    ops = relax_ops(problem, paths)
    band = min(regions.BAND, problem.graph.num_ops)
    lags = regions.region_lags(ops, band, regions.LARGEST_REGION, regions.LEVELS)
    head = windows.heads(ops, lags)
    tail = windows.heads(ops.reversed(), lags.reversed())[::-1].copy()
    order = np.argsort(-head)
    return windows.window_bound(ops, head, tail, order, windows.window_ends(tail))
