"""Copies of a step: what holds of all, by networkx and by values of ops, and steps by hand."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import refused
from graph_strategies import problems
from placeto_graphs import (
    Cluster,
    OpGraph,
    Phase,
    PlacementProblem,
    copied,
    copies_of,
    from_networkx,
    load_pipedream_profile,
    load_problem,
    micro_batched_problem,
    parse_cluster,
    parts_of_batch,
    save_problem,
    sharded,
)
from placeto_graphs.testing import example_problem

BUCKET, SUM, SHARD, GATHER = (
    f"placeto.{name}" for name in ("bucket", "sum_copies", "shard", "gather")
)
ADDED = {BUCKET, SUM, SHARD, GATHER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


def training_step(
    weight_bytes: Sequence[int], activation_bytes: int = 60, *, has_update: bool = True
) -> OpGraph:
    """Return a chain of layers whose weights hold as many bytes again for the optimizer.

    The ops of layer i are its weights, forward op, backward op, gradient and update: w, f, b, g, u.
    """
    step = nx.DiGraph()
    layers = [(layer, {"scope": f"net.{layer}"}) for layer in range(len(weight_bytes))]
    for layer, scope in layers:
        step.add_node(f"w{layer}", parameter_bytes=2 * weight_bytes[layer], **scope)
    step.add_node("images")
    for layer, scope in layers:
        step.add_node(f"f{layer}", flops=60, colocation=layer, **scope)
    for layer, scope in reversed(layers):
        step.add_node(f"b{layer}", phase=1, flops=60, workspace_bytes=12, **scope)
        step.add_node(f"g{layer}", phase=1, flops=60, colocation=layer, **scope)
    for layer, scope in layers if has_update else ():
        of_weights = {"bytes_accessed": 5 * weight_bytes[layer], "flops": weight_bytes[layer]}
        step.add_node(f"u{layer}", phase=2, waits_for=("g0",), **of_weights, **scope)
    chain = ["images", *(f"f{layer}" for layer, _ in layers)]
    chain += [f"b{layer}" for layer, _ in reversed(layers)]
    for maker, reader in pairwise(chain):
        step.add_edge(maker, reader, bytes=activation_bytes)
    for layer, _ in layers:
        size = weight_bytes[layer]
        for reader in ("f", "b", "u") if has_update else ("f", "b"):
            step.add_edge(f"w{layer}", f"{reader}{layer}", bytes=size)
        step.add_edge(f"b{layer}", f"g{layer}", bytes=activation_bytes)
        if has_update:
            step.add_edge(f"g{layer}", f"u{layer}", bytes=size)
    return from_networkx(step)


def problem_of(graph: OpGraph, cluster: Cluster | None = None) -> PlacementProblem:
    """Return a problem in which forward, backward and update ops take a second."""
    cluster = cluster or parse_cluster("2xk80")
    takes_time = np.array([name[0] in "fbgu" for name in graph.op_names])
    seconds = np.tile(np.where(takes_time, 1.0, 0.0)[:, None], (1, cluster.num_devices))
    return PlacementProblem(graph=graph, cluster=cluster, compute_time=seconds)


@dataclass(frozen=True)
class Team:
    """Layers and copies, and the machine of each copy."""

    weight_bytes: list[int]
    machines: list[int]
    parts: list[int]

    @property
    def count(self) -> int:
        return len(self.machines)

    @property
    def problem(self) -> PlacementProblem:
        return problem_of(training_step(self.weight_bytes))

    @property
    def copies(self) -> PlacementProblem:
        problems = [self.problem] * self.count
        size = max(sum(self.weight_bytes) // 3, 1)
        return copied(problems, machines=self.machines, bucket_bytes=size, first_bucket_bytes=1)


@st.composite
def teams(draw: st.DrawFn, *, equal: bool = False) -> Team:
    """Draw two to six copies in machines, of different sizes unless they are to be equal."""
    weight_bytes = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4))
    if equal:
        machines = np.repeat(range(draw(st.integers(1, 3))), draw(st.integers(2, 3))).tolist()
    else:
        machines = draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
    parts = draw(st.lists(st.integers(1, 9), min_size=len(machines), max_size=len(machines)))
    return Team(weight_bytes, draw(st.permutations(machines)), parts)


def copy_of(graph: OpGraph, op: int) -> int:
    return int(graph.op_names[op].rpartition("#")[2])


def values_of(graph: OpGraph, value_of_bucket: Sequence[int]) -> list[int | None]:
    """Return what each op has, if the bucket of copy r has a number: sums add, gathers compare.

    A sum reads tensors of one size and makes as many bytes, in one or in several parts. A gather
    makes as many bytes as it reads.
    """
    values: list[int | None] = [None] * graph.num_ops
    for op in graph.topological_order.tolist():
        read = graph.inputs_of_op[op]
        inputs = [values[maker] for maker in graph.tensor_producer[read]]
        bytes_made = graph.tensor_bytes[graph.tensors_of_op[op]].sum()
        if graph.op_types[op] == BUCKET:
            values[op] = value_of_bucket[copy_of(graph, op)]
        elif graph.op_types[op] == SUM:
            assert {int(size) for size in graph.tensor_bytes[read]} == {bytes_made}
            values[op] = sum(value for value in inputs if value is not None)
        elif graph.op_types[op] == GATHER:
            assert len(set(inputs)) == 1
            assert graph.tensor_bytes[read].sum() == bytes_made
            values[op] = inputs[0]
    return values


@given(problems())
def test_one_copy_is_the_step(problem: PlacementProblem) -> None:
    assert copied([problem]) is problem
    assert sharded([problem]) is problem


@given(teams())
def test_each_update_reads_the_sum_of_all_copies(team: Team) -> None:
    graph = team.copies.graph
    values = values_of(graph, [10**copy for copy in range(team.count)])
    updates = [op for op, name in enumerate(graph.op_names) if name[0] == "u"]
    assert len(updates) == team.count * len(team.weight_bytes)
    for op in updates:
        read = {
            graph.op_names[graph.tensor_producer[tensor]][0]: tensor
            for tensor in graph.inputs_of_op[op]
        }
        layer = int(graph.op_names[op][1])
        assert read.keys() == {"w", "p"}  # its weights, and an op of this package
        assert graph.tensor_bytes[read["p"]] == team.weight_bytes[layer]
        assert values[graph.tensor_producer[read["p"]]] == int("1" * team.count)


@given(teams(equal=True), st.booleans())
def test_each_copy_updates_its_part_of_the_sum(team: Team, within_machines: bool) -> None:
    whole = sharded(
        [team.problem] * team.count,
        machines=team.machines,
        parts=team.parts,
        within_machines=within_machines,
    )
    graph = whole.graph
    values = values_of(graph, [10**copy for copy in range(team.count)])
    held = len(set(team.machines)) if within_machines else 1
    for layer, size in enumerate(team.weight_bytes):
        owned = []
        for copy in range(team.count):
            update = graph.op_names.index(f"u{layer}#{copy}")
            weights = graph.op_names.index(f"w{layer}#{copy}")
            by_maker = {
                int(graph.tensor_producer[tensor]): int(graph.tensor_bytes[tensor])
                for tensor in graph.inputs_of_op[update]
            }
            owned.append(by_maker.pop(weights))
            [(summed, part)] = by_maker.items()
            assert values[summed] == int("1" * team.count)
            assert part == owned[copy]
        assert sum(owned) == held * size
        if not within_machines:
            exact = size * np.array(team.parts) / sum(team.parts)
            assert abs(np.array(owned) - exact).max() < 1


@given(teams(equal=True), st.booleans(), st.booleans())
def test_passes_read_whole_weights_which_all_owners_send(
    team: Team, within_machines: bool, keep_weights: bool
) -> None:
    graph = sharded(
        [team.problem] * team.count,
        machines=team.machines,
        parts=team.parts,
        within_machines=within_machines,
        keep_weights=keep_weights,
    ).graph
    network = nx.DiGraph(
        list(map(tuple, np.stack([graph.edge_producers, graph.edge_consumers], 1)))
    )
    for op, name in enumerate(graph.op_names):
        if name[0] not in "fb":
            continue
        layer, copy = int(name[1]), copy_of(graph, op)
        gathers = {
            int(graph.tensor_producer[tensor])
            for tensor in graph.inputs_of_op[op]
            if graph.tensor_bytes[tensor] == team.weight_bytes[layer]
            and graph.op_types[graph.tensor_producer[tensor]] in {GATHER, SHARD}
        }
        [gather] = gathers
        kept = keep_weights and name[0] == "b"
        assert ("/backward/" in graph.op_names[gather]) == (name[0] == "b" and not kept)
        senders = {
            copy_of(graph, maker)
            for maker in nx.ancestors(network, gather)
            if graph.op_names[maker].startswith(f"w{layer}#")
        }
        of_machine = [c for c in range(team.count) if team.machines[c] == team.machines[copy]]
        assert senders == set(of_machine if within_machines else range(team.count))


@given(teams(equal=True), st.booleans())
def test_at_most_one_layer_is_gathered_ahead(team: Team, keep_weights: bool) -> None:
    graph = sharded(
        [team.problem] * team.count, machines=team.machines, keep_weights=keep_weights
    ).graph
    waits = {(graph.op_names[op], graph.op_names[awaited]) for op, awaited in graph.waits.tolist()}
    last = len(team.weight_bytes) - 1
    for copy in range(team.count):
        for layer in range(last + 1):
            shard = f"{SHARD}/{{}}/net.{layer}#{copy}"
            awaited = {awaited for op, awaited in waits if op == shard.format("forward")}
            assert awaited == ({f"f{layer - 1}#{copy}"} if layer else set())
            awaited = {awaited for op, awaited in waits if op == shard.format("backward")}
            before = f"b{layer + 1}" if layer < last else f"f{last}"
            assert awaited == (set() if keep_weights else {f"{before}#{copy}"})


def test_weights_that_one_op_reads_first_are_gathered_at_once() -> None:
    step = nx.DiGraph([("images", "f0"), ("f0", "f1"), ("f1", "gradient")])
    step.add_node("gradient", phase=1)
    for name, reader in (("weight", "f0"), ("bias", "f0"), ("last", "f1")):
        step.add_node(name, parameter_bytes=64)
        step.add_edge(name, reader, bytes=64)
    graph = sharded([problem_of(from_networkx(step))] * 2).graph
    waits = {(graph.op_names[op], graph.op_names[awaited]) for op, awaited in graph.waits.tolist()}
    assert {wait for wait in waits if wait[0].startswith(SHARD)} == {
        (f"{SHARD}/forward/last#{copy}", f"f0#{copy}") for copy in range(2)
    }


@given(teams(equal=True))
def test_work_and_weights_are_those_of_all_copies(team: Team) -> None:
    source = team.problem.graph
    for whole, factor in (
        (team.copies.graph, team.count),
        (sharded([team.problem] * team.count, parts=team.parts).graph, 1),
    ):
        added = np.array([op_type in ADDED for op_type in whole.op_types])
        of_update = whole.phases == Phase.UPDATE
        assert whole.parameter_bytes.sum() == factor * source.parameter_bytes.sum()
        for values, of_copies in (
            (source.flops, whole.flops),
            (source.bytes_accessed, whole.bytes_accessed),
        ):
            is_update = source.phases == Phase.UPDATE
            passes = of_copies[~added & ~of_update].sum()
            assert passes == pytest.approx(team.count * values[~is_update].sum())
            updates = of_copies[~added & of_update].sum()
            assert updates == pytest.approx(factor * values[is_update].sum())
        sums = np.array([op_type == SUM for op_type in whole.op_types])
        expected = (team.count - 1) * sum(team.weight_bytes) / 4  # numbers added, of float32
        assert whole.flops[sums].sum() == pytest.approx(expected)


@given(teams(), st.integers(2, 4))
def test_micro_batches_are_summed_once_in_either_order(team: Team, count: int) -> None:
    in_parts = micro_batched_problem(team.problem, count)
    first_parts = copied([in_parts] * team.count, machines=team.machines).graph
    step = copied([team.problem] * team.count, machines=team.machines)
    first_copies = micro_batched_problem(step, count).graph

    def work(graph: OpGraph) -> Counter[tuple[Any, ...]]:
        columns = graph.op_types, graph.phases, graph.flops.round(6), graph.bytes_accessed.round(6)
        return Counter(zip(*columns, strict=True))

    assert work(first_parts) == work(first_copies)
    assert first_parts.op_types.count(BUCKET) == step.graph.op_types.count(BUCKET)
    before_bucket = {
        first_parts.op_types[first_parts.tensor_producer[tensor]]
        for op, op_type in enumerate(first_parts.op_types)
        if op_type == BUCKET
        for tensor in first_parts.inputs_of_op[op]
    }
    assert before_bucket == {"placeto.free"}  # which pass on totals of sums


@given(teams(equal=True), st.booleans())
def test_a_problem_of_copies_is_one_of_files_and_has_levels(
    folder: Path, team: Team, is_sharded: bool
) -> None:
    problem = team.problem.at_level(0)
    transform = sharded if is_sharded else copied
    whole = transform([replace(problem, hierarchy=problem.levels)] * team.count)
    save_problem(whole, folder / "problem.json")
    assert load_problem(folder / "problem.json") == whole
    assert [level.num_groups for level in whole.levels] == [
        team.count * level.num_groups for level in problem.levels
    ]
    names = whole.graph.op_names
    of_copy = [name.rpartition("#")[2] for name in whole.grouping.group_names]
    for name, group in zip(names, whole.grouping.group_of, strict=True):
        assert name.rpartition("#")[2] == of_copy[group]


def names_by_type(graph: OpGraph, op_type: str) -> list[str]:
    return [
        name.removeprefix(f"{op_type}/")
        for name, of_type in zip(graph.op_names, graph.op_types, strict=True)
        if of_type == op_type
    ]


def test_buckets_fill_up_in_the_order_in_which_gradients_are_made() -> None:
    # Gradients are made from the last layer on: 40, then 30 + 20, then 10 bytes.
    problem = problem_of(training_step([10, 20, 30, 40]))
    graph = copied([problem, problem], bucket_bytes=50, first_bucket_bytes=1).graph
    read = {
        name: [graph.op_names[graph.tensor_producer[t]] for t in graph.inputs_of_op[op]]
        for op, name in enumerate(graph.op_names)
        if name.startswith(f"{BUCKET}/") and name.endswith("#1")
    }
    assert list(read.values()) == [["g3#1"], ["g2#1", "g1#1"], ["g0#1"]]
    bucket = graph.op_names.index(f"{BUCKET}/1#0")
    assert graph.bytes_accessed[bucket] == 2 * 50
    assert graph.flops[bucket] == 50 / 4
    sums = graph.op_names.index(f"{SUM}/1#0")
    assert graph.bytes_accessed[sums] == (2 + 1) * 25
    assert len(names_by_type(copied([problem, problem]).graph, BUCKET)) == 2  # 25 MiB hold all


def test_updates_wait_for_the_sum_of_what_they_waited_for() -> None:
    problem = problem_of(training_step([10, 20]))
    graph = copied([problem, problem], bucket_bytes=1, first_bucket_bytes=1).graph
    waits = {(graph.op_names[op], graph.op_names[awaited]) for op, awaited in graph.waits.tolist()}
    # All updates wait for g0, whose sum is the last one: bucket 1.
    assert {awaited for op, awaited in waits if op == "u1#1"} == {"g0#1", f"{GATHER}/1#1"}


def test_held_gradients_stay_beside_their_sums_or_become_their_part() -> None:
    graph = training_step([10])
    gradient = int(graph.tensors_of_op[graph.op_names.index("g0")][0])
    problem = problem_of(replace(graph, held_tensors=np.array([gradient], np.int32)))

    def makers(whole: OpGraph) -> set[str]:
        return {whole.op_names[op] for op in whole.tensor_producer[whole.held_tensors]}

    assert makers(copied([problem] * 2).graph) == {
        *("g0#0", "g0#1", f"{GATHER}/0#0", f"{GATHER}/0#1")
    }
    assert makers(sharded([problem] * 2).graph) == {f"{SUM}/net.0#0", f"{SUM}/net.0#1"}


def test_added_ops_take_as_long_per_byte_as_the_update() -> None:
    # The update reads 5 x 100 bytes in a second, so that a sum of micro-batches takes 0.6.
    problem = problem_of(training_step([100]))
    measured = {"k80": problem.compute_time[:, 0]}
    problem = replace(problem, graph=replace(problem.graph, measured_time=measured))
    whole = copied([problem, problem])
    for op_type, seconds in ((BUCKET, 2 * 0.2), (SUM, 3 / 2 * 0.2), (GATHER, 2 * 0.2)):
        op = whole.graph.op_types.index(op_type)
        assert whole.compute_time[op] == pytest.approx(seconds)
        assert whole.graph.measured_time["k80"][op] == pytest.approx(seconds)


def test_copies_and_their_ops_are_colocated_apart() -> None:
    graph = copied([problem_of(training_step([10]))] * 2).graph
    ids = {name: int(graph.colocation[op]) for op, name in enumerate(graph.op_names)}
    assert ids["f0#0"] == ids["g0#0"] == ids[f"{BUCKET}/0#0"] == ids[f"{GATHER}/0#0"]
    assert ids["f0#1"] == ids[f"{SUM}/0#1"] != ids["f0#0"]
    assert ids["w0#0"] == ids["w0#1"] == -1


def test_gradients_without_an_update_are_those_of_the_weights() -> None:
    problem = problem_of(training_step([10, 20], has_update=False))
    graph = copied([problem, problem]).graph
    waits = {(graph.op_names[op], graph.op_names[awaited]) for op, awaited in graph.waits.tolist()}
    assert waits == {
        (f"{BUCKET}/0#{copy}", f"b{layer}#{copy}") for copy in (0, 1) for layer in (0, 1)
    }
    sent = graph.tensor_bytes[graph.tensors_of_op[graph.op_names.index(f"{BUCKET}/0#0")]]
    assert sent.sum() == 30
    assert len(names_by_type(sharded([problem, problem]).graph, SUM)) == 4


def test_a_profile_of_pipedream_sums_the_gradients_of_its_parameters(tmp_path: Path) -> None:
    measures = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0"
    (tmp_path / "graph.txt").write_text(
        f"node1 -- Conv2d(3, 64) -- {measures}, parameter_size=100.0\n"
        f"node2 -- Linear(in_features=4) -- {measures}, parameter_size=60.0\n"
        "\tnode1 -- node2\n"
    )
    graph = load_pipedream_profile(tmp_path / "graph.txt", kind="k80")
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((graph.num_ops, 2))
    )
    whole = copied([problem, problem]).graph
    bucket = whole.op_names.index(f"{BUCKET}/0#0")
    assert whole.bytes_accessed[bucket] == 2 * 160


def test_a_forward_pass_alone_has_nothing_to_sum() -> None:
    problem = example_problem()
    whole = copied([problem] * 3)
    assert whole.graph.num_ops == 3 * problem.graph.num_ops
    assert whole.num_groups == 3 * problem.num_groups


@given(problems(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_parts_of_a_batch_are_linear(problem: PlacementProblem, samples: list[int]) -> None:
    parts = parts_of_batch(problem, samples)
    batch = sum(samples)
    of_batch = parts_of_batch(problem, [1, 10**6])[0].compute_time < problem.compute_time
    for count, part in zip(samples, parts, strict=True):
        expected = np.where(of_batch, count / batch, 1.0) * problem.compute_time
        assert part.compute_time == pytest.approx(expected)
        for sizes, of_part in (
            (problem.graph.tensor_bytes, part.graph.tensor_bytes),
            (problem.graph.workspace_bytes, part.graph.workspace_bytes),
        ):
            for size, size_of_part in zip(sizes.tolist(), of_part.tolist(), strict=True):
                assert size_of_part in {size, -(-size * count // batch)}
        assert part.graph.parameter_bytes.tolist() == problem.graph.parameter_bytes.tolist()


def test_unequal_parts_keep_whole_gradients() -> None:
    parts = parts_of_batch(problem_of(training_step([100])), [1, 3])
    whole = copied(parts)
    seconds = dict(zip(whole.graph.op_names, whole.compute_time[:, 0], strict=True))
    assert (seconds["f0#0"], seconds["f0#1"], seconds["u0#0"]) == (0.25, 0.75, 1.0)
    network = {
        name: int(whole.graph.tensor_bytes[whole.graph.tensors_of_op[op]].sum())
        for op, name in enumerate(whole.graph.op_names)
    }
    assert (network["f0#0"], network["f0#1"]) == (15, 45)
    assert network["g0#0"] == network["g0#1"] == 100


def test_links_have_the_bandwidth_of_collectives() -> None:
    cluster = Cluster(
        devices=parse_cluster("2xk80").devices,
        bandwidth=np.full((2, 2), 8e9),
        latency=np.zeros((2, 2)),
        collective_fraction=np.full((2, 2), 0.25),
    )
    problem = problem_of(training_step([10]), cluster)
    once = copied([problem, problem])
    assert once.cluster.bandwidth[0, 1] == 2e9
    assert copied([once, once]).cluster == once.cluster


def test_what_cannot_be_copied_is_refused() -> None:
    problem = problem_of(training_step([10]))
    with refused("problems: expected at least one copy, got none"):
        copied([])
    with refused("problems[1].cluster: expected that of problems[0], Cluster(k80:0, k80:1), got"):
        copied([problem, problem_of(training_step([10]), parse_cluster("3xk80"))])
    with refused("problems[1].graph.parameter_bytes: expected that of problems[0], of the same"):
        sharded([problem, problem_of(training_step([20]))])
    with refused("machines: expected shape (2,), got (1,)"):
        copied([problem, problem], machines=[0])
    with refused("machines: expected as many copies in each machine, got 2, 1"):
        sharded([problem] * 3, machines=[0, 0, 1])
    with refused("bucket_bytes: expected an integer from 1"):
        copied([problem, problem], bucket_bytes=0)
    with refused("first_bucket_bytes: expected an integer from 1"):
        copied([problem, problem], first_bucket_bytes=0)
    with refused("parts[1]: expected an integer from 1"):
        sharded([problem, problem], parts=[1, 0])
    with refused("samples[0]: expected an integer from 1"):
        parts_of_batch(problem, [0, 1])
    layer = from_networkx(nx.DiGraph([("images", "layer")]))
    layer = replace(layer, parameter_bytes=np.array([0, 8]))
    with refused("problems[0].graph: expected weights that are ops of their own, got those of 'la"):
        sharded([problem_of(layer)] * 2)


@given(teams(equal=True), st.booleans(), st.booleans())
def test_a_graph_tells_how_its_copies_share(
    team: Team, within_machines: bool, keep_weights: bool
) -> None:
    problem = sharded(
        [team.problem] * team.count,
        machines=team.machines,
        within_machines=within_machines,
        keep_weights=keep_weights,
    )
    copies = copies_of(problem.graph)
    assert copies is not None
    assert copies.copy_of_op.tolist() == [
        copy_of(problem.graph, op) for op in range(problem.graph.num_ops)
    ]
    assert copies.layers == tuple(f"net.{layer}" for layer in range(len(team.weight_bytes)))
    assert copies.keeps_weights == keep_weights
    assert copies.within_machines == (within_machines and len(set(team.machines)) > 1)


@given(teams())
def test_a_graph_tells_the_parts_of_a_batch(team: Team) -> None:
    parts = [part * 10**6 for part in team.parts]
    batch = problem_of(training_step(team.weight_bytes, activation_bytes=sum(parts)))
    problem = copied(parts_of_batch(batch, parts), machines=team.machines)
    divisor = math.gcd(*team.parts)
    for whole in (problem, micro_batched_problem(problem, 1)):
        copies = copies_of(whole.graph)
        assert copies is not None
        assert copies.parts == tuple(part // divisor for part in team.parts)
        assert copies.layers == ()


def test_a_graph_tells_the_size_of_its_buckets() -> None:
    problem = problem_of(training_step([4 * 10**7, 1000, 10**7, 3 * 10**7, 2 * 10**6]))
    usual = copies_of(copied([problem, problem]).graph)
    assert usual is not None
    assert usual.bucket_bytes is None
    whole = copied([problem, problem], bucket_bytes=3 * 10**7, first_bucket_bytes=3 * 10**7).graph
    copies = copies_of(whole)
    assert copies is not None
    size = copies.bucket_bytes
    assert size is not None
    assert copied([problem, problem], bucket_bytes=size, first_bucket_bytes=size).graph == whole


def test_a_step_alone_has_no_copies() -> None:
    assert copies_of(training_step([10])) is None
    assert copies_of(copied([example_problem()] * 2).graph) is None  # has nothing to sum
