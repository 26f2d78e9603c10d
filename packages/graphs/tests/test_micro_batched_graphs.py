"""Steps in micro-batches: what holds of all, by networkx, and which ops are copied, by hand."""

import re
from dataclasses import replace
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_graphs import diamond_problem, refused
from graph_strategies import op_graphs, problems
from placeto_graphs import (
    OpGraph,
    Phase,
    PlacementProblem,
    from_networkx,
    micro_batched,
    micro_batched_problem,
    parse_cluster,
    repeat_micro_batch_problem,
    to_networkx,
)

COUNTS = st.integers(2, 5)
SUM = "placeto.add_gradients"


class Division:
    """A graph, the same step in micro-batches, and which op and tensor becomes which."""

    def __init__(self, graph: OpGraph, count: int) -> None:
        self.graph, self.count, self.whole = graph, count, micro_batched(graph, count)
        self.of_batch = {op for op in graph.op_names if f"{op}@0" in self.whole.op_names}
        self.copies = {
            op: [f"{op}@{i}" for i in range(count)] if op in self.of_batch else [op] * count
            for op in graph.op_names
        }
        self.place = {name: op for op, name in enumerate(self.whole.op_names)}
        self.sums = np.array([kind == SUM for kind in self.whole.op_types])
        self.of_update = [
            (tensor, reader)
            for tensor, reader in graph.edges.tolist()
            if graph.phases[reader] == Phase.UPDATE
        ]
        self.gradients = {
            tensor
            for tensor, _ in self.of_update
            if self.is_backward(tensor) and graph.tensor_bytes[tensor] > 0
        }

    def maker(self, tensor: int) -> str:
        return self.graph.op_names[int(self.graph.tensor_producer[tensor])]

    def is_backward(self, tensor: int) -> bool:
        phase = self.graph.phases[self.graph.tensor_producer[tensor]]
        return bool(phase == Phase.BACKWARD and self.maker(tensor) in self.of_batch)

    @cached_property
    def network(self) -> nx.DiGraph:
        return to_networkx(self.whole)

    def turn(self, op: int) -> tuple[int, int]:
        """Return the phase and the number of the micro-batch of an op."""
        return int(self.whole.phases[op]), int(self.whole.op_names[op].partition("@")[2] or -1)


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    """Draw any graphs, with names that tell copies apart."""
    graph = draw(op_graphs())
    named = replace(graph, op_names=tuple(f"op{op}" for op in range(graph.num_ops)))
    return Division(named, draw(COUNTS))


def training_step(**changes: Any) -> nx.DiGraph:
    """Return one layer with weights, its gradient and its update, by hand."""
    step = nx.DiGraph()
    step.add_node("images")
    step.add_node("weights", parameter_bytes=64)
    step.add_node("cast", flops=16)
    step.add_node("layer", flops=100, bytes_accessed=40, workspace_bytes=9, colocation=3)
    step.add_node("gradient", flops=200, phase=1, scope="net", colocation=3)
    step.add_node("update", phase=2, bytes_accessed=600)
    step.add_edge("images", "layer", bytes=10)
    step.add_edge("weights", "cast", bytes=64)
    step.add_edge("cast", "layer", bytes=32)
    step.add_edge("cast", "gradient", bytes=32)
    step.add_edge("layer", "gradient", bytes=20)
    step.add_edge("gradient", "update", bytes=100)
    step.add_edge("cast", "update", bytes=32)
    seconds = {"layer": 1.0, "gradient": 2.0, "update": 6.0, **changes}
    for name in step:
        step.nodes[name]["measured_time"] = {"k80": seconds.get(name, 0.0)}
    return step


@given(problems())
def test_one_micro_batch_is_the_step(problem: PlacementProblem) -> None:
    assert micro_batched(problem.graph, 1) == problem.graph
    assert micro_batched_problem(problem, 1) == problem
    assert repeat_micro_batch_problem(problem, 1) == problem


@given(divisions())
def test_ops_of_the_batch_and_sums_are_there_more_than_once(step: Division) -> None:
    graph, whole, count = step.graph, step.whole, step.count
    sums = {whole.op_names[op] for op in np.flatnonzero(step.sums)}
    assert set(whole.op_names) - sums == {name for each in step.copies.values() for name in each}
    assert len(sums) == len(step.gradients) * (count - 1)
    assert whole.num_ops == graph.num_ops + len(step.of_batch) * (count - 1) + len(sums)


@given(divisions())
def test_copies_depend_on_what_their_op_depends_on_in_their_own_micro_batch(step: Division) -> None:
    for before, after in to_networkx(step.graph).edges:
        ends = zip(step.copies[before], step.copies[after], strict=True)
        assert all(nx.has_path(step.network, *pair) for pair in ends)
    for op in step.of_batch:
        for number, copy in enumerate(step.copies[op]):
            read = {name.partition("@")[2] for name in step.network.pred[copy]}
            assert read <= {"", str(number)}


def test_what_waits_in_the_backward_pass_runs_for_each_micro_batch() -> None:
    # Activations are computed again with a weight that is cast again: as soon as the gradient of
    # the layer behind is there, whatever that of other micro-batches is.
    step = nx.DiGraph()
    step.add_edge("images", "layer", bytes=8)
    step.add_edge("layer", "layer behind", bytes=8)
    step.add_edge("layer behind", "gradient behind", bytes=8)
    step.add_edge("weights", "cast again", bytes=8)
    step.add_edge("cast again", "gradient", bytes=4)
    step.add_edge("gradient behind", "gradient", bytes=8)
    step.nodes["weights"]["parameter_bytes"] = 8
    for name in ("cast again", "gradient behind", "gradient"):
        step.nodes[name]["phase"] = 1
    step.nodes["cast again"]["waits_for"] = ("gradient behind",)
    whole = micro_batched(from_networkx(step), 3)
    waits = [(whole.op_names[op], whole.op_names[before]) for op, before in whole.waits]
    assert waits == [(f"cast again@{i}", f"gradient behind@{i}") for i in range(3)]


def test_the_gradient_of_a_penalty_that_waits_is_added_once() -> None:
    # It reads weights alone, and is issued behind the gradient of the layer: 10 + 20 + 30 of the
    # three micro-batches, and 7 of the penalty.
    step = nx.DiGraph()
    step.add_node("weights", parameter_bytes=8)
    step.add_node("gradient", phase=1, outputs={"of weights": 8})
    step.add_node("penalty", phase=1, outputs={"of weights": 8}, waits_for=("gradient",))
    step.add_node("update", phase=2, waits_for=("penalty",))
    step.add_edge("images", "layer", bytes=8)
    step.add_edge("weights", "layer", bytes=8)
    step.add_edge("layer", "gradient", bytes=8)
    step.add_edge("weights", "penalty", bytes=8)
    for op in ("gradient", "penalty"):
        step.add_edge(op, "update", tensors=["of weights"])
    whole = micro_batched(from_networkx(step), 3)
    value = {"gradient@0": 10, "gradient@1": 20, "gradient@2": 30}
    value |= {name: 7 for name in whole.op_names if name.startswith("penalty")}
    for op in whole.topological_order.tolist():
        if whole.op_types[op] == SUM or whole.op_names[op] == "update":
            makers = whole.tensor_producer[whole.inputs_of_op[op]].tolist()
            value[whole.op_names[op]] = sum(value[whole.op_names[maker]] for maker in makers)
    assert value["update"] == 67
    waits = {(whole.op_names[op], whole.op_names[before]) for op, before in whole.waits.tolist()}
    assert waits == {("penalty", "gradient@0"), ("update", "penalty")}


@given(divisions())
def test_copies_are_held_but_of_gradients_only_the_sum_of_all(step: Division) -> None:
    graph, whole = step.graph, step.whole
    expected: set[tuple[str, int]] = set()
    for tensor in graph.held_tensors.tolist():
        place = graph.tensors_of_op[graph.tensor_producer[tensor]].tolist().index(tensor)
        if tensor in step.gradients:
            sums = [f"{step.maker(tensor)}/sum{place}@{step.count - 1}"]
            expected.update((name, 0) for name in sums)
        else:
            expected.update((name, place) for name in step.copies[step.maker(tensor)])
    found = set()
    for tensor in whole.held_tensors.tolist():
        maker = int(whole.tensor_producer[tensor])
        place = whole.tensors_of_op[maker].tolist().index(tensor)
        found.add((whole.op_names[maker], place))
    assert found == expected


@given(divisions())
def test_the_update_reads_as_many_bytes_of_gradients_of_all_micro_batches(step: Division) -> None:
    whole = step.whole
    for tensor, reader in step.of_update:
        before = nx.ancestors(step.network, step.graph.op_names[reader])
        assert before.issuperset(step.copies[step.maker(tensor)])
    reads_sums = [
        int(tensor)
        for tensor, reader in whole.edges
        if whole.phases[reader] == Phase.UPDATE and step.sums[whole.tensor_producer[tensor]]
    ]
    sizes = [step.graph.tensor_bytes[t] for t, _ in step.of_update if t in step.gradients]
    assert sorted(whole.tensor_bytes[reads_sums]) == sorted(sizes)
    last = {whole.op_names[op] for op in whole.tensor_producer[reads_sums]}
    assert all(name.endswith(f"@{step.count - 1}") for name in last)


@given(divisions())
def test_work_and_weights_are_those_of_the_undivided_step(step: Division) -> None:
    graph, whole, sums = step.graph, step.whole, step.sums
    added = graph.tensor_bytes[list(step.gradients)].sum() * (step.count - 1)
    assert whole.flops[~sums].sum() == pytest.approx(graph.flops.sum())
    assert whole.flops[sums].sum() == pytest.approx(added / 4)
    assert whole.bytes_accessed[~sums].sum() == pytest.approx(graph.bytes_accessed.sum())
    assert whole.bytes_accessed[sums].sum() == pytest.approx(3 * added)
    for kind, seconds in graph.measured_time.items():
        assert whole.measured_time[kind][~sums].sum() == pytest.approx(seconds.sum())
    assert whole.parameter_bytes.sum() == graph.parameter_bytes.sum()
    for name, size in zip(graph.op_names, graph.parameter_bytes.tolist(), strict=True):
        held = whole.parameter_bytes[[step.place[copy] for copy in {*step.copies[name]}]]
        assert held.sum() == size
        assert held.max() - held.min() <= 1


@given(divisions())
def test_ops_are_in_the_order_in_which_gpipe_runs_them(step: Division) -> None:
    position = {name: op for op, name in enumerate(step.graph.op_names)}
    names = [re.split("[@/]", name)[0] for name in step.whole.op_names]
    turns = [(*step.turn(op), position[name]) for op, name in enumerate(names)]
    assert turns == sorted(turns)
    for readers in step.whole.consumers_of_tensor:
        turns_of_readers = [step.turn(op) for op in readers.tolist()]
        assert turns_of_readers == sorted(turns_of_readers)


@given(divisions())
def test_tensors_are_read_in_the_order_in_which_those_of_the_graph_are(step: Division) -> None:
    graph, whole = step.graph, step.whole
    for tensor, before in enumerate(graph.consumers_of_tensor):
        by_phase = sorted(before.tolist(), key=lambda op: int(graph.phases[op]))
        expected = [name for op in by_phase if (name := graph.op_names[op]) in step.of_batch]
        number = graph.tensors_of_op[graph.tensor_producer[tensor]].tolist().index(tensor)
        for i, copy in enumerate(step.copies[step.maker(tensor)]):
            after = whole.consumers_of_tensor[whole.tensors_of_op[step.place[copy]][number]]
            names = [whole.op_names[op].split("@") for op in after]
            assert [op for op, *of in names if of == [str(i)] and "/" not in op] == expected


@settings(max_examples=60)
@given(problems(), COUNTS)
def test_a_problem_has_the_same_groups_and_is_divided_or_repeated(
    problem: PlacementProblem, count: int
) -> None:
    names = tuple(f"op{op}" for op in range(problem.graph.num_ops))
    problem = replace(problem, graph=replace(problem.graph, op_names=names))
    step = Division(problem.graph, count)
    divided = micro_batched_problem(problem, count)
    repeated = repeat_micro_batch_problem(problem, count)
    assert divided.graph == step.whole
    assert divided.grouping.group_names == problem.grouping.group_names
    assert divided.grouping == repeated.grouping
    assert divided.graph.op_names == repeated.graph.op_names
    assert divided.graph.edges.tolist() == repeated.graph.edges.tolist()
    group_of = dict(zip(names, problem.grouping.group_of, strict=True))
    for name, group in zip(divided.graph.op_names, divided.grouping.group_of, strict=True):
        assert group == group_of[re.split("[@/]", name)[0]]
    for op, name in enumerate(names):
        seconds, parts = problem.compute_time[op], count if name in step.of_batch else 1
        sizes = problem.graph.tensor_bytes[problem.graph.tensors_of_op[op]].tolist()
        for copy in [step.place[copy] for copy in step.copies[name]]:
            assert divided.compute_time[copy].tolist() == (seconds / parts).tolist()
            assert repeated.compute_time[copy].tolist() == seconds.tolist()
            assert repeated.graph.flops[copy] == problem.graph.flops[op]
            tensors = repeated.graph.tensors_of_op[copy]
            assert repeated.graph.tensor_bytes[tensors].tolist() == sizes


def test_a_step_by_hand() -> None:
    whole = micro_batched(from_networkx(training_step()), 2)
    assert whole.op_names == (
        *("weights", "cast", "images@0", "layer@0", "images@1", "layer@1"),
        *("gradient@0", "gradient@1", "gradient/sum0@1", "update"),
    )
    network = to_networkx(whole)
    assert set(network.succ["cast"]) == {
        *("layer@0", "layer@1", "gradient@0", "gradient@1", "update")
    }
    assert len(whole.tensors_of_op[1]) == 1
    assert set(network.pred["gradient/sum0@1"]) == {"gradient@0", "gradient@1"}
    assert set(network.pred["update"]) == {"cast", "gradient/sum0@1"}
    assert network.edges["images@1", "layer@1"]["bytes"] == 5
    assert network.edges["gradient@0", "gradient/sum0@1"]["bytes"] == 100
    assert network.nodes["layer@1"]["workspace_bytes"] == 5
    assert network.nodes["layer@1"]["flops"] == 50
    assert network.nodes["layer@1"]["colocation"] == 3
    total = network.nodes["gradient/sum0@1"]
    assert (total["scope"], total["phase"], total["colocation"]) == ("net", 1, 3)
    assert (total["flops"], total["bytes_accessed"]) == (25, 300)


def test_the_sum_of_a_gradient_is_held_and_waited_for() -> None:
    step = training_step()
    step.nodes["gradient"].update({"outputs": {"of weights": 100}, "held": ("of weights",)})
    step.add_edge("gradient", "update", tensors=["of weights"])
    step.nodes["update"]["waits_for"] = ("gradient",)
    whole = micro_batched(from_networkx(step), 3)
    network = to_networkx(whole)
    assert set(network.nodes["update"]["waits_for"]) == {
        *("gradient@0", "gradient@1", "gradient@2", "gradient/sum0@1", "gradient/sum0@2")
    }
    held = whole.tensor_producer[whole.held_tensors]
    assert [whole.op_names[op] for op in held] == ["gradient/sum0@2"]
    assert network.edges["images@1", "layer@1"]["bytes"] == 4  # 10 / 3, rounded up


def test_gradients_are_added_up_one_after_the_other() -> None:
    network = to_networkx(micro_batched(from_networkx(training_step()), 4))
    assert set(network.pred["gradient/sum0@3"]) == {"gradient/sum0@2", "gradient@3"}
    assert set(network.pred["update"]) == {"cast", "gradient/sum0@3"}


@pytest.mark.parametrize(
    ("update_seconds", "bytes_accessed", "expected"),
    [
        (6.0, 600, 3.0),  # the update moves twice what a sum does
        (6.0, 300, 6.0),
        (6.0, 0, 6.0),  # nothing is known of what it moves
        (0.0, 600, 0.0),
    ],
)
def test_a_sum_takes_its_part_of_the_time_of_the_update(
    update_seconds: float, bytes_accessed: float, expected: float
) -> None:
    step = training_step(update=update_seconds)
    step.nodes["update"]["bytes_accessed"] = bytes_accessed
    whole = micro_batched(from_networkx(step), 3)
    seconds = dict(zip(whole.op_names, whole.measured_time["k80"], strict=True))
    assert seconds["gradient/sum0@1"] == seconds["gradient/sum0@2"] == expected
    assert seconds["update"] == update_seconds
    assert seconds["layer@2"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("bytes_accessed", [0, 1, 3 * 1000])
def test_sums_for_one_update_of_many_gradients_share_its_time(bytes_accessed: int) -> None:
    step = nx.DiGraph()
    step.add_node("images")
    step.add_node("update", phase=Phase.UPDATE, bytes_accessed=bytes_accessed)
    for layer in range(4):
        step.add_node(f"gradient{layer}", phase=Phase.BACKWARD)
        step.add_edge("images", f"gradient{layer}", bytes=8)
        step.add_edge(f"gradient{layer}", "update", bytes=100 * (layer + 1))
    for name in step:
        step.nodes[name]["measured_time"] = {"k80": 1.0 if name == "update" else 0.0}
    whole = micro_batched(from_networkx(step), 3)
    seconds = dict(zip(whole.op_names, whole.measured_time["k80"], strict=True))
    sums = [seconds[f"gradient{layer}/sum0@{i}"] for layer in range(4) for i in (1, 2)]
    assert sum(sums) == pytest.approx(2 * 1.0)
    assert sums == pytest.approx(np.repeat([0.1, 0.2, 0.3, 0.4], 2))


def test_a_sum_on_a_device_that_cannot_update_takes_no_time() -> None:
    graph = from_networkx(training_step())
    compute_time = np.stack([graph.measured_time["k80"]] * 2, axis=1)
    compute_time[-1, 1] = np.inf
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xk80"), compute_time=compute_time
    )
    whole = micro_batched_problem(problem, 2)
    assert whole.compute_time[whole.graph.op_names.index("gradient/sum0@1")].tolist() == [3.0, 0.0]


def test_terms_of_gradients_are_as_large_in_every_micro_batch() -> None:
    """Two uses of a weight make a term each; what the terms are made of goes with the batch."""
    step = nx.DiGraph()
    step.add_nodes_from(["error", "term 1", "term 2", "sum"], phase=1)
    step.add_node("update", phase=2)
    step.add_edge("error", "term 1", bytes=64)
    step.add_edge("error", "term 2", bytes=64)
    step.add_edge("activation", "term 1", bytes=64)
    step.add_edge("activation", "term 2", bytes=64)
    for name in ("term 1", "term 2"):
        step.add_edge(name, "sum", bytes=64)
    step.add_edge("sum", "update", bytes=64)
    graph = from_networkx(step)
    whole = micro_batched(graph, 4)
    made_by = [whole.op_names[op] for op in whole.tensor_producer]
    sizes = dict(zip(made_by, whole.tensor_bytes.tolist(), strict=True))
    for number in range(4):
        assert [sizes[f"{name}@{number}"] for name in ("error", "activation")] == [16, 16]
        assert [sizes[f"{name}@{number}"] for name in ("term 1", "term 2", "sum")] == [64] * 3


def test_what_is_kept_until_the_update_is_no_gradient_of_weights() -> None:
    step = training_step()
    step.add_node("kept", phase=1, measured_time={"k80": 0.0})
    step.add_node("until", op_type="placeto.free", phase=2, measured_time={"k80": 0.0})
    step.add_edge("layer", "kept", bytes=20)
    step.add_edge("kept", "until", bytes=64)
    without = micro_batched(from_networkx(training_step()), 4)
    whole = micro_batched(from_networkx(step), 4)
    assert whole.op_types.count("placeto.add_gradients") == (
        without.op_types.count("placeto.add_gradients")
    )
    read = whole.inputs_of_op[whole.op_names.index("until")]
    assert whole.tensor_bytes[read].tolist() == [16] * 4


def test_weights_that_a_layer_holds_itself_are_there_once() -> None:
    step = nx.DiGraph([("images", "layer"), ("layer", "loss")])
    step.nodes["layer"]["parameter_bytes"] = 64
    whole = micro_batched(from_networkx(step), 3)
    held = dict(zip(whole.op_names, whole.parameter_bytes.tolist(), strict=True))
    assert {name: size for name, size in held.items() if size} == {
        "layer@0": 22,
        "layer@1": 21,
        "layer@2": 21,
    }


def test_without_inputs_all_but_weights_and_the_update_depends_on_the_batch() -> None:
    step = training_step()
    step.remove_node("images")
    whole = micro_batched(from_networkx(step), 2)
    assert {name for name in whole.op_names if "@" not in name} == {"weights", "update"}
    assert whole.num_ops == 2 + 3 * 2 + 1  # cast, layer, gradient, and the sum
    step.add_node("zeros", measured_time={"k80": 0.0})  # an input that leads to no gradient
    with_zeros = micro_batched(from_networkx(step), 2)
    assert set(with_zeros.op_names) == {*whole.op_names, "zeros@0", "zeros@1"}


def test_what_follows_the_update_alone_runs_once() -> None:
    step = training_step()
    step.add_node("count", measured_time={"k80": 0.0})
    step.add_edge("update", "count")
    assert "count" in micro_batched(from_networkx(step), 2).op_names


def test_names_stay_unique() -> None:
    step = nx.DiGraph([("layer", "loss")])
    step.add_node("layer@1", parameter_bytes=4)
    whole = micro_batched(from_networkx(step), 2)
    assert set(whole.op_names) == {"layer@1", "layer@@0", "loss@@0", "layer@@1", "loss@@1"}
    step = training_step()
    step.add_node("gradient/sum0", measured_time={"k80": 0.0})
    step.add_edge("images", "gradient/sum0", bytes=10)  # the name of a sum
    named = micro_batched(from_networkx(step), 2)
    assert {"gradient/sum0@@1", "gradient//sum0@@1"} <= set(named.op_names)
    twice = micro_batched(micro_batched(from_networkx(training_step()), 2), 2)
    assert len(set(twice.op_names)) == twice.num_ops


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "num_micro_batches: expected an integer from 1 to 9223372036854775807, got 0"),
        (2.0, "num_micro_batches: expected integers, got float64"),
    ],
)
def test_a_wrong_number_of_micro_batches_is_named(count: Any, message: str) -> None:
    problem = diamond_problem()
    for refuses in (
        lambda: micro_batched(problem.graph, count),
        lambda: micro_batched_problem(problem, count),
        lambda: repeat_micro_batch_problem(problem, count),
    ):
        with refused(message):
            refuses()
