"""Where computation graphs come from.

The capture of training steps from PyTorch models, cost models that give each op a time on each kind
of device, the models of the experiments, and families of generated graphs. Everything that it makes
is an ``OpGraph`` of ``placeto_graphs``.
"""

from placeto_workloads.capture.capture import capture
from placeto_workloads.errors import WorkloadError
from placeto_workloads.profiling.profiler import profile

__version__ = "0.1.0"

__all__ = [
    "WorkloadError",
    "capture",
    "profile",
]
