"""Programs are right on streams that work whenever they like, as those of a GPU do.

There is no GPU here: these streams note what is issued, and do it at the end in a random order, in
which only events count.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from host_streams import host_streams
from numeric_step import FEED, NumericStep, computed, expected_results, gpus, problems
from placeto_execution import compile_step, streams
from placeto_execution.programs import topological_schedule
from placeto_graphs import PlacementProblem


@dataclass
class LazyStream:
    """Does later, in order, what is issued while it is entered."""

    issued: list[Callable[[], bool]] = field(default_factory=list)
    num_done: int = 0

    def enter(self) -> None:
        current[:] = [self]

    def set_clock(self) -> None:
        """Nothing."""

    def mark(self) -> "LazyMoment":
        return LazyMoment(self, len(self.issued))

    def wait(self, moment: "LazyMoment") -> None:
        self.issued.append(lambda: moment.has_come)

    def keep(self, buffer: "LazyBuffer") -> None:
        buffer.keepers.append(self)

    def do(self, work: Callable[[], object]) -> None:
        self.issued.append(lambda: work() is None)

    def go_on(self) -> bool:
        """Do the next thing, unless it has to wait or there is none."""
        goes = self.num_done < len(self.issued) and self.issued[self.num_done]()
        self.num_done += goes
        return goes


@dataclass
class LazyMoment:
    stream: LazyStream
    place: int

    @property
    def has_come(self) -> bool:
        return self.stream.num_done >= self.place

    def seconds(self) -> float:
        assert self.has_come
        return 0.0


current: list[LazyStream] = []  # one stream


class LazyBuffer:
    """Memory of a number that is free, after its streams have gone so far, when the buffer ends."""

    def __init__(self) -> None:
        self.memory: list[int] = []  # the number, once there is one
        self.stream = current[0]
        self.keepers: list[LazyStream] = []

    def copy_(self, source_buffer: "LazyBuffer", non_blocking: bool) -> None:
        assert non_blocking
        source, target = source_buffer.memory, self.memory

        def copy() -> None:
            assert source
            target[:] = source

        current[0].do(copy)

    def __del__(self) -> None:
        for keeper in self.keepers:
            self.stream.wait(keeper.mark())
        self.stream.do(self.memory.clear)


class LazyStep(NumericStep):
    """A step whose ops are done by streams, and which is its only device."""

    def on_device(self, _device: int, _devices: object, _places: object) -> Any:
        return LazyDevice(self)


class LazyDevice:
    def __init__(self, step: LazyStep) -> None:
        self.graph = step.graph
        self.buffer: dict[int, LazyBuffer] = {}

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, _feed: int) -> None:
        self.buffer.clear()

    def run(self, op: int) -> int:
        graph = self.graph
        inputs = [self.buffer[tensor].memory for tensor in graph.inputs_of_op[op].tolist()]
        buffers = {tensor: LazyBuffer() for tensor in graph.tensors_of_op[op].tolist()}
        outputs = {tensor: buffer.memory for tensor, buffer in buffers.items()}
        self.buffer |= buffers
        waits = [predecessor for waiter, predecessor in graph.waits.tolist() if waiter == op]

        def compute() -> None:
            assert all(graph.op_names[predecessor] in done for predecessor in waits)
            value = done[graph.op_names[op]] = computed(op, [operand for (operand,) in inputs])
            for tensor, memory in outputs.items():
                memory[:] = [value + tensor]

        current[0].do(compute)
        return 0

    def buffers(self, tensor: int, _destination: int) -> list[LazyBuffer]:
        return [self.buffer[tensor]]

    def expect(self, tensor: int) -> tuple[list[LazyBuffer], int]:
        room = self.buffer[tensor] = LazyBuffer()
        current[0].do(room.memory.clear)  # until then others use it
        return [room], 0

    def arrived(self, _tensor: int) -> None:
        """Nothing."""

    def free(self, tensor: int) -> int:
        self.buffer.pop(tensor)
        return 0


done: dict[str, int] = {}  # what ops have computed


@settings(max_examples=150)
@given(problems, st.integers(0, 2**32 - 1))
def test_any_order_that_events_allow_gives_the_same(problem: PlacementProblem, seed: int) -> None:
    generator = np.random.default_rng(seed)
    placement = generator.integers(0, problem.num_devices, problem.num_groups, np.int32)
    schedule = topological_schedule(problem, placement)
    streams_made: list[LazyStream] = []

    def new_stream(_name: str, _purpose: str) -> LazyStream:
        streams_made.append(LazyStream())
        return streams_made[-1]

    def finish(_devices: object) -> None:
        stuck = False
        while not stuck:
            order = generator.permutation(len(streams_made)).tolist()
            stuck = not any(streams_made[index].go_on() for index in order[: 1 + len(order) // 2])
            stuck = stuck and not any(stream.go_on() for stream in streams_made)
        assert all(stream.num_done == len(stream.issued) for stream in streams_made)

    done.clear()
    with host_streams(new_stream) as patch:
        patch.setattr(streams.StreamedDevices, "_finish", finish)
        devices = streams.StreamedDevices(
            LazyStep(problem.graph),
            compile_step(schedule),
            gpus(problem.num_devices),
            schedule.op_device,
        )
        devices.run(FEED)
        devices.close()
    assert done == expected_results(problem.graph)
