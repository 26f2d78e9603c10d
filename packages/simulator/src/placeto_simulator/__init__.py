"""What a placement costs: the simulator of a training step on several devices, and its objective.

So far the package holds the objective, `memory_penalised_runtime`.
"""

from placeto_simulator.objective import memory_penalised_runtime

__version__ = "0.1.0"

__all__ = ["memory_penalised_runtime"]
