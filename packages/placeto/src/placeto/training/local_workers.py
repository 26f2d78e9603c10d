"""What the processes of one training, which `torchrun` started, agree on."""

import torch

from placeto.stopping import StopRequest
from placeto_policy.workers import Processes


def agreed_to_stop(processes: Processes, stop: StopRequest) -> bool:
    """Return True if any process has a request to stop: all stop at the same update."""
    wishes = torch.tensor([float(stop.requested)])
    processes.sum(wishes)
    return bool(wishes[0] > 0)
