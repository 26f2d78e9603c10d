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
    device_and_group_stages,
    from_networkx,
    micro_batched,
    micro_batched_problem,
    parse_cluster,
    repeat_micro_batch_problem,
    scheduled,
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
        self.totals = np.array(["/total" in name for name in self.whole.op_names])
        self.gradients = {
            tensor
            for tensor, reader in graph.edges.tolist()
            if graph.phases[reader] == Phase.UPDATE
            and self.is_backward(tensor)
            and graph.tensor_bytes[tensor] > 0
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


def without_micro_batches(graph: OpGraph) -> OpGraph:
    return replace(graph, micro_batch=np.full(graph.num_ops, -1, np.int32))


whole_problems = problems().map(
    lambda problem: replace(problem, graph=without_micro_batches(problem.graph))
)


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    """Draw any graphs, with names that tell copies apart."""
    graph = without_micro_batches(draw(op_graphs()))
    named = replace(graph, op_names=tuple(f"op{op}" for op in range(graph.num_ops)))
    return Division(named, draw(COUNTS))


def step_of(edges: str, **nodes: dict[str, Any]) -> OpGraph:
    """Return the graph of some edges ``MAKER-READER-BYTES``; nodes that are named come first."""
    step = nx.DiGraph()
    step.add_nodes_from(nodes.items())
    for edge in edges.split():
        maker, reader, size = edge.split("-")
        step.add_edge(maker, reader, bytes=int(size))
    return from_networkx(step)


GRADIENT, OF_UPDATE, WEIGHTS = {"phase": 1}, {"phase": 2}, {"parameter_bytes": 64}
LAYER = "images-layer-10 weights-cast-64 cast-layer-32 cast-gradient-32 layer-gradient-20"
LAYER += " gradient-update-100 cast-update-32"
TRAINING: dict[str, Any] = {"weights": WEIGHTS, "gradient": GRADIENT, "update": OF_UPDATE}


def training_step(
    further_edges: str = "", seconds: float = 6.0, **nodes: dict[str, Any]
) -> OpGraph:
    """Return one layer with weights, its gradient and its update, by hand, and more edges."""
    default_nodes: dict[str, dict[str, Any]] = {
        "images": {},
        "weights": dict(WEIGHTS),
        "cast": {"flops": 16},
        "layer": {"flops": 100, "bytes_accessed": 40, "workspace_bytes": 9, "colocation": 3},
        "gradient": {"flops": 200, "phase": 1, "scope": "net", "colocation": 3},
        "update": {"phase": 2, "bytes_accessed": 600},
    }
    every = default_nodes | {name: default_nodes.get(name, {}) | of for name, of in nodes.items()}
    times = {"layer": 1.0, "gradient": 2.0, "update": seconds}
    for name, of in every.items():
        of["measured_time"] = {"k80": times.get(name, 0.0)}
    return step_of(f"{LAYER} {further_edges}", **every)


def waits_of(whole: OpGraph) -> set[tuple[str, str]]:
    return {(whole.op_names[op], whole.op_names[awaited]) for op, awaited in whole.waits.tolist()}


@given(problems())
def test_one_micro_batch_is_the_step(problem: PlacementProblem) -> None:
    assert micro_batched(problem.graph, 1) == problem.graph
    assert micro_batched_problem(problem, 1) == problem
    assert repeat_micro_batch_problem(problem, 1) == problem


@given(divisions())
def test_copies_depend_on_what_their_op_depends_on_in_their_own_micro_batch(step: Division) -> None:
    for maker, reader in to_networkx(step.graph).edges:
        ends = zip(step.copies[maker], step.copies[reader], strict=True)
        assert all(nx.has_path(step.network, *pair) for pair in ends)
    for op in step.of_batch:
        for micro_batch, copy in enumerate(step.copies[op]):
            read = {name.partition("@")[2] for name in step.network.pred[copy]}
            assert read <= {"", str(micro_batch)}


def test_what_waits_in_the_backward_pass_runs_for_each_micro_batch() -> None:
    # Activations are computed again with a weight that is cast again: as soon as the gradient of
    # the layer behind is there, whatever that of other micro-batches is.
    graph = step_of(
        "images-layer-8 layer-behind-8 behind-of_behind-8 weights-cast-8 cast-gradient-4"
        " of_behind-gradient-8",
        weights={"parameter_bytes": 8},
        cast={"phase": 1, "waits_for": ("of_behind",)},
        of_behind=GRADIENT,
        gradient=GRADIENT,
    )
    assert waits_of(micro_batched(graph, 3)) == {(f"cast@{i}", f"of_behind@{i}") for i in range(3)}


def test_the_gradient_of_a_penalty_that_waits_is_added_once() -> None:
    # It reads weights alone, and is issued behind the gradient of the layer: 10 + 20 + 30 of the
    # three micro-batches, and 7 of the penalty.
    graph = step_of(
        "images-layer-8 weights-layer-8 layer-gradient-8 weights-penalty-8 gradient-update-8"
        " penalty-update-8",
        weights={"parameter_bytes": 8},
        gradient=GRADIENT,
        penalty={"phase": 1, "waits_for": ("gradient",)},
        update={"phase": 2, "waits_for": ("penalty",)},
    )
    whole = micro_batched(graph, 3)
    value = {"gradient@0": 10, "gradient@1": 20, "gradient@2": 30}
    value |= {name: 7 for name in whole.op_names if name.startswith("penalty")}
    for op in whole.topological_order.tolist():
        read = [tensor for tensor in whole.inputs_of_op[op] if whole.tensor_bytes[tensor]]
        makers = [whole.op_names[whole.tensor_producer[tensor]] for tensor in read]
        if whole.op_types[op] == SUM:  # in the memory of the first gradient
            value["gradient@0"] = sum(value[maker] for maker in makers)
        elif whole.op_names[op] in ("gradient/total0@2", "update"):
            value[whole.op_names[op]] = sum(value[maker] for maker in makers)
    assert value["update"] == 67
    assert waits_of(whole) == {("penalty", "gradient@0"), ("update", "penalty")}


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
        parameter_bytes = whole.parameter_bytes[
            [step.place[copy] for copy in dict.fromkeys(step.copies[name])]
        ]
        assert parameter_bytes.tolist() == [size] + [0] * (len(parameter_bytes) - 1)


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
    for tensor, consumers in enumerate(graph.consumers_of_tensor):
        by_phase = sorted(consumers.tolist(), key=lambda op: int(graph.phases[op]))
        expected = [name for op in by_phase if (name := graph.op_names[op]) in step.of_batch]
        output = graph.tensors_of_op[graph.tensor_producer[tensor]].tolist().index(tensor)
        for i, copy in enumerate(step.copies[step.maker(tensor)]):
            copied_consumers = whole.consumers_of_tensor[
                whole.tensors_of_op[step.place[copy]][output]
            ]
            names = [whole.op_names[op].split("@") for op in copied_consumers]
            assert [op for op, *of in names if of == [str(i)] and "/" not in op] == expected


@settings(max_examples=60)
@given(whole_problems, COUNTS)
def test_a_problem_has_the_same_groups_and_is_divided_or_repeated(
    problem: PlacementProblem, count: int
) -> None:
    names = tuple(f"op{op}" for op in range(problem.graph.num_ops))
    problem = replace(problem, graph=replace(problem.graph, op_names=names))
    step = Division(problem.graph, count)
    divided = micro_batched_problem(problem, count)
    repeated = repeat_micro_batch_problem(problem, count)
    assert divided.graph == step.whole
    assert divided.grouping == repeated.grouping
    assert divided.grouping.group_names == problem.grouping.group_names
    group_of = dict(zip(names, problem.grouping.group_of, strict=True))
    for name, group in zip(divided.graph.op_names, divided.grouping.group_of, strict=True):
        assert group == group_of[re.split("[@/]", name)[0]]
    for op, name in enumerate(names):
        seconds, divisor = problem.compute_time[op], count if name in step.of_batch else 1
        for copy in [step.place[copy] for copy in step.copies[name]]:
            assert divided.compute_time[copy].tolist() == (seconds / divisor).tolist()
            assert repeated.compute_time[copy].tolist() == seconds.tolist()
            assert repeated.graph.flops[copy] == problem.graph.flops[op]


def test_a_step_by_hand() -> None:
    whole = micro_batched(training_step(), 2)
    assert whole.op_names == (
        *("weights", "cast", "images@0", "layer@0", "images@1", "layer@1"),
        *("gradient@0", "gradient@1", "gradient/sum0@1", "gradient/total0@1", "update"),
    )
    network = to_networkx(whole)
    assert set(network.succ["cast"]) == {
        *("layer@0", "layer@1", "gradient@0", "gradient@1", "update")
    }
    assert len(whole.tensors_of_op[1]) == 1
    assert set(network.pred["gradient/sum0@1"]) == {"gradient@0", "gradient@1"}
    assert set(network.pred["gradient/total0@1"]) == {"gradient@0", "gradient/sum0@1"}
    assert set(network.pred["update"]) == {"cast", "gradient/total0@1"}
    assert network.edges["gradient/sum0@1", "gradient/total0@1"]["bytes"] == 0
    assert network.edges["gradient/total0@1", "update"]["bytes"] == 100
    assert network.edges["images@1", "layer@1"]["bytes"] == 5
    assert network.edges["gradient@0", "gradient/sum0@1"]["bytes"] == 100
    layer, total = network.nodes["layer@1"], network.nodes["gradient/sum0@1"]
    assert (layer["workspace_bytes"], layer["flops"], layer["colocation"]) == (5, 50, 3)
    for name in ("gradient/sum0@1", "gradient/total0@1"):
        of_sum = network.nodes[name]
        assert (of_sum["scope"], of_sum["phase"], of_sum["colocation"]) == ("net", 1, 3)
    assert (total["flops"], total["bytes_accessed"]) == (25, 300)
    assert network.nodes["gradient/total0@1"]["bytes_accessed"] == 0


def test_the_sum_of_a_gradient_is_added_up_in_order_held_and_waited_for() -> None:
    graph = training_step(update={"waits_for": ("gradient",)})
    by = [graph.op_names.index("gradient"), 3]
    held_tensors = np.flatnonzero(np.isin(graph.tensor_producer, by)).astype(np.int32)
    assert graph.op_names[3] == "layer"
    whole = micro_batched(replace(graph, held_tensors=held_tensors), 3)
    network = to_networkx(whole)
    sums, total = ("gradient/sum0@1", "gradient/sum0@2"), "gradient/total0@2"
    assert waits_of(whole) == {
        ("update", name) for name in ("gradient@0", "gradient@1", "gradient@2", total)
    }
    makers = {whole.op_names[op] for op in whole.tensor_producer[whole.held_tensors]}
    assert makers == {"layer@0", "layer@1", "layer@2", total}
    assert set(network.pred[sums[1]]) == {"gradient@0", sums[0], "gradient@2"}
    assert set(network.pred[total]) == {"gradient@0", sums[1]}
    assert set(network.pred["update"]) == {"cast", total}
    assert network.edges["images@1", "layer@1"]["bytes"] == 4  # 10 / 3, rounded up


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
    update = {"bytes_accessed": bytes_accessed}
    whole = micro_batched(training_step(seconds=update_seconds, update=update), 3)
    seconds = dict(zip(whole.op_names, whole.measured_time["k80"], strict=True))
    assert seconds["gradient/sum0@1"] == seconds["gradient/sum0@2"] == expected
    assert seconds["gradient/total0@2"] == 0
    assert seconds["update"] == update_seconds
    assert seconds["layer@2"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("order", [("fast", "slow"), ("slow", "fast")])
def test_a_sum_takes_the_time_of_the_fastest_update_that_reads_the_gradient(
    order: tuple[str, str],
) -> None:
    nodes: dict[str, dict[str, Any]] = {"images": {}, "gradient": {"phase": 1}}
    nodes |= {name: {"phase": 2} for name in order}
    for name, of in nodes.items():
        of["measured_time"] = {"k80": {"fast": 2.0, "slow": 6.0}.get(name, 0.0)}
    edges = [f"gradient-{name}-100" for name in order]
    whole = micro_batched(step_of(" ".join(["images-gradient-8", *edges]), **nodes), 2)
    seconds = dict(zip(whole.op_names, whole.measured_time["k80"], strict=True))
    assert seconds["gradient/sum0@1"] == 2.0


@pytest.mark.parametrize("bytes_accessed", [0, 1, 3 * 1000])
def test_sums_for_one_update_of_many_gradients_share_its_time(bytes_accessed: int) -> None:
    layers = [f"images-g{layer}-8 g{layer}-update-{100 * (layer + 1)}" for layer in range(4)]
    nodes: dict[str, dict[str, Any]] = {f"g{layer}": {"phase": 1} for layer in range(4)}
    nodes |= {"images": {}, "update": {"phase": 2, "bytes_accessed": bytes_accessed}}
    for name, of in nodes.items():
        of["measured_time"] = {"k80": 1.0 if name == "update" else 0.0}
    whole = micro_batched(step_of(" ".join(layers), **nodes), 3)
    seconds = dict(zip(whole.op_names, whole.measured_time["k80"], strict=True))
    sums = [seconds[f"g{layer}/sum0@{i}"] for layer in range(4) for i in (1, 2)]
    assert sums == pytest.approx(np.repeat([0.1, 0.2, 0.3, 0.4], 2))


def problem_of(graph: OpGraph, compute_time: Any = None) -> PlacementProblem:
    """Return a problem of two devices, on which each op takes a second unless times are given."""
    times = np.ones((graph.num_ops, 2)) if compute_time is None else compute_time
    return PlacementProblem(graph=graph, cluster=parse_cluster("2xk80"), compute_time=times)


def test_a_sum_on_a_device_that_cannot_update_takes_no_time() -> None:
    graph = training_step()
    compute_time = np.stack([graph.measured_time["k80"]] * 2, axis=1)
    compute_time[-1, 1] = np.inf
    whole = micro_batched_problem(problem_of(graph, compute_time), 2)
    assert whole.compute_time[whole.graph.op_names.index("gradient/sum0@1")].tolist() == [3.0, 0.0]


def test_terms_of_gradients_are_as_large_in_every_micro_batch() -> None:
    """Two uses of a weight make a term each; what the terms are made of goes with the batch.

    The sum also reads a tensor without bytes, which is no term.
    """
    graph = step_of(
        "error-term1-64 error-term2-64 activation-term1-64 activation-term2-64 term1-sum-64"
        " term2-sum-64 sum-update-64 error-bias-64 bias-update-8 error-empty-64 empty-sum-0",
        **dict.fromkeys(("error", "term1", "term2", "sum", "bias", "empty"), GRADIENT),
        update=OF_UPDATE,
    )
    whole = micro_batched(graph, 4)
    made_by = [whole.op_names[op] for op in whole.tensor_producer]
    sizes = dict(zip(made_by, whole.tensor_bytes.tolist(), strict=True))
    for micro_batch in range(4):
        assert [sizes[f"{name}@{micro_batch}"] for name in ("error", "activation")] == [16, 16]
        assert [sizes[f"{name}@{micro_batch}"] for name in ("term1", "term2", "sum")] == [64] * 3


def test_what_is_kept_until_the_update_is_no_gradient_of_weights() -> None:
    until = {"op_type": "placeto.free", "phase": 2}
    graph = training_step("layer-kept-20 kept-until-64", kept=GRADIENT, until=until)
    whole = micro_batched(graph, 4)
    assert whole.op_types.count(SUM) == micro_batched(training_step(), 4).op_types.count(SUM)
    read = whole.inputs_of_op[whole.op_names.index("until")]
    assert whole.tensor_bytes[read].tolist() == [16] * 4


@pytest.mark.parametrize(
    ("graph", "once"),
    [
        # Without inputs all but weights and the update depends on the batch, ...
        (step_of(LAYER.partition(" ")[2], **TRAINING), {"weights", "update"}),
        # ... also with an input that leads to no gradient.
        (step_of(LAYER.partition(" ")[2], zeros={}, **TRAINING), {"weights", "update"}),
        # What follows the update alone runs once.
        (training_step("update-count-0", count={}), {"weights", "cast", "update", "count"}),
    ],
)
def test_what_runs_once(graph: OpGraph, once: set[str]) -> None:
    whole = micro_batched(graph, 2)
    assert {name for name in whole.op_names if "@" not in name} == once
    assert whole.num_ops == 2 * graph.num_ops - len(once) + 2  # and the sum and its total


def test_names_stay_unique() -> None:
    whole = micro_batched(step_of("layer-loss-0", **{"layer@1": {"parameter_bytes": 4}}), 2)
    assert set(whole.op_names) == {"layer@1", "layer@@0", "loss@@0", "layer@@1", "loss@@1"}
    name_of_sum: dict[str, Any] = {"gradient/sum0": {}}
    named = micro_batched(training_step("images-gradient/sum0-10", **name_of_sum), 2)
    assert {"gradient/sum0@@1", "gradient//sum0@@1"} <= set(named.op_names)


def test_names_that_end_in_numbers_are_no_micro_batches() -> None:
    nodes: dict[str, Any] = {"layer@7": WEIGHTS}
    whole = micro_batched(training_step("layer@7-layer-0", **nodes), 3)
    once = np.array(["@@" not in name for name in whole.op_names])
    assert ((whole.micro_batch < 0) == once).all()
    assert set(whole.micro_batch.tolist()) == {-1, 0, 1, 2}


def test_a_stage_waits_for_its_own_backward_pass_and_for_nothing_that_waits_for_it() -> None:
    """Two layers with backward ops in three micro-batches: F0 F1 B0 F2 B1 B2 | F0 B0 F1 B1 ..."""
    step = step_of("x-a-8 a-b-8 b-db-8 a-da-8 db-da-8", db=GRADIENT, da=GRADIENT)
    problem = problem_of(step, [[float(name != "x")] * 2 for name in step.op_names])
    whole, names = micro_batched_problem(problem, 3), problem.grouping.group_names
    chain, turned = (
        scheduled(whole, "1f1b", np.array([name.lstrip("d") in second for name in names], np.int32))
        for second in ("b", "xa")
    )
    expected = {("a@2", "da@0"), ("b@1", "db@0"), ("b@2", "db@1"), ("da@0", "a@1"), ("da@1", "a@2")}
    assert waits_of(chain.graph) == expected | {(f"db@{j}", f"b@{j}") for j in range(3)}
    assert waits_of(turned.graph) == waits_of(chain.graph)  # the devices the other way round
    back = step_of("a-b-8 x-a-8 a-da-8 db-da-8 b-db-8", b={}, a={}, db=GRADIENT, da=GRADIENT)
    whole_back = micro_batched_problem(problem_of(back), 3)
    backwards = scheduled(whole_back, "gpipe", np.zeros(5, np.int32))
    assert waits_of(backwards.graph) == {(f"db@{j}", "b@2") for j in range(3)}
    gpipe = waits_of(scheduled(whole, "gpipe", np.zeros(len(names), np.int32)).graph)
    assert gpipe == {(f"db@{j}", "b@2") for j in range(3)}
    for wrong, schedule, message in (
        (problem, "1f1b", "schedule: expected a step in micro-batches (--micro-batches), got none"),
        (whole, "2f1b", "schedule: expected 1f1b, or another of gpipe, got '2f1b'"),
    ):
        with refused(message):
            scheduled(wrong, schedule, np.zeros(len(names), np.int32))


def test_stages_are_in_the_order_in_which_devices_have_their_time_however_long_it_is() -> None:
    """Device 1 runs `a` and `b`, 20 s, and then device 0 runs `c`, a tenth of a second."""
    seconds = np.tile([[10.0], [10.0], [0.1]], (1, 2))
    chain = problem_of(step_of("a-b-8 b-c-8"), seconds)
    stages, group_stages = device_and_group_stages(chain, np.array([1, 1, 0], np.int32))
    assert stages.tolist() == [1, 0]
    assert group_stages.tolist() == [0, 0, 1]


def test_a_gradient_that_the_forward_pass_reads_is_of_the_forward_pass() -> None:
    step = step_of("x-a-8 a-penalty-8 penalty-b-8 b-db-8", penalty=GRADIENT, db=GRADIENT)
    whole = micro_batched_problem(problem_of(step), 2)
    placement = np.zeros(whole.num_groups, np.int32)
    gpipe = waits_of(scheduled(whole, "gpipe", placement).graph)
    assert gpipe == {("db@0", "b@1"), ("db@1", "b@1")}
    assert waits_of(scheduled(whole, "1f1b", placement).graph) >= {("x@1", "db@0")}


@given(whole_problems, st.integers(2, 4), st.data())
def test_no_placement_waits_in_circles(
    problem: PlacementProblem, count: int, data: st.DataObject
) -> None:
    whole = micro_batched_problem(problem, count)
    rows = np.isfinite(problem.group_graph.compute_time)
    placement = [data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in rows]
    for schedule in ("gpipe", "1f1b"):
        if whole.graph.num_micro_batches > 1:
            scheduled(whole, schedule, np.array(placement, np.int32))


def test_a_step_in_micro_batches_is_not_divided_again() -> None:
    whole = micro_batched_problem(diamond_problem(), 3)
    assert micro_batched_problem(whole, 1) == whole
    for divide in (micro_batched_problem, repeat_micro_batch_problem):
        with refused("num_micro_batches: expected 1 for a step that is in 3 micro-batches already"):
            divide(whole, 2)
    with refused("num_micro_batches: expected 1 for a step that is in 3 micro-batches already"):
        micro_batched(whole.graph, 2)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "num_micro_batches: expected an integer from 1 to 9223372036854775807, got 0"),
        (2.0, "num_micro_batches: expected integers, got float64"),
    ],
)
def test_a_wrong_number_of_micro_batches_is_named(count: Any, message: str) -> None:
    problem = diamond_problem()
    for divide in (micro_batched_problem, repeat_micro_batch_problem):
        with refused(message):
            divide(problem, count)
    with refused(message):
        micro_batched(problem.graph, count)
