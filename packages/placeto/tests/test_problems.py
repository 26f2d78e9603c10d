"""From what a user names to a model and to a problem."""

import json
import re
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from torch import nn

from placeto.errors import InputError
from placeto.placing.place_problem import PlaceSettings, place_scheduled
from placeto.placing.placers import make_placer
from placeto.placing.reports import precision_text
from placeto.problems.making import (
    make_problem,
    options_with_devices,
    placement_by_copies,
    read_problem,
    read_training_problems,
    runnable_problem,
    runnable_source,
)
from placeto.problems.options import ProblemOptions, SourceOptions, read_cluster
from placeto.problems.restrictions import Restrictions
from placeto.problems.sources import load_source, most_micro_batches, source_model
from placeto.progress import PlainProgress
from placeto.trials.placing_tasks import on_a_cpu
from placeto_capture import cost_model
from placeto_execution.devices import RealDevices
from placeto_graphs import (
    DEVICE_KINDS,
    GraphError,
    PlacementProblem,
    copied,
    from_networkx,
    grouping_of_labels,
    load_dnn_partitioning,
    load_problem,
    micro_batched_problem,
    parse_cluster,
    parts_of_batch,
    save_cluster,
    save_graph,
    save_problem,
    sharded,
)
from placeto_simulator import Simulator
from placeto_workloads import MODELS, family

SMALL = SourceOptions({"units": 8, "vocabulary_size": 10})


def test_a_batch_is_divided_by_the_largest_number_that_its_source_takes() -> None:
    for batch_size, micro_batches in ((4100, 5), (4099, 1), (32, 8), (2, 2)):
        choice = SourceOptions({"batch_size": batch_size})
        assert most_micro_batches("inception-v3", choice, 8) == micro_batches
    assert most_micro_batches("problem.json", SourceOptions(), 8) == 8


def test_a_member_of_a_family_has_what_suits_its_family_and_a_file_no_model() -> None:
    for text in ("problem.json", "graph.json.gz", "profile.txt", "a/folder"):
        with pytest.raises(InputError, match=r"other sources have no model to run$"):
            runnable_source(text, SourceOptions())
    source = runnable_source("nmt:7", SMALL)
    nmt = family("nmt", sampler=None, units=8, vocabulary_size=10)
    assert (source.name, source.rules, source.num_groups) == (
        *("nmt-07", nmt.colocation_rules, nmt.num_groups),
    )
    assert isinstance(source.make("meta").model, nn.Module)
    with pytest.raises(InputError, match=r"^nmt:32: expected a graph from 0 to 31$"):
        source_model("nmt:32", SMALL)


def test_a_model_has_its_rules_and_a_part_of_its_batch() -> None:
    sizes = SourceOptions({"batch_size": 6, "steps": 2, "units": 8, "vocabulary_size": 10})
    assert source_model("nmt-2", sizes).rules == MODELS["nmt-2"].colocation_rules
    shapes = [
        source_model("nmt-2", sizes, count).make("meta").example_inputs[0].shape for count in (1, 3)
    ]
    assert 6 in shapes[0]
    assert 2 in shapes[1]
    assert 6 not in shapes[1]


def step_file(folder: Path) -> Path:
    """Write the graph of a layer that takes 0.5 s forward and backward, with its update."""
    step = nx.DiGraph([("images", "layer"), ("weights", "layer"), ("layer", "gradient")])
    for name, phase, seconds in (
        *(("images", 0, 0.0), ("weights", 0, 0.0), ("layer", 0, 0.5)),
        *(("gradient", 1, 0.5), ("update", 2, 0.01)),
    ):
        step.add_node(name, phase=phase, measured_time={"k80": seconds})
    step.add_node("weights", parameter_bytes=64)
    step.add_edge("gradient", "update", bytes=64)
    save_graph(from_networkx(step), folder / "step.json")
    return folder / "step.json"


def test_copies_of_a_file_have_the_rates_of_collectives_on_other_devices(tmp_path: Path) -> None:
    usual = parse_cluster("2xk80")
    cluster = replace(usual, collective_fraction=np.full((2, 2), 0.5))
    whole = read_problem(step_file(tmp_path), cluster, copies=2)
    assert whole.cluster.bandwidth[0, 1] == usual.bandwidth[0, 1] / 2
    save_problem(whole, tmp_path / "copies.json")
    assert read_problem(tmp_path / "copies.json", cluster).cluster == whole.cluster
    on_usual = replace(whole, cluster=usual.for_collectives)
    options = options_with_devices(ProblemOptions(cluster="2xk80"), on_usual, "+1xv100")
    assert options.cluster == "2xk80+1xv100"


def test_copies_share_the_batch_and_are_in_the_machines_of_their_devices(tmp_path: Path) -> None:
    path, cluster = step_file(tmp_path), "2x(2xk80)"
    whole = read_problem(path, cluster)
    parts = parts_of_batch(whole, [1, 1])
    assert read_problem(path, cluster, copies=2) == copied(parts, machines=[0, 1])
    assert read_problem(path, cluster, copies=2, shard=True) == sharded(parts, machines=[0, 1])
    quarters = parts_of_batch(whole, [1] * 4)
    in_parts = [micro_batched_problem(part, 2) for part in quarters]
    problem = read_problem(path, cluster, copies=4, micro_batches=2)
    assert problem == copied(in_parts, machines=[0, 0, 1, 1])
    with pytest.raises(InputError, match=r"^--copies: expected at most 4, one for each device"):
        read_problem(path, cluster, copies=5)
    with pytest.raises(InputError, match=r"^--shard: needs --copies of at least 2$"):
        read_problem(path, cluster, shard=True)
    with pytest.raises(InputError, match=r"^copies: expected at least 1, got 0$"):
        read_problem(path, cluster, copies=0)


def test_a_search_begins_with_each_copy_on_its_first_device(tmp_path: Path) -> None:
    path = step_file(tmp_path)
    problem = read_problem(path, "4xk80", copies=2)
    start = placement_by_copies(problem)
    assert start is not None
    of_copy = [int(name.rpartition("#")[2]) for name in problem.graph.op_names]
    assert start.tolist() == [2 * copy for copy in of_copy]
    assert placement_by_copies(read_problem(path, "4xk80")) is None
    on_one = replace(
        problem, cluster=parse_cluster("1xk80"), compute_time=problem.compute_time[:, :1]
    )
    assert placement_by_copies(on_one) is None
    placed = place_scheduled(problem, None, PlaceSettings(max_evaluations=1), PlainProgress(None))
    assert placed.problem.expand(placed.result.placement).tolist() == start.tolist()


def test_gpus_are_of_a_kind_and_autocast_decides_the_precision(tmp_path: Path) -> None:
    sizes, path = {"units": 8, "vocabulary_size": 10, "steps": 2}, tmp_path / "problem.json"
    problem = read_problem("nmt-2", sizes=sizes, gpus=3, gpu_kind="v100", autocast="bfloat16")
    assert problem.cluster == parse_cluster("3xv100")
    assert re.fullmatch(r"\d\d\.\d % of FLOPs in bfloat16", precision_text(problem.graph))
    usual = read_problem("nmt-2", sizes=sizes).graph
    assert precision_text(usual) == "100.0 % of FLOPs in float32"
    assert precision_text(replace(usual, flops=np.zeros(usual.num_ops))) == ""
    save_problem(problem, path)
    assert read_problem(path, gpus=4, link="pcie").cluster == parse_cluster("4xv100", link="pcie")
    with pytest.raises(InputError, match=r"^--cluster: excludes --gpus and --gpu-kind$"):
        ProblemOptions("2xk80", gpus=2)
    with pytest.raises(InputError, match=r"^--autocast: expected none for the file "):
        read_problem(path, autocast="float16")
    with pytest.raises(InputError, match=r"^options: expected gpus, or another of link, .*'gpu'$"):
        read_problem(path, gpu=4)
    with pytest.raises(InputError, match=r"^micro_batches: expected at least 1, got 0$"):
        read_problem(path, micro_batches=0)
    with pytest.raises(InputError, match=r"^max_evaluations: expected at least 1, got 0$"):
        PlaceSettings(max_evaluations=0)
    devices = RealDevices(("cpu:0", "cpu:1"))
    with pytest.raises(InputError, match=r"^--gpus: expected --cluster, whose devices are those"):
        runnable_problem(source_model("nmt-2", SMALL), ProblemOptions(gpus=2), devices)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"flops":[0.0',
            '"flops":[-1.0',
            "graph.flops[0]: expected a finite number >= 0, got -1.0",
        ),
        ('"placeto-graph"', '"other"', "format: expected 'placeto-problem', got 'other'"),
    ],
)
def test_what_is_wrong_in_a_file_of_a_graph_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "graph.json"
    save_graph(from_networkx(nx.DiGraph([("a", "b")])), path)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))
    with pytest.raises(GraphError, match=f"^{re.escape(f'{path}: {message}')}$"):
        load_source(str(path))


PARTITIONING = {
    "maxFPGAs": 3,
    "maxCPUs": 1,
    "maxSizePerFPGA": 1e9,
    "nodes": [
        {"id": 7, "cpuLatency": 9.0, "fpgaLatency": 2.0, "size": 1e6, "colorClass": 1},
        {"id": 8, "cpuLatency": 1.0, "fpgaLatency": 1.0, "size": 0, "colorClass": 1},
        {"id": 9, "cpuLatency": 1.0, "fpgaLatency": 1.0, "size": 0},
    ],
    "edges": [{"sourceId": 7, "destId": 8, "cost": 0.5}],
}


def test_an_input_of_dnn_partitioning_has_its_devices_groups_and_objective(tmp_path: Path) -> None:
    path = tmp_path / "bert.json"
    path.write_text(json.dumps(PARTITIONING))
    source = load_source(str(path))
    assert (source.name, source.evaluator, source.num_groups) == ("bert", "throughput", 2)
    assert make_problem(source) == load_dnn_partitioning(path)
    path.write_text(json.dumps(PARTITIONING | {"nodes": [{"id": 1}]}))
    with pytest.raises(GraphError, match=r"bert.json: nodes\[0\]: object missing required"):
        load_source(str(path))
    path.write_text("{}")
    with pytest.raises(InputError, match=r"bert.json: expected a problem file, .* got other JSON$"):
        load_source(str(path))


def test_the_expert_of_a_placed_profile_is_pipedream(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    measures = "forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size"
    stages = [0, 2, 1, 2]
    path.write_text(
        "".join(
            f"node{node} -- Linear -- {measures}={node} -- stage_id={stage}\n"
            for node, stage in enumerate(stages)
        )
        + "".join(f"\tnode{node} -- node{node + 1}\n" for node in range(3))
    )
    problem = make_problem(load_source(str(path)), read_cluster("3xv100"))
    placed = make_placer("expert", problem).place(problem, Simulator(problem, num_threads=1))
    devices = problem.expand(placed.placement)
    at = {
        name.partition("/")[0]: int(device)
        for name, device in zip(problem.graph.op_names, devices, strict=True)
    }
    assert at == {f"node{node}": stage for node, stage in enumerate(stages)}


def test_a_file_that_can_run_code_is_loaded_where_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no program")
    with pytest.raises(
        InputError, match=r"can run code that it contains; if you trust it, add --trust$"
    ):
        load_source(str(path))
    assert source_model(str(path), SourceOptions(trust=True)).name == "model"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        *(
            (text, SourceOptions({name: 1}), f"--set {name}: expected a size of {text}")
            for text, name in (
                ("model.onnx", "trust"),
                ("nmt-2", "device"),
                ("nmt-2", "seed"),
                ("nmt-2", "target"),
                ("nmt:2", "name"),
                ("nmt:2", "seed"),
                ("timm:resnet18", "device"),
                ("timm:resnet18", "source"),
            )
        ),
        ("nmt-2", SourceOptions({"steps": "x"}), "--set steps: expected a whole number, got 'x'"),
        ("nmt-2", SourceOptions(trust=True), "--trust: needs an exported program (.pt2), got"),
        ("nmt-2", SourceOptions(family_seed=3), "--family-seed: needs a graph of a family such"),
        ("nmt-2", SourceOptions(context=9), "--context: needs --mode prefill or --mode decode"),
        ("nmt-2", SourceOptions(mode="decode"), "--mode: expected training for nmt-2; name a GGU"),
        ("a.json", SourceOptions(family_seed=3), "--family-seed: needs a graph of a family such"),
        ("a.json", SourceOptions(mask_fraction=0.5), "--mask-fraction: expected none for the file"),
    ],
)
def test_options_that_a_source_does_not_have_are_refused(
    text: str, options: SourceOptions, message: str
) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        load_source(text, options)


def test_a_graph_is_grouped_anew_by_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    ops = nx.DiGraph([(n, n + step) for n in range(150) for step in (1, 2) if n + step <= 150])
    nx.set_node_attributes(ops, {n: {"flops": 1e9, "op_type": "aten.mm"} for n in ops})
    save_graph(from_networkx(ops), path)  # all but the last but one are read twice
    problems = read_training_problems([str(path)], 3)
    assert list(problems) == [str(path), f"{path} in 90 groups", f"{path} in 150 groups"]
    assert [problem.num_groups for problem in problems.values()] == [128, 90, 150]
    graphs = [problem.graph for problem in problems.values()]
    assert graphs[0] == graphs[1] == graphs[2]


def test_rules_that_a_user_names_hold_at_every_granularity(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    ops = nx.path_graph(150, nx.DiGraph)  # one group, if single consumers join
    nx.set_node_attributes(ops, {n: {"flops": 1e9, "op_type": "aten.mm"} for n in ops})
    save_graph(from_networkx(ops), path)
    options = ProblemOptions.of(rules=("none",))
    problems = read_training_problems([str(path)], 3, options)
    assert [problem.num_groups for problem in problems.values()] == [128, 90, 150]
    problem_path = tmp_path / "problem.json"
    save_problem(problems[str(path)], problem_path)
    of_file = read_training_problems([str(problem_path)], 3)
    assert [problem.num_groups for problem in of_file.values()] == [128, 90, 150]
    joined = read_training_problems(
        [str(problem_path)], 3, ProblemOptions.of(rules=("single-consumers",))
    )
    assert [problem.num_groups for problem in joined.values()] == [1]


def test_the_groups_of_a_problem_file_without_rules_are_merged_further(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    graph = from_networkx(nx.path_graph(10, nx.DiGraph))
    save_problem(
        PlacementProblem(
            graph=graph, cluster=parse_cluster("2xk80"), compute_time=np.ones((10, 2))
        ),
        path,
    )
    usual, fewer = read_training_problems([str(path)], 3).values()
    assert usual == load_problem(path)
    assert (usual.num_groups, fewer.num_groups) == (10, 7)
    merged = np.stack([usual.grouping.group_of, fewer.grouping.group_of])
    assert np.unique(merged, axis=1).shape[1] == 10  # each of the ten is in one of the seven


@pytest.mark.parametrize(
    ("of_problem", "of_file", "expected"),
    [
        ("fifo", "fifo", "fifo"),
        ("fifo", "backward-first", "backward-first"),
        ("backward-first", "fifo", "backward-first"),
    ],
)
def test_devices_of_a_file_run_backward_ops_first_if_it_or_the_problem_says_so(
    tmp_path: Path, of_problem: str, of_file: str, expected: str
) -> None:
    graph = from_networkx(nx.path_graph(3, nx.DiGraph))
    problem = PlacementProblem(
        graph=replace(graph, measured_time={"k80": np.ones(3)}),
        cluster=replace(parse_cluster("2xk80"), queue=of_problem),
        compute_time=np.ones((3, 2)),
    )
    save_problem(problem, tmp_path / "problem.json")
    save_cluster(replace(parse_cluster("3xk80"), queue=of_file), tmp_path / "cluster.toml")
    problem_of_file = read_problem(tmp_path / "problem.json", tmp_path / "cluster.toml")
    assert (problem_of_file.num_devices, problem_of_file.cluster.queue) == (3, expected)


def test_the_cpu_of_cpu_only_is_the_one_that_the_cluster_describes() -> None:
    graph = from_networkx(nx.DiGraph([("a", "b")]))
    graph = replace(graph, op_types=("aten.add", "aten.add"), bytes_accessed=np.full(2, 1e9))
    usual = DEVICE_KINDS["cpu"]
    described = replace(usual, memory_bytes=10**9, memory_bandwidth=2 * usual.memory_bandwidth)
    problem = PlacementProblem(
        graph=graph,
        cluster=replace(parse_cluster("2xk80"), kinds=(described,), queue="backward-first"),
        compute_time=np.ones((2, 2)),
    )
    alone = on_a_cpu(problem)
    assert [device.memory_bytes for device in alone.cluster.devices] == [10**9]
    assert (alone.cluster.kinds, alone.cluster.queue) == ((described,), "backward-first")
    work = alone.compute_time[:, 0] - usual.launch_overhead
    np.testing.assert_allclose(2 * work, cost_model(graph, "cpu") - usual.launch_overhead)


def in_modules() -> PlacementProblem:
    """Return two modules of two layers, one op each, and their gradients; one group in all."""
    steps = nx.DiGraph()
    names = ["a.0", "a.1", "b.0", "b.1"]
    nx.add_path(steps, [*names, *(f"{name}.grad" for name in names[::-1])], bytes=100)
    for op in steps:
        steps.nodes[op]["scope"] = op.removesuffix(".grad")
    for name in names:
        steps.add_edge(name, f"{name}.grad", bytes=100)
    graph = from_networkx(steps)
    pairs = [[op for op in graph.op_names if op.startswith(name)] for name in names]
    assert all(map(len, pairs))
    fine = grouping_of_labels(
        graph, np.array([names.index(scope) for scope in graph.scopes], np.int64)
    )
    coarse = grouping_of_labels(graph, np.array([scope[0] == "b" for scope in graph.scopes], int))
    whole = grouping_of_labels(graph, np.zeros(8, np.int64))
    return PlacementProblem(
        graph=graph,
        cluster=parse_cluster("3xv100"),
        compute_time=np.ones((8, 3)),
        grouping=whole,
        hierarchy=(whole, coarse, fine),
    )


def test_pinned_modules_and_free_devices_hold_at_every_level() -> None:
    problem = in_modules()
    pins = (("a.1", "v100:2"), ("b.0.grad", "v100:1"))  # a module, and an op
    restricted = Restrictions(pins, ("v100:0",)).applied(problem)
    scopes = np.array(problem.graph.scopes)
    allowed = {"a.0": {1, 2}, "a.1": {2}, "b.0": {1}, "b.1": {1, 2}}
    for scope, devices in allowed.items():
        rows = np.isfinite(restricted.compute_time[scopes == scope])
        assert [set(np.flatnonzero(row)) for row in rows] == [devices, devices]
    # In each level, what is pinned elsewhere is a group of its own; what is free stays together.
    assert [level.num_groups for level in restricted.levels] == [3, 4]
    by_group: dict[int, set[str]] = {}
    for group, scope in zip(restricted.grouping.group_of.tolist(), scopes.tolist(), strict=True):
        by_group.setdefault(group, set()).add(scope)
    assert sorted(map(sorted, by_group.values())) == [["a.0", "b.1"], ["a.1"], ["b.0"]]
    (free,) = [group for group, names in by_group.items() if "a.0" in names]
    assert np.isfinite(restricted.group_graph.compute_time[free]).tolist() == [False, True, True]
    whole_module = Restrictions((("b", "v100:0"),)).applied(problem)
    on_first = np.isfinite(whole_module.compute_time).tolist()
    assert on_first == [[True, scope[0] == "a", scope[0] == "a"] for scope in scopes]
    assert Restrictions().applied(problem) is problem


@pytest.mark.parametrize(
    ("pins", "forbidden", "line"),
    [
        ((("a.2", "v100:0"),), (), "--pin a.2=v100:0: expected a module or an op of the problem"),
        ((("a", "v100:7"),), (), "--pin a=v100:7: expected v100:2, or another of"),
        ((), ("k80:0",), "--forbid: expected one of v100:0, v100:1, v100:2, got 'k80:0'"),
        ((("a", "v100:1"),), ("v100:1",), "--pin a=v100:1: expected a device for group a.0"),
        ((), ("v100:0", "v100:1", "v100:2"), "--forbid v100:0 v100:1 v100:2: expected a device"),
    ],
)
def test_restrictions_that_nothing_meets_are_refused(
    pins: tuple[tuple[str, str], ...], forbidden: tuple[str, ...], line: str
) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        Restrictions(pins, forbidden).applied(in_modules())


def test_a_policy_learns_pinned_problems_at_all_granularities(tmp_path: Path) -> None:
    path, problem = tmp_path / "problem.json", in_modules()
    save_problem(problem.at_level(1), path)
    options = ProblemOptions.of(pins=(("a.0", "v100:1"), ("a.1", "v100:2")))
    for pinned in read_training_problems([str(path)], 3, options).values():
        rows = np.isfinite(pinned.compute_time)
        devices = [set(np.flatnonzero(row).tolist()) for row in rows]
        of_scope = dict(zip(pinned.graph.scopes, devices, strict=True))
        assert (of_scope["a.0"], of_scope["a.1"]) == ({1}, {2})


def test_more_devices_of_the_kinds_of_a_file_take_its_times(tmp_path: Path) -> None:
    graph = from_networkx(nx.DiGraph([("a", "b")]))
    seconds = np.array([[1.0, 3.0, 3.0], [2.0, 5.0, 5.0]])
    path = tmp_path / "problem.json"
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("1xcpu+2xv100"), compute_time=seconds
    )
    save_problem(problem, path)
    larger = read_problem(path, cluster="1xcpu+3xv100")
    assert larger.compute_time.tolist() == [[1.0, 3.0, 3.0, 3.0], [2.0, 5.0, 5.0, 5.0]]
    with pytest.raises(ValueError, match="expected a known type, FLOPs, bytes or measured times"):
        read_problem(path, cluster="1xcpu+1xk80")
    pinned = Restrictions((("a", "v100:0"),)).applied(problem)
    save_problem(pinned, path)
    with pytest.raises(ValueError, match="expected a known type"):  # whose times differ by device
        read_problem(path, cluster="1xcpu+3xv100")
