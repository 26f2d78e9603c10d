"""The files that docs/files.md shows are what the packages read."""

import re
from pathlib import Path

import pytest

from placeto_graphs import load_cluster
from placeto_graphs import load_pipedream_profile
from placeto_graphs import load_placement
from placeto_graphs import load_problem
from placeto_graphs import parse_cluster

PAGE = Path("docs/files.md").read_text()


def block(heading: str) -> str:
    """Return the first block of code under a heading."""
    section = PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]
    match = re.search(r"```\w*\n(.*?)```", section, flags=re.DOTALL)
    assert match is not None, heading
    return match[1]


def test_the_problem_and_its_placement(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(block("Problem"))
    (tmp_path / "placement.json").write_text(block("Placement"))
    problem = load_problem(tmp_path / "problem.json")
    assert problem.cluster == parse_cluster("2xk80")
    assert load_placement(tmp_path / "placement.json", problem).tolist() == [1]


def test_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(block("Cluster"))
    cluster = load_cluster(tmp_path / "cluster.toml")
    assert cluster.devices == parse_cluster("2xk80").devices
    assert cluster.bandwidth[[0, 1], [1, 0]].tolist() == [10e9, 7.6e9]


def test_the_profile(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(block("PipeDream profile"))
    assert load_pipedream_profile(tmp_path / "graph.txt").num_ops == 5


@pytest.mark.parametrize("spec", re.findall(r"`(\d+x[a-z0-9+]+)`", PAGE))
def test_the_specs_of_clusters(spec: str) -> None:
    assert parse_cluster(spec).num_devices >= 2
