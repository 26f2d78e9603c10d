import re
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_graphs import diamond_problem
from graph_strategies import op_graphs, problems
from placeto_graphs import (
    GraphError,
    OpGraph,
    Phase,
    PlacementProblem,
    colocate,
    colocate_by_id,
    from_networkx,
    micro_batched,
    micro_batched_problem,
    parse_cluster,
    repeat_micro_batch_problem,
    to_networkx,
)

COUNTS = st.integers(2, 5)
SUM = "placeto.add_gradients"


@st.composite
def named_graphs(draw: st.DrawFn) -> OpGraph:
    """Draw any graphs, with names that tell copies apart."""
    graph = draw(op_graphs())
    return replace(graph, op_names=tuple(f"op{op}" for op in range(graph.num_ops)))


def ops_of_batch(graph: OpGraph) -> set[str]:
    """Return the names of all that inputs lead to, other than through the update, by networkx."""
    network = to_networkx(graph)
    for op, attributes in list(network.nodes(data=True)):
        if attributes["phase"] == Phase.UPDATE:
            network.remove_node(op)
    whole = to_networkx(graph)
    held = {op for op in network if network.nodes[op]["parameter_bytes"]}
    inputs = {op for op in network if not whole.pred[op]} - held
    phases = nx.get_node_attributes(whole, "phase")
    results = {
        maker
        for maker, reader in whole.edges
        if (phases[maker], phases[reader]) == (Phase.BACKWARD, Phase.UPDATE)
    } or {op for op in network if not network.succ[op]}
    if not results & reached(network, {op for op in inputs if phases[op] == Phase.FORWARD}):
        return {op for op in network if whole.pred[op] or op not in held}
    return reached(network, inputs)


def reached(network: nx.DiGraph, begins: set[str]) -> set[str]:
    return begins.union(*(nx.descendants(network, op) for op in begins))


def gradients(graph: OpGraph) -> dict[int, str]:
    """Return the tensors that the update reads of the backward pass, and the ops that make them."""
    of_batch, found = ops_of_batch(graph), {}
    for tensor, reader in graph.edges.tolist():
        maker = int(graph.tensor_producer[tensor])
        if (
            graph.phases[reader] == Phase.UPDATE
            and graph.phases[maker] == Phase.BACKWARD
            and graph.op_names[maker] in of_batch
            and graph.tensor_bytes[tensor] > 0
        ):
            found[tensor] = graph.op_names[maker]
    return found


def gradients_and_their_terms(graph: OpGraph) -> set[int]:
    """Return gradients, and what ops of the backward pass make them of that is as large."""
    of_batch, found = ops_of_batch(graph), set(gradients(graph))
    sizes, size_before = graph.tensor_bytes.tolist(), -1
    while len(found) > size_before:
        size_before = len(found)
        for tensor in list(found):
            inputs = graph.inputs_of_op[graph.tensor_producer[tensor]].tolist()
            read = [each for each in inputs if sizes[each] > 0]
            makers = [int(graph.tensor_producer[each]) for each in read]
            if all(sizes[each] == sizes[tensor] for each in read) and all(
                graph.phases[op] == Phase.BACKWARD and graph.op_names[op] in of_batch
                for op in makers
            ):
                found.update(read)
    return found


def copies(graph: OpGraph, op: str, count: int) -> list[str]:
    return [f"{op}@{i}" for i in range(count)] if op in ops_of_batch(graph) else [op] * count


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


@given(named_graphs(), COUNTS)
def test_ops_of_the_batch_and_sums_are_there_more_than_once(graph: OpGraph, count: int) -> None:
    of_batch = ops_of_batch(graph)
    expected = {name for op in graph.op_names for name in copies(graph, op, count)}
    whole = micro_batched(graph, count)
    sums = [op for op, kind in zip(whole.op_names, whole.op_types, strict=True) if kind == SUM]
    assert set(whole.op_names) - set(sums) == expected
    assert len(sums) == len(gradients(graph)) * (count - 1)
    assert whole.num_ops == len(graph.op_names) + len(of_batch) * (count - 1) + len(sums)


@given(named_graphs(), COUNTS)
def test_every_copy_depends_on_what_its_op_depends_on(graph: OpGraph, count: int) -> None:
    network = to_networkx(micro_batched(graph, count))
    for before, after in to_networkx(graph).edges:
        ends = zip(copies(graph, before, count), copies(graph, after, count), strict=True)
        assert all(nx.has_path(network, *pair) for pair in ends)


@given(named_graphs(), COUNTS)
def test_copies_read_their_own_micro_batch_alone(graph: OpGraph, count: int) -> None:
    """Without its sums and update, a step falls apart into what has nothing of each other."""
    network = to_networkx(micro_batched(graph, count))
    for op in ops_of_batch(graph):
        for copy in copies(graph, op, count):
            number = copy.partition("@")[2]
            others = {name.partition("@")[2] for name in network.pred[copy]} - {"", number}
            assert not others


@given(named_graphs(), COUNTS)
def test_the_update_waits_for_the_gradients_of_all_micro_batches(
    graph: OpGraph, count: int
) -> None:
    network = to_networkx(micro_batched(graph, count))
    for tensor, reader in graph.edges.tolist():
        if graph.phases[reader] == Phase.UPDATE:
            makers = copies(graph, graph.op_names[graph.tensor_producer[tensor]], count)
            assert nx.ancestors(network, graph.op_names[reader]).issuperset(makers)


@given(named_graphs(), COUNTS)
def test_the_update_reads_as_many_bytes_of_gradients(graph: OpGraph, count: int) -> None:
    whole = micro_batched(graph, count)
    found = gradients(graph)
    of_update = [
        (tensor, reader)
        for tensor, reader in graph.edges.tolist()
        if graph.phases[reader] == Phase.UPDATE and tensor in found
    ]
    reads_sums = [
        (int(tensor), int(reader))
        for tensor, reader in whole.edges
        if whole.phases[reader] == Phase.UPDATE
        and whole.op_types[whole.tensor_producer[tensor]] == SUM
    ]
    sizes = sorted(graph.tensor_bytes[tensor] for tensor, _ in of_update)
    assert sorted(whole.tensor_bytes[tensor] for tensor, _ in reads_sums) == sizes
    last = {whole.op_names[whole.tensor_producer[tensor]] for tensor, _ in reads_sums}
    assert all(name.endswith(f"@{count - 1}") for name in last)


@given(named_graphs(), COUNTS)
def test_work_and_weights_are_those_of_the_undivided_step(graph: OpGraph, count: int) -> None:
    whole = micro_batched(graph, count)
    sums = np.array([kind == SUM for kind in whole.op_types])
    added = graph.tensor_bytes[list(gradients(graph))].sum() * (count - 1)
    assert whole.flops[~sums].sum() == pytest.approx(graph.flops.sum())
    assert whole.flops[sums].sum() == pytest.approx(added / 4)
    assert whole.bytes_accessed[~sums].sum() == pytest.approx(graph.bytes_accessed.sum())
    assert whole.bytes_accessed[sums].sum() == pytest.approx(3 * added)
    for kind, seconds in graph.measured_time.items():
        total = whole.measured_time[kind][~sums].sum()
        assert total == pytest.approx(seconds.sum())
    assert whole.parameter_bytes.sum() == graph.parameter_bytes.sum()
    place = {name: op for op, name in enumerate(whole.op_names)}
    for op, name in enumerate(graph.op_names):
        held = whole.parameter_bytes[[place[copy] for copy in {*copies(graph, name, count)}]]
        assert held.sum() == graph.parameter_bytes[op]
        assert held.max() - held.min() <= 1


@given(named_graphs(), COUNTS)
def test_tensors_of_copies_are_a_part_rounded_up_and_gradients_are_whole(
    graph: OpGraph, count: int
) -> None:
    whole = micro_batched(graph, count)
    of_batch, kept = ops_of_batch(graph), gradients_and_their_terms(graph)
    place = {name: op for op, name in enumerate(whole.op_names)}
    for op, name in enumerate(graph.op_names):
        before = graph.tensors_of_op[op].tolist()
        for copy in copies(graph, name, count):
            after = whole.tensors_of_op[place[copy]].tolist()
            assert len(after) == len(before)
            for old, new in zip(before, after, strict=True):
                size, part = int(graph.tensor_bytes[old]), int(whole.tensor_bytes[new])
                is_whole = name not in of_batch or old in kept
                assert part == (size if is_whole else -(-size // count))


@given(named_graphs(), COUNTS)
def test_ops_are_in_the_order_in_which_gpipe_runs_them(graph: OpGraph, count: int) -> None:
    whole = micro_batched(graph, count)
    position = {name: op for op, name in enumerate(graph.op_names)}

    def turn(op: int) -> tuple[int, int, int]:
        name, _, number = whole.op_names[op].partition("@")
        return int(whole.phases[op]), int(number or -1), position[name.partition("/")[0]]

    turns = [turn(op) for op in range(whole.num_ops)]
    assert turns == sorted(turns)


@given(named_graphs(), COUNTS)
def test_what_reads_a_tensor_reads_it_in_the_order_of_micro_batches(
    graph: OpGraph, count: int
) -> None:
    whole = micro_batched(graph, count)
    for readers in whole.consumers_of_tensor:
        names = [whole.op_names[op] for op in readers]
        turns = [
            (int(whole.phases[op]), int(name.partition("@")[2] or -1))
            for op, name in zip(readers, names, strict=True)
        ]
        assert turns == sorted(turns)


@given(named_graphs(), COUNTS)
def test_copies_read_in_the_order_in_which_their_ops_do(graph: OpGraph, count: int) -> None:
    whole = micro_batched(graph, count)
    place = {name: op for op, name in enumerate(whole.op_names)}
    forward_and_backward = np.flatnonzero(graph.phases != Phase.UPDATE)
    for op in forward_and_backward.tolist():
        makers = graph.tensor_producer[graph.inputs_of_op[op]]
        for copy in copies(graph, graph.op_names[op], count):
            read = whole.tensor_producer[whole.inputs_of_op[place[copy]]]
            names = [re.split("[@/]", whole.op_names[maker])[0] for maker in read]
            assert names == [graph.op_names[maker] for maker in makers]


@given(named_graphs(), COUNTS)
def test_tensors_are_read_in_the_order_in_which_those_of_the_graph_are(
    graph: OpGraph, count: int
) -> None:
    whole, of_batch = micro_batched(graph, count), ops_of_batch(graph)
    place = {name: op for op, name in enumerate(whole.op_names)}
    for tensor, before in enumerate(graph.consumers_of_tensor):
        by_phase = sorted(before.tolist(), key=lambda op: int(graph.phases[op]))
        expected = [name for op in by_phase if (name := graph.op_names[op]) in of_batch]
        maker = int(graph.tensor_producer[tensor])
        number = graph.tensors_of_op[maker].tolist().index(tensor)
        for i, copy in enumerate(copies(graph, graph.op_names[maker], count)):
            after = whole.consumers_of_tensor[whole.tensors_of_op[place[copy]][number]]
            names = [whole.op_names[op].split("@") for op in after]
            assert [op for op, *of in names if of == [str(i)] and "/" not in op] == expected


@settings(max_examples=60)
@given(problems(), COUNTS)
def test_a_problem_has_the_same_groups(problem: PlacementProblem, count: int) -> None:
    names = tuple(f"op{op}" for op in range(problem.graph.num_ops))
    problem = replace(problem, graph=replace(problem.graph, op_names=names))
    whole = micro_batched_problem(problem, count)
    assert whole.grouping.group_names == problem.grouping.group_names
    assert whole.graph == micro_batched(problem.graph, count)
    group_of = dict(zip(problem.graph.op_names, problem.grouping.group_of, strict=True))
    for op, name in enumerate(whole.graph.op_names):
        assert whole.grouping.group_of[op] == group_of[re.split("[@/]", name)[0]]
    of_batch = ops_of_batch(problem.graph)
    place = {name: op for op, name in enumerate(whole.graph.op_names)}
    for op, name in enumerate(problem.graph.op_names):
        seconds = problem.compute_time[op] / (count if name in of_batch else 1)
        for copy in copies(problem.graph, name, count):
            assert whole.compute_time[place[copy]].tolist() == seconds.tolist()


@given(problems(), COUNTS)
def test_repeating_divides_nothing(problem: PlacementProblem, count: int) -> None:
    graph = problem.graph
    repeated, divided = repeat_micro_batch_problem(problem, count), micro_batched(graph, count)
    assert repeated.graph.op_names == divided.op_names
    assert repeated.graph.edges.tolist() == divided.edges.tolist()
    place = {name: op for op, name in enumerate(repeated.graph.op_names)}
    for op, name in enumerate(graph.op_names):
        for copy in [place[copy] for copy in copies(graph, name, count)]:
            assert repeated.compute_time[copy].tolist() == problem.compute_time[op].tolist()
            assert repeated.graph.flops[copy] == graph.flops[op]
            before, after = graph.tensors_of_op[op], repeated.graph.tensors_of_op[copy]
            assert (
                repeated.graph.tensor_bytes[after].tolist() == graph.tensor_bytes[before].tolist()
            )


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


def test_a_sum_takes_as_long_as_the_shortest_of_several_updates() -> None:
    step = training_step(update=6.0)
    step.add_node("momentum", phase=2, bytes_accessed=300, measured_time={"k80": 2.5})
    step.add_edge("gradient", "momentum", bytes=100)
    whole = micro_batched(from_networkx(step), 2)
    assert whole.measured_time["k80"][whole.op_names.index("gradient/sum0@1")] == 2.5


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
        graph=graph,
        cluster=parse_cluster("2xk80"),
        compute_time=compute_time,
        grouping=colocate(graph, [colocate_by_id]),
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
        (-2, "num_micro_batches: expected an integer from 1"),
        (2.0, "num_micro_batches: expected integers, got floating-point numbers"),
        ("2", "num_micro_batches: expected integers, got text"),
        (True, "num_micro_batches: expected integers, got booleans"),
    ],
)
def test_a_wrong_number_of_micro_batches_is_named(count: Any, message: str) -> None:
    problem = diamond_problem()
    for refuses in (
        lambda: micro_batched(problem.graph, count),
        lambda: micro_batched_problem(problem, count),
        lambda: repeat_micro_batch_problem(problem, count),
    ):
        with pytest.raises(GraphError, match=re.escape(message)):
            refuses()
