"""Where computation graphs come from, and what their ops cost.

Everything that is made here is an ``OpGraph`` of ``placeto_graphs``.
"""

from placeto_workloads.costs.kinds import DEVICE_KINDS
from placeto_workloads.costs.kinds import DeviceKind
from placeto_workloads.costs.kinds import Efficiency
from placeto_workloads.costs.roofline import cost_model
from placeto_workloads.errors import WorkloadError

__version__ = "0.1.0"

__all__ = [
    "DEVICE_KINDS",
    "DeviceKind",
    "Efficiency",
    "WorkloadError",
    "cost_model",
]
