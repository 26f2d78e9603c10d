"""Costs of placements: a simulator of a training step on several devices."""

import warnings
from typing import TYPE_CHECKING, Any

from placeto_simulator.contention_free import ContentionFreeEvaluator
from placeto_simulator.errors import SimulationError
from placeto_simulator.simulator import Simulator
from placeto_simulator.throughput import ThroughputEvaluator
from placeto_simulator.timeline import PathStep, SimEvent, Timeline

__version__ = "0.3.0"

__all__ = [
    "ContentionFreeEvaluator",
    "PathStep",
    "SimEvent",
    "SimulationError",
    "Simulator",
    "ThroughputEvaluator",
    "Timeline",
]

if not TYPE_CHECKING:  # a name that is not there stays an error of types

    def __getattr__(name: str) -> Any:
        if name != "Event":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn("Event is called SimEvent now", DeprecationWarning, stacklevel=2)
        return SimEvent
