"""Where computation graphs come from, and what their ops cost.

The capture of training steps from PyTorch models, cost models that give each op a time on each kind
of device, the models of the experiments, and families of generated graphs. Everything that it makes
is an ``OpGraph`` of ``placeto_graphs``.
"""

from placeto_workloads.capture.capture import capture
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
    "capture",
    "cost_model",
]
