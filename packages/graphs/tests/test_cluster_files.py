"""Cluster files: what a person writes, what is written, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from example_graphs import refused
from graph_strategies import clusters
from placeto_graphs import Cluster, load_cluster, parse_cluster, save_cluster


@given(cluster=clusters())
def test_clusters_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> None:
    path = tmp_path_factory.getbasetemp() / "cluster.toml"
    save_cluster(cluster, path)
    assert load_cluster(path) == cluster


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
    buses = parse_cluster("4xk80")
    shared = replace(buses, link=np.minimum(buses.link, 0), link_names=("host bridge",))
    save_cluster(shared, tmp_path / "cluster.toml")
    assert (tmp_path / "cluster.toml").read_text().count("[[links]]") == 1
    assert load_cluster(tmp_path / "cluster.toml") == shared


@pytest.mark.parametrize("queue", ["fifo", "backward-first"])
def test_equal_buses_are_no_entry(tmp_path: Path, queue: str) -> None:
    path, buses = tmp_path / "cluster.toml", replace(parse_cluster("8xv100"), queue=queue)
    save_cluster(buses, path)
    assert "[[links]]" not in path.read_text()
    assert "\nbandwidth = 150000000000.0\n" in path.read_text()
    assert load_cluster(path) == buses
    renamed = replace(buses, link_names=tuple(f"switch {bus}" for bus in range(8)))
    save_cluster(renamed, path)
    assert path.read_text().count("[[links]]") == 8
    assert load_cluster(path) == renamed


HEAD = """
format = "placeto-cluster"
version = 3
"""


def device(name: str) -> str:
    return f"""
[[devices]]
name = "{name}"
kind = "v100"
memory_bytes = 16_000_000_000
op_overhead = 0.0
transfer_overhead = 0
"""


DEVICES = "".join(map(device, "abcd"))
FIRST = f"{HEAD}bandwidth = 7.6e9\n{device('a')}{device('b')}"
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
        ("bandwidth = 15e9", "bandwidth = 0", "links[1].bandwidth: expected more than 0, got 0.0"),
        ("latency = 2e-6", "latency = -1", "links[0].latency: expected a finite number >= 0, got"),
        ('sources = ["right"]', 'sources = ["e"]', "links[1].sources[0]: expected one of a, b"),
        (
            'destinations = ["left"]\nbandwidth = 2e9',
            'destinations = ["a", "e"]\nbandwidth = 2e9',
            "links[3].destinations[1]: expected one of a, b, c, d, left, right, got",
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
        ('right = ["c", "d"]', 'right = ["c", "e"]', "machines.right[1]: expected one of a, b"),
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
            "bandwidth: expected a number >= 0, or infinity (bytes are free), got -1.0",
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
    with refused(f"{path}: {message}"):
        load_cluster(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "object missing required field format"),
        ("format = ", "expected TOML: Invalid value (at end of document)"),
        (f"bandwidth = {'1' * 5000}", "expected TOML: Exceeds the limit (4300 digits)"),
        ('format = "x"\nversion = 1', "format: expected 'placeto-cluster', got 'x'"),
        (FIRST.replace("version = 3", "version = 4"), "version: expected 3, got 4"),
        (FIRST.replace("7.6e9", "nan"), "bandwidth[0, 0]: expected a number >= 0"),
        (FIRST.replace('"v100"', "1979-05-27"), "devices[0].kind: expected str, got date"),
    ],
)
def test_a_wrong_cluster_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(content)
    with refused(f"{path}: {message}"):
        load_cluster(path)
