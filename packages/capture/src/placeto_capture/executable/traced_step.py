"""A traced step as an executable one (`placeto_graphs.ExecutableStep`)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.tracing.capture import trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.op_graph import TensorsOfTrace, op_graph_of
from placeto_capture.tracing.replay import PreparedCall, Slots, StorageMemory, prepared, view_of
from placeto_capture.tracing.step_spec import LossFunction, OptimizerFactory, StepSpec
from placeto_capture.tracing.trace import (
    GRADIENT,
    Call,
    Placeholder,
    Trace,
    Updates,
    View,
    whole_storage,
)
from placeto_graphs import ExecutableStep, OpGraph, TokenCache

ValueOf = Callable[[Placeholder, str, View], torch.Tensor]  # before the step, by name and view
WEIGHT_SCALE = 0.02  # standard deviation of random weights, for models on the meta device
# The backward op of this attention draws the dropout of the forward op again, from its seed. CPUs
# and GPUs draw other numbers from one seed, so that both ops need devices of one kind.
REDRAWN = torch.ops.aten._scaled_dot_product_efficient_attention.default
REDRAWN_BY = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default


class TracedStep:
    """A traced step, prepared to run."""

    def __init__(
        self,
        trace: Trace,
        value_of: ValueOf,
        *,
        results: Collection[str],
        seed: int = 0,
        threads_per_device: int = 1,
    ) -> None:
        if threads_per_device < 1:
            raise CaptureError(f"threads_per_device: expected at least 1, got {threads_per_device}")
        tensors = TensorsOfTrace(trace)
        self.graph: OpGraph = op_graph_of(trace, tensors)
        self.storages_of_tensor = _storages_of_tensors(trace, tensors)
        self.trace = trace
        self.seed = seed
        self.threads_per_device = threads_per_device
        self.slots = Slots()
        self.calls: list[tuple[PreparedCall, ...]] = []
        # Storages that an op touches and that belong to no tensor of the graph there: they are
        # dropped after it.
        self.passing: list[tuple[int, ...]] = []
        for index, op in enumerate(trace.ops):
            calls = op.single_calls if isinstance(op, Call) else ()
            self.calls.append(tuple(prepared(call, self.slots) for call in calls))
            tensors_at_op = (*self.graph.inputs_of_op[index], *self.graph.tensors_of_op[index])
            touched = {storage for call in calls for storage in (*_touched(call), *call.creates)}
            of_tensors = {s for tensor in tensors_at_op for s in self.storages_of_tensor[tensor]}
            self.passing.append(tuple(sorted(touched - of_tensors)))
        self.storages_of_op: list[tuple[int, ...]] = [
            tuple(s for tensor in op_tensors.tolist() for s in self.storages_of_tensor[tensor])
            for op_tensors in self.graph.tensors_of_op
        ]
        # The op that makes the last version of each storage; results are on its device.
        self.last_op = {s: op for op, storages in enumerate(self.storages_of_op) for s in storages}
        self.result_views: dict[str, View] = {name: trace.results[name] for name in results}
        self._values: dict[int, list[tuple[View, torch.Tensor]]] = {}
        for index, op in enumerate(trace.ops):
            if not isinstance(op, Placeholder):
                continue
            views = {**op.tensors, **op.state}
            if op.is_resident:
                self.result_views |= views
            self._values[index] = [
                (view, value_of(op, name, view).clone()) for name, view in views.items()
            ]
        self._redrawn = self._redrawn_ops()
        self._resident: dict[tuple[int, torch.device], torch.Tensor] = {}  # see `resident_memory`
        # Storages of results, by the op that makes them: they stay until the end of the step.
        self.outliving: defaultdict[int, set[int]] = defaultdict(set)
        for name in results:
            storage = trace.results[name].storage
            if storage in self.last_op:  # else it has no values
                self.outliving[self.last_op[storage]].add(storage)

    def _redrawn_ops(self) -> list[tuple[int, int]]:
        """Return pairs of ops, of which the second draws the random numbers of the first again."""
        functions = [op.function if isinstance(op, Call) else None for op in self.trace.ops]
        makers, readers = self.graph.edge_producers.tolist(), self.graph.edge_consumers.tolist()
        return sorted(
            (op, reader)
            for op, reader in zip(makers, readers, strict=True)
            if functions[op] is REDRAWN and functions[reader] is REDRAWN_BY
        )

    def check_devices(self, devices: Sequence[str]) -> None:
        for device_index, name in enumerate(devices):
            _device(device_index, name)

    def on_device(
        self, device_index: int, devices: Sequence[str], op_device: NDArray[np.int32]
    ) -> "TracedDevice":
        for op, gradient in self._redrawn:
            name, gradient_name = devices[op_device[op]], devices[op_device[gradient]]
            if name.partition(":")[0] != gradient_name.partition(":")[0]:
                raise CaptureError(
                    f"{self.graph.op_names[op]}: expected its gradient on a device of the same "
                    f"kind, as it draws the dropout again, got {name} and {gradient_name}"
                )
        return TracedDevice(
            self, device_index, _device(device_index, devices[device_index]), op_device.tolist()
        )

    def feed(self) -> Any:
        """Return nothing: all runs begin with the same values, which each process has."""

    def take(self, feed: Any) -> None:
        """Take what `feed` has returned, in the process of a device."""

    def run_update(self, op: int, memory: StorageMemory) -> None:
        """Do nothing; a step that runs updates of weights instead of calls does so here."""

    @property
    def result_names(self) -> Collection[str]:
        """Names of results, weights, buffers and optimizer state."""
        return self.result_views.keys()

    def results(
        self, names: Collection[str], pieces: Mapping[int, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return results, or weights, buffers and optimizer state after the step, by name."""
        with torch.no_grad():
            results = {}
            for name in names:
                view = self.result_views[name]
                num_bytes = self.trace.storage_bytes[view.storage]
                # A storage that no op has written has no values.
                piece = pieces.get(view.storage, torch.empty(num_bytes, dtype=torch.uint8))
                results[name] = view_of(piece.untyped_storage(), view)
            return results

    def values_before(self, op: int) -> Sequence[tuple[View, torch.Tensor]]:
        """Return what is to be put where the tensors of a placeholder are, before a run."""
        return self._values[op]

    def resident_memory(self, storage: int, device: torch.device) -> torch.Tensor:
        """Return the memory of a storage of weights on a device, the same in all runs."""
        if (storage, device) not in self._resident:
            size = self.trace.storage_bytes[storage]
            self._resident[storage, device] = torch.empty(size, dtype=torch.uint8, device=device)
        return self._resident[storage, device]


class DeviceMemory(StorageMemory):
    """The storages of a step on a device, and how many tensors of the graph hold each."""

    def __init__(self, device: torch.device, step: TracedStep) -> None:
        super().__init__(device, step.trace.storage_bytes, step.slots)
        self.num_holds: Counter[int] = Counter()

    def hold(self, storage: int) -> int:
        """Count one more hold of a storage; return the bytes that this adds to the memory."""
        self.num_holds[storage] += 1
        if self.num_holds[storage] > 1:
            return 0
        self.owner(storage)
        return self._storage_bytes[storage]

    def release(self, storage: int) -> int:
        """Count one hold fewer, and drop a storage without holds; return the bytes of that."""
        self.num_holds[storage] -= 1
        if self.num_holds[storage]:
            return 0
        self.drop(storage)
        return self._storage_bytes[storage]


class TracedDevice:
    """The part of a traced step that is on one device (`placeto_graphs.DeviceStep`)."""

    def __init__(
        self, step: TracedStep, device_index: int, device: torch.device, op_device: Sequence[int]
    ) -> None:
        self._step = step
        self._device_index = device_index
        self._device = device
        self._op_device = op_device
        self._generator = torch.Generator(device)
        self._memory = DeviceMemory(device, step)
        self._carried = cache(self._find_carried)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let a thread run ops without gradients, on so many threads as an op may take."""
        num_threads = torch.get_num_threads()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self._device.type == "cuda":
                stack.enter_context(torch.cuda.device(self._device))
            else:
                stack.callback(torch.set_num_threads, num_threads)
                torch.set_num_threads(self._step.threads_per_device)
            yield

    def begin(self, feed: Any) -> None:
        """Put what is there before the step where it belongs."""
        step = self._step
        step.take(feed)
        memory = self._memory = DeviceMemory(self._device, step)
        for op, placeholder in enumerate(step.trace.ops):
            if isinstance(placeholder, Placeholder) and self._op_device[op] == self._device_index:
                for storage in placeholder.storages if placeholder.is_resident else ():
                    memory.put(storage, step.resident_memory(storage, self._device))
                    memory.hold(storage)
                for view, value in step.values_before(op):
                    memory.tensor(view).copy_(value)

    def run(self, op: int) -> int:
        """Run an op; return the bytes that its tensors add to the memory of the device."""
        step, memory = self._step, self._memory
        for call in step.calls[op]:
            args, keywords = call.arguments(memory)
            if call.rng_index is None:
                result = call.kernel(*args, **keywords)
            else:
                result = self._drawn(call, args, keywords)
            memory.keep(call, result)
        step.run_update(op, memory)
        added_bytes = 0
        for storage in step.storages_of_op[op]:
            added_bytes += memory.hold(storage)
        for storage in step.outliving.get(op, ()):
            memory.hold(storage)
        for storage in step.passing[op]:
            if not memory.num_holds[storage]:
                memory.drop(storage)
        return added_bytes

    def buffers(self, tensor: int, destination: int) -> list[torch.Tensor]:
        """Return the storages of a tensor that another device has to get."""
        return [self._whole(storage) for storage in self._carried(tensor, destination)]

    def expect(self, tensor: int) -> tuple[list[torch.Tensor], int]:
        """Make room for a tensor; return its storages, and the bytes that this adds."""
        storages = self._carried(tensor, self._device_index)
        added_bytes = sum(self._memory.hold(storage) for storage in storages)
        return [self._whole(storage) for storage in storages], added_bytes

    def arrived(self, tensor: int) -> None:
        """Do nothing: a tensor arrives where it belongs."""

    def free(self, tensor: int) -> int:
        """Give up a tensor; return the bytes that this frees on the device."""
        return sum(
            self._memory.release(storage) for storage in self._carried(tensor, self._device_index)
        )

    def pieces(self, names: Collection[str]) -> dict[int, torch.Tensor]:
        """Return the storages of results whose last versions are made on this device."""
        last_op = self._step.last_op
        storages = {self._step.result_views[name].storage for name in names} & last_op.keys()
        return {
            storage: self._whole(storage).to("cpu", copy=True)
            for storage in storages
            if self._op_device[last_op[storage]] == self._device_index
        }

    def _whole(self, storage: int) -> torch.Tensor:
        num_bytes = self._step.trace.storage_bytes[storage]
        return self._memory.tensor(whole_storage(storage, num_bytes))

    def _find_carried(self, tensor: int, device: int) -> Sequence[int]:
        """Return the storages of a tensor on a device; on another one only what is read."""
        graph, storages_of = self._step.graph, self._step.storages_of_tensor
        producer, storages = int(graph.tensor_producer[tensor]), storages_of[tensor]
        if self._op_device[producer] == device:
            return storages
        read: set[int] = set()
        for op in graph.consumers_of_tensor[tensor].tolist():
            if self._op_device[op] == device:
                # If a later version of a storage has arrived first, this one would overwrite it.
                later = {
                    storage
                    for input_tensor in graph.inputs_of_op[op].tolist()
                    if graph.tensor_producer[input_tensor] > producer
                    for storage in storages_of[input_tensor]
                }
                read.update({*storages}.intersection(_touched(self._step.trace.ops[op])) - later)
        return [storage for storage in storages if storage in read]

    def _drawn(self, call: PreparedCall, args: Any, keywords: dict[str, Any]) -> Any:
        """Call what draws random numbers; these follow from the seed and which draw it is."""
        seed = self._step.seed + (call.rng_index or 0)
        if call.takes_generator:
            generator = self._generator.manual_seed(seed)
            return call.kernel(*args, **{**keywords, "generator": generator})
        is_cpu = self._device.type == "cpu"
        index = self._device.index or 0
        default = torch.default_generator if is_cpu else torch.cuda.default_generators[index]
        state = default.get_state()
        try:
            default.manual_seed(seed)
            return call.kernel(*args, **keywords)
        finally:
            default.set_state(state)


def example_values(generator: torch.Generator) -> ValueOf:
    """Return what gives a placeholder its values: those of `capture`, random ones, or zeros."""

    def value_of(placeholder: Placeholder, name: str, view: View) -> torch.Tensor:
        value = placeholder.values.get(name)
        if value is not None and not value.is_meta:
            return value.detach()
        if name in placeholder.state or not view.dtype.is_floating_point:
            return torch.zeros(view.size, dtype=view.dtype)
        values = torch.randn(view.size, generator=generator)
        if placeholder.op_type == "parameter":
            values *= WEIGHT_SCALE
        if placeholder.op_type == "buffer":
            values = values.abs()  # it may be a variance
        return values.to(view.dtype)

    return value_of


def _storages_of_tensors(trace: Trace, tensors: TensorsOfTrace) -> list[tuple[int, ...]]:
    """Return the storages of each tensor; a weight's first version also has its optimizer state."""
    storages_of: list[tuple[int, ...]] = []
    with_state: set[int] = set()  # placeholders
    for version in tensors.versions:
        storages: tuple[int, ...] = () if version.storage is None else (version.storage,)
        placeholder = trace.ops[version.producer]
        if isinstance(placeholder, Placeholder) and version.producer not in with_state:
            with_state.add(version.producer)
            storages = placeholder.storages
        storages_of.append(storages)
    return storages_of


def _touched(op: Placeholder | Call) -> tuple[int, ...]:
    return (*op.reads, *op.writes)


def _device(device_index: int, name: str) -> torch.device:
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not index.isdecimal():
        raise CaptureError(
            f"devices[{device_index}]: expected cpu:NUMBER or cuda:NUMBER, got {name!r}"
        )
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if int(index) >= count:
        raise CaptureError(
            f"devices[{device_index}]: expected one of {count} CUDA devices that PyTorch finds "
            f"here, got {name!r}"
        )
    return torch.device(name)


def executable_step(
    model: nn.Module,
    example_inputs: Any,
    *,
    values: Mapping[str, torch.Tensor] | None = None,
    results: Collection[str] | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
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
) -> ExecutableStep:
    """Return one step of a model that can be run on several devices, op by op.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. A run works on
    copies: neither the model nor the step changes. Numbers that the optimizer computes from the
    number of the step are those of the second one, as in `capture`.

    Parameters
    ----------
    model, example_inputs
        As for `capture`. Tensors on the meta device get random values from ``seed`` where they hold
        floating-point numbers, else zeros.
    values
        Values to begin with, by name, in place of those of the model, such as the optimizer's state
        (``"layer.weight.exp_avg"``), which is zero otherwise.
    results
        Names of the results that are wanted beside weights, buffers and optimizer state: ``"loss"``
        and gradients (``"layer.weight.grad"``), or outputs (``"output.0"``). They outlive their
        last reader. By default all but gradients.
    seed
        Seed of random numbers: an op draws after ``torch.manual_seed(seed + n)``, with n the number
        of the draw, on whatever device and in whatever order it runs.
    threads_per_device
        Number of threads of one op on each ``"cpu:N"``.
    loss_fn, optimizer, mode, target, mask_fraction, autocast, updates, experts_per_token, cache
        As for `capture`.
    parameter_bytes
        As for `capture`, for the graph alone: what runs has weights of their dtype.

    Raises
    ------
    CaptureError
        As `capture` does, and when there is no such value or result.

    Examples
    --------
    >>> import numpy as np
    >>> step = executable_step(torch.nn.Linear(4, 2), torch.ones(8, 4), mode="inference")
    >>> device = step.on_device(0, ["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    >>> with device.entered():
    ...     device.begin(step.feed())
    ...     held = [device.run(op) for op in range(step.graph.num_ops)]
    >>> step.results(["output.0"], device.pieces(["output.0"]))["output.0"].shape
    torch.Size([8, 2])
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
    return make_executable(
        spec, values=values, results=results, seed=seed, threads_per_device=threads_per_device
    )


def make_executable(
    spec: StepSpec,
    *,
    values: Mapping[str, torch.Tensor] | None = None,
    results: Collection[str] | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
) -> ExecutableStep:
    """Return a described step as one that can be run on several devices, op by op.

    Parameters
    ----------
    spec
        The step.
    values, results, seed, threads_per_device
        As for `executable_step`.

    Raises
    ------
    CaptureError
        As `executable_step` does.

    Examples
    --------
    >>> spec = StepSpec(torch.nn.Linear(4, 2), torch.ones(8, 4), mode="inference")
    >>> make_executable(spec, results=[]).graph.op_types[-1]
    'aten.addmm'
    """
    trace = trace_step(spec)
    initial_values = dict(values or {})
    value_names = {
        name
        for placeholder in trace.placeholders
        for name in (*placeholder.tensors, *placeholder.state)
    }
    _check_names("values", initial_values, value_names)
    if results is None:
        results = [name for name in trace.results if not name.endswith(GRADIENT)]
    _check_names("results", results, set(trace.results))
    by_default = example_values(torch.Generator().manual_seed(seed))

    def value_of(placeholder: Placeholder, name: str, view: View) -> torch.Tensor:
        if name in initial_values:
            return initial_values[name].detach()
        return by_default(placeholder, name, view)

    return TracedStep(
        trace, value_of, results=results, seed=seed, threads_per_device=threads_per_device
    )


def _check_names(parameter: str, names: Collection[str], step_names: Collection[str]) -> None:
    for name in names:
        if name not in step_names:
            raise CaptureError(f"{parameter}: expected names of this step, got {name!r}")
