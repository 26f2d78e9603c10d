"""From a PyTorch model to the graph of its training step."""

from typing import Any

from torch import nn

from placeto_capture.tracing.kernels import Target
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.step import LossFunction, OptimizerFactory, trace_step
from placeto_graphs import OpGraph


def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
    target: Target = "gpu",
    mask_fraction: float | None = None,
) -> OpGraph:
    """Return the graph of the ATen ops of one step of a model.

    The step runs on fake tensors (`torch._subclasses.FakeTensorMode`), which have a shape and a
    dtype but neither memory nor values, and each ATen op of its forward pass, loss, backward pass
    and optimizer update is recorded in the order in which it runs. Nothing is computed, and the
    model stays as it is. Where a step asks for values, those are known that follow from constants,
    buffers, whole or boolean numbers among the inputs, and random draws, which are those of one
    step; of others it is assumed that checks pass, numbers are finite and choices fair. Of the two
    branches of `torch.cond` on a tensor the one with more FLOPs is recorded.

    Parameters
    ----------
    model
        The model, on any device, also the meta device, which needs no memory for weights. An LSTM
        or GRU is captured in its single ops, as any device can run them. For training the model is
        captured as it is if it is in training mode (so submodules may be in evaluation mode), else
        it is put into it.
    example_inputs
        Its positional arguments as a tuple, or its keyword arguments as a mapping; a single tensor
        is a tuple of one. Only the shapes, strides and dtypes of tensors matter, but for whole and
        boolean numbers that the model makes decisions by.
    loss_fn
        Takes what the model returns, gives the loss. The default is what the model itself calls
        the loss, ``outputs.loss`` or ``outputs["loss"]``; else the one scalar that it returns, if
        all weights are behind it that are behind its other outputs; else, if it returns no scalar,
        the sum of the means of its floating-point tensors.
    optimizer
        Takes a list of parameters, gives a `torch.optim.Optimizer`, such as
        ``functools.partial(torch.optim.SGD, lr=0.1)``; Adam by default. The step is not the first
        one of the training: the optimizer's state is there. The update of each parameter is one
        op of type ``"placeto.update"``, as of fused optimizers.
    mode
        ``"training"``, or ``"inference"`` for the forward pass alone, without gradients.
    target
        The device whose kernels run: ``"gpu"``, where dropout is one op, or ``"cpu"``. On either
        attention is one op forward and one backward, unless its weights are dropped or its mask is
        learned.
    mask_fraction
        Which part of all elements is picked where that depends on values that are not known, by a
        mask, ``nonzero`` or ``unique``: above 0 and up to 1, which is an upper bound. By default
        such a step is refused.

    Returns
    -------
    OpGraph
        The V ops in the order in which they ran. What is there before the step comes as ops of type
        ``"parameter"`` (with ``parameter_bytes`` for the weights and what the optimizer keeps for
        them), ``"buffer"`` and ``"input"``, which take no time; those that overlap in memory, as
        tied weights do, are one op. Tensors are storages: views, aliases and uninitialised memory
        are part of the op that writes them. `placeto_capture.tracing.op_graph` says how in-place
        ops appear, and `placeto_capture.tracing.counting` what ``flops`` and ``bytes_accessed``
        count.
        ``colocation`` ties gradient ops to the forward op they belong to, updates to their
        parameter, and ops that write a buffer to the buffer. ``scopes`` are paths of modules,
        ``"loss"`` for what the loss function runs.

    Raises
    ------
    CaptureError
        When a mode or a fraction is none of these, or the model returns several
        scalars or one that leaves weights out, so that a loss function is needed. When the step
        fails or depends on values of weights or of floating-point inputs; the message then begins
        with the path of the module where that happens, and ends with the line of its code.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> with torch.device("meta"):
    ...     model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ...     batch = torch.empty(16, 4)
    >>> graph = capture(model, batch, mode="inference")
    >>> [name for name, kind in zip(graph.op_names, graph.op_types) if kind.startswith("aten")]
    ['0/aten.addmm', '1/aten.relu', '2/aten.addmm']
    >>> capture(model, batch)
    OpGraph(ops=21, tensors=34, edges=29)
    """
    trace = trace_step(model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction)
    return op_graph_of(trace)
