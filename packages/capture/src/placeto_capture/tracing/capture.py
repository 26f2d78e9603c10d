"""From a PyTorch model to the graph of its step.

`capture_function` lets modules and optimizers hold fake tensors (`fake_objects`). It runs a step of
them in a patched PyTorch (`patches`), under a dispatch mode (`tracer`) that records a `trace`.
`op_graph` makes a graph of the trace. `capture` does so with the usual step of a model.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placeto_capture.errors import CaptureError, CaptureWarning, StepError
from placeto_capture.tracing.default_loss import default_loss, tensors_in
from placeto_capture.tracing.devices import Target, autocast_around
from placeto_capture.tracing.fake_objects import FakeObjects
from placeto_capture.tracing.lifetimes import with_frees, with_state, without_collection
from placeto_capture.tracing.op_graph import op_graph_of
from placeto_capture.tracing.origins import LEFT_MODULE, ModuleScopes, model_line
from placeto_capture.tracing.patches import CAPTURE_LOCK, patched_torch
from placeto_capture.tracing.reached_objects import put_back
from placeto_capture.tracing.step_phases import StepPhases
from placeto_capture.tracing.step_spec import (
    LossFunction,
    OptimizerFactory,
    StepSpec,
    TracingOptions,
)
from placeto_capture.tracing.trace import GRADIENT, Trace, Updates
from placeto_capture.tracing.tracer import Tracer
from placeto_capture.tracing.updates import with_barriers, with_whole_updates
from placeto_graphs import OpGraph, Phase, TokenCache

_WORKING_OPTIMIZERS = "torch.optim.SGD, Adam and AdamW"

Modules = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | torch.optim.Optimizer | None = None,
    mode: str = "training",
    target: Target = "gpu",
    mask_fraction: float | None = None,
    autocast: torch.dtype | None = None,
    updates: Updates = "after-backward",
    parameter_bytes: Mapping[str, int] | None = None,
    experts_per_token: int = 1,
    cache: TokenCache | None = None,
) -> OpGraph:
    """Return the graph of the ATen ops of one step of a model.

    The step runs on fake tensors (`torch._subclasses.FakeTensorMode`), which have a shape and a
    dtype, but neither memory nor values. Each ATen op of its forward pass, loss, backward pass and
    optimizer update is recorded in the order in which it runs. Nothing is computed, and the model
    stays as it is. A value that the step uses is computed if it follows from constants, buffers,
    random draws, or whole or boolean numbers among the inputs.

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
        the loss, ``outputs.loss`` or ``outputs["loss"]``; else the one scalar that it returns; else
        the sum of the means of its floating-point tensors.
    optimizer
        Function from a list of parameters to a `torch.optim.Optimizer`, such as
        ``functools.partial(torch.optim.SGD, lr=0.1)``, or an optimizer of the model's parameters;
        Adam by default. The step is not the first one of the training: the optimizer's state is
        there. Its update has the kernels and memory of the implementation that ``foreach`` and
        ``fused`` choose, or that is PyTorch's default for the target. Those of a fused one, of
        ``foreach``, or for a CPU, are one op of type ``"placeto.update"`` for each parameter.
    mode
        ``"training"``, or ``"inference"`` for the forward pass alone, without gradients.
    target
        Device whose kernels run: ``"gpu"``, where dropout is one op, and RMSNorm one forward and
        one backward, or ``"cpu"``. On either attention is one op forward and one backward; on a CPU
        unless its weights are dropped, its mask is learned, or values are not as wide as queries.
    mask_fraction
        Fraction of all elements that a mask, ``nonzero`` or ``unique`` picks by values that are not
        known: above 0 and up to 1, which is an upper bound. By default such a step is refused.
    autocast
        Dtype of `torch.autocast` around the forward pass and the loss: ``torch.bfloat16``,
        ``torch.float16``, or ``torch.float32`` for none. By default that of the caller, if
        `capture` is called inside of an autocast.
    updates
        Order of the updates. ``"after-backward"``: after the backward pass, as a training loop of
        PyTorch does, with all gradients in memory. ``"as-ready"``: each weight as soon as its
        gradient is there, by a fused kernel, as TensorFlow does; the tensors alone then decide what
        comes first.
    parameter_bytes
        Bytes that parameters, and tensors among the inputs, are held in, by name, where these are
        others than those of their dtype, as those of quantized weights and caches are
        (``"input.cache.layers.0.keys"``): for ``"inference"``. Ops that access such a tensor access
        as many, and compute with its dtype.
    experts_per_token
        Number of experts that each token goes to in a mixture of experts. A grouped product
        (`torch.nn.functional.grouped_mm`) reads the weights of the experts that are expected to get
        a token, if all are equally likely.
    cache
        What the step keeps of earlier tokens: the graph's ``cache``, which changes no costs.

    Returns
    -------
    OpGraph
        The V ops in the order in which they ran, with what is there before the step as ops of type
        ``"parameter"``, ``"buffer"`` and ``"input"``, which take no time. The page on capture says
        what ops, tensors, ``waits``, ``held_tensors``, ``scopes`` and ``colocation`` are, and
        `placeto_capture.tracing.work` what ``flops`` and ``bytes_accessed`` count.

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
    OpGraph(ops=22, tensors=37, edges=28)
    """
    spec = StepSpec(
        model,
        example_inputs,
        loss_fn=loss_fn,
        optimizer=optimizer,
        mode=mode,
        target=target,
        mask_fraction=mask_fraction,
        autocast=autocast,
        updates=updates,
        parameter_bytes=parameter_bytes,
        experts_per_token=experts_per_token,
        cache=cache,
    )
    return capture_step(spec)


def capture_step(spec: StepSpec) -> OpGraph:
    """Return the graph of the ATen ops of one step of a model, as `capture` does.

    Parameters
    ----------
    spec
        The step: a model, its example inputs, and the further parameters of `capture`.

    Returns
    -------
    OpGraph
        As of `capture`.

    Raises
    ------
    CaptureError
        As `capture` does.

    Examples
    --------
    >>> capture_step(StepSpec(nn.Linear(4, 2), torch.ones(8, 4), mode="inference"))
    OpGraph(ops=4, tensors=4, edges=3)
    """
    with CAPTURE_LOCK:
        return op_graph_of(trace_step(spec))


def capture_function(
    step_fn: Callable[..., Any],
    modules: Modules,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    *,
    example_inputs: Any = (),
    changed_objects: Sequence[Any] = (),
    target: Target = "gpu",
    mask_fraction: float | None = None,
    autocast: torch.dtype | None = None,
) -> OpGraph:
    """Return the graph of the ATen ops of whatever a training step does.

    The function is called once, as a training loop calls it. Everything that it does with the
    modules and optimizers is recorded. It may have several losses and optimizers, as of a GAN, and
    scale, clip or add up gradients over several batches. It works with the modules
    and optimizers themselves, which hold fake tensors meanwhile, as `capture` describes. Afterwards
    they are as they were. A step that ends with gradients begins with those of the step before.

    Parameters
    ----------
    step_fn
        The step. What it returns, and what it has in variables, stays until the end of the step.
    modules
        The modules that it calls, in the modes that they are in: one, or several by their names,
        which their scopes and parameters then begin with. Those of a sequence are called ``"0"``,
        ``"1"`` and so on.
    optimizers
        The optimizers that it works with. One that has no state yet gets it before its first step,
        so that the step is not the first one of the training. One that does not step has the state
        that it came with.
    example_inputs
        Arguments of the function, as `capture` takes those of the model.
    changed_objects
        Other objects that the function changes, which are put back: lists, dictionaries, and
        objects with attributes. Those that the code of the function names, or a module's, are put
        back anyway, but for what is in objects of libraries that hold no tensors.
    target, mask_fraction, autocast
        As of `capture`; autocast is around all of the function.

    Returns
    -------
    OpGraph
        As of `capture`. What runs outside of modules has the scope ``"loss"``.

    Raises
    ------
    CaptureError
        As of `capture`; and if an optimizer has other parameters than those of the modules.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def step(first, second):
    ...     for batch in (first, second):
    ...         (model(batch).square().mean() / 2).backward()
    ...     nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> batches = torch.ones(2, 16, 4).unbind()
    >>> graph = capture_function(step, model, optimizer, example_inputs=batches)
    >>> graph.op_types.count("aten.addmm"), graph.op_types.count("aten.linalg_vector_norm")
    (2, 3)
    """
    options = TracingOptions(target=target, mask_fraction=mask_fraction, autocast=autocast)
    with CAPTURE_LOCK:
        return op_graph_of(
            trace_function(step_fn, modules, optimizers, example_inputs, changed_objects, options)
        )


def trace_function(
    step_fn: Callable[..., Any],
    modules: Modules,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    example_inputs: Any,
    changed_objects: Sequence[Any],
    options: TracingOptions,
) -> Trace:
    """Return what ran in a step; the parameters are those of `capture_function`."""
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    step = _Step(
        _named_modules(modules), list(optimizers), changed_objects, example_inputs, options
    )

    def call(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        with step.around:
            return _outputs(step_fn(*args, **kwargs))

    trace = step.trace(call, "step_fn", step_fn)
    earlier_storages = {
        storage for placeholder in trace.placeholders for storage in placeholder.storages
    }
    new_gradients = {
        name
        for name, view in trace.results.items()
        if name.endswith(GRADIENT) and view.storage not in earlier_storages
    }
    new_gradients -= step.phases.cleared
    if new_gradients:  # the step leaves gradients, so that it is run again with those at its start
        try:
            # The first run has shown these warnings.
            with warnings.catch_warnings(action="ignore", category=CaptureWarning):
                step = replace(step, begins_with=new_gradients)
                trace = step.trace(call, "step_fn", step_fn)
        except CaptureError as error:
            warnings.warn(
                "gradients: captured as if there were none before the step, which leaves some, as "
                f"it fails when it runs again: {error}",
                CaptureWarning,
                stacklevel=3,
            )
    return with_barriers(with_frees(with_state(trace)))


def trace_step(spec: StepSpec) -> Trace:
    """Return what ran in one step."""
    model, optimizer = spec.model, spec.optimizer
    factory: OptimizerFactory
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizers, factory = [optimizer], lambda _: optimizer
    else:
        optimizers, factory = [], optimizer or torch.optim.Adam
    step = _Step({"": model}, optimizers, [], spec.example_inputs, spec, spec.updates)

    def inference(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        model.eval()
        with torch.no_grad(), step.around:
            outputs = model(*args, **kwargs)
        return _outputs(outputs)

    def training(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        if not model.training:
            model.train()
        step.stage = "optimizer"
        update = step.make_optimizer(factory)
        step.stage = "model"
        with step.around:
            outputs = model(*args, **kwargs)
            step.stage = "loss_fn"
            loss = (spec.loss_fn or default_loss)(outputs)
        _check_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        step.stage = "optimizer"
        update.step()
        return {"loss": loss}

    step_fn = inference if spec.mode == "inference" else training
    trace = step.trace(step_fn, "model", spec.loss_fn, optimizer)
    if spec.mode == "inference":
        trace = with_state(trace)
    if spec.updates == "as-ready":
        return replace(trace, updates=spec.updates)
    return with_barriers(with_frees(trace))


@dataclass(eq=False)
class _Step:
    """A step that is recorded while modules and optimizers hold fake tensors."""

    modules: Mapping[str, nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    changed_objects: Sequence[Any]
    inputs: Any
    options: TracingOptions
    updates: Updates = "after-backward"
    begins_with: Collection[str] = ()  # gradients that are left of the step before, by name
    stage: str = ""  # what runs in the forward phase, for errors

    def __post_init__(self) -> None:
        self.inputs = _arguments(self.inputs)
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._scopes = ModuleScopes()

    def trace(
        self, function: Callable[..., dict[str, torch.Tensor]], stage: str, *called: Any
    ) -> Trace:
        """Return what runs in a function, which returns results by name.

        Objects that it or the functions in ``called`` change are put back afterwards.
        """
        self.stage = stage
        # `function` enters this around its forward pass, and uses the phases: both are made now.
        self.around = autocast_around(self.options.target, self.options.autocast)
        with (
            patched_torch(self.options.target),  # one step at a time
            put_back([*called, *self.modules.values()]),
        ):
            objects = FakeObjects(
                self.modules, self.optimizers, self.changed_objects, self.inputs, self._fake_mode
            )
            self.tracer = Tracer(objects.memory, self._scopes, self.options)
            are_fused = self.updates == "as-ready"  # as TensorFlow has them
            self.phases = StepPhases(self.tracer, self._fake_mode, objects, are_fused)
            arguments = objects.inputs
            args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
            with objects.in_place():
                self._scopes.follow(self.modules)
                with (
                    self._naming_failures(),
                    without_collection(),
                    torch.enable_grad(),
                    self._fake_mode,
                    self.tracer,
                    self.phases.followed(),
                ):
                    for name, weight in objects.parameters.items():
                        if name + GRADIENT in self.begins_with:
                            with self.phases.unrecorded():
                                weight.grad = torch.empty_like(weight)
                            self.tracer.add_gradient(name + GRADIENT, weight, weight.grad)
                    results = function(*args, **kwargs)
                for name, parameter in objects.parameters.items():
                    if parameter.grad is not None:
                        results[name + GRADIENT] = parameter.grad
                return with_whole_updates(self.tracer.trace(results))

    def make_optimizer(self, factory: OptimizerFactory) -> torch.optim.Optimizer:
        """Return an optimizer of all parameters."""
        parameters = [
            parameter for module in self.modules.values() for parameter in module.parameters()
        ]
        with self.phases.unrecorded():
            optimizer = factory(parameters)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise CaptureError(
                "optimizer: expected a function that gives a torch.optim.Optimizer, "
                f"got one that gives {type(optimizer).__name__}"
            )
        return optimizer

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Put the module that failed, or the part of the step, in front of an error."""
        try:
            yield
        except Exception as error:
            stages = {Phase.BACKWARD: "backward", Phase.UPDATE: "optimizer"}
            stage = stages.get(self.tracer.phase, self.stage)
            message, line = str(error), model_line(error)
            if isinstance(error, StepError) or not isinstance(error, CaptureError):
                kind = "" if isinstance(error, StepError) else f"{type(error).__name__}: "
                message = " ".join(f"{kind}{error}".split())
                message = f"{getattr(error, LEFT_MODULE, '') or stage}: {message}"
                if stage == "optimizer":
                    message += f"; {_WORKING_OPTIMIZERS} can be captured"
            raise CaptureError(f"{message}{line}") from error


def _named_modules(modules: Modules) -> dict[str, nn.Module]:
    if isinstance(modules, nn.Module):
        return {"": modules}
    named = dict(modules if isinstance(modules, Mapping) else enumerate(modules))
    for name, module in named.items():
        if not isinstance(module, nn.Module):
            raise CaptureError(
                f"modules: expected torch.nn.Modules, got {type(module).__name__} for {name!r}"
            )
    return {str(name): module for name, module in named.items()}


def _outputs(returned: Any) -> dict[str, torch.Tensor]:
    return {f"output.{index}": tensor for index, tensor in enumerate(tensors_in(returned))}


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


def _arguments(example_inputs: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Return positional or keyword arguments."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, Mapping):
        return dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs)
    raise CaptureError(
        "example_inputs: expected a tensor, a tuple or a mapping, "
        f"got {type(example_inputs).__name__}"
    )
