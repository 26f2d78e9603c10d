"""A traced step as an executable one (`placeto_graphs.ExecutableStep`)."""

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from placeto_capture.errors import CaptureError
from placeto_capture.execution.device_memory import DeviceMemory, Pool, StepParts
from placeto_capture.execution.prepared_calls import PreparedCall, Slots, prepared
from placeto_capture.tracing.capture import LossFunction, OptimizerFactory, trace_step
from placeto_capture.tracing.devices import Target
from placeto_capture.tracing.op_graph import TensorsOfTrace, op_graph_of
from placeto_capture.tracing.replay import ValueOf, example_values, view_of
from placeto_capture.tracing.trace import Call, Placeholder, Trace, Updates, View
from placeto_graphs import ExecutableStep, OpGraph

# Storages and their owners where they are shared, else parts and copies of their bytes.
Parcel = Sequence[tuple[int, torch.Tensor]]

_DRAWING = threading.Lock()  # of the random numbers that all threads draw from


class TracedStep:
    """A traced step, prepared to run.

    Parameters
    ----------
    trace
        The step.
    value_of
        Gives the values that a tensor of a placeholder has before the step; it is asked once.
    results
        The names of those results of the trace that outlive their last reader.
    seed
        As for `placeto_capture.tracing.replay.replay`.
    threads_per_device
        Number of threads of one op on a CPU.
    shared_memory
        Whether all CPU workers see the same memory, so that what one sends the other is not copied.
    """

    def __init__(
        self,
        trace: Trace,
        value_of: ValueOf,
        *,
        results: Collection[str],
        seed: int = 0,
        threads_per_device: int = 1,
        shared_memory: bool = True,
    ) -> None:
        tensors = TensorsOfTrace(trace)
        self.graph: OpGraph = op_graph_of(trace, tensors)
        self.parts = StepParts(trace, tensors)
        self.trace = trace
        self.seed = seed
        self.threads_per_device = threads_per_device
        self.shared_memory = shared_memory
        self.slots = Slots()
        self.calls: list[tuple[PreparedCall, ...]] = []
        self.passing: list[tuple[int, ...]] = []  # storages that an op has and no tensor is of
        for index, op in enumerate(trace.ops):
            calls = op.single_calls if isinstance(op, Call) else ()
            self.calls.append(tuple(prepared(call, self.slots) for call in calls))
            tensors_at_op = (*self.graph.inputs_of_op[index], *self.graph.tensors_of_op[index])
            touched = {storage for call in calls for storage in (*_touched(call), *call.creates)}
            self.passing.append(tuple(sorted(touched - self.parts.storages_of(tensors_at_op))))
        self.parts_of_op: list[tuple[int, ...]] = [
            tuple(part for tensor in made.tolist() for part in self.parts.of_tensor[tensor])
            for made in self.graph.tensors_of_op
        ]
        self.results: dict[str, View] = {name: trace.results[name] for name in results}
        for placeholder in trace.placeholders:
            if placeholder.is_resident:
                self.results |= {**placeholder.tensors, **placeholder.state}
        self._values: dict[int, list[tuple[View, torch.Tensor]]] = {
            op: _values_of(placeholder, value_of)
            for op, placeholder in enumerate(trace.ops)
            if isinstance(placeholder, Placeholder)
        }
        self.last_run: TracedRun | None = None
        self._resident: dict[tuple[int, torch.device], torch.Tensor] = {}
        self.outliving: defaultdict[int, set[int]] = defaultdict(set)  # the parts that an op leaves
        for name in results:
            for part in self.parts.of_storage[trace.results[name].storage]:
                if part in self.parts.last_op:
                    self.outliving[self.parts.last_op[part]].add(part)

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> "TracedRun":
        """Put what is there before the step where it belongs, and return a run.

        Weights lie in the same memory in every run, as they do in training: to get memory from the
        system each time would take longer than many an op.
        """
        return TracedRun(self, torch_devices(devices), op_device.tolist())

    def values_before(self, op: int) -> Sequence[tuple[View, torch.Tensor]]:
        """Return what is to be put where the tensors of a placeholder are, before a run."""
        return self._values[op]

    def resident_memory(self, storage: int, device: torch.device) -> torch.Tensor:
        """Return the memory in which a storage of weights lies on a device in all runs."""
        if (storage, device) not in self._resident:
            size = self.trace.storage_bytes[storage]
            self._resident[storage, device] = torch.empty(size, dtype=torch.uint8, device=device)
        return self._resident[storage, device]


class TracedRun:
    """One run of a traced step (`placeto_graphs.StepRun`)."""

    def __init__(
        self, step: TracedStep, devices: Sequence[torch.device], op_device: Sequence[int]
    ) -> None:
        self._step = step
        self._op_device = op_device
        self._num_threads = torch.get_num_threads()
        shared = Pool(torch.device("cpu"), step.trace.storage_bytes)
        self._memories = [
            DeviceMemory(
                shared
                if step.shared_memory and device.type == "cpu"
                else Pool(device, step.trace.storage_bytes),
                step.parts,
                step.slots,
            )
            for device in devices
        ]
        self._memory_of_op = [self._memories[device] for device in op_device]
        self._generators = [torch.Generator(device) for device in devices]
        for op, placeholder in enumerate(step.trace.ops):
            if isinstance(placeholder, Placeholder):
                memory = self._memory_of_op[op]
                for storage in placeholder.storages if placeholder.is_resident else ():
                    memory.put(storage, step.resident_memory(storage, memory.device))
                    for part in step.parts.of_storage[storage]:
                        memory.hold(part)
                for view, value in step.values_before(op):
                    memory.tensor(view).copy_(value)
        step.last_run = self

    @contextmanager
    def worker(self, device: int) -> Iterator[None]:
        """Let a thread run ops without gradients, on so many threads as an op may take."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self._memories[device].device.type == "cuda":
                stack.enter_context(torch.cuda.device(self._memories[device].device))
            else:
                stack.callback(torch.set_num_threads, self._num_threads)
                torch.set_num_threads(self._step.threads_per_device)
            yield

    def run(self, op: int) -> int:
        """Run an op on its device; return the bytes that the device holds more for its tensors."""
        step, memory = self._step, self._memory_of_op[op]
        for call in step.calls[op]:
            args, keywords = call.arguments(memory)
            if call.rng_index is None:
                result = call.kernel(*args, **keywords)
            else:
                result = self._drawn(op, call, args, keywords)
            memory.keep(call, result)
        if memory.device.type == "cuda":
            torch.cuda.current_stream(memory.device).synchronize()
        more = 0
        for part in step.parts_of_op[op]:
            more += memory.hold(part)
        for part in step.outliving.get(op, ()):
            memory.hold(part)
        for storage in step.passing[op]:
            memory.drop(storage)
        return more

    def send(self, tensor: int, destination: int) -> Parcel:
        """Return the parts of a tensor; they are copied where the destination has other memory."""
        placeholder, target = self._memories[self._home(tensor)], self._memories[destination]
        parts = self._carried(tensor, destination)
        if placeholder.pool is target.pool:
            storages = {self._step.parts.views[part].storage for part in parts}
            return [(storage, placeholder.owner(storage)) for storage in storages]
        return [
            (part, placeholder.tensor(self._step.parts.views[part]).to(target.device, copy=True))
            for part in parts
        ]

    def receive(self, tensor: int, destination: int, parcel: Parcel) -> int:
        """Take a tensor that was sent; return the bytes that the destination holds more."""
        memory, more = self._memories[destination], 0
        is_shared = memory.pool is self._memories[self._home(tensor)].pool
        for storage, owner in parcel if is_shared else ():
            memory.adopt(storage, owner)
        for part in self._carried(tensor, destination):
            more += memory.hold(part)
        for part, values in () if is_shared else parcel:
            memory.tensor(self._step.parts.views[part]).copy_(values)
        return more

    def free(self, tensor: int, device: int) -> int:
        """Give up a tensor on a device; return the bytes that the device holds fewer."""
        memory, fewer = self._memories[device], 0
        for part in self._carried(tensor, device):
            fewer += memory.release(part)
        return fewer

    def results(self) -> Mapping[str, torch.Tensor]:
        """Return the results, and weights, buffers and optimizer state after the step."""
        if self._step.last_run is not self:
            raise CaptureError(
                "results: expected to be asked for before the next run begins, got asked after it"
            )
        with torch.no_grad():
            return {name: self._at_end(view) for name, view in self._step.results.items()}

    def _at_end(self, view: View) -> torch.Tensor:
        """Return a tensor of those values that the last op that made each part has left."""
        parts, num_bytes = self._step.parts, self._step.trace.storage_bytes[view.storage]
        storage = torch.empty(num_bytes, dtype=torch.uint8).untyped_storage()
        for part in parts.of_storage[view.storage]:
            if part in parts.last_op:
                made = self._memory_of_op[parts.last_op[part]].tensor(parts.views[part])
                view_of(storage, parts.views[part]).copy_(made)
        return view_of(storage, view)

    def _carried(self, tensor: int, device: int) -> Sequence[int]:
        """Return the parts of a tensor that are on a device; the optimizer's state stays."""
        parts, views = self._step.parts.of_tensor[tensor], self._step.parts.views
        if len(parts) < 2 or self._home(tensor) == device:
            return parts
        read = {
            storage
            for op in self._step.graph.consumers_of_tensor[tensor].tolist()
            if self._op_device[op] == device
            for storage in _touched(self._step.trace.ops[op])
        }
        return [part for part in parts if views[part].storage in read]

    def _home(self, tensor: int) -> int:
        return self._op_device[int(self._step.graph.tensor_producer[tensor])]

    def _drawn(self, op: int, call: PreparedCall, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call what draws random numbers; these follow from the seed and which draw it is."""
        seed = self._step.seed + (call.rng_index or 0)
        if call.takes_generator:
            generator = self._generators[self._op_device[op]].manual_seed(seed)
            return call.kernel(*args, **{**keywords, "generator": generator})
        device = self._memory_of_op[op].device
        with _DRAWING, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return call.kernel(*args, **keywords)


def _values_of(placeholder: Placeholder, value_of: ValueOf) -> list[tuple[View, torch.Tensor]]:
    tensors = {**placeholder.tensors, **placeholder.state}
    return [(view, value_of(placeholder, name, view).clone()) for name, view in tensors.items()]


def _touched(op: Placeholder | Call) -> tuple[int, ...]:
    return (*op.reads, *op.writes) if isinstance(op, Call) else ()


def torch_devices(names: Sequence[str]) -> list[torch.device]:
    """Return the devices of some names; each ``"cpu:N"`` is a worker of the one CPU.

    Raises
    ------
    CaptureError
        If there is no such device.
    """
    return [_device(number, name) for number, name in enumerate(names)]


def _device(number: int, name: str) -> torch.device:
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not index.isdecimal():
        raise CaptureError(f"devices[{number}]: expected cpu:NUMBER or cuda:NUMBER, got {name!r}")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if int(index) >= count:
        raise CaptureError(
            f"devices[{number}]: expected one of {count} CUDA devices that PyTorch finds here, "
            f"got {name!r}"
        )
    return torch.device(name)


GRADIENT = ".grad"  # ends the names of gradients among the results of a trace


def executable_step(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss_fn: LossFunction | None = None,
    optimizer: OptimizerFactory | None = None,
    mode: str = "training",
    target: Target = "gpu",
    mask_fraction: float | None = None,
    autocast: torch.dtype | None = None,
    updates: Updates = "after-backward",
    values: Mapping[str, torch.Tensor] | None = None,
    results: Collection[str] | None = None,
    seed: int = 0,
    threads_per_device: int = 1,
    shared_memory: bool = True,
) -> ExecutableStep:
    """Return one step of a model that can be run on several devices, op by op.

    The ops are those of ``capture(model, example_inputs, ...)``, in the same order. A run works on
    copies: neither the model nor the step changes. What the optimizer computes from the number of
    the step is that of the second one, as when the step is captured.

    Parameters
    ----------
    model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction, autocast, updates
        As for `capture`. Tensors on the meta device get random values from
        ``seed`` where they hold floating-point numbers, else zeros.
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
    shared_memory
        Whether all ``"cpu:N"`` see the same memory. Otherwise what one sends the other is copied,
        as it is between GPUs.

    Raises
    ------
    CaptureError
        As `capture` does, and when there is no such value or result.

    Examples
    --------
    >>> import numpy as np
    >>> step = executable_step(torch.nn.Linear(4, 2), torch.ones(8, 4), mode="inference")
    >>> run = step.begin(["cpu:0"], np.zeros(step.graph.num_ops, np.int32))
    >>> with run.worker(0):
    ...     held = [run.run(op) for op in range(step.graph.num_ops)]
    >>> run.results()["output.0"].shape
    torch.Size([8, 2])
    """
    if threads_per_device < 1:
        raise CaptureError(f"threads_per_device: expected at least 1, got {threads_per_device}")
    trace = trace_step(
        model, example_inputs, loss_fn, optimizer, mode, target, mask_fraction, autocast, updates
    )
    given = dict(values or {})
    known = {
        name
        for placeholder in trace.placeholders
        for name in (*placeholder.tensors, *placeholder.state)
    }
    _check_names("values", given, known)
    if results is None:
        results = [name for name in trace.results if not name.endswith(GRADIENT)]
    _check_names("results", results, set(trace.results))
    by_default = example_values(torch.Generator().manual_seed(seed))

    def value_of(placeholder: Placeholder, name: str, view: View) -> torch.Tensor:
        return given[name].detach() if name in given else by_default(placeholder, name, view)

    return TracedStep(
        trace,
        value_of,
        results=results,
        seed=seed,
        threads_per_device=threads_per_device,
        shared_memory=shared_memory,
    )


def _check_names(what: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise CaptureError(f"{what}: expected names of this step, got {name!r}")
