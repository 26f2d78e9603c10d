"""Programs are complete, never deadlock over any channels, and free what is no longer used."""

from collections import deque
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from numeric_step import problems, random_problem
from placeto_execution import ExecutionError, StepProgram, compile_step
from placeto_execution.measuring import StepProfile
from placeto_execution.programs import Free, Instruction, Receive, RunOp, Send, topological_schedule
from placeto_execution.records import DeviceRecord, timeline_of
from placeto_graphs import PlacementProblem, StepTimeline, from_networkx, parse_cluster

seeds = st.integers(0, 2**32 - 1)


def random_schedule(problem: PlacementProblem, seed: int) -> StepTimeline:
    """Return a schedule whose ops start at random times that respect their inputs and waits."""
    generator = np.random.default_rng(seed)
    placement = generator.integers(0, problem.num_devices, problem.num_groups, np.int32)
    plain = topological_schedule(problem, placement)
    graph = problem.graph
    start, end = np.zeros(graph.num_ops), np.zeros(graph.num_ops)
    free_at = np.zeros(problem.num_devices)
    sent: dict[tuple[int, int], tuple[float, float]] = {}
    transfers = list(zip(plain.transfer_tensor, plain.transfer_destination, strict=True))
    for op in graph.topological_order.tolist():
        device = plain.op_device[op]
        ready = [free_at[device]]
        ready += [end[predecessor] for waiter, predecessor in graph.waits.tolist() if waiter == op]
        for tensor in graph.inputs_of_op[op].tolist():
            ready.append(sent.get((tensor, device), (0.0, end[graph.tensor_producer[tensor]]))[1])
        start[op] = max(ready) + generator.choice([0.0, 1.0])
        end[op] = free_at[device] = start[op] + generator.choice([0.0, 1.0, 5.0])
        for tensor, destination in transfers:
            if graph.tensor_producer[tensor] == op:
                # As measured times may have it, also before its op ends.
                send_start = end[op] + generator.choice([-9.0, 0.0, 3.0])
                arrival = max(send_start, end[op]) + generator.choice([0.0, 2.0])
                sent[tensor, destination] = send_start, arrival
    times = np.array([sent[transfer] for transfer in transfers]).reshape(-1, 2)
    return replace(
        plain, op_start=start, op_end=end, transfer_start=times[:, 0], transfer_end=times[:, 1]
    )


def rendezvous(program: StepProgram, num_devices: int) -> list[tuple[int, Instruction]]:
    """Follow the programs as long as one can go on, over channels that buffer nothing.

    Send and Receive wait for each other, and each pair of devices has one channel.
    """
    remaining = {device: deque(program.of_device(device)) for device in range(num_devices)}
    sent: set[int] = set()
    done: list[tuple[int, Instruction]] = []
    count = -1
    while len(done) > count:
        count = len(done)
        for device, instructions in remaining.items():
            while instructions:
                instruction = instructions[0]
                if isinstance(instruction, RunOp) and not sent.issuperset(instruction.messages):
                    break
                if isinstance(instruction, Send):
                    break
                if isinstance(instruction, Receive):
                    source = program.messages[instruction.message].source
                    if not remaining[source] or remaining[source][0] != Send(instruction.message):
                        break
                    done.append((source, remaining[source].popleft()))
                    sent.add(instruction.message)
                done.append((device, instructions.popleft()))
    assert not any(remaining.values()), f"deadlock: {remaining}"
    return done


@settings(max_examples=150)
@given(problems, seeds)
def test_programs_run_to_their_end_though_nothing_is_buffered(
    problem: PlacementProblem, seed: int
) -> None:
    schedule = random_schedule(problem, seed)
    program = compile_step(schedule)
    done = rendezvous(program, problem.num_devices)
    assert len(done) == len(program.instructions)
    ops = [
        (device, instruction.op) for device, instruction in done if isinstance(instruction, RunOp)
    ]
    assert sorted(op for _, op in ops) == list(range(problem.graph.num_ops))
    assert all(schedule.op_device[op] == device for device, op in ops)
    position_of = {op: position for position, (_, op) in enumerate(ops)}
    for op, predecessor in problem.graph.waits.tolist():
        assert position_of[predecessor] < position_of[op]
    for device in range(problem.num_devices):
        starts = [schedule.op_start[op] for op_device, op in ops if op_device == device]
        assert starts == sorted(starts)
    sent = [message for message in program.messages if message.tensor is not None]
    expected = zip(schedule.transfer_tensor, schedule.transfer_destination, strict=True)
    assert sorted((message.tensor, message.destination) for message in sent) == sorted(expected)


@settings(max_examples=150)
@given(problems, seeds)
def test_a_tensor_is_there_until_its_last_use_and_no_longer(
    problem: PlacementProblem, seed: int
) -> None:
    schedule = random_schedule(problem, seed)
    program = compile_step(schedule)
    graph = problem.graph
    held_tensors = {
        (tensor, int(schedule.op_device[graph.tensor_producer[tensor]]))
        for tensor in graph.held_tensors.tolist()
    }
    for device in range(problem.num_devices):
        present: set[int] = set()
        last_use: dict[int, int] = {}
        freed: dict[int, int] = {}
        for position, instruction in enumerate(program.of_device(device)):
            if isinstance(instruction, RunOp):
                inputs = set(graph.inputs_of_op[instruction.op].tolist())
                assert inputs <= present
                outputs = set(graph.tensors_of_op[instruction.op].tolist())
                present |= outputs
                last_use.update(dict.fromkeys(inputs | outputs, position))
            elif isinstance(instruction, Free):
                present.remove(instruction.tensor)
                freed[instruction.tensor] = position
            else:
                tensor = program.messages[instruction.message].tensor
                if tensor is not None:
                    if isinstance(instruction, Receive):
                        assert tensor not in present
                        present.add(tensor)
                    assert tensor in present
                    last_use[tensor] = position
        assert present == {tensor for tensor, home in held_tensors if home == device}
        for tensor, position in freed.items():
            between = program.of_device(device)[last_use[tensor] + 1 : position]
            assert all(isinstance(instruction, Free | Send | Receive) for instruction in between)


def test_news_that_another_message_brings_is_not_sent() -> None:
    """An op that waits for a reader on another device knows from the gradient that it is done."""
    problem = random_problem(0, 12, 2, "fifo")
    graph = replace(
        problem.graph,
        tensor_producer=np.array([0, 1, 2], np.int32),
        tensor_bytes=np.array([8, 8, 8]),
        edges=np.array([[0, 1], [1, 2], [2, 3]], np.int32),
        waits=np.array([[3, 1]], np.int32),
        held_tensors=np.empty(0, np.int32),
    )
    placement = np.array([0, 1, 1, 0] + [0] * 8, np.int32)
    program = compile_step(topological_schedule(replace(problem, graph=graph), placement))
    assert [message.tensor for message in program.messages] == [0, 2]
    apart = replace(graph, edges=graph.edges[:2])
    program = compile_step(topological_schedule(replace(problem, graph=apart), placement))
    assert [(message.op, message.tensor, message.destination) for message in program.messages] == [
        (0, 0, 1),
        (1, None, 0),
    ]


def test_a_schedule_that_cannot_be_kept_is_refused() -> None:
    problem = random_problem(0, 10, 2, "fifo")
    placement: NDArray[np.int32] = np.array([0, 1] * 5, np.int32)
    schedule = topological_schedule(problem, placement)
    backwards = replace(schedule, op_start=-schedule.op_start, op_end=-schedule.op_start)
    with pytest.raises(ExecutionError, match=r"^schedule: expected one that runs each op after"):
        compile_step(backwards)
    lacking = replace(
        schedule,
        transfer_tensor=schedule.transfer_tensor[1:],
        transfer_destination=schedule.transfer_destination[1:],
        transfer_start=schedule.transfer_start[1:],
        transfer_end=schedule.transfer_end[1:],
    )
    with pytest.raises(ExecutionError, match=r"^schedule: expected the \d+ transfers of this pl"):
        compile_step(lacking)


# The timeline of what devices have noted, and the time between ops, by hand.


def test_a_transfer_has_both_copies_and_its_source_the_tensor_until_it_has_left() -> None:
    graph = from_networkx(nx.path_graph(2, create_using=nx.DiGraph))
    graph = replace(graph, workspace_bytes=np.array([40, 0]))
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xcpu"), compute_time=np.zeros((2, 2))
    )
    op_device = np.array([0, 1], np.int32)
    program = compile_step(topological_schedule(problem, op_device))
    source = DeviceRecord(
        ops=[(0, 11.0, 12.0)],
        send_starts=[(0, 12.5)],
        send_ends=[(0, 14.0)],
        allocations=[(11.0, 8)],
        releases=[(0, 12.5, 8)],
    )
    reader = DeviceRecord(
        ops=[(1, 15.0, 16.0)],
        receives=[(0, 14.75, 15.0)],
        allocations=[(13.0, 8)],
        releases=[(0, 16.0, 8)],
    )
    timeline = timeline_of(problem, op_device, program, [source, reader], origin=10.0)
    assert (timeline.op_start.tolist(), timeline.op_end.tolist()) == ([1.0, 5.0], [2.0, 6.0])
    assert timeline.transfer_start.tolist() == [2.5]
    assert timeline.transfer_end.tolist() == [4.25]
    assert [series.tolist() for series in timeline.memory(0)] == [[0, 1, 2, 4], [0, 48, 8, 0]]
    assert [series.tolist() for series in timeline.memory(1)] == [[0, 3, 6], [0, 8, 0]]
    assert timeline.peak_memory.tolist() == [48, 8]


def test_the_time_between_ops_is_shared_by_those_that_compute() -> None:
    """Four ops of which one computes nothing: 3 s of ops and twice 0.5 s between them."""
    seconds = np.array([[0.0, 1.0, 1.0, 1.0]] * 3)
    profile = StepProfile(op_seconds=seconds, runtimes=np.full(3, 4.0))
    assert profile.between_ops == pytest.approx(0.5)
