"""Runs one step of a model on fake tensors, and records it."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.conditions import dearer_branches
from placeto_capture.tracing.conversions import numbers_become_text, weights_stay
from placeto_capture.tracing.default_loss import default_loss
from placeto_capture.tracing.fake_memory import NamedTensors
from placeto_capture.tracing.fake_tensors import FakeModel
from placeto_capture.tracing.kernels import TARGETS, Target, kernels_of
from placeto_capture.tracing.scopes import ModuleScopes, failed_line
from placeto_capture.tracing.trace import Trace
from placeto_capture.tracing.tracer import Tracer
from placeto_capture.tracing.updates import with_whole_updates
from placeto_graphs import Phase

MODES = ("training", "inference")
_WORKING_OPTIMIZERS = "torch.optim.SGD, Adam and AdamW"

LossFunction = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


def trace_step(
    model: nn.Module,
    example_inputs: Any,
    loss_fn: LossFunction | None,
    optimizer: OptimizerFactory | None,
    mode: str,
    target: Target = "gpu",
    mask_fraction: float | None = None,
) -> Trace:
    """Return what ran in one step; the parameters are those of `placeto_workloads.capture`."""
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
    with _nothing_of_the_caller(), kernels_of(target), numbers_become_text():
        step = _Step(model, example_inputs, mask_fraction)
        with step.model.in_place_of_the_model(), weights_stay():
            if mode == "inference":
                return step.inference()
            trace = step.training(loss_fn or default_loss, optimizer or torch.optim.Adam)
    return with_whole_updates(trace)


class _Step:
    """One step of a copy of a model."""

    def __init__(self, model: nn.Module, example_inputs: Any, mask_fraction: float | None) -> None:
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
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
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        return self._tracer.trace({f"output.{number}": t for number, t in enumerate(leaves)})

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
        recording = self._tracer.recording(Phase.FORWARD, "")
        with self._naming_failures("model"), dearer_branches(self._fake_mode), recording:
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


@contextmanager
def _nothing_of_the_caller() -> Iterator[None]:
    """Run what is inside apart from the caller's modes, settings and random numbers."""
    log = logging.getLogger(FakeTensorMode.__module__)  # it prints errors before it raises them
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        yield


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
