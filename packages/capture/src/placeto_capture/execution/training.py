"""Training with a traced step: many batches, one after the other."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placeto_capture.errors import CaptureError
from placeto_capture.execution.optimizer_numbers import Number, OptimizerNumbers
from placeto_capture.execution.traced_step import TracedStep
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.fake_objects import input_name
from placeto_capture.tracing.prepared_calls import PreparedCall, view_of
from placeto_capture.tracing.replay import example_values
from placeto_capture.tracing.step_spec import LossFunction, OptimizerFactory, StepSpec
from placeto_capture.tracing.trace import Call, Placeholder, Trace, Updates, View
from placeto_graphs import Phase


class ExecutableTraining(TracedStep):
    """A traced training step that runs for one batch after the other.

    Weights, buffers and what the optimizer keeps go on from where the last run has left them, on
    whichever devices they then are. The optimizer's numbers follow from its settings and from the
    number of each step.

    Parameters
    ----------
    trace, seed, threads_per_device
        As for `TracedStep`. What an op draws depends on the number of the step, too.
    example_inputs
        The batch that the step was traced with.
    weights : dict of str to nn.Parameter
        Those of the model, by name.
    numbers
        Those that the optimizer computes.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        One with the groups and settings of the optimizer, but tiny weights. A schedule of learning
        rates is made for this one.
    num_steps : int
        Number of batches that have been loaded.

    Examples
    --------
    `executable_training` makes one:

    >>> from placeto_capture import executable_training
    >>> step = executable_training(nn.Linear(4, 1), torch.ones(8, 4))
    >>> sorted(step.state())[:3]
    ['bias', 'bias.exp_avg', 'bias.exp_avg_sq']
    >>> step.optimizer.param_groups[0]["lr"]
    0.001
    """

    def __init__(
        self,
        trace: Trace,
        example_inputs: Any,
        weights: Mapping[str, nn.Parameter],
        numbers: OptimizerNumbers,
        *,
        seed: int = 0,
        threads_per_device: int = 1,
    ) -> None:
        super().__init__(
            trace,
            example_values(torch.Generator().manual_seed(seed)),
            results=["loss"],
            seed=seed,
            threads_per_device=threads_per_device,
        )
        self.optimizer = numbers.optimizer
        self.num_steps = 0
        self._numbers = numbers
        self._first_seed = seed
        self._num_draws = 1 + max(
            (part.rng_index or 0 for call in trace.calls for part in call.single_calls),
            default=0,
        )
        self._example = _leaves(example_inputs)
        self._batch: dict[str, Any] = {}
        self._next_feed: _Feed | None = None
        self._is_spoiled = False
        self._has_begun = False  # whether what the optimizer keeps is what it begins with, or later
        self._updates = list(_updates(trace, self.calls, weights, numbers))
        self._kept: dict[str, View] = {}
        self._memory_of_storage: dict[int, torch.Tensor] = {}
        for op, placeholder in enumerate(trace.ops):
            if isinstance(placeholder, Placeholder) and placeholder.is_resident:
                self._kept |= {**placeholder.tensors, **placeholder.state}
                for storage in placeholder.storages:
                    self._memory_of_storage[storage] = torch.zeros(
                        trace.storage_bytes[storage], dtype=torch.uint8
                    )
                for view, value in self._values.pop(op):
                    self._tensor(view).copy_(value)

    def load(self, batch: Any) -> None:
        """Take the batch of the next run, which has to be like the example.

        Raises
        ------
        CaptureError
            If it is of another structure, shape or dtype, or something in it that is no tensor
            has another value; if a run has failed half way; or if the optimizer now calls other
            functions than when the step was traced.
        """
        leaves = _leaves(batch)
        if leaves.keys() != self._example.keys():
            raise CaptureError(
                f"batch: expected {', '.join(self._example)}, got {', '.join(leaves) or 'nothing'}"
            )
        for name, example in self._example.items():
            expected, found = _description(example), _description(leaves[name])
            if found != expected:
                raise CaptureError(f"{name}: expected {expected} as in the example, got {found}")
        if self._is_spoiled:
            raise CaptureError(
                "weights: expected those that a whole step has left, got those of a step that "
                "failed; load_state puts others in their place"
            )
        numbers = self._next_numbers()
        self._next_feed = _Feed(
            {name: _on_cpu(leaf) for name, leaf in leaves.items()},
            self._first_seed + self.num_steps * self._num_draws,
            numbers,
            {} if self._has_begun else self._initial_state(numbers),
        )
        self._has_begun = True
        self.num_steps += 1

    def feed(self) -> "_Feed":
        """Return the batch that was loaded, and the optimizer's numbers of its step."""
        if self._next_feed is None:
            raise CaptureError("batch: expected one to be loaded before each run, got none")
        feed, self._next_feed = self._next_feed, None
        self._is_spoiled = True
        return feed

    def take(self, feed: "_Feed") -> None:
        """Take a batch, and put the optimizer's numbers into the calls of all updates."""
        self._batch, self.seed = feed.batch, feed.seed
        for name, value in feed.initial_state.items():
            self._tensor(self._kept[name]).fill_(value)
        for update, numbers in zip(self._updates, feed.numbers, strict=True):
            for call, prepared in zip(numbers or (), update.calls, strict=numbers is not None):
                _put_numbers(call, prepared)

    def finish(self, results: Mapping[str, Any]) -> float:
        """Return the loss among the results of a run; until then its weights are not trusted."""
        self._is_spoiled = False
        return float(results["loss"])

    @property
    def names_of_state(self) -> Collection[str]:
        """Names of weights, buffers, and of what the optimizer keeps: results of each run."""
        return self._kept.keys()

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, buffers and what the optimizer keeps, by name.

        They are those of this process: what a run in other processes leaves is among its results.

        Raises
        ------
        CaptureError
            If a run has failed half way.
        """
        if self._is_spoiled:
            raise CaptureError("weights: expected those that a whole step has left, got none")
        return {name: self._tensor(view).to("cpu", copy=True) for name, view in self._kept.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put other values in the place of all weights, buffers, and what the optimizer keeps.

        Parameters
        ----------
        state
            As `state` returns it.

        Raises
        ------
        CaptureError
            If names or shapes are others.
        """
        for name in state:
            if name not in self._kept:
                raise CaptureError(f"state: expected names of this step, got {name!r}")
        for name, view in self._kept.items():
            if name not in state:
                raise CaptureError(f"state: expected a tensor for {name!r}, got none")
            if tuple(state[name].shape) != view.size:
                raise CaptureError(
                    f"{name}: expected shape {view.size}, got {tuple(state[name].shape)}"
                )
        for storage, memory in self._memory_of_storage.items():
            self._memory_of_storage[storage] = memory.to("cpu")  # processes that are forked need it
        for name, view in self._kept.items():
            self._tensor(view).copy_(state[name])
        self._numbers.go_on_from(
            {
                update.group: {
                    key: state[f"{update.weight}.{key}"]
                    for key in self._numbers.names_of_state(update.group)
                }
                for update in self._updates
            }
        )
        self._is_spoiled, self._has_begun = False, True

    def values_before(self, op: int) -> Sequence[tuple[View, torch.Tensor]]:
        """Return the values of the tensors of a placeholder: those of the batch only."""
        placeholder = self.trace.ops[op]
        if not isinstance(placeholder, Placeholder) or placeholder.is_resident:
            return []
        return [(view, self._batch[name]) for name, view in placeholder.tensors.items()]

    def resident_memory(self, storage: int, device: torch.device) -> torch.Tensor:
        """Return the memory of a storage of weights, which moves to the device."""
        memory = self._memory_of_storage[storage].to(device)
        self._memory_of_storage[storage] = memory
        return memory

    def _tensor(self, view: View) -> torch.Tensor:
        return view_of(self._memory_of_storage[view.storage].untyped_storage(), view)

    def _next_numbers(self) -> "list[Numbers | None]":
        """Return the numbers of each update in the optimizer's next step; None as they were."""
        calls_of_group = self._numbers.step()
        numbers: list[Numbers | None] = []
        for update in self._updates:
            calls = calls_of_group[update.group][-len(update.functions) :]
            if [call.function for call in calls] == update.functions:
                numbers.append([call.numbers for call in calls])
            else:
                self._check_first_step(update)
                numbers.append(None)
        return numbers

    def _initial_state(self, numbers: "Sequence[Numbers | None]") -> dict[str, float]:
        """Return what the optimizer begins with, for updates whose first step is like the others.

        The others begin with zeros, as `_check_first_step` says.
        """
        return {
            f"{update.weight}.{key}": value
            for update, own in zip(self._updates, numbers, strict=True)
            if own is not None
            for key, value in self._numbers.initial_state[update.group].items()
        }

    def _check_first_step(self, update: "_Update") -> None:
        """Check that a first step that differs does what the others do to a state of zeros.

        The first step of SGD takes the gradient for the momentum: without dampening the same as
        adding it to zero.
        """
        settings = self.optimizer.param_groups[update.group]
        if self._has_begun or "momentum" not in settings or settings.get("dampening"):
            raise CaptureError(
                f"optimizer: expected one that calls the same functions in each step, got "
                f"{type(self.optimizer).__name__} with other ones in step {self.num_steps + 1}"
            )


Numbers = list[dict[int | str, Number]]  # of each call of an update


@dataclass(frozen=True)
class _Feed:
    """The data that all processes get before a step.

    Attributes
    ----------
    batch : dict of str to anything
        Leaves of the batch, by name.
    seed : int
        Seed of what the step draws.
    numbers : list of (list of dict) or None
        Numbers of the calls of each update; None where they stay.
    initial_state : dict of str to float
        State that the optimizer begins with, before the first step.
    """

    batch: dict[str, Any]
    seed: int
    numbers: "list[Numbers | None]"
    initial_state: dict[str, float]


def _on_cpu(leaf: Any) -> Any:
    """Return a leaf of a batch without the rest of its storage, which would be pickled, too."""
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class _Update:
    """The calls that update a weight.

    Attributes
    ----------
    weight : str
        Its name.
    group : int
        Its group of the optimizer.
    functions : list
        Functions that are called.
    calls : list of `PreparedCall`
        The same, ready to run.
    """

    weight: str
    group: int
    functions: list[Any]
    calls: list[PreparedCall]


def _updates(
    trace: Trace,
    prepared: Sequence[Sequence[PreparedCall]],
    weights: Mapping[str, nn.Parameter],
    numbers: OptimizerNumbers,
) -> Iterator[_Update]:
    ops_of_placeholder: defaultdict[int, list[int]] = defaultdict(list)
    for op, call in enumerate(trace.ops):
        if isinstance(call, Call) and call.phase == Phase.UPDATE and call.belongs_to is not None:
            ops_of_placeholder[call.belongs_to].append(op)
    group_of_weight = dict(zip(weights, numbers.group_of_weight, strict=True))
    for placeholder_op, ops in ops_of_placeholder.items():
        placeholder = trace.ops[placeholder_op]
        names = (
            placeholder.tensors.keys() & weights.keys()
            if isinstance(placeholder, Placeholder)
            else set()
        )
        if len(names) != 1:
            raise CaptureError(
                f"{', '.join(sorted(names))}: expected weights that share no memory, got these"
            )
        (name,) = names
        group = group_of_weight[name]
        if group is None:
            raise CaptureError(f"optimizer: expected one for all weights, got none for {name}")
        calls = [call for call in (trace.ops[op] for op in ops) if isinstance(call, Call)]
        parts = [part for call in calls for part in call.single_calls]
        yield _Update(
            name,
            group,
            [part.function for part in parts],
            [call for op in ops for call in prepared[op]],
        )


def _put_numbers(numbers: Mapping[int | str, Number], prepared: PreparedCall) -> None:
    for place, number in numbers.items():
        if isinstance(place, int):
            prepared.positions[place] = number
        else:
            prepared.keywords[place] = number


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
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    target: Target = "gpu",
    mask_fraction: float | None = None,
    autocast: torch.dtype | None = None,
    updates: Updates = "after-backward",
    seed: int = 0,
    threads_per_device: int = 1,
) -> ExecutableTraining:
    """Return a training step that can be run on several devices, op by op, batch after batch.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. The model stays
    as it is: the step has weights of its own. Values that the model computes in Python, from its
    tensors or from how often it has run, stay as they were in the capture.

    Parameters
    ----------
    model, example_inputs, loss_fn, optimizer, target, mask_fraction, autocast, updates
        As for `capture`. The optimizer's schedule of learning rates, if any, is
        made for the ``optimizer`` of what is returned.
    seed, threads_per_device
        As for `executable_step`.

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
    if threads_per_device < 1:
        raise CaptureError(f"threads_per_device: expected at least 1, got {threads_per_device}")
    factory = optimizer or torch.optim.Adam
    spec = StepSpec(
        model,
        example_inputs,
        loss_fn=loss_fn,
        optimizer=factory,
        target=target,
        mask_fraction=mask_fraction,
        autocast=autocast,
        updates=updates,
    )
    trace = trace_step(spec)
    weights = dict(model.named_parameters())
    return ExecutableTraining(
        trace,
        example_inputs,
        weights,
        OptimizerNumbers(factory, list(weights.values())),
        seed=seed,
        threads_per_device=threads_per_device,
    )
