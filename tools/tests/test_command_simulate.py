"""``placeto simulate``, ``explain`` and ``plot``; links and clusters of several machines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_rgba_array
from numpy.typing import NDArray

from command_runs import build_profile, check_picture, profile, succeed, succeed_json
from gpipe_pipelines import devices_without_overheads
from placeto.placing.explanation import Wait, waits
from placeto.texts import bytes_text
from placeto_baselines import Heft
from placeto_graphs import (
    Grouping,
    PlacementProblem,
    from_networkx,
    load_placement,
    load_problem,
    memory_penalised_runtime,
    parse_cluster,
    save_graph,
    save_placement,
)
from placeto_simulator import Simulator
from placeto_tools.plots import COLOURS


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return build_profile(tmp_path)


def test_a_simulation_is_the_simulators(problem: Path, tmp_path: Path) -> None:
    read = load_problem(problem)
    placement = np.random.default_rng(0).integers(0, 2, read.num_groups, np.int32)
    save_placement(placement, read, tmp_path / "placement.json")
    report = succeed_json("simulate", problem, tmp_path / "placement.json", "--longest=3")
    expected = Simulator(read).evaluate(placement[None])
    assert report["runtime"] == report["penalised_runtime"] == expected.runtime[0]
    assert [row["peak_memory"] for row in report["devices"]] == expected.peak_memory[0].tolist()
    assert sum(row["groups"] for row in report["devices"]) == read.num_groups
    for index, row in enumerate(report["devices"]):
        ops = read.expand(placement) == index
        assert row["ops"] == ops.sum()
        busy = read.compute_time[ops, index].sum() / report["runtime"]
        assert row["busy"] == pytest.approx(busy)
    path = report["critical_path"]
    path_seconds = path["op_seconds"] + path["transfer_seconds"] + path["waiting_seconds"]
    assert path_seconds == pytest.approx(report["runtime"])
    seconds = [step["seconds"] for step in path["longest"]]
    assert len(seconds) == 3
    assert seconds == sorted(seconds, reverse=True)
    text = succeed("simulate", problem, tmp_path / "placement.json")
    assert all(bytes_text(peak) in text for peak in expected.peak_memory[0].tolist())
    trace = tmp_path / "trace.json"
    trace.touch()
    succeed("simulate", problem, "v100:0", "--trace", trace, "--force")
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == read.graph.num_ops


def test_a_placement_may_be_a_device_or_a_placer(problem: Path, tmp_path: Path) -> None:
    read = load_problem(problem)
    everything = Simulator(read).runtimes(np.ones((1, read.num_groups), np.int32))
    assert succeed_json("simulate", problem, "v100:1")["runtime"] == everything[0]
    heft = Heft().place(read, Simulator(read)).runtime
    assert succeed_json("simulate", problem, "heft")["runtime"] == heft
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=3_000_000_000))
    report = succeed_json("simulate", tmp_path / "graph.txt", "v100:0")
    assert not report["fits"]
    assert report["penalised_runtime"] > report["runtime"] + 2 * (30 - 16)


def test_a_placement_that_leaves_too_little_besides_tensors_may_not_fit(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=770_000_000))
    simulated, placement = ["simulate", tmp_path / "graph.txt"], tmp_path / "placement.json"
    report = succeed_json(*simulated, "v100:0")
    assert report["fits"]
    assert [row["verdict"] for row in report["devices"]] == ["may not fit", "fits"]
    assert ", may not fit; " in succeed(*simulated, "v100:0")
    assert "may not fit" in succeed("inspect", tmp_path / "graph.txt")
    place = "place", tmp_path / "graph.txt", "--cluster=1xv100", "--max-evaluations=9"
    assert ", may not fit: PyTorch needs up to 2.0 GB besides tensors" in succeed(
        *place, "-o", placement
    )


def test_placements_have_the_level_that_they_were_found_at(tmp_path: Path) -> None:
    problem, placement = tmp_path / "problem.json.gz", tmp_path / "placement.json"
    (tmp_path / "graph.txt").write_text(profile(80))
    succeed("build", tmp_path / "graph.txt", "--groups=8", "-o", problem)
    read = load_problem(problem)
    assert [level.num_groups for level in read.levels[:3]] == [8, 32, 64]
    place = ["place", problem, "--force", "-o", placement]

    report = succeed_json(*place, "--groups=64", "--placer=heft")
    assert succeed_json("simulate", problem, placement)["runtime"] == report["runtime"]
    finer = read.at_level(2)
    ops = finer.expand(load_placement(placement, finer)).tolist()
    names = [read.cluster.device_names[device] for device in ops]
    placement.write_text(json.dumps(dict(zip(read.graph.op_names, names, strict=True))))
    assert succeed_json("simulate", problem, placement)["runtime"] == report["runtime"]

    report = succeed_json(*place, "--max-evaluations=500")  # a search, from coarse to fine
    assert report["placer"] == "multilevel"
    assert report["evaluations"] <= 500
    assert report["groups"] == read.levels[-1].num_groups > 8
    assert succeed_json("simulate", problem, placement)["runtime"] == report["runtime"]
    assert report["lower_bound"] <= report["runtime"]
    text = succeed(*place, "--seconds=0.1", "--groups=8")
    assert "no placement in 8 groups is faster than" in text
    assert load_placement(placement, read).shape == (8,)
    assert succeed_json(*place, "--seconds=0.1", "--no-merging")["groups"] == report["groups"]


def test_groups_are_drawn_in_the_colours_of_their_devices(problem: Path, tmp_path: Path) -> None:
    read, picture = load_problem(problem), tmp_path / "picture.png"
    placement = np.array(scattered(read, tmp_path / "placement.json"))
    succeed("plot", "placement", problem, tmp_path / "placement.json", "-o", picture)
    (axes,) = check_picture(picture, width=600).axes
    colours = to_rgba_array([COLOURS[device] for device in placement])
    np.testing.assert_array_equal(axes.collections[1].get_facecolor(), colours)
    rows = sorted(label.get_text() for label in axes.get_yticklabels())
    assert rows == [f"v100:{n}: {count}" for n, count in enumerate(np.bincount(placement))]


def test_ops_are_drawn_where_and_when_they_run(problem: Path, tmp_path: Path) -> None:
    read, picture = load_problem(problem), tmp_path / "picture.png"
    succeed("plot", "timeline", problem, "v100:1", "-o", picture)
    chart, memory = check_picture(picture, width=1400).axes
    bars = [np.asarray(path.vertices) for bars in chart.collections for path in bars.get_paths()]
    assert len(bars) == read.graph.num_ops  # nothing is sent
    assert {round(bar[:, 1].max() + bar[:, 1].min()) for bar in bars} == {2 * 2}
    for axes in (chart, memory):  # its legend covers nothing
        assert (legend := axes.get_legend()) is not None
        assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    busy = sum(np.ptp(bar[:, 0]) for bar in bars)
    assert busy == pytest.approx(read.compute_time[:, 1].sum())
    most_bytes = [np.asarray(line.get_ydata()).max() for line in memory.lines[::2]]
    assert most_bytes[0] == 0 < most_bytes[1]


def test_a_measured_step_scales_the_kind_that_it_ran_on(tmp_path: Path) -> None:
    """The printed lines, in a cluster file, make the simulated step as fast as the measured one."""
    ops = nx.DiGraph()
    ops.add_node("embedding", op_type="aten.embedding", bytes_accessed=1e9, dtype="float16")
    ops.add_node("product", op_type="aten.mm", bytes_accessed=3e9, flops=1e9, dtype="float16")
    ops.add_edge("embedding", "product", bytes=1000)
    save_graph(from_networkx(ops), tmp_path / "graph.json")
    head = 'format = "placeto-cluster"\nversion = 3\n[[devices]]\nname = "a"\nkind = "rtx3090"\n'
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(head)
    simulate = ["simulate", tmp_path / "graph.json", "a", "--cluster", cluster]
    lines = succeed(*simulate, "--measured=123").splitlines()
    assert "steps/s)" in lines[0]
    report = succeed_json(*simulate, "--measured=123")
    assert report["speed"] == {"rtx3090": pytest.approx(123 * report["runtime"])}
    cluster.write_text(head + "\n".join(lines[-2:]))
    scaled = succeed_json(*simulate, "--measured=123")
    assert 1 / scaled["runtime"] == pytest.approx(123, rel=5e-3)  # three digits are printed
    assert scaled["speed"] == pytest.approx(report["speed"], rel=1e-9)  # it has one by now


def built(folder: Path, num_layers: int, cluster: str, link: str) -> Path:
    """Make a problem file of a profile on some devices."""
    (folder / "graph.txt").write_text(profile(num_layers))
    options = [f"--cluster={cluster}", f"--link={link}", "-o", folder / "problem.json"]
    succeed("build", folder / "graph.txt", *options)
    return folder / "problem.json"


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    return built(tmp_path, 10, "2x(2xv100)", "pcie-shared+infiniband-hdr")


def scattered(problem: PlacementProblem, path: Path) -> list[int]:
    """Save a placement on all devices; return the device of each group."""
    placement = np.arange(problem.num_groups, dtype=np.int32) % problem.num_devices
    save_placement(placement, problem, path)
    devices: list[int] = placement.tolist()
    return devices


def test_inspection_shows_what_each_link_carries(machines: Path, tmp_path: Path) -> None:
    cluster = load_problem(machines).cluster
    assert cluster == parse_cluster("2x(2xv100)", link="pcie-shared+infiniband-hdr")
    links = {row["link"]: row for row in succeed_json("inspect", machines)["links"]}
    assert tuple(links) == cluster.link_names
    assert sum(row["pairs"] for row in links.values()) == 4 * 3
    network = links["machine 1 network"]
    assert network["sources"] == ["v100:2", "v100:3"]
    assert network["destinations"] == ["v100:0", "v100:1"]
    assert network["bandwidth"] == [12e9, 12e9]  # no faster than PCI Express
    assert "12.0 GB" in succeed("inspect", machines)
    free = tmp_path / "cluster.toml"
    free.write_text(
        'format = "placeto-cluster"\nversion = 3\nbandwidth = inf\n'
        'devices = [{ name = "a", kind = "v100" }, { name = "b", kind = "v100" }]\n'
    )
    assert "any number" in succeed("inspect", machines.with_name("graph.txt"), "--cluster", free)


def test_a_simulation_shows_how_busy_each_link_is(machines: Path, tmp_path: Path) -> None:
    problem = load_problem(machines)
    devices = scattered(problem, tmp_path / "placement.json")
    report = succeed_json("simulate", machines, tmp_path / "placement.json", "--longest=1000")
    assert [row["link"] for row in report["links"]] == list(problem.cluster.link_names)
    assert sum(row["transfers"] for row in report["links"]) == report["transfers"] > 0
    sent = [row["transferred_bytes"] for row in report["links"]]
    assert sum(sent) == report["transferred_bytes"]
    # The bytes of each link, from the graph: a tensor goes once to each device where it is read.
    graph, group_of = problem.graph, problem.grouping.group_of.tolist()
    expected = np.zeros(problem.cluster.num_links, np.int64)
    for tensor, readers in enumerate(graph.consumers_of_tensor):
        source = devices[group_of[graph.tensor_producer[tensor]]]
        for destination in {devices[group_of[reader]] for reader in readers.tolist()} - {source}:
            expected[problem.cluster.link[source, destination]] += graph.tensor_bytes[tensor]
    assert sent == expected.tolist()
    assert "network" not in succeed("simulate", machines, "v100:0")  # links without transfers


def test_of_many_links_the_busiest_are_listed(tmp_path: Path) -> None:
    path = built(tmp_path, 24, "6xv100", "nvlink")
    scattered(load_problem(path), tmp_path / "placement.json")
    simulate = ["simulate", path, tmp_path / "placement.json", "--longest=0"]
    used = [row for row in succeed_json(*simulate)["links"] if row["transfers"]]
    text = succeed(*simulate)
    assert f"the busiest 15 of {len(used)}" in text
    names = [row["link"] for row in sorted(used, key=lambda row: -row["busy"])]
    assert [name in text for name in names] == [True] * 15 + [False] * (len(used) - 15)
    assert "15 more" in succeed("inspect", path)  # of 30


def cost(problem: PlacementProblem, placement: NDArray[np.int32], *moves: tuple[Any, int]) -> float:
    """The memory-penalised runtime of one placement after some moves, by the simulator alone."""
    moved = placement.copy()
    for groups, device in moves:
        moved[groups] = device
    batch = Simulator(problem).evaluate(moved[None])
    return float(memory_penalised_runtime(batch, problem.cluster.memory_bytes)[0])


def test_groups_have_the_costs_of_other_devices_alone_and_with_their_neighbours(
    problem: Path, tmp_path: Path
) -> None:
    read = load_problem(problem)
    placement = np.random.default_rng(0).integers(0, 2, read.num_groups, np.int32)
    save_placement(placement, read, tmp_path / "placement.json")
    explain = ["explain", problem, tmp_path / "placement.json"]
    report = succeed_json(*explain)
    assert report["cost"] == cost(read, placement)
    assert [row["group"] for row in report["groups"]] == list(read.grouping.group_names)
    for group, row in enumerate(report["groups"]):
        other_device = 1 - placement[group]
        assert row["best_elsewhere"] == read.cluster.device_names[other_device]
        assert row["cost_elsewhere"] == cost(read, placement, (group, other_device))
    simulated = succeed_json("simulate", problem, tmp_path / "placement.json")
    on_path = sum(row["critical_seconds"] for row in report["groups"])
    assert on_path == pytest.approx(simulated["critical_path"]["op_seconds"])
    text = succeed(*explain)
    assert "of 10 groups" in text
    assert "Idle devices" in text

    near = [4, *nx.Graph(read.group_graph.edges.tolist())[4]]
    name = read.grouping.group_names[4]
    report = succeed_json(*explain, name)
    assert report["device"] == read.cluster.device_names[placement[4]]
    for device, row in enumerate(report["devices"]):
        assert row["alone"] == cost(read, placement, (4, device))
        assert row["with_neighbours"] == cost(read, placement, (near, device))
    assert report["devices"][placement[4]]["alone"] == report["cost"]
    assert "with its neighbours" in succeed(*explain, name)


def test_the_group_whose_tensor_comes_last_is_waited_for() -> None:
    """b begins at 0, so device 1 waits from 2 on, until the tensor of a comes at 3 + 4.

    In one group with a, c waits for no other.
    """
    ops = nx.DiGraph()
    ops.add_nodes_from("abcd")
    ops.add_weighted_edges_from([("a", "c", 4_000_000_000), ("b", "c", 8)], "bytes")
    problem = PlacementProblem(
        graph=from_networkx(ops),
        cluster=devices_without_overheads(2, 1e9),
        compute_time=np.array([3.0, 2.0, 1.0, 0.5])[:, None].repeat(2, axis=1),
    )
    timeline = Simulator(problem).timeline(np.array([0, 1, 1, 0], np.int32))
    assert timeline.runtime == 8.0
    assert waits(timeline) == [Wait("c", "a", ops=1, transferred=1, ordered=0, idle=5.0)]
    groups = Grouping(group_of=np.array([0, 1, 0, 2], np.int32), group_names=("a", "b", "d"))
    joined = replace(problem, grouping=groups)
    assert waits(replace(timeline, problem=joined)) == []


def test_the_op_that_has_to_be_done_last_is_waited_for() -> None:
    """c has the tensor of a from 1 on, and then waits for b, which is done at 3."""
    ops = nx.DiGraph()
    ops.add_nodes_from("abc")
    ops.add_edge("a", "c", bytes=8)
    problem = PlacementProblem(
        graph=replace(from_networkx(ops), waits=np.array([[2, 1]], np.int32)),
        cluster=devices_without_overheads(2, 1e9),
        compute_time=np.array([1.0, 3.0, 1.0])[:, None].repeat(2, axis=1),
    )
    timeline = Simulator(problem).timeline(np.array([0, 1, 0], np.int32))
    assert waits(timeline) == [Wait("c", "b", ops=1, transferred=0, ordered=1, idle=2.0)]
