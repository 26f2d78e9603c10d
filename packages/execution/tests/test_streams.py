"""Programs are right on streams that work whenever they like, as those of a GPU do.

There is no GPU here: these streams note what is issued, and do it at the end in a random order, in
which only events count.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numeric_step import computed, cpus, expected_results, problems
from placeto_execution import compile_step, streams
from placeto_execution.schedules import topological_schedule
from placeto_graphs import OpGraph, PlacementProblem


@dataclass
class LazyStream:
    """Does later, in order, what is issued while it is entered."""

    issued: list[Callable[[], bool]] = field(default_factory=list)
    num_done: int = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        entered.append(self)
        yield
        entered.pop()

    def set_clock(self) -> None:
        """Nothing."""

    def mark(self) -> "LazyMoment":
        return LazyMoment(self, len(self.issued))

    def wait(self, moment: "LazyMoment") -> None:
        self.issued.append(lambda: moment.has_come)

    def keep(self, buffer: "LazyBuffer") -> None:
        buffer.keepers.append(self)

    def do(self, work: Callable[[], object]) -> None:
        def done() -> bool:
            work()
            return True

        self.issued.append(done)

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


entered: list[LazyStream] = []  # the current stream is the last one


@dataclass
class LazyBuffer:
    """Memory of a number, which is free after its streams have gone so far as when it was freed."""

    value: int | None = None
    keepers: list[LazyStream] = field(default_factory=list)

    def copy_(self, other: "LazyBuffer", non_blocking: bool) -> None:
        assert non_blocking

        def copy() -> None:
            assert other.value is not None
            self.value = other.value

        entered[-1].do(copy)

    def free(self) -> None:
        for keeper in self.keepers:
            entered[-1].wait(keeper.mark())
        entered[-1].do(lambda: setattr(self, "value", None))


class LazyStep:
    """A step whose ops are done by streams."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.done: dict[str, int] = {}

    def on_device(self, _number: int, _devices: Sequence[str], _places: object) -> "LazyDevice":
        return LazyDevice(self)

    def feed(self) -> None:
        """Nothing."""


class LazyDevice:
    def __init__(self, step: LazyStep) -> None:
        self.step = step
        self.memory: dict[int, LazyBuffer] = {}

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, _feed: None) -> None:
        self.memory.clear()

    def run(self, op: int) -> int:
        graph, done = self.step.graph, self.step.done
        read = [self.memory[tensor] for tensor in graph.inputs_of_op[op].tolist()]
        made = {tensor: LazyBuffer() for tensor in graph.tensors_of_op[op].tolist()}
        self.memory |= made
        waits = [before for waiter, before in graph.waits.tolist() if waiter == op]

        def compute() -> None:
            assert all(graph.op_names[before] in done for before in waits)
            values = [buffer.value for buffer in read if buffer.value is not None]
            assert len(values) == len(read)
            done[graph.op_names[op]] = computed(op, values)
            for tensor, buffer in made.items():
                buffer.value = done[graph.op_names[op]] + tensor

        entered[-1].do(compute)
        return 0

    def buffers(self, tensor: int, _destination: int) -> list[LazyBuffer]:
        return [self.memory[tensor]]

    def expect(self, tensor: int) -> tuple[list[LazyBuffer], int]:
        room = self.memory[tensor] = LazyBuffer()
        entered[-1].do(lambda: setattr(room, "value", None))  # until then it is used by others
        return [room], 0

    def arrived(self, _tensor: int) -> None:
        """Nothing."""

    def free(self, tensor: int) -> int:
        self.memory.pop(tensor).free()
        return 0

    def pieces(self, _names: Collection[str] | None) -> Mapping[Any, Any]:
        return {}


@settings(max_examples=150)
@given(problems, st.integers(0, 2**32 - 1))
def test_any_order_that_events_allow_gives_the_same(problem: PlacementProblem, seed: int) -> None:
    generator = np.random.default_rng(seed)
    placement = generator.integers(0, problem.num_devices, problem.num_groups, np.int32)
    schedule = topological_schedule(problem, placement)
    made: list[LazyStream] = []

    def new_stream(_name: str) -> LazyStream:
        made.append(LazyStream())
        return made[-1]

    def finish(_devices: object) -> None:
        stuck = False
        while not stuck:
            order = generator.permutation(len(made)).tolist()
            stuck = not any(made[number].go_on() for number in order[: 1 + len(order) // 2])
            stuck = stuck and not any(stream.go_on() for stream in made)
        assert all(stream.num_done == len(stream.issued) for stream in made)

    step: Any = LazyStep(problem.graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_stream", new_stream)
        patch.setattr(streams, "_HostStream", lambda: new_stream(""))
        patch.setattr(streams.StreamedDevices, "_finish", finish)
        devices = streams.StreamedDevices(
            step, compile_step(schedule), cpus(problem.num_devices), schedule.op_device
        )
        devices.run(step.feed())
    assert step.done == expected_results(problem.graph)
