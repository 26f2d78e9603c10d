"""From a PyTorch model to the graph of its training step."""

from typing import Any

from torch import nn

from placeto_graphs import OpGraph
from placeto_workloads.capture.op_graph import op_graph_of
from placeto_workloads.capture.step import LossFunction
from placeto_workloads.capture.step import OptimizerFactory
from placeto_workloads.capture.step import trace_step


def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
) -> OpGraph:
    """Return the graph of the ATen ops of one step of a model.

    Examples
    --------
    >>> import torch
    >>> graph = capture(torch.nn.Linear(4, 2), torch.empty(8, 4))
    """
    return op_graph_of(trace_step(model, example_inputs, loss_fn, optimizer, mode))
