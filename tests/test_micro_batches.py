"""Steps in micro-batches, simulated: pipelines take as long, and hold as much, as GPipe says."""

import networkx as nx
import numpy as np
import pytest
from gpipe_pipelines import Pipeline, devices_without_overheads
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto_graphs import OpGraph, PlacementProblem, colocate, from_networkx, micro_batched_problem
from placeto_simulator import Simulator

STAGES = st.integers(1, 8)
COUNTS = st.integers(1, 32)
WEIGHTS, ACTIVATIONS = 1000, 960  # bytes of a layer; the second can be divided by 1 to 6 and 8


def training_layers(num_layers: int) -> nx.DiGraph:
    """Return a step of equal layers, each with weights and an update; a layer stays together."""
    step = nx.DiGraph()
    for layer in range(num_layers):
        step.add_node(f"weights{layer}", parameter_bytes=WEIGHTS, colocation=layer)
        step.add_node(f"forward{layer}", colocation=layer, flops=100)
        step.add_edge(f"weights{layer}", f"forward{layer}", bytes=WEIGHTS)
    nx.add_path(step, ["images", *(f"forward{n}" for n in range(num_layers))], bytes=ACTIVATIONS)
    for layer in reversed(range(num_layers)):
        outputs = {"weights": WEIGHTS, "activations": ACTIVATIONS}
        step.add_node(f"back{layer}", colocation=layer, phase=1, flops=200, outputs=outputs)
        step.add_node(f"update{layer}", colocation=layer, phase=2)
        step.add_edge(f"weights{layer}", f"back{layer}", bytes=WEIGHTS)
        step.add_edge(f"forward{layer}", f"back{layer}", bytes=ACTIVATIONS)
        step.add_edge(f"back{layer}", f"update{layer}", tensors=["weights"])
        step.add_edge(f"weights{layer}", f"update{layer}", bytes=WEIGHTS)
    for layer in range(1, num_layers):
        step.add_edge(f"back{layer}", f"back{layer - 1}", tensors=["activations"])
    return step


def problem_of(graph: OpGraph, seconds: dict[str, float], num_devices: int) -> PlacementProblem:
    """Return a problem on devices without overheads, between which communication is free."""
    times = [seconds.get(name.rstrip("0123456789"), 0.0) for name in graph.op_names]
    return PlacementProblem(
        graph=graph,
        cluster=devices_without_overheads(num_devices, np.inf),
        compute_time=np.tile(np.array(times)[:, None], (1, num_devices)),
        grouping=colocate(graph),
    )


def layers_on_devices(num_layers: int, count: int) -> tuple[PlacementProblem, np.ndarray]:
    """Return layers in micro-batches of a second forward and two back, each on its own device."""
    graph = from_networkx(training_layers(num_layers))
    seconds = {"forward": count * 1.0, "back": count * 2.0, "update": 0.5}
    problem = micro_batched_problem(problem_of(graph, seconds, num_layers), count)
    devices = [
        int("".join(filter(str.isdigit, name)) or 0) for name in problem.grouping.group_names
    ]
    return problem, np.array(devices, np.int32)


@settings(max_examples=40, deadline=None)
@given(STAGES, COUNTS)
def test_an_inference_step_takes_as_many_layer_times_as_gpipe_says(stages: int, count: int) -> None:
    pipeline = Pipeline(stages, count, backward_seconds=0.0)
    assert pipeline.simulated_seconds() == count + stages - 1


@settings(max_examples=60, deadline=None)
@given(
    STAGES,
    COUNTS,
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["fifo", "backward-first"]),
)
def test_no_training_step_is_faster_than_gpipe(
    stages: int, count: int, backward_seconds: float, ops_per_layer: int, queue: str
) -> None:
    pipeline = Pipeline(stages, count, backward_seconds, ops_per_layer=ops_per_layer, queue=queue)
    seconds = pipeline.simulated_seconds()
    least = (count + stages - 1) * (1 + backward_seconds)
    assert seconds >= least
    loses_nothing = queue == "backward-first" or ops_per_layer == 1
    if loses_nothing and backward_seconds >= 1:
        assert seconds == least


def test_first_in_first_out_loses_where_a_layer_is_several_ops() -> None:
    slow, fast = (
        Pipeline(4, 8, 1.0, ops_per_layer=8, queue=queue).simulated_seconds()
        for queue in ("fifo", "backward-first")
    )
    assert slow > 1.5 * fast


@pytest.mark.parametrize("stages", [1, 3])
def test_without_parts_there_is_no_overlap(stages: int) -> None:
    assert Pipeline(stages, 1, 2.0).simulated_seconds() == 3.0 * stages


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_a_training_step_has_the_work_weights_and_gradients_of_the_undivided_one(
    num_layers: int, count: int
) -> None:
    undivided, _ = layers_on_devices(num_layers, 1)
    problem, devices = layers_on_devices(num_layers, count)
    graph = problem.graph
    sums = np.array([kind == "placeto.add_gradients" for kind in graph.op_types])
    assert graph.flops[~sums].sum() == pytest.approx(undivided.graph.flops.sum())
    assert graph.flops[sums].sum() == (count - 1) * num_layers * WEIGHTS / 4
    assert graph.parameter_bytes.sum() == undivided.graph.parameter_bytes.sum()
    updates = [op for op in range(graph.num_ops) if graph.phases[op] == 2]
    read = [graph.inputs_of_op[op] for op in updates]
    assert [graph.tensor_bytes[tensors].tolist() for tensors in read] == [
        [WEIGHTS, WEIGHTS]
    ] * num_layers
    # What GPipe says, and the update behind it.
    seconds = Simulator(problem).evaluate(devices[None]).runtime[0]
    assert seconds >= (count + num_layers - 1) * 3.0 + 0.5


@pytest.mark.parametrize("stages", [2, 4])
def test_memory_grows_with_the_micro_batches_in_flight(stages: int) -> None:
    """First in, first out starts all; backward first, until the first of them comes back."""
    counts = (1, 2, 4, 16, 32)
    peaks: dict[str, list[float]] = {"fifo": [], "backward-first": []}
    for queue, held in peaks.items():
        for count in counts:
            problem = Pipeline(stages, count, 1.0, transfer_seconds=1e-6, queue=queue).problem()
            part = int(problem.graph.tensor_bytes[0])
            placement = np.arange(stages, dtype=np.int32)[None]
            held.append(Simulator(problem).evaluate(placement).peak_memory[0, 0] / part)
        assert held == sorted(held)
    for count, held_by_all in zip(counts, peaks["fifo"], strict=True):
        assert count < held_by_all <= count * peaks["fifo"][0]
    assert peaks["backward-first"][-1] == peaks["backward-first"][-2] == 3 * stages - 1
