"""The phase of a training step that runs: forward, backward or update."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.fake_memory import FakeMemory
from placeto_capture.tracing.fake_objects import FakeObjects, tensors_in_state
from placeto_capture.tracing.origins import ModuleScopes
from placeto_capture.tracing.step_spec import TracingOptions
from placeto_capture.tracing.trace import GRADIENT, Call
from placeto_capture.tracing.tracer import Tracer
from placeto_graphs import Phase

OUTSIDE = "loss"  # the scope of what runs in no module
OPTIMIZER = "optimizer"  # the scope of updates that belong to no weight


class StepPhases:
    """Tells a tracer in which phase of a step each op runs.

    Between the last backward pass and ``step()``, and after it, ops without gradients are updates.
    """

    def __init__(
        self, tracer: Tracer, fake_mode: FakeTensorMode, objects: FakeObjects, are_fused: bool
    ) -> None:
        self._tracer = tracer
        self._are_fused = are_fused  # all updates, also of optimizers that do not say it
        self._fake_mode = fake_mode
        self._objects = objects
        self._unsettled: int | None = None  # first op after the last backward pass or update
        self._phase_before = Phase.FORWARD  # of the update that runs
        self._depth = 0  # of calls of optimizers' steps inside each other
        # Optimizers, which are held, by identity: those that have stepped, and which are fused.
        self._stepped: set[int] = set()
        self._is_fused: dict[int, bool] = {}
        self.cleared: set[str] = set()  # gradients, by name, before anything else was done
        self._backward = torch.autograd.backward
        engine = torch.autograd.graph._engine_run_backward
        self._run_engine = partial(tracer.passes.run, engine)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what runs inside."""
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_update).remove)
            stack.enter_context(mock.patch.object(torch.autograd, "backward", self._in_backward))
            stack.enter_context(
                mock.patch.object(torch.autograd, "_engine_run_backward", self._in_engine)
            )
            stack.enter_context(self._patch_scaler())
            # Numbers on a CPU would be changed one by one, by what is one tensor for all of them.
            is_cpu: Any = property(lambda tensor: tensor.device.type == "cpu" and not self._depth)
            stack.enter_context(mock.patch.object(FakeTensor, "is_cpu", is_cpu, create=True))
            for kind in (torch.optim.Optimizer, nn.Module):
                stack.enter_context(self._patch_clearing(kind))
            self._enter(Phase.FORWARD)
            yield
            self._tracer.update += 1
            self._settle()
            for optimizer in self._objects.optimizers:
                if id(optimizer) not in self._stepped:
                    self._add_state(optimizer)  # it is there nevertheless

    def _patch_scaler(self) -> Any:
        """Put back what is in a gradient scaler, also in one that was not given."""
        scale = torch.amp.GradScaler.scale

        def hold_and_scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            with _disable_current_modes():
                self._objects.hold(scaler)
            return scale(scaler, outputs)

        return mock.patch.object(torch.amp.GradScaler, "scale", hold_and_scale)

    def _patch_clearing(self, kind: Any) -> Any:
        """Note the gradients that are cleared before anything else is done."""
        clear = kind.zero_grad

        def cleared(holder: Any, set_to_none: bool = True) -> None:
            if set_to_none and not any(isinstance(op, Call) for op in self._tracer.ops):
                is_module = isinstance(holder, nn.Module)
                groups = [{"params": holder.parameters()}] if is_module else holder.param_groups
                weights = (weight for group in groups for weight in group["params"])
                self.cleared.update(f"{self._objects.names.get(id(w))}{GRADIENT}" for w in weights)
            clear(holder, set_to_none)

        return mock.patch.object(kind, "zero_grad", cleared)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record nothing inside, where another tracer answers questions for values."""
        memory = FakeMemory([], [], self._fake_mode)
        options = TracingOptions(mask_fraction=1.0)
        apart = Tracer(memory, ModuleScopes(), options, self._tracer.results)
        apart.phase, apart.update = Phase.UPDATE, 1  # so that norms are known
        with _disable_current_modes(), self._fake_mode, apart:
            yield

    def _enter(self, phase: Phase) -> None:
        self._tracer.phase = phase
        self._tracer.scope = OPTIMIZER if phase == Phase.UPDATE else OUTSIDE

    def _in_backward(self, *args: Any, **keywords: Any) -> None:
        with self._backward_phase():
            self._backward(*args, **keywords)

    def _in_engine(self, outputs: Any, *args: Any, **keywords: Any) -> Any:
        _, _, creates_graph, *_ = args
        is_forward = creates_graph or self._tracer.scopes.paths  # whose gradients these are
        with nullcontext() if is_forward else self._backward_phase():
            return self._run_engine(outputs, *args, **keywords)

    @contextmanager
    def _backward_phase(self) -> Iterator[None]:
        phase = self._tracer.phase
        if phase != Phase.BACKWARD:
            self._tracer.passes.begin(self._tracer.ops)
        self._enter(Phase.BACKWARD)
        yield
        self._enter(phase)
        if phase != Phase.BACKWARD:
            self._tracer.passes.comes_after = []
            self._unsettled = len(self._tracer.ops)
            self._tracer.hold_what_lives()

    def _settle(self) -> None:
        """Let what ran since the last backward pass, or update, be a part of the update."""
        if self._unsettled is not None:
            self._enter(Phase.UPDATE)
            self._tracer.count_as_update(self._unsettled, OUTSIDE)
        self._unsettled = None

    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        if isinstance(optimizer, torch.optim.LBFGS):
            raise CaptureError(
                "optimizer: expected one that runs the same ops in each step, got LBFGS, which "
                "evaluates its closure as often as the loss demands; capture one evaluation, with "
                "torch.optim.SGD in its place"
            )
        with _disable_current_modes():
            self._objects.hold(optimizer)
        self._tracer.update += 1
        groups = optimizer.param_groups
        is_fused = self._are_fused or any(group.get("fused") for group in groups)
        if self._is_fused.setdefault(id(optimizer), is_fused):
            self._tracer.fused.add(self._tracer.update)
        for group in groups:
            # Those of `capturable` are for graphs of CUDA, and are refused on a CPU.
            group.update({name: False for name in ("fused", "capturable") if group.get(name)})
            if self._is_fused[id(optimizer)] and "foreach" in group:
                group["foreach"] = False  # one weight after the other
        self._phase_before = self._tracer.phase
        closure = keywords.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            args, keywords = (optimizer,), {"closure": lambda: loss}
        if id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))
            if id(optimizer) not in self._objects.optimizers_with_state:
                with self.unrecorded(), alike_weights_share_a_step(optimizer):
                    optimizer.step(*args[1:], **keywords)  # which makes the optimizer's state
        self._add_state(optimizer)
        self._settle()
        self._enter(Phase.UPDATE)
        self._tracer.hold_what_lives()
        return args, keywords

    def _add_state(self, optimizer: torch.optim.Optimizer) -> None:
        for weight in [weight for group in optimizer.param_groups for weight in group["params"]]:
            name = self._objects.names.get(id(weight))
            if name is not None:  # else it was made in the step
                state = dict(tensors_in_state(name, optimizer.state.get(weight, {})))
                self._tracer.add_state(weight, state)

    def _after_update(self, _optimizer: Any, _args: Any, _keywords: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._enter(self._phase_before)
            self._unsettled = len(self._tracer.ops)


@contextmanager
def alike_weights_share_a_step(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let PyTorch's own optimizers step one weight of each kind, and copy its state for others."""
    if not type(optimizer).__module__.startswith(torch.optim.__name__):
        yield
        return
    weights_of_groups = [group["params"] for group in optimizer.param_groups]
    first_of_kind: dict[Any, torch.Tensor] = {}
    firsts_of_groups = [
        [first_of_kind.setdefault((index, *kind_of(weight)), weight) for weight in weights]
        for index, weights in enumerate(weights_of_groups)
    ]
    for group, firsts in zip(optimizer.param_groups, firsts_of_groups, strict=True):
        group["params"] = list(dict.fromkeys(firsts))
    try:
        yield
    finally:
        for group, weights in zip(optimizer.param_groups, weights_of_groups, strict=True):
            group["params"] = weights
    for weight, first in zip(chain(*weights_of_groups), chain(*firsts_of_groups), strict=True):
        if weight is not first and first in optimizer.state:
            optimizer.state[weight] = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in optimizer.state[first].items()
            }


def kind_of(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return what decides which state an optimizer keeps for a weight."""
    tensors = (weight,) if weight.grad is None else (weight, weight.grad)
    return tuple((tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors)
