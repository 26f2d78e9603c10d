"""A traced step as an executable one (`placeto_graphs.ExecutableStep`)."""

import threading
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from placeto_graphs import OpGraph
from placeto_workloads.capture.op_graph import op_graph_of
from placeto_workloads.capture.op_graph import storages_of_tensors
from placeto_workloads.capture.replay import ValueOf
from placeto_workloads.capture.trace import Call
from placeto_workloads.capture.trace import Source
from placeto_workloads.capture.trace import TensorRef
from placeto_workloads.capture.trace import Trace
from placeto_workloads.errors import WorkloadError
from placeto_workloads.execution.device_memory import DeviceMemory
from placeto_workloads.execution.prepared_calls import PreparedCall
from placeto_workloads.execution.prepared_calls import Slots
from placeto_workloads.execution.prepared_calls import prepared
from placeto_workloads.execution.torch_devices import torch_devices

_DRAWING = threading.Lock()  # of the random numbers that all threads draw from


class TracedStep:
    """A traced step, prepared to run.

    Parameters
    ----------
    trace
        The step.
    value_of
        Gives the values that a tensor of a source has before the step; it is asked once.
    results
        The names of those results of the trace that outlive their last reader.
    seed
        As for `placeto_workloads.capture.replay.replay`.
    threads_per_device
        How many threads work on one op on a CPU.
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
        self.graph: OpGraph = op_graph_of(trace)
        self.trace = trace
        self.seed = seed
        self.threads_per_device = threads_per_device
        self.shared_memory = shared_memory
        self.slots = Slots()
        self.calls: list[tuple[PreparedCall, ...]] = []
        self.between_parts: list[tuple[int, ...]] = []
        for op in trace.ops:
            parts = (op.parts or (op,)) if isinstance(op, Call) else ()
            self.calls.append(tuple(prepared(part, self.slots) for part in parts))
            self.between_parts.append(_between_parts(op))
        self.storages_of_tensor = storages_of_tensors(trace)
        self.storages_of_op: list[tuple[int, ...]] = [
            tuple(
                storage
                for tensor in self.graph.tensors_of_op[op].tolist()
                for storage in self.storages_of_tensor[tensor]
            )
            for op in range(self.graph.num_ops)
        ]
        self.results: dict[str, TensorRef] = {name: trace.results[name] for name in results}
        for source in trace.sources:
            if source.is_resident:
                self.results |= {**source.tensors, **source.state}
        self.values: dict[int, list[tuple[TensorRef, torch.Tensor]]] = {
            op: _values_of(source, value_of)
            for op, source in enumerate(trace.ops)
            if isinstance(source, Source)
        }
        self.last_op_of_storage = {
            storage: op for op, held in enumerate(self.storages_of_op) for storage in held
        }
        self.last_run: TracedRun | None = None
        self._resident: dict[tuple[int, torch.device], torch.Tensor] = {}
        self.outliving: dict[int, set[int]] = defaultdict(set)  # of each op, what it leaves behind
        for name in results:
            storage = trace.results[name].storage
            self.outliving[self.last_op_of_storage[storage]].add(storage)

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> "TracedRun":
        """Put what is there before the step where it belongs, and return a run.

        Weights lie in the same memory in every run, as they do in training: to get memory from the
        system each time would take longer than many an op.
        """
        return TracedRun(self, torch_devices(devices), op_device.tolist())

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
        self._memories = [
            DeviceMemory(device, step.trace.storage_bytes, step.slots) for device in devices
        ]
        self._memory_of_op = [self._memories[device] for device in op_device]
        self._generators = [torch.Generator(device) for device in devices]
        for op, values in step.values.items():
            memory, source = self._memory_of_op[op], step.trace.ops[op]
            for storage in dict.fromkeys(ref.storage for ref, _ in values):
                if isinstance(source, Source) and source.is_resident:
                    memory.put(storage, step.resident_memory(storage, memory.device))
                    memory.hold(storage)
                else:
                    memory.allocate(storage)
            for ref, value in values:
                memory.tensor(ref).copy_(value)
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
            for storage in call.allocated:
                memory.allocate(storage)
            args, keywords = call.arguments(memory)
            if call.draw is None:
                result = call.kernel(*args, **keywords)
            else:
                result = self._drawn(op, call, args, keywords)
            memory.keep(call, result)
        for storage in step.between_parts[op]:
            memory.drop(storage)
        if memory.device.type == "cuda":
            torch.cuda.current_stream(memory.device).synchronize()
        more = 0
        for storage in step.storages_of_op[op]:
            more += memory.hold(storage)
        for storage in step.outliving.get(op, ()):
            memory.hold(storage)
        return more

    def send(self, tensor: int, destination: int) -> list[tuple[int, torch.Tensor]]:
        """Return the storages of a tensor, copied where the destination does not share them."""
        source = self._memories[self._home(tensor)]
        device = self._memories[destination].device
        shared = self._step.shared_memory and source.device.type == device.type == "cpu"
        parcel = []
        for storage in self._carried(tensor, destination):
            owner = source.owner(storage)
            if not shared:
                size = self._step.trace.storage_bytes[storage]
                whole = source.tensor(TensorRef(storage, torch.uint8, (size,), (1,), 0))
                owner = whole.to(device, copy=True)
            parcel.append((storage, owner))
        return parcel

    def receive(
        self, tensor: int, destination: int, parcel: Sequence[tuple[int, torch.Tensor]]
    ) -> int:
        """Take a tensor that was sent; return the bytes that the destination holds more."""
        del tensor  # the parcel says it all
        memory, more = self._memories[destination], 0
        for storage, owner in parcel:
            memory.put(storage, owner)
            more += memory.hold(storage)
        return more

    def free(self, tensor: int, device: int) -> int:
        """Give up a tensor on a device; return the bytes that the device holds fewer."""
        memory, fewer = self._memories[device], 0
        for storage in self._carried(tensor, device):
            fewer += memory.release(storage)
        return fewer

    def results(self) -> Mapping[str, torch.Tensor]:
        """Return the results, and weights, buffers and optimizer state after the step."""
        if self._step.last_run is not self:
            raise WorkloadError(
                "results: expected to be asked for before the next run begins, got asked after it"
            )
        with torch.no_grad():
            return {name: self._at_end(ref) for name, ref in self._step.results.items()}

    def _at_end(self, ref: TensorRef) -> torch.Tensor:
        memory = self._memory_of_op[self._step.last_op_of_storage[ref.storage]]
        return memory.tensor(ref).to("cpu", copy=True)

    def _carried(self, tensor: int, device: int) -> Sequence[int]:
        """Return the storages of a tensor that are on a device; the optimizer's state stays."""
        storages = self._step.storages_of_tensor[tensor]
        if len(storages) < 2 or self._home(tensor) == device:
            return storages
        read = {
            storage
            for op in self._step.graph.consumers_of_tensor[tensor].tolist()
            if self._op_device[op] == device
            for storage in _touched(self._step.trace.ops[op])
        }
        return [storage for storage in storages if storage in read]

    def _home(self, tensor: int) -> int:
        return self._op_device[int(self._step.graph.tensor_producer[tensor])]

    def _drawn(self, op: int, call: PreparedCall, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call what draws random numbers; these follow from the seed and which draw it is."""
        seed = self._step.seed + (call.draw or 0)
        if call.takes_generator:
            generator = self._generators[self._op_device[op]].manual_seed(seed)
            return call.kernel(*args, **{**keywords, "generator": generator})
        device = self._memory_of_op[op].device
        with _DRAWING, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return call.kernel(*args, **keywords)


def _values_of(source: Source, value_of: ValueOf) -> list[tuple[TensorRef, torch.Tensor]]:
    tensors = {**source.tensors, **source.state}
    return [(ref, value_of(source, name, ref).clone()) for name, ref in tensors.items()]


def _between_parts(op: Source | Call) -> tuple[int, ...]:
    """Return the storages that are there only between the parts of an op."""
    if isinstance(op, Source):
        return ()
    made = {storage for part in op.parts for storage in part.creates}
    return tuple(sorted(made - set(op.creates)))


def _touched(op: Source | Call) -> tuple[int, ...]:
    return (*op.reads, *op.writes) if isinstance(op, Call) else ()
