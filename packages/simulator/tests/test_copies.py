"""Copies of a step, simulated: by the definition, and by closed forms and by hand."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import (
    Cluster,
    Device,
    PlacementProblem,
    copied,
    from_networkx,
    micro_batched_problem,
    parts_of_batch,
    sharded,
)
from placeto_simulator import Simulator
from simulated_problems import difference

SECONDS = {"f": 1.0, "b": 1.0, "g": 1.0, "u": 3.0}
BANDWIDTH = 1e3  # bytes per second


def cluster_of(machines: list[int]) -> Cluster:
    """Return devices with a bus each, and a network card for each machine."""
    machine = np.array(machines)
    devices = np.arange(len(machine))
    together = machine[:, None] == machine
    link = np.where(together, devices[:, None], len(machine) + machine[:, None])
    np.fill_diagonal(link, -1)
    used = link >= 0
    link[used] = np.unique(link[used], return_inverse=True)[1]
    return Cluster(
        devices=tuple(Device(f"gpu:{device}", "gpu", 10**6, 0.0, 0.0) for device in devices),
        bandwidth=np.full(link.shape, BANDWIDTH),
        latency=np.zeros(link.shape),
        link=link,
        machine=machine,
    )


def problem_of(weight_bytes: list[int], machines: list[int], activation_bytes: int = 0) -> Any:
    """Return a chain of layers, whose weights hold as many bytes again for the optimizer."""
    step = nx.DiGraph()
    previous = "images"
    for layer, size in enumerate(weight_bytes):
        scope = {"scope": f"net.{layer}"}
        step.add_node(f"w{layer}", parameter_bytes=2 * size, **scope)
        step.add_node(f"f{layer}", **scope)
        step.add_edge(f"w{layer}", f"f{layer}", bytes=size)
        step.add_edge(previous, f"f{layer}", bytes=activation_bytes)
        previous = f"f{layer}"
    for layer, size in reversed(list(enumerate(weight_bytes))):
        scope = {"scope": f"net.{layer}"}
        for name, phase in (("b", 1), ("g", 1), ("u", 2)):
            step.add_node(f"{name}{layer}", phase=phase, bytes_accessed=3 * size, **scope)
        step.add_edge(previous, f"b{layer}", bytes=activation_bytes)
        previous = f"b{layer}"
        for maker, reader in ("wb", "wu", "gu"):
            step.add_edge(f"{maker}{layer}", f"{reader}{layer}", bytes=size)
        step.add_edge(f"b{layer}", f"g{layer}", bytes=activation_bytes)
    graph = from_networkx(step)
    seconds = np.array([SECONDS.get(name[0], 0.0) for name in graph.op_names])
    return PlacementProblem(
        graph=graph,
        cluster=cluster_of(machines),
        compute_time=np.tile(seconds[:, None], (1, len(machines))),
    )


def each_on_a_device(problem: PlacementProblem) -> Any:
    return np.repeat(np.arange(problem.num_devices), problem.num_groups // problem.num_devices)


def bytes_of_links(problem: PlacementProblem) -> Mapping[str, int]:
    """Return the bytes that each link carries with copy r on device r."""
    timeline = Simulator(problem, num_threads=1).timeline(each_on_a_device(problem))
    sent: Counter[str] = Counter()
    for tensor, link in zip(timeline.transfer_tensor, timeline.transfer_link, strict=True):
        sent[problem.cluster.link_names[link]] += int(problem.graph.tensor_bytes[tensor])
    return sent


weights = st.lists(st.integers(1, 10), min_size=1, max_size=3).map(
    lambda sizes: [720 * size for size in sizes]  # so that all parts are whole bytes
)


@given(weights, st.integers(1, 3), st.integers(1, 4))
def test_links_carry_what_they_carry_in_a_ring(
    sizes: list[int], num_machines: int, per_machine: int
) -> None:
    machines = np.repeat(np.arange(num_machines), per_machine).tolist()
    count, num_bytes = len(machines), sum(sizes)
    problem = problem_of(sizes, machines)
    steps = {
        2: copied([problem] * count, machines=machines),
        3: sharded([problem] * count, machines=machines),
    }
    for passes, step in steps.items():
        if count == 1:
            continue
        sent = bytes_of_links(step)
        within = passes * (per_machine - 1) / per_machine * num_bytes
        between = passes * (num_machines - 1) / num_machines * num_bytes
        assert sum(sent.values()) == count * within + num_machines * between
        assert max(sent.values()) == max(within, between)
    if per_machine > 1:
        hybrid = sharded([problem] * count, machines=machines, within_machines=True)
        within = 3 * (per_machine - 1) / per_machine * num_bytes
        between = 2 * (num_machines - 1) / num_machines * num_bytes
        expected = count * within + num_machines * between
        assert sum(bytes_of_links(hybrid).values()) == expected


@given(
    weights,
    st.lists(st.integers(0, 2), min_size=2, max_size=4),
    st.sampled_from(["copied", "kept", "sharded", "in parts"]),
    st.integers(0, 2**32 - 1),
)
def test_the_simulator_is_its_definition_on_copies(
    sizes: list[int], machines: list[int], kind: str, seed: int
) -> None:
    count = len(machines)
    problem = problem_of(sizes, np.unique(machines, return_inverse=True)[1].tolist(), 50)
    problems = parts_of_batch(problem, range(1, count + 1))
    if kind == "copied":
        step = copied(problems, machines=machines, bucket_bytes=3000, first_bucket_bytes=100)
    elif kind == "in parts":
        step = copied([micro_batched_problem(part, 2) for part in problems], machines=machines)
    else:
        parts = list(range(1, count + 1))
        step = sharded(problems, parts=parts, keep_weights=kind == "kept")
    generator = np.random.default_rng(seed)
    anywhere = generator.integers(0, count, step.num_groups).astype(np.int32)
    for placement in (each_on_a_device(step), anywhere):
        assert difference(step, placement.astype(np.int32)) is None


def test_two_copies_by_hand() -> None:
    # f, b and g take a second each, and the update three for 3 x 720 bytes: 1 s for each 720 that
    # they move. A bucket moves 2 x 720 in 2 s; 360 go to the other copy in 0.36 s; a sum moves
    # 3 x 360 in 1.5 s, and sends 360 bytes again; the gather moves 2 x 720 in 2 s; then the update.
    problem = problem_of([720], [0, 0])
    step = copied([problem, problem])
    runtime = Simulator(step).evaluate(each_on_a_device(step)[None]).runtime[0]
    assert runtime == pytest.approx(3 + 2 + 0.36 + 1.5 + 0.36 + 2 + 3)


def test_memory_of_copies_by_hand() -> None:
    # Weights and state are 2 x 720; the gradient of 720 lives until the bucket is made, which has
    # 720. While the gather runs there are the sums, 360 of each copy, and what it makes, 720.
    problem = problem_of([720], [0, 0])
    step = copied([problem, problem])
    peak_memory = Simulator(step).evaluate(each_on_a_device(step)[None]).peak_memory[0]
    assert peak_memory.tolist() == [2 * 720 + 720 + 720] * 2


def test_memory_of_a_sharded_layer_by_hand() -> None:
    # Each half of the weights and state has 720. While the weights are gathered there are the
    # shards of both copies, 360 each, and the 720 that the gather makes.
    problem = problem_of([720], [0, 0])
    step = sharded([problem, problem])
    peak_memory = Simulator(step).evaluate(each_on_a_device(step)[None]).peak_memory[0]
    assert peak_memory.tolist() == [720 + 2 * 360 + 720] * 2


def test_memory_of_sharded_layers_by_hand() -> None:
    # Each of four copies holds a quarter of 2 x 3 x 720. At most two layers are gathered: of one
    # the whole weights, of the other, while they are made, also what came and its own shard.
    problem = problem_of([720, 720, 720], [0] * 4)
    quarters = sharded([problem] * 4)
    simulator = Simulator(quarters)
    placement = each_on_a_device(quarters)
    peak_memory = simulator.evaluate(placement[None]).peak_memory[0]
    held = 2 * 3 * 720 // 4
    assert (peak_memory >= held + 2 * 720).all()
    timeline = simulator.timeline(placement)
    forward_ends = timeline.op_end[quarters.graph.op_names.index("f2#0")]
    is_before = (timeline.memory_time <= forward_ends) & (timeline.memory_device == 0)
    order = np.argsort(timeline.memory_time[is_before], kind="stable")
    in_forward = held + np.cumsum(timeline.memory_bytes[is_before][order]).max()
    assert in_forward <= held + 3 * 720 + 180
    kept = sharded([problem] * 4, keep_weights=True)
    peak_kept = Simulator(kept).evaluate(each_on_a_device(kept)[None]).peak_memory[0]
    assert (peak_kept >= held + 3 * 720).all()


def test_copies_are_pipelines_on_several_devices() -> None:
    problem = problem_of([720, 720], [0] * 4)
    whole = copied([micro_batched_problem(problem, 4)] * 2)
    stage_of_group = [int(name[1] == "1") for name in problem.grouping.group_names]
    placement = np.concatenate([np.add(stage_of_group, 2 * copy) for copy in (0, 1)])
    both = Simulator(whole).evaluate(placement[None]).runtime[0]
    pipeline = micro_batched_problem(problem, 4)
    alone = Simulator(pipeline).evaluate(np.array(stage_of_group)[None]).runtime[0]
    assert alone < both < alone + 2 * 10  # two buckets, sums and gathers at most follow
