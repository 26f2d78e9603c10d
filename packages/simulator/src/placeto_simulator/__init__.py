"""Costs of placements: a simulator of a training step on several devices."""

from placeto_simulator.errors import SimulationError
from placeto_simulator.simulator import Simulator
from placeto_simulator.throughput import ThroughputEvaluator
from placeto_simulator.timeline import PathStep, Timeline

__version__ = "0.3.0"

__all__ = [
    "PathStep",
    "SimulationError",
    "Simulator",
    "ThroughputEvaluator",
    "Timeline",
]
