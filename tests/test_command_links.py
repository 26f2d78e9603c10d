"""``--link`` and clusters of several machines, from ``build`` to pictures."""

from pathlib import Path

import numpy as np
import pytest

from command_runs import (
    profile,
    succeed,
    succeed_json,
)
from placeto_graphs import (
    PlacementProblem,
    load_problem,
    parse_cluster,
    save_placement,
)

MACHINES = "2x(2xv100)"
LINK = "pcie-shared+infiniband-hdr"


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    """Make a problem file of a profile on two machines."""
    (tmp_path / "graph.txt").write_text(profile())
    problem = tmp_path / "machines.json"
    cluster = [f"--cluster={MACHINES}", f"--link={LINK}"]
    succeed("build", tmp_path / "graph.txt", *cluster, "-o", problem)
    return problem


def scattered(problem: PlacementProblem, path: Path) -> list[int]:
    """Save a placement on all devices; return the device of each group."""
    placement = np.arange(problem.num_groups, dtype=np.int32) % problem.num_devices
    save_placement(placement, problem, path)
    found: list[int] = placement.tolist()
    return found


def test_a_problem_has_the_links_that_are_named_and_inspection_what_each_carries(
    machines: Path, tmp_path: Path
) -> None:
    cluster = load_problem(machines).cluster
    assert cluster == parse_cluster(MACHINES, link=LINK)
    default = tmp_path / "default.json"
    succeed("build", tmp_path / "graph.txt", "--link=nvlink", "-o", default)
    assert load_problem(default).cluster == parse_cluster("2xv100", link="nvlink")
    report = succeed_json("inspect", machines)
    assert [row["link"] for row in report["links"]] == list(cluster.link_names)
    assert sum(row["pairs"] for row in report["links"]) == 4 * 3
    network = next(row for row in report["links"] if row["link"] == "machine 1 network")
    assert network["sources"] == ["v100:2", "v100:3"]
    assert network["destinations"] == ["v100:0", "v100:1"]
    assert network["bandwidth"] == [12e9, 12e9]  # no faster than PCI Express
    assert "12.0 GB" in succeed("inspect", machines)


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
        for there in {devices[group_of[reader]] for reader in readers.tolist()} - {source}:
            expected[problem.cluster.link[source, there]] += graph.tensor_bytes[tensor]
    assert sent == expected.tolist()
    where = {row["where"] for row in report["critical_path"]["longest"]}
    assert where <= {*problem.cluster.device_names, *problem.cluster.link_names}
    assert "network" not in succeed("simulate", machines, "v100:0")  # links without transfers


def test_of_many_links_the_busiest_are_listed(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(profile(24))
    path = tmp_path / "problem.json"
    cluster = ["--cluster=6xv100", "--link=nvlink"]
    succeed("build", tmp_path / "graph.txt", *cluster, "-o", path)
    scattered(load_problem(path), tmp_path / "placement.json")
    simulate = ["simulate", path, tmp_path / "placement.json", "--longest=0"]
    used = [row for row in succeed_json(*simulate)["links"] if row["transfers"]]
    text = succeed(*simulate)
    assert f"the busiest 15 of {len(used)}" in text
    names = [row["link"] for row in sorted(used, key=lambda row: -row["busy"])]
    assert [name in text for name in names] == [True] * 15 + [False] * (len(used) - 15)
    assert "15 more" in succeed("inspect", path)  # of 30


def test_inspection_shows_free_bytes(tmp_path: Path) -> None:
    cluster, source = tmp_path / "cluster.toml", tmp_path / "graph.txt"
    cluster.write_text(
        'format = "placeto-cluster"\nversion = 3\nbandwidth = inf\n'
        'devices = [{ name = "a", kind = "v100" }, { name = "b", kind = "v100" }]\n'
    )
    source.write_text(profile())
    assert "any number" in succeed("inspect", source, "--cluster", cluster)
