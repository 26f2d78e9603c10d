"""What a placement costs: a simulator of a training step on several devices."""

from placeto_simulator.errors import SimulationError
from placeto_simulator.simulator import Simulator
from placeto_simulator.timeline import Event, PathStep, Timeline

__version__ = "0.3.0"

__all__ = [
    "Event",
    "PathStep",
    "SimulationError",
    "Simulator",
    "Timeline",
]
