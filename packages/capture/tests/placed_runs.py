"""Runs an executable step on several devices, one op at a time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capture_checks import SEED, Comparison
from eager_step import plain_kernels
from placeto_capture.executable.traced_step import TracedStep
from placeto_capture.tracing.trace import Placeholder, View
from placeto_graphs import DeviceStep, ExecutableStep, OpGraph
from replays import random_order


@dataclass(frozen=True)
class PlacedRun:
    """What a step has left behind, and the bytes that each device then holds beside its weights."""

    results: Mapping[str, Any]
    held_bytes: Sequence[int]


def random_devices(graph: OpGraph, num_devices: int, seed: int) -> NDArray[np.int32]:
    """Return int32[V], a random device for each op; those that belong together share one."""
    devices = np.random.default_rng(seed).integers(0, num_devices, graph.num_ops, np.int32)
    return devices[graph.colocation_leaders]


def placed_run(
    step: ExecutableStep, op_device: NDArray[np.int32], num_devices: int, seed: int
) -> PlacedRun:
    """Run a step in a random order; each tensor is given up when its last reader is done.

    One that is held is given up at the end.
    """
    graph = step.graph
    devices = begin_devices(step, op_device, num_devices)
    held_bytes = [0] * num_devices
    uses = Counter((tensor, int(op_device[op])) for tensor, op in graph.edges.tolist())
    home = op_device[graph.tensor_producer].tolist()
    held_to_the_end = [(tensor, home[tensor]) for tensor in graph.held_tensors.tolist()]
    uses.update(held_to_the_end)

    def count_use(tensor: int, device: int) -> None:
        uses[tensor, device] -= 1
        if uses[tensor, device] <= 0:
            held_bytes[device] -= devices[device].free(tensor)

    with devices[0].entered():
        for op in random_order(graph, seed):
            device = int(op_device[op])
            held_bytes[device] += devices[device].run(op)
            for tensor in graph.tensors_of_op[op].tolist():
                for destination, num_bytes in send(graph, op_device, devices, tensor):
                    held_bytes[destination] += num_bytes
                if not uses[tensor, device]:
                    count_use(tensor, device)
            for tensor in graph.inputs_of_op[op].tolist():
                count_use(tensor, device)
        for tensor, device in held_to_the_end:
            count_use(tensor, device)
    return PlacedRun(results_of(step, devices), held_bytes)


def begin_devices(
    step: ExecutableStep, op_device: NDArray[np.int32], num_devices: int
) -> Sequence[DeviceStep]:
    """Return the parts of a step on all devices, which this process has, at the beginning."""
    names = [f"cpu:{index}" for index in range(num_devices)]
    devices = [step.on_device(index, names, op_device) for index in range(num_devices)]
    feed = step.feed()
    with devices[0].entered():
        for device in devices:
            device.begin(feed)
    return devices


def send(
    graph: OpGraph, op_device: NDArray[np.int32], devices: Sequence[DeviceStep], tensor: int
) -> Iterator[tuple[int, int]]:
    """Send a tensor to all other devices that read it; yield them, and the bytes they hold more."""
    source = int(op_device[graph.tensor_producer[tensor]])
    readers = op_device[graph.consumers_of_tensor[tensor]].tolist()
    for destination in dict.fromkeys(readers):
        if destination != source:
            buffers, num_bytes = devices[destination].expect(tensor)
            values = devices[source].buffers(tensor, destination)
            for buffer, value in zip(buffers, values, strict=True):
                assert buffer.is_contiguous()
                assert value.is_contiguous()
                buffer.copy_(value)
            devices[destination].arrived(tensor)
            yield destination, num_bytes


def results_of(step: ExecutableStep, devices: Sequence[DeviceStep]) -> Mapping[str, Any]:
    """Return all results of a step that has run."""
    names = step.result_names
    pieces = {key: piece for device in devices for key, piece in device.pieces(names).items()}
    return step.results(names, pieces)


def prepared(step: Comparison) -> TracedStep:
    """Prepare a step with the values that PyTorch began with; all its results are wanted."""

    def value_of(source: Placeholder, name: str, _: View) -> torch.Tensor:
        return step.before.get(name, source.values.get(name, torch.empty(0)))

    return TracedStep(step.trace, value_of, results=list(step.trace.results), seed=SEED)


def check_placements(step: Comparison, num_placements: int) -> None:
    """Check what random placements on 1, 2 and 4 devices give."""
    ready = prepared(step)
    for seed in range(num_placements):
        num_devices = (1, 2, 4)[seed % 3]
        devices = random_devices(ready.graph, num_devices, seed)
        with plain_kernels():
            run = placed_run(ready, devices, num_devices, seed)
        assert run.results.keys() == step.after.keys()
        for name, value in step.after.items():
            torch.testing.assert_close(run.results[name], value, msg=partial(_named, name))


def _named(name: str, message: str) -> str:
    return f"{name}: {message}"
