import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_graphs import diamond_problem
from placeto_graphs import (
    Cluster,
    GraphError,
    load_cluster,
    load_problem,
    parse_cluster,
    save_cluster,
    save_problem,
)


def shared(spec: str = "2xk80") -> Cluster:
    """Return devices with one link for all that they send."""
    buses = parse_cluster(spec)
    return Cluster(
        devices=buses.devices,
        bandwidth=buses.bandwidth,
        latency=buses.latency,
        link=np.minimum(buses.link, 0),
        link_names=("host bridge",),
    )


def test_a_problem_of_an_earlier_version_has_outgoing_buses(tmp_path: Path) -> None:
    save_problem(diamond_problem(), tmp_path / "buses.json")
    content = json.loads((tmp_path / "buses.json").read_text())
    assert content["version"] == 4
    del content["cluster"]["link"], content["cluster"]["link_names"]
    assert set(content["cluster"]) == {"devices", "bandwidth", "latency"}
    for version in (1, 2, 3, 4):
        (tmp_path / "old.json").write_text(json.dumps(content | {"version": version}))
        assert load_problem(tmp_path / "old.json") == diamond_problem()


def test_a_problem_with_other_links_says_which(tmp_path: Path) -> None:
    problem = replace(diamond_problem(), cluster=shared())
    save_problem(problem, tmp_path / "shared.json")
    content = json.loads((tmp_path / "shared.json").read_text())
    assert content["cluster"]["link"] == [[-1, 0], [0, -1]]
    assert content["cluster"]["link_names"] == ["host bridge"]
    assert load_problem(tmp_path / "shared.json") == problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": [[-1, 0]]}, "cluster.link: expected shape (2, 2), got (1, 2)"),
        ({"link": [[-1], [0, -1]]}, "cluster.link: expected an array of one shape"),
        ({"link": [[-1, 1], [1, -1]]}, "cluster.link: expected every number from 0 to 1, got none"),
        ({"link": [[-1, -1], [0, -1]]}, "cluster.link[0, 1]: expected a link, got -1"),
        ({"link": [[0, 0], [0, -1]]}, "cluster.link[0, 0]: expected -1 from a device to itself"),
        ({"link": [[-1, 0.5], [0, -1]]}, "cluster.link[0][1]: expected int, got float (0.5)"),
        ({"link": [[-1, 2**70], [0, -1]]}, "cluster.link: expected integers, got"),
        ({"link_names": ["a", "b"]}, "cluster.link_names: expected 1 texts, got 2"),
        ({"link_names": [3]}, "cluster.link_names[0]: expected str, got int (3)"),
    ],
)
def test_a_wrong_link_of_a_problem_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "wrong.json"
    save_problem(replace(diamond_problem(), cluster=shared()), path)
    content = json.loads(path.read_text())
    content["cluster"] |= changes
    path.write_text(json.dumps(content))
    with pytest.raises(GraphError, match=re.escape(f"{path}: {message}")) as caught:
        load_problem(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["2x(2xv100)", "2x(1xcpu+2xa100)", "3x(1xk80)"])
def test_a_link_with_one_bandwidth_is_one_entry(tmp_path: Path, spec: str) -> None:
    """A person reads a file that is as short as the links allow."""
    cluster = parse_cluster(spec)
    save_cluster(cluster, tmp_path / "cluster.toml")
    text = (tmp_path / "cluster.toml").read_text()
    costs = np.stack([cluster.link, cluster.bandwidth, cluster.latency], axis=2)
    apart = costs[cluster.link >= 0]
    assert text.count("[[links]]") == len(np.unique(apart, axis=0))
    assert load_cluster(tmp_path / "cluster.toml") == cluster


def test_all_pairs_on_a_link_are_one_entry(tmp_path: Path) -> None:
    save_cluster(shared("4xk80"), tmp_path / "cluster.toml")
    assert (tmp_path / "cluster.toml").read_text().count("[[links]]") == 1
    assert load_cluster(tmp_path / "cluster.toml") == shared("4xk80")


HEAD = """
format = "placeto-cluster"
version = 2
"""
DEVICES = "".join(
    f"""
[[devices]]
name = "{name}"
kind = "v100"
memory_bytes = 16_000_000_000
op_overhead = 0.0
transfer_overhead = 0.0
"""
    for name in "abcd"
)
MACHINES = """
[machines]
left = ["a", "b"]
right = ["c", "d"]
"""
TWO_MACHINES = (
    HEAD
    + DEVICES
    + MACHINES
    + """
[[links]]
name = "NVLink"
sources = ["left"]
destinations = ["left"]
for_each = "pair"
bandwidth = 150e9
latency = 2e-6

[[links]]
name = "bus"
sources = ["right"]
destinations = ["right"]
for_each = "source"
bandwidth = 15e9

[[links]]
name = "ethernet"
sources = ["left"]
destinations = ["right"]
bandwidth = 1e9

[[links]]
name = "ethernet"
sources = ["right"]
destinations = ["left"]
bandwidth = 2e9
"""
)


def test_two_machines_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TWO_MACHINES)
    cluster = load_cluster(path)
    assert cluster.link_names == ("a -> b NVLink", "b -> a NVLink", "c bus", "d bus", "ethernet")
    assert cluster.link.tolist() == [
        [-1, 0, 4, 4],
        [1, -1, 4, 4],
        [4, 4, -1, 2],
        [4, 4, 3, -1],
    ]
    assert cluster.bandwidth[0].tolist() == [np.inf, 150e9, 1e9, 1e9]
    assert cluster.bandwidth[2].tolist() == [2e9, 2e9, np.inf, 15e9]
    assert cluster.latency[0].tolist() == [0, 2e-6, 0, 0]


def test_a_link_takes_the_bandwidth_and_the_latency_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    everything = 'sources = ["a", "b", "c", "d"]\ndestinations = ["d", "c", "b", "a"]\n'
    usual = f"{HEAD}bandwidth = 7e9\nlatency = 1e-6\n{DEVICES}"
    path.write_text(f'{usual}[[links]]\nname = "bridge"\n{everything}')
    apart = ~np.eye(4, dtype=bool)
    assert set(load_cluster(path).bandwidth[apart]) == {7e9}
    assert set(load_cluster(path).latency[apart]) == {1e-6}
    path.write_text(usual)
    assert load_cluster(path).link_names == ("a bus", "b bus", "c bus", "d bus")
    assert set(load_cluster(path).bandwidth[apart]) == {7e9}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bandwidth = 15e9", "", "links[1].bandwidth: expected one, here or of the whole file"),
        ("bandwidth = 15e9", "bandwidth = 0", "links[1].bandwidth: expected more than 0 B/s, got"),
        ("bandwidth = 15e9", "bandwidth = nan", "links[1].bandwidth: expected more than 0 B/s"),
        ("latency = 2e-6", "latency = -1", "links[0].latency: expected a finite number >= 0, got"),
        ('sources = ["right"]', 'sources = ["e"]', "links[1].sources[0]: expected one of 'a', 'b'"),
        (
            'destinations = ["left"]\nbandwidth = 2e9',
            'destinations = ["a", "e"]\nbandwidth = 2e9',
            "links[3].destinations[1]: expected one of 'a', 'b', 'c', 'd', 'left', 'right', got",
        ),
        (
            'destinations = ["left"]\nbandwidth = 2e9',
            'destinations = ["a"]\nbandwidth = 2e9',
            "links: expected a link for each pair of devices, got none for 'c' -> 'b'",
        ),
        (
            'destinations = ["left"]\nbandwidth = 2e9',
            'destinations = ["left", "d"]\nbandwidth = 2e9',
            "links[3]: expected each pair of devices on one link, got 'c' -> 'd', which is on "
            "links[1]",
        ),
        (
            'sources = ["left"]\ndestinations = ["right"]',
            'sources = ["a"]\ndestinations = ["a"]',
            "links[2]: expected a pair of different devices, got none",
        ),
        ('"pair"', '"byte"', "links[0].for_each: invalid enum value 'byte'"),
        ('right = ["c", "d"]', 'right = ["c", "e"]', "machines.right[1]: expected one of 'a', 'b'"),
        ('right = ["c", "d"]', 'right = ["c", "b"]', "machines.right[1]: expected each device in"),
        ("left = ", "d = ", "machines: expected names that no device has, got 'd'"),
        ('name = "ethernet"', 'nam = "ethernet"', "links[2]: object "),
        ('name = "ethernet"', 'name = ""', "link_names[4]: expected a text that is not empty"),
        (
            'name = "ethernet"\nsources = ["left"]',
            'name = "c bus"\nsources = ["left"]',
            "links[2].name: expected a name that tells the links for each pair or source from "
            "others, got 'c bus', which makes a second 'c bus'",
        ),
        (
            "[[devices]]",
            "bandwidth = -1.0\n[[devices]]",
            "bandwidth: expected more than 0 B/s, got -1.0",
        ),
        (
            "[[devices]]",
            "bandwidth = 1.0\nlatency = -1.0\n[[devices]]",
            "latency: expected a finite number >= 0, got -1.0",
        ),
        (
            "bandwidth = 150e9",
            "bandwidth = 1e-300",
            "bandwidth[0, 1]: expected at least 5.2e-290 B/s, got 1e-300",
        ),
        ("[machines]", "bandwidth = true\n[machines]", "devices[3]: object contains unknown field"),
    ],
)
def test_a_wrong_link_of_a_cluster_file_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TWO_MACHINES
    path = tmp_path / "cluster.toml"
    path.write_text(TWO_MACHINES.replace(old, new, 1))
    with pytest.raises(GraphError, match=re.escape(f"{path}: {message}")) as caught:
        load_cluster(path)
    assert "\n" not in str(caught.value)


def test_without_links_and_bandwidth_nothing_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(HEAD + DEVICES)
    with pytest.raises(GraphError, match="bandwidth: expected one, as there are no links, got"):
        load_cluster(path)
