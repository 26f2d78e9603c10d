"""Training with a traced step: many batches, one after the other."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError
from placeto_capture.executable.traced_step import TracedStep, example_values
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.fake_objects import input_name
from placeto_capture.tracing.replay import StorageMemory, view_of
from placeto_capture.tracing.step_spec import LossFunction, OptimizerFactory, StepSpec
from placeto_capture.tracing.trace import GRADIENT, Call, Placeholder, Updates, View
from placeto_graphs import Phase

SWITCHES = ("foreach", "fused", "capturable")  # off, as each weight is updated by itself


class ExecutableTraining(TracedStep):
    """A traced training step that runs for one batch after the other (`executable_training`).

    Weights, buffers and what the optimizer keeps resume from where the last run has left them, on
    whichever devices they then are. Each weight is updated by the optimizer itself, when the last
    of the ops runs that the trace has for its update.

    Parameters
    ----------
    spec
        The training step.
    factory
        Function from a list of parameters to the optimizer.
    seed
        Seed of random numbers of the first step, and of weights without values.
    threads_per_device
        Number of threads of one op on each ``"cpu:N"``.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        Optimizer of the weights. A schedule of learning rates is made for this one.
    num_steps : int
        Number of batches that have been loaded.
    """

    def __init__(
        self, spec: StepSpec, factory: OptimizerFactory, seed: int, threads_per_device: int
    ) -> None:
        trace = trace_step(spec)
        super().__init__(
            trace,
            example_values(torch.Generator().manual_seed(seed)),
            results=["loss"],
            seed=seed,
            threads_per_device=threads_per_device,
        )
        self.num_steps = 0
        self._first_seed = seed
        self._num_draws = 1 + max(
            (call.rng_index or 0 for op in trace.calls for call in op.single_calls), default=0
        )
        self._example = _leaves(spec.example_inputs)
        self._next_feed: _Feed | None = None
        self._is_spoiled = False
        self._has_begun = False  # whether there was a step before the next
        self._views: dict[str, View] = {}  # of weights, buffers and optimizer state, by name
        self._memory_of_storage: dict[int, torch.Tensor] = {}
        for op, placeholder in enumerate(trace.ops):
            if isinstance(placeholder, Placeholder) and placeholder.is_resident:
                self._views |= {**placeholder.tensors, **placeholder.state}
                for storage in placeholder.storages:
                    self._memory_of_storage[storage] = torch.zeros(
                        trace.storage_bytes[storage], dtype=torch.uint8
                    )
                for view, value in self._values.pop(op):
                    self._tensor(view).copy_(value)
        parameters = {
            name: nn.Parameter(
                self._tensor(self._views[name]) if name in self._views else weight.detach(),
                weight.requires_grad,
            )
            for name, weight in spec.model.named_parameters()
        }
        self.optimizer = _optimizer_of(factory, list(parameters.values()))
        self._feed = _Feed({}, seed, self._present_settings(), resumes=False)
        self._update_of_op = self._updates(parameters)
        for op in self._update_of_op:
            self.calls[op] = ()

    def _updates(self, parameters: Mapping[str, nn.Parameter]) -> "dict[int, _Update]":
        """Return the update that each op of the optimizer is a part of."""
        trace, update_of_op = self.trace, dict[int, _Update]()
        owned = set(self._memory_of_storage)
        owned |= {view.storage for name, view in trace.results.items() if name.endswith(GRADIENT)}
        updates: dict[int, _Update] = {}  # of each placeholder
        for op, call in enumerate(trace.ops):
            if not isinstance(call, Call) or call.phase != Phase.UPDATE or not call.single_calls:
                continue
            if call.belongs_to is not None:
                if call.belongs_to not in updates:
                    updates[call.belongs_to] = self._update(call.belongs_to, parameters)
                update_of_op[op] = updates[call.belongs_to]
                update_of_op[op].num_ops += 1
                owned.update(call.creates)
            elif not owned.isdisjoint((*call.reads, *call.writes)):
                raise CaptureError(
                    "optimizer: expected one that updates each weight by itself, got "
                    f"{type(self.optimizer).__name__} that updates several together"
                )
        return update_of_op

    def _update(self, op: int, parameters: Mapping[str, nn.Parameter]) -> "_Update":
        owner = self.trace.ops[op]
        tensors, state = (
            (owner.tensors, owner.state) if isinstance(owner, Placeholder) else ({}, {})
        )
        names = [name for name in tensors if name in parameters]
        if len(names) != 1:
            raise CaptureError(
                f"{', '.join(sorted(names))}: expected weights that share no memory, got these"
            )
        (name,) = names
        begins_with = self.optimizer.state.get(parameters[name], {})
        for key, value in begins_with.items():
            self._tensor(state[f"{name}.{key}"]).copy_(value)
        return _Update(
            name,
            parameters[name],
            self.trace.results[name + GRADIENT],
            {key.removeprefix(f"{name}."): view for key, view in state.items()},
            frozenset(begins_with),
        )

    def load(self, batch: Any) -> None:
        """Take the batch of the next run, which has to be like the example.

        Raises
        ------
        CaptureError
            If it is of another structure, shape or dtype, or something in it that is no tensor
            has another value; or if a run has failed half way.
        """
        leaves = _leaves(batch)
        if leaves.keys() != self._example.keys():
            raise CaptureError(
                f"batch: expected {', '.join(self._example)}, got {', '.join(leaves) or 'nothing'}"
            )
        for name, example in self._example.items():
            expected, description = _description(example), _description(leaves[name])
            if description != expected:
                hint = "; a DataLoader with drop_last=True leaves out a smaller last batch"
                is_part = description.partition("(")[0] == expected.partition("(")[0]
                raise CaptureError(
                    f"{name}: expected {expected} as in the example, got {description}"
                    f"{hint if is_part else ''}"
                )
        if self._is_spoiled:
            raise CaptureError(
                "weights: expected those that a whole step has left, got those of a step that "
                "failed; load_state puts others in their place"
            )
        self._next_feed = _Feed(
            {  # without the rest of a storage, which would be pickled, too
                name: leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf
                for name, leaf in leaves.items()
            },
            self._first_seed + self.num_steps * self._num_draws,
            self._present_settings(),
            self._has_begun,
        )
        self._has_begun = True
        self.num_steps += 1

    def feed(self) -> "_Feed":
        """Return the batch that was loaded, and the optimizer's settings for its step.

        Raises
        ------
        CaptureError
            If no batch has been loaded since the last run.
        """
        if self._next_feed is None:
            raise CaptureError("batch: expected one to be loaded before each run, got none")
        feed, self._next_feed = self._next_feed, None
        self._is_spoiled = True
        return feed

    def take(self, feed: "_Feed") -> None:
        """Take a batch, and let the optimizer have the settings of its step.

        Parameters
        ----------
        feed
            What `feed` has returned, perhaps in another process.
        """
        self._feed, self.seed = feed, feed.seed
        for update in self._update_of_op.values():
            update.gradient, update.ops_left = None, update.num_ops
            if not feed.resumes:
                update.scalars.clear()
        self._put_settings()

    def run_update(self, op: int, memory: StorageMemory) -> None:
        """Update a weight, if an op is the last one of its update.

        Parameters
        ----------
        op
            Index of the op, which has run.
        memory
            Memory of the device of the op, with the gradient of the weight.

        Raises
        ------
        CaptureError
            If the optimizer keeps something for the weight that is no tensor.
        """
        update = self._update_of_op.get(op)
        if update is None:
            return
        call = self.trace.ops[op]
        if update.gradient_view.storage in (*call.reads, *call.writes):
            update.gradient = memory.tensor(update.gradient_view)  # it may be freed before the last
        update.ops_left -= 1
        if update.ops_left:
            return
        parameter, optimizer = update.parameter, self.optimizer
        parameter.data = self._tensor(self._views[update.name])
        parameter.grad, update.gradient = update.gradient, None
        state = {
            key: update.scalars[key] if key in update.scalars else self._tensor(view)
            for key, view in update.state.items()
            if self._feed.resumes or key in update.begins_with
        }
        # Asking a GPU for numbers would wait for it.
        state |= {key: value.cpu() for key, value in state.items() if not value.dim()}
        optimizer.state[parameter] = dict(state)
        groups = [group["params"] for group in optimizer.param_groups]
        try:
            for group in optimizer.param_groups:
                group["params"] = [weight for weight in group["params"] if weight is parameter]
            optimizer.step()
        finally:
            parameter.grad = None
            for group, weights in zip(optimizer.param_groups, groups, strict=True):
                group["params"] = weights
            self._put_settings()
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and key in update.state:
                if not value.dim():
                    update.scalars[key] = value
                if value is not state.get(key) or not value.dim():
                    self._tensor(update.state[key]).copy_(value)
            elif value is not None:
                raise CaptureError(
                    f"optimizer: expected one that keeps tensors for a weight, got "
                    f"{type(optimizer).__name__} that keeps {key} = {value!r}"
                )

    def finish(self, results: Mapping[str, Any]) -> float:
        """Return the loss among the results of a run; until then its weights are not trusted."""
        self._is_spoiled = False
        self.optimizer.step()  # without gradients it counts the step, and does nothing else
        return float(results["loss"])

    @property
    def names_of_state(self) -> Collection[str]:
        """Names of weights, buffers, and of what the optimizer keeps: results of each run."""
        return self._views.keys()

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, buffers and what the optimizer keeps, by name.

        They are those of this process: what a run in other processes leaves is among its results.
        After a run that failed half way they are a `CaptureError`.
        """
        if self._is_spoiled:
            raise CaptureError("weights: expected those that a whole step has left, got none")
        return {name: self._tensor(view).to("cpu", copy=True) for name, view in self._views.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put other values in the place of weights, buffers, and what the optimizer keeps.

        They are as `state` returns them; other names or shapes are a `CaptureError`.
        """
        for name in state:
            if name not in self._views:
                raise CaptureError(f"state: expected names of this step, got {name!r}")
        for name, view in self._views.items():
            if name not in state:
                raise CaptureError(f"state: expected a tensor for {name!r}, got none")
            if tuple(state[name].shape) != view.size:
                raise CaptureError(
                    f"{name}: expected shape {view.size}, got {tuple(state[name].shape)}"
                )
        for storage, memory in self._memory_of_storage.items():
            self._memory_of_storage[storage] = memory.to("cpu")  # processes that are forked need it
        for name, view in self._views.items():
            self._tensor(view).copy_(state[name])
        self._is_spoiled = False
        # What is zero for all weights is from before the first step.
        updates = self._update_of_op.values()
        for update in updates:
            update.scalars.clear()
        optimizer_views = (view for update in updates for view in update.state.values())
        self._has_begun = any(bool(self._tensor(view).any()) for view in optimizer_views)

    def values_before(self, op: int) -> Sequence[tuple[View, torch.Tensor]]:
        """Return the values of the tensors of a placeholder: those of the batch only.

        Parameters
        ----------
        op
            Index of the placeholder.
        """
        placeholder = self.trace.ops[op]
        if not isinstance(placeholder, Placeholder) or placeholder.is_resident:
            return []
        return [(view, self._feed.batch[name]) for name, view in placeholder.tensors.items()]

    def resident_memory(self, storage: int, device: torch.device) -> torch.Tensor:
        """Return the memory of a storage of weights, which moves to the device."""
        memory = self._memory_of_storage[storage].to(device)
        self._memory_of_storage[storage] = memory
        return memory

    def _tensor(self, view: View) -> torch.Tensor:
        return view_of(self._memory_of_storage[view.storage].untyped_storage(), view)

    def _present_settings(self) -> list[dict[str, Any]]:
        """Return the settings of the optimizer's groups."""
        return [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]

    def _put_settings(self) -> None:
        for group, settings in zip(self.optimizer.param_groups, self._feed.settings, strict=True):
            group.update(settings)


@dataclass(eq=False)
class _Update:
    """The update of a weight, in place of the ops that the trace has for it."""

    name: str
    parameter: nn.Parameter
    gradient_view: View
    state: dict[str, View]  # what the optimizer keeps for it, by name
    begins_with: frozenset[str]  # what of it is there before the first step
    num_ops: int = 0
    ops_left: int = 0
    gradient: torch.Tensor | None = None
    scalars: dict[str, torch.Tensor] = field(default_factory=dict)  # of the state, on the CPU


@dataclass(frozen=True)
class _Feed:
    """What all processes get before a step."""

    batch: dict[str, Any]  # leaves of the batch, by name
    seed: int
    settings: list[dict[str, Any]]  # of the optimizer's groups
    resumes: bool  # whether the optimizer goes on from what it keeps


def _optimizer_of(
    factory: OptimizerFactory, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    optimizer = factory(parameters)
    weight_ids = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        if any(id(parameter) not in weight_ids for parameter in group["params"]):
            raise CaptureError(
                "optimizer: expected a function that makes one for the weights that it is "
                "given, got one that makes it for others"
            )
        group.update({name: False for name in SWITCHES if name in group})
    return optimizer


def _leaves(batch: Any) -> dict[str, Any]:
    """Return what is in a batch, each under the name that the trace has for it."""
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    leaves, _ = pytree.tree_flatten_with_path(dict(batch) if isinstance(batch, Mapping) else batch)
    return {input_name(path): leaf for path, leaf in leaves}


def _description(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{tuple(leaf.shape)}"
    return repr(leaf)


def executable_training(
    model: nn.Module,
    example_inputs: Any,
    *,
    optimizer: OptimizerFactory | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
    loss_fn: LossFunction | None = None,
    target: Target = "gpu",
    mask_fraction: float | None = None,
    autocast: torch.dtype | None = None,
    updates: Updates = "after-backward",
    experts_per_token: int = 1,
) -> ExecutableTraining:
    """Return a training step that can be run on several devices, op by op, batch after batch.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. The model stays
    as it is: the step has weights of its own. Values that the model computes in Python, from its
    tensors or from how often it has run, stay as they were in the capture.

    Parameters
    ----------
    model, example_inputs, optimizer
        As for `capture`. The optimizer's schedule of learning rates, if any, is made for the
        ``optimizer`` of what is returned.
    seed, threads_per_device
        As for `executable_step`.
    loss_fn, target, mask_fraction, autocast, updates, experts_per_token
        As for `capture`.

    Raises
    ------
    CaptureError
        As `capture` does; if the model has no weights that are trained, if some of them share
        memory, or if the optimizer is made for others.

    Examples
    --------
    >>> import numpy as np
    >>> model = torch.nn.Linear(4, 1)
    >>> step = executable_training(model, torch.ones(8, 4), optimizer=torch.optim.SGD)
    >>> everything = np.zeros(step.graph.num_ops, np.int32)
    >>> device = step.on_device(0, ["cpu:0"], everything)
    >>> for batch in torch.ones(3, 8, 4):
    ...     step.load(batch)
    ...     with device.entered():
    ...         device.begin(step.feed())
    ...         held = [device.run(op) for op in range(step.graph.num_ops)]
    ...     loss = step.finish(step.results(["loss"], device.pieces(["loss"])))
    >>> torch.equal(step.state()["weight"], model.weight)
    False
    """
    factory = optimizer or torch.optim.Adam
    spec = StepSpec(
        model,
        example_inputs,
        loss_fn=loss_fn,
        optimizer=factory,
        mode="training",
        target=target,
        mask_fraction=mask_fraction,
        autocast=autocast,
        updates=updates,
        experts_per_token=experts_per_token,
    )
    return ExecutableTraining(spec, factory, seed, threads_per_device)
