"""What a placement costs, memory included."""

import numpy as np
from numpy.typing import NDArray

from placeto_graphs import memory_penalised_runtime
from placeto_simulator import Simulator


def cost_of(simulator: Simulator, placement: NDArray[np.int32]) -> float:
    """Return the memory-penalised runtime of a placement int32[G], in seconds.

    Parameters
    ----------
    simulator
        Of the problem.
    placement
        The device of each group.
    """
    memory = [device.memory_bytes for device in simulator.problem.cluster.devices]
    return float(memory_penalised_runtime(simulator.evaluate(placement[None]), memory)[0])
