"""Steps of whole numbers: what each op computes follows from what it reads, and from no order."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_execution import ExecutionError
from placeto_graphs import Cluster, Device, OpGraph, PlacementProblem

MODULUS = 1_000_003
FEED = 7
Happens = Callable[[str, int], None]


class NumericStep:
    """A step whose devices share nothing: an op finds its inputs on its device, or fails.

    ``happens`` is called in the process of a device with the method, such as ``"run"``, and the
    index of the op, tensor or device; it may raise.
    """

    def __init__(self, graph: OpGraph, happens: Happens = lambda _method, _index: None) -> None:
        self.graph = graph
        self.happens = happens

    def check_devices(self, devices: Sequence[str]) -> None:
        if "cuda:99" in devices:
            raise ExecutionError("devices: no cuda:99")

    def on_device(
        self, device: int, devices: Sequence[str], op_device: NDArray[np.int32]
    ) -> "NumericDevice":
        del devices
        return NumericDevice(self, device, op_device.tolist())

    def feed(self) -> int:
        return FEED

    @property
    def result_names(self) -> Collection[str]:
        return self.graph.op_names

    def results(self, names: Collection[str], pieces: Mapping[Any, Any]) -> Mapping[str, int]:
        return {name: pieces[name] for name in names}


class NumericDevice:
    """The numbers on one device: of each tensor a large and an empty buffer."""

    def __init__(self, step: NumericStep, device: int, op_device: list[int]) -> None:
        self.step, self.device, self.op_device = step, device, op_device

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, feed: int) -> None:
        assert feed == FEED
        self.step.happens("begin", self.device)
        self.values: dict[int, torch.Tensor] = {}
        self.missing: set[int] = set()
        self.computed: dict[str, int] = {}

    def run(self, op: int) -> int:
        graph = self.step.graph
        assert self.op_device[op] == self.device
        self.step.happens("run", op)
        inputs = graph.inputs_of_op[op].tolist()
        assert not self.missing & set(inputs)
        value = computed(op, [int(self.values[tensor][-1]) for tensor in inputs])
        self.computed[graph.op_names[op]] = value
        outputs = graph.tensors_of_op[op].tolist()
        self.values |= {tensor: buffer_of(value + tensor) for tensor in outputs}
        return sum(int(graph.tensor_bytes[tensor]) for tensor in outputs)

    def buffers(self, tensor: int, destination: int) -> list[torch.Tensor]:
        assert destination != self.device
        self.step.happens("buffers", tensor)
        return [self.values[tensor], torch.empty(0)]

    def expect(self, tensor: int) -> tuple[list[torch.Tensor], int]:
        self.step.happens("expect", tensor)
        assert tensor not in self.values
        self.values[tensor] = buffer_of(-1)
        self.missing.add(tensor)
        return [self.values[tensor], torch.empty(0)], int(self.step.graph.tensor_bytes[tensor])

    def arrived(self, tensor: int) -> None:
        self.step.happens("arrived", tensor)
        self.missing.remove(tensor)

    def free(self, tensor: int) -> int:
        self.step.happens("free", tensor)
        assert tensor not in self.missing
        del self.values[tensor]
        return int(self.step.graph.tensor_bytes[tensor])

    def pieces(self, names: Collection[str]) -> Mapping[Any, Any]:
        return {name: value for name, value in self.computed.items() if name in names}


def buffer_of(value: int) -> torch.Tensor:
    """Return so many bytes that memory for all that is sent has to grow."""
    return torch.full((50_000,), value)


def computed(op: int, operands: Sequence[int]) -> int:
    value = op + 1
    for operand in operands:
        value = (value * 31 + operand) % MODULUS
    return value


def expected_results(graph: OpGraph) -> dict[str, int]:
    """Return what the ops compute one after the other, on one device."""
    values: dict[int, int] = {}
    results = {}
    for op in graph.topological_order.tolist():
        value = computed(op, [values[tensor] for tensor in graph.inputs_of_op[op].tolist()])
        values.update({tensor: value + tensor for tensor in graph.tensors_of_op[op].tolist()})
        results[graph.op_names[op]] = value
    return results


def random_problem(seed: int, num_ops: int, num_devices: int, queue: str) -> PlacementProblem:
    """Return a problem in which ops have several outputs, links are shared, and some ops wait."""
    generator = np.random.default_rng(seed)
    producer = generator.integers(0, num_ops, 2 * num_ops, np.int32)
    pairs = [
        (tensor, reader)
        for tensor, op in enumerate(producer.tolist())
        for reader in generator.integers(0, num_ops, 3).tolist()
        if op < reader
    ]
    waits = {
        (op, predecessor)
        for op, predecessor in generator.integers(0, num_ops, (num_ops // 2, 2)).tolist()
        if predecessor < op
    }
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        phases=generator.integers(0, 3, num_ops, np.int8),
        workspace_bytes=generator.integers(0, 1000, num_ops),
        tensor_producer=producer,
        tensor_bytes=generator.integers(0, 1000, len(producer)),
        edges=np.array(list(dict.fromkeys(pairs)), np.int32).reshape(-1, 2),
        waits=np.array(sorted(waits), np.int32).reshape(-1, 2),
        held_tensors=np.flatnonzero(generator.random(len(producer)) < 0.2).astype(np.int32),
    )
    cluster = Cluster(
        devices=tuple(
            Device(f"device{device}", "kind", 10**9, 1e-5, 1e-5) for device in range(num_devices)
        ),
        bandwidth=np.full((num_devices, num_devices), 1e7),
        latency=np.full((num_devices, num_devices), 1e-5),
        queue=queue,
    )
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=generator.uniform(0, 2e-4, (num_ops, num_devices)),
    )


def cpus(count: int) -> list[str]:
    return [f"cpu:{index}" for index in range(count)]


def gpus(count: int) -> list[str]:
    return [f"cuda:{index}" for index in range(count)]


problems = st.builds(
    random_problem,
    seed=st.integers(0, 2**32 - 1),
    num_ops=st.integers(1, 25),
    num_devices=st.integers(1, 4),
    queue=st.sampled_from(["fifo", "backward-first"]),
)
