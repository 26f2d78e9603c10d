"""Steps of whole numbers: what each op computes follows from what it reads, and from no order."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeto_graphs import Cluster, Device, OpGraph, PlacementProblem, colocate

MODULUS = 1_000_003
Happens = Callable[[str, int], None]


class NumericStep:
    """A step whose devices share nothing: an op finds its inputs on its device, or fails.

    Parameters
    ----------
    graph
        What runs.
    happens
        Called with what is done (``"begin"``, ``"worker"``, ``"run"``, ``"send"``, ``"receive"``,
        ``"free"``) and the number of the op, tensor or device; it may raise.
    """

    def __init__(self, graph: OpGraph, happens: Happens = lambda _what, _number: None) -> None:
        self.graph = graph
        self.happens = happens

    def begin(self, devices: Sequence[str], op_device: NDArray[np.int32]) -> "NumericRun":
        self.happens("begin", len(devices))
        return NumericRun(self, len(devices), op_device.tolist())


class NumericRun:
    """One run: the numbers on each device, and which thread works for it."""

    def __init__(self, step: NumericStep, num_devices: int, op_device: list[int]) -> None:
        self.step = step
        self.op_device = op_device
        self.values: list[dict[int, int]] = [{} for _ in range(num_devices)]
        self.computed: dict[str, int] = {}
        self._thread_of_device: dict[int, int] = {}

    @contextmanager
    def worker(self, device: int) -> Iterator[None]:
        self.step.happens("worker", device)
        self._thread_of_device[device] = threading.get_ident()
        yield

    def run(self, op: int) -> int:
        graph, device = self.step.graph, self.op_device[op]
        self._check_thread(device)
        self.step.happens("run", op)
        read = [self.values[device][tensor] for tensor in graph.inputs_of_op[op].tolist()]
        value = computed(op, read)
        self.computed[graph.op_names[op]] = value
        made = graph.tensors_of_op[op].tolist()
        self.values[device].update({tensor: value + tensor for tensor in made})
        return sum(int(graph.tensor_bytes[tensor]) for tensor in made)

    def send(self, tensor: int, destination: int) -> int:
        home = self.op_device[int(self.step.graph.tensor_producer[tensor])]
        self._check_thread(home)
        assert home != destination
        self.step.happens("send", tensor)
        return self.values[home][tensor]

    def receive(self, tensor: int, destination: int, parcel: int) -> int:
        self._check_thread(destination)
        self.step.happens("receive", tensor)
        assert tensor not in self.values[destination]
        self.values[destination][tensor] = parcel
        return int(self.step.graph.tensor_bytes[tensor])

    def free(self, tensor: int, device: int) -> int:
        self._check_thread(device)
        self.step.happens("free", tensor)
        del self.values[device][tensor]
        return int(self.step.graph.tensor_bytes[tensor])

    def results(self) -> Mapping[str, int]:
        return self.computed

    def _check_thread(self, device: int) -> None:
        assert self._thread_of_device[device] == threading.get_ident()


def computed(op: int, read: Sequence[int]) -> int:
    value = op + 1
    for number in read:
        value = (value * 31 + number) % MODULUS
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
        (op, before)
        for op, before in generator.integers(0, num_ops, (num_ops // 2, 2)).tolist()
        if before < op
    }
    graph = OpGraph(
        op_names=tuple(f"op{op}" for op in range(num_ops)),
        op_types=("op",) * num_ops,
        scopes=("",) * num_ops,
        phases=generator.integers(0, 3, num_ops, np.int8),
        flops=np.zeros(num_ops),
        bytes_accessed=np.zeros(num_ops),
        parameter_bytes=np.zeros(num_ops, np.int64),
        workspace_bytes=generator.integers(0, 1000, num_ops),
        colocation=np.full(num_ops, -1, np.int32),
        tensor_producer=producer,
        tensor_bytes=generator.integers(0, 1000, len(producer)),
        edges=np.array(list(dict.fromkeys(pairs)), np.int32).reshape(-1, 2),
        waits=np.array(sorted(waits), np.int32).reshape(-1, 2),
        held_tensors=np.flatnonzero(generator.random(len(producer)) < 0.2).astype(np.int32),
    )
    cluster = Cluster(
        devices=tuple(
            Device(f"device{number}", "kind", 10**9, 1e-5, 1e-5) for number in range(num_devices)
        ),
        bandwidth=np.full((num_devices, num_devices), 1e7),
        latency=np.full((num_devices, num_devices), 1e-5),
        queue=queue,
    )
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=generator.uniform(0, 2e-4, (num_ops, num_devices)),
        grouping=colocate(graph, rules=()),
    )


def workers(count: int) -> list[str]:
    return [f"cpu:{number}" for number in range(count)]


problems = st.builds(
    random_problem,
    seed=st.integers(0, 2**32 - 1),
    num_ops=st.integers(1, 25),
    num_devices=st.integers(1, 4),
    queue=st.sampled_from(["fifo", "backward-first"]),
)
