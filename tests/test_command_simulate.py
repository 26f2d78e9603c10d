"""``placeto simulate``, ``place`` and ``plot``."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_rgba_array

from command_runs import (
    build_profile,
    check_picture,
    fail,
    profile,
    succeed,
    succeed_json,
)
from placeto_baselines import Heft
from placeto_graphs import from_networkx, load_placement, load_problem, save_graph, save_placement
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
    parts = path["op_seconds"] + path["transfer_seconds"] + path["waiting_seconds"]
    assert parts == pytest.approx(report["runtime"])
    seconds = [step["seconds"] for step in path["longest"]]
    assert len(seconds) == 3
    assert seconds == sorted(seconds, reverse=True)


def test_a_placement_may_be_a_device_or_a_placer(problem: Path) -> None:
    read = load_problem(problem)
    everything = Simulator(read).runtimes(np.ones((1, read.num_groups), np.int32))
    assert succeed_json("simulate", problem, "v100:1")["runtime"] == everything[0]
    heft = Heft().place(read, Simulator(read)).runtime
    assert succeed_json("simulate", problem, "heft")["runtime"] == heft


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


def test_what_does_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(profile(parameter_bytes=3_000_000_000))
    report = succeed_json("simulate", tmp_path / "graph.txt", "v100:0")
    assert not report["fits"]
    assert report["penalised_runtime"] > report["runtime"] + 2 * (30 - 16)


def test_a_trace_has_every_op(problem: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.touch()
    succeed("simulate", problem, "v100:0", "--trace", trace, "--force")
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == load_problem(problem).graph.num_ops


def test_groups_are_drawn_in_the_colours_of_their_devices(problem: Path, tmp_path: Path) -> None:
    read, picture = load_problem(problem), tmp_path / "picture.png"
    placement = np.arange(read.num_groups, dtype=np.int32) % 2
    save_placement(placement, read, tmp_path / "placement.json")
    succeed("plot", "placement", problem, tmp_path / "placement.json", "-o", picture)
    figure = check_picture(picture, width=600)
    _, nodes = figure.axes[0].collections
    expected = to_rgba_array([COLOURS[device] for device in placement])
    np.testing.assert_array_equal(nodes.get_facecolor(), expected)
    again = tmp_path / "again.png"
    succeed("plot", "placement", problem, tmp_path / "placement.json", "-o", again)
    assert picture.read_bytes() == again.read_bytes()
    counts = np.bincount(placement, minlength=2)
    rows = sorted(label.get_text() for label in figure.axes[0].get_yticklabels())
    assert rows == [f"v100:0: {counts[0]}", f"v100:1: {counts[1]}"]


def test_ops_are_drawn_where_and_when_they_run(problem: Path, tmp_path: Path) -> None:
    read, picture = load_problem(problem), tmp_path / "picture.png"
    succeed("plot", "timeline", problem, "v100:1", "-o", picture)
    chart, memory = check_picture(picture, width=1400).axes
    bars = [np.asarray(path.vertices) for bars in chart.collections for path in bars.get_paths()]
    assert len(bars) == read.graph.num_ops  # nothing is sent
    assert {round(bar[:, 1].max() + bar[:, 1].min()) for bar in bars} == {2 * 2}
    busy = sum(np.ptp(bar[:, 0]) for bar in bars)
    assert busy == pytest.approx(read.compute_time[:, 1].sum())
    held = [np.asarray(line.get_ydata()).max() for line in memory.lines[::2]]
    assert held[0] == 0 < held[1]
    succeed("plot", "timeline", problem, "v100:2", "--cluster=3xv100", "-o", tmp_path / "3.png")
    assert len(check_picture(tmp_path / "3.png", width=1400).axes[1].lines) == 2 * 3


def test_a_policy_that_is_none_is_not_loaded(problem: Path, tmp_path: Path) -> None:
    (tmp_path / "policy").write_bytes(b"\x80\x04N.")  # a pickle
    place = ["place", problem, "--policy", tmp_path / "policy", "-o", tmp_path / "a.json"]
    assert "expected a placeto-policy file" in fail(*place)
    assert not (tmp_path / "a.json").exists()


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
    after = succeed_json(*simulate, "--measured=123")
    assert 1 / after["runtime"] == pytest.approx(123, rel=5e-3)  # three digits are printed
    assert after["speed"] == pytest.approx(report["speed"], rel=1e-9)  # it has one by now


def test_a_speed_is_that_of_a_kind_whose_times_are_modelled(tmp_path: Path) -> None:
    ops = nx.DiGraph()
    ops.add_node("op", measured_time={"k80": 1.0})
    save_graph(from_networkx(ops), tmp_path / "graph.json")
    line = fail("simulate", tmp_path / "graph.json", "k80:0", "--measured=10")
    assert "--measured: expected a kind whose times are modelled, got k80" in line
