"""From a PyTorch model to the graph of its step.

`capture` runs a step of a copy of the model on fake tensors (`fake_memory`), in a PyTorch that is
patched (`patches`), under a dispatch mode (`tracer`) that records a `trace`; `op_graph` makes a
graph of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.fake_memory import FakeModel, NamedTensors
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.origins import ModuleScopes, failed_line, nodes_behind
from placeto_capture.tracing.patches import TARGETS, Target, patched_torch
from placeto_capture.tracing.trace import UPDATES, Trace, Updates
from placeto_capture.tracing.tracer import Tracer
from placeto_capture.tracing.updates import with_barriers, with_whole_updates
from placeto_graphs import OpGraph, Phase

MODES = ("training", "inference")
_WORKING_OPTIMIZERS = "torch.optim.SGD, Adam and AdamW"

LossFunction = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
    target: Target = "gpu",
    mask_fraction: float | None = None,
    updates: Updates = "after-backward",
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
        Model on any device, also the meta device, which needs no memory for weights. An LSTM
        or GRU is captured in its single ops, as any device can run them. For training the model is
        captured as it is if it is in training mode (so submodules may be in evaluation mode), else
        it is put into it.
    example_inputs
        Positional arguments of the model as a tuple, or keyword arguments as a mapping; a single
        tensor is a tuple of one. Only the shapes, strides and dtypes of tensors matter, but for
        whole and boolean numbers that the model makes decisions by.
    loss_fn
        Function from the model's outputs to the loss. The default is what the model itself calls
        the loss, ``outputs.loss`` or ``outputs["loss"]``; else the one scalar that it returns, if
        all weights are behind it that are behind its other outputs; else, if it returns no scalar,
        the sum of the means of its floating-point tensors.
    optimizer
        Function from a list of parameters to a `torch.optim.Optimizer`, such as
        ``functools.partial(torch.optim.SGD, lr=0.1)``; Adam by default. The step is not the first
        one of the training: the optimizer's state is there. The update of each parameter is one
        op of type ``"placeto.update"``, as of fused optimizers.
    mode
        ``"training"``, or ``"inference"`` for the forward pass alone, without gradients.
    target
        Device whose kernels run: ``"gpu"``, where dropout is one op, and RMSNorm one forward and
        one backward, or ``"cpu"``. On either attention is one op forward and one backward; on a CPU
        unless its weights are dropped or its mask is learned.
    mask_fraction
        Part of all elements that is picked where that depends on values that are not known, by a
        mask, ``nonzero`` or ``unique``: above 0 and up to 1, which is an upper bound. By default
        such a step is refused.
    updates
        When the optimizer updates: ``"after-backward"``, as a training loop of PyTorch does, with
        all gradients in memory; or ``"as-ready"``, each weight as soon as its gradient is there, as
        TensorFlow does. Of the latter kind of step nothing but its tensors says what comes first.

    Returns
    -------
    OpGraph
        The V ops in the order in which they ran. What is there before the step comes as ops of type
        ``"parameter"`` (with ``parameter_bytes`` for the weights and what the optimizer keeps for
        them), ``"buffer"`` and ``"input"``, which take no time; those that overlap in memory, as
        tied weights do, are one op. Tensors are storages: views, aliases and uninitialised memory
        are part of the op that writes them. `placeto_capture.tracing.op_graph` says how in-place
        ops appear, and `placeto_capture.tracing.functions` what ``flops`` and ``bytes_accessed``
        count.
        ``colocation`` ties gradient ops to the forward op they belong to, updates to their
        parameter, and ops that write a buffer to the buffer. ``scopes`` are paths of modules,
        ``"loss"`` for what the loss function runs, and ``"optimizer"`` for what is of no weight.
        ``waits`` say what comes first where tensors do not: an op of type ``"placeto.barrier"``,
        which takes no time, waits for the end of the backward pass, and updates wait for it; a
        gradient op of saved values alone, such as one that computes activations again, waits until
        the backward pass has come to it; a write waits for what reads the values that it replaces.
        ``held_tensors`` are inputs, outputs, loss and gradients, which a training loop holds until
        the end of the step. ``workspace_bytes`` of an update are those of an optimizer with
        ``foreach=False``.

    Raises
    ------
    CaptureError
        If a mode, a time of updates or a fraction is none of these, or the model returns several
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
    OpGraph(ops=22, tensors=33, edges=28)
    """
    trace = trace_step(
        model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction, updates
    )
    return op_graph_of(trace)


def trace_step(
    model: nn.Module,
    example_inputs: Any,
    loss_fn: LossFunction | None,
    optimizer: OptimizerFactory | None,
    mode: str,
    target: Target = "gpu",
    mask_fraction: float | None = None,
    updates: Updates = "after-backward",
) -> Trace:
    """Return what ran in one step; the parameters are those of `capture`."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if mode not in MODES:
        raise CaptureError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if mask_fraction is not None and not 0 < mask_fraction <= 1:
        raise CaptureError(
            f"mask_fraction: expected a number above 0 and up to 1, or None, got {mask_fraction}"
        )
    if target not in TARGETS:
        raise CaptureError(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
    if updates not in UPDATES:
        raise CaptureError(f"updates: expected one of {', '.join(UPDATES)}, got {updates!r}")
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with patched_torch(target, fake_mode):
        step = _Step(model, example_inputs, mask_fraction, fake_mode)
        with step.model.in_place_of_the_model():
            if mode == "inference":
                trace = step.inference()
            else:
                trace = step.training(loss_fn or default_loss, optimizer or torch.optim.Adam)
    trace = replace(with_whole_updates(trace), updates=updates)
    return trace if updates == "as-ready" else with_barriers(trace)


class _Step:
    """One step of a copy of a model."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        mask_fraction: float | None,
        fake_mode: FakeTensorMode,
    ) -> None:
        leaves, structure, inputs = _flattened(example_inputs)
        self.model = FakeModel(model, inputs, fake_mode)
        self._fake_mode = fake_mode
        self._module = self.model.module
        self._scopes = ModuleScopes(self._module)
        self._tracer = Tracer(self.model.memory, self._scopes, mask_fraction)
        fake_of = self.model.memory.fake_of
        fakes = pytree.tree_unflatten([fake_of.get(id(leaf), leaf) for leaf in leaves], structure)
        self._args: tuple[Any, ...] = () if isinstance(fakes, dict) else fakes
        self._kwargs: dict[str, Any] = fakes if isinstance(fakes, dict) else {}

    def inference(self) -> Trace:
        """Run the forward pass."""
        self._module.eval()
        with torch.no_grad(), self._fake_mode:
            outputs = self._forward()
        leaves = enumerate(_tensors_in(outputs))
        return self._tracer.trace({f"output.{number}": tensor for number, tensor in leaves})

    def training(self, loss_fn: LossFunction, optimizer: OptimizerFactory) -> Trace:
        """Run the forward pass, the loss, the backward pass and the optimizer's update."""
        if not self._module.training:
            self._module.train()
        with torch.enable_grad(), self._fake_mode:
            update = self._optimizer(optimizer)
            outputs = self._forward()
            with self._naming_failures("loss_fn"), self._tracer.recording(Phase.FORWARD, "loss"):
                loss = loss_fn(outputs)
            _check_loss(loss)
            self._tracer.hold(_tensors_in(outputs))
            del outputs
            with self._naming_failures("backward"), self._tracer.recording(Phase.BACKWARD, "loss"):
                loss.backward()  # type: ignore[no-untyped-call]
            self._update(update)
        results = {"loss": loss}
        for name, parameter in self._module.named_parameters():
            if parameter.grad is not None:
                results[f"{name}.grad"] = parameter.grad
        return self._tracer.trace(results)

    def _forward(self) -> Any:
        with self._naming_failures("model"), self._tracer.recording(Phase.FORWARD, ""):
            return self._module(*self._args, **self._kwargs)

    def _optimizer(self, factory: OptimizerFactory) -> torch.optim.Optimizer:
        with self._naming_failures("optimizer"):
            optimizer = factory(list(self._module.parameters()))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise CaptureError(
                "optimizer: expected a function that gives a torch.optim.Optimizer, "
                f"got one that gives {type(optimizer).__name__}"
            )
        for group in optimizer.param_groups:
            # One set of ops per parameter, so that each can be where its parameter is.
            group.update({name: False for name in ("foreach", "fused") if name in group})
        return optimizer

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the second update: the first one only makes the optimizer's state."""
        with self._naming_failures("optimizer"):
            optimizer.step()
        for name, parameter in self._module.named_parameters():
            state = optimizer.state.get(parameter, {}).items()
            tensors = {
                f"{name}.{k}": value for k, value in state if isinstance(value, torch.Tensor)
            }
            self._tracer.add_state(parameter, tensors)
        recording = self._tracer.recording(Phase.UPDATE, "optimizer")
        with self._naming_failures("optimizer"), recording:
            optimizer.step()

    @contextmanager
    def _naming_failures(self, part: str) -> Iterator[None]:
        """Put the module that failed, or the part of the step, in front of an error."""
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{error}{failed_line(error)}") from error
        except DataDependentOutputException as error:
            raise CaptureError(
                f"{part}: expected one that does not ask for values of tensors, as "
                f"{_WORKING_OPTIMIZERS} do not, got one that does"
            ) from error
        except Exception as error:
            place = self._scopes.failed(error) or part
            message = " ".join(str(error).split())
            if part == "optimizer":
                message += f"; {_WORKING_OPTIMIZERS} can be captured"
            line = failed_line(error)
            raise CaptureError(f"{place}: {type(error).__name__}: {message}{line}") from error


def _tensors_in(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = (
            f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        )
        raise CaptureError(f"loss_fn: expected one that gives a scalar tensor, got {got}")
    if not loss.requires_grad:
        raise CaptureError(
            "loss_fn: expected a loss that depends on a parameter that requires a gradient, "
            "got one that depends on none"
        )


def _flattened(example_inputs: Any) -> tuple[list[Any], pytree.TreeSpec, NamedTensors]:
    """Return the leaves of inputs, their structure, and the tensors among them, each once."""
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    if not isinstance(example_inputs, (tuple, list, Mapping)):
        raise CaptureError(
            "example_inputs: expected a tensor, a tuple or a mapping, "
            f"got {type(example_inputs).__name__}"
        )
    leaves, structure = pytree.tree_flatten_with_path(
        dict(example_inputs) if isinstance(example_inputs, Mapping) else tuple(example_inputs)
    )
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            named.setdefault(id(leaf), (input_name(path), leaf))
    return [leaf for _, leaf in leaves], structure, list(named.values())


def input_name(path: Iterable[Any]) -> str:
    """Return the name of what is at a path in the inputs, such as ``"input.0"``."""
    return ".".join(["input", *map(_key, path)])


def _key(key: Any) -> str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def default_loss(outputs: Any) -> torch.Tensor:
    """Return the loss of a model's outputs.

    Parameters
    ----------
    outputs
        Outputs of the model, with gradients recorded.

    Returns
    -------
    `torch.Tensor`
        ``outputs["loss"]`` or ``outputs.loss`` if it is there; else the one scalar among the
        outputs, if no other output depends on weights or inputs that it does not depend on; else,
        without scalars, the sum of the means of all floating-point outputs.

    Raises
    ------
    CaptureError
        If there are several scalars, or one that leaves a part of the network out, as a scale or
        the loss of a router does: which one is meant then stands in nothing but a loss function.

    Examples
    --------
    >>> weight = torch.ones(3, requires_grad=True)
    >>> scores = weight * torch.arange(3.0)
    >>> default_loss({"loss": scores.sum(), "scores": scores}).item()
    3.0
    >>> default_loss(scores).item()
    1.0
    """
    named = _named_loss(outputs)
    if named is not None:
        return named
    floating = _floating(outputs)
    scalars = [leaf for leaf in floating if leaf.dim() == 0]
    if scalars:
        return _checked_scalar(scalars, floating)
    return _sum_of_means(floating)


def _sum_of_means(floating: Sequence[torch.Tensor]) -> torch.Tensor:
    total = floating[0].mean()
    for leaf in floating[1:]:
        total = total + leaf.mean()
    return total


def _floating(outputs: Any) -> list[torch.Tensor]:
    floating = [leaf for leaf in _tensors_in(outputs) if leaf.is_floating_point()]
    if not floating:
        raise CaptureError("loss_fn: expected one, as the model gives no floating-point tensor")
    return floating


def _named_loss(outputs: Any) -> torch.Tensor | None:
    """Return what is called the loss; None also where it is None, as for a model without labels."""
    if isinstance(outputs, Mapping) and "loss" in outputs:
        loss = outputs["loss"]
    else:
        loss = getattr(outputs, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else None


def _checked_scalar(scalars: list[torch.Tensor], floating: list[torch.Tensor]) -> torch.Tensor:
    """Return the scalar that all of the network is behind, if there is no other to choose."""
    # A number that nothing can learn from, such as an accuracy, is no loss.
    candidates = [scalar for scalar in scalars if scalar.requires_grad] or scalars
    distinct = {id(scalar): scalar for scalar in candidates}
    if len(distinct) > 1:
        raise CaptureError(
            "loss_fn: expected one, as the model gives no output named loss, "
            f"and {len(distinct)} scalars"
        )
    (scalar,) = distinct.values()
    leaves = _leaves_behind(floating)
    reached = len(_leaves_behind([scalar]))
    if reached < len(leaves):
        raise CaptureError(
            "loss_fn: expected one, as the model gives no output named loss, and its one scalar "
            f"depends on {reached} of the {len(leaves)} weights that its outputs depend on"
        )
    return scalar


def _leaves_behind(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """Return the nodes of autograd's graph that stand for the weights behind some tensors."""
    nodes = nodes_behind(tensor for tensor in tensors if tensor.requires_grad)
    return {node for node in nodes if all(before is None for before, _ in node.next_functions)}
