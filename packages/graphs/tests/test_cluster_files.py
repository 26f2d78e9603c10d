"""Cluster files: what a person writes of devices, kinds and links, what is written and refused."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from example_files import CARD, HEAD, LINKED, OWN, V100S
from example_graphs import refused
from graph_strategies import clusters
from placeto_graphs import DEVICE_KINDS, Cluster, load_cluster, parse_cluster, save_cluster

Read = Callable[[str], Cluster]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def load(text: str) -> Cluster:
        (tmp_path / "cluster.toml").write_text(text)
        return load_cluster(tmp_path / "cluster.toml")

    return load


@given(cluster=clusters())
def test_clusters_survive_files_copies_and_pickles(
    tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> None:
    path = tmp_path_factory.getbasetemp() / "cluster.toml"
    save_cluster(cluster, path)
    for copied in (load_cluster(path), copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):  # noqa: S301
        assert copied == cluster


BUSES = parse_cluster("8xa100")


@pytest.mark.parametrize(
    ("cluster", "entries"),
    [
        (parse_cluster("2x(2xp40)"), 4 + 2),
        (parse_cluster("2x(1xcpu+2xa100)"), 2 * (1 + 2 * 2 + 4)),
        (BUSES, 0),
        (replace(BUSES, queue="backward-first"), 0),
        (replace(BUSES, link_names=tuple(f"switch {bus}" for bus in range(8))), 8),
        (replace(BUSES, link=np.minimum(BUSES.link, 0), link_names=("host bridge",)), 1),
    ],
)
def test_a_file_is_as_short_as_the_links_allow(
    tmp_path: Path, cluster: Cluster, entries: int
) -> None:
    """A link with one bandwidth is one entry, and equal buses are none."""
    save_cluster(cluster, tmp_path / "cluster.toml")
    text = (tmp_path / "cluster.toml").read_text()
    assert text.count("[[links]]") == entries
    assert ("\nbandwidth = 273000000000.0\n" in text.partition("[[")[0]) == (entries == 0)
    assert load_cluster(tmp_path / "cluster.toml") == cluster


def test_two_machines_by_hand(read: Read) -> None:
    cluster = read(LINKED)
    assert cluster.link_names == ("a -> b NVLink", "b -> a NVLink", "c bus", "d bus", "ethernet")
    assert cluster.link.tolist() == [[-1, 0, 4, 4], [1, -1, 4, 4], [4, 4, -1, 2], [4, 4, 3, -1]]
    assert cluster.bandwidth[0].tolist() == [np.inf, 150e9, 1e9, 1e9]
    assert cluster.bandwidth[2].tolist() == [2e9, 2e9, np.inf, 15e9]
    assert cluster.latency[0].tolist() == [0, 2e-6, 0, 0]
    assert cluster.machine.tolist() == [0, 0, 1, 1]
    assert cluster.machine_names == ("left", "right")


def test_a_link_takes_the_bandwidth_and_the_latency_of_the_file(read: Read) -> None:
    ends = 'sources = ["a", "b", "c", "d"]\ndestinations = ["d", "c", "b", "a"]\n'
    usual = f"{HEAD}bandwidth = 7e9\nlatency = 1e-6\n{V100S}"
    bridge, buses = read(f'{usual}[[links]]\nname = "bridge"\n{ends}'), read(usual)
    apart = ~np.eye(4, dtype=bool)
    for cluster in (bridge, buses):
        assert set(cluster.bandwidth[apart]) == {7e9}
        assert set(cluster.latency[apart]) == {1e-6}
    assert bridge.link_names == ("bridge",)
    assert buses.link_names == ("a bus", "b bus", "c bus", "d bus")


def test_a_card_is_described_once_for_all_its_devices(read: Read) -> None:
    cluster = read(CARD)
    (card,) = cluster.kinds
    assert (card.name, card.peak_flops, card.memory_bandwidth) == ("card", 82.6e12, 1008e9)
    assert dict(card.peak_flops_in) == {"float16": 165.2e12, "bfloat16": 165.2e12}
    h100 = DEVICE_KINDS["h100"]
    assert card.efficiency == replace(h100.efficiency, matrix_product=0.8)
    assert (card.launch_overhead, card.op_overhead) == (h100.launch_overhead, h100.op_overhead)
    first, second = cluster.devices
    assert (first.memory_bytes, first.op_overhead) == (24_000_000_000, h100.op_overhead)
    assert (second.memory_bytes, second.op_overhead) == (20_000_000_000, 2e-6)
    assert first.transfer_overhead == second.transfer_overhead == 14.8e-6
    without_peaks = read(CARD.replace("peak_flops_in", "# "))
    assert dict(without_peaks.kinds[0].peak_flops_in) == {}


def test_what_is_left_out_of_a_kind_of_the_catalogue_is_what_stands_there(read: Read) -> None:
    cluster = read(CARD.replace("card", "cpu").replace("{ matrix_product = 0.8 }", "{}"))
    (kind,) = cluster.kinds
    assert kind.efficiency == DEVICE_KINDS["cpu"].efficiency
    assert kind.launch_overhead == 0
    assert cluster.devices[0].transfer_overhead == 25e-6
    assert "float64" not in kind.peak_flops_in


def test_devices_without_links_are_joined_as_in_a_spec(read: Read) -> None:
    cluster = read(OWN)
    assert read(OWN.replace("22.5 GB", "22500000 kB")) == cluster
    same = parse_cluster("1xrtx3090+1xrtx3060+1xcpu-ddr5-2ch")
    assert cluster.memory_bytes.tolist() == [22_500_000_000, 12 * 2**30, 3 * 2**29]
    assert cluster.bandwidth[1] == pytest.approx([11.4e9 / 4, np.inf, 12e9 / 4])  # four lanes
    assert cluster.bandwidth[0, 2] == same.bandwidth[0, 2]
    assert cluster.latency.tolist() == same.latency.tolist()
    assert cluster.link.tolist() == same.link.tolist()
    wide = read(OWN.replace("pcie-3-x4", "pcie-5-x16"))
    assert wide.bandwidth.tolist() == same.bandwidth.tolist()


def test_a_speed_scales_what_the_device_computes(read: Read) -> None:
    cluster, usual = read(OWN), DEVICE_KINDS["rtx3090"]
    (kind,) = cluster.kinds
    assert kind == replace(usual, speed=0.5)
    assert cluster.devices[0].op_overhead == usual.op_overhead * 2
    assert cluster.devices[1].op_overhead == DEVICE_KINDS["rtx3060"].op_overhead


def test_a_kind_like_another_differs_in_what_it_says(read: Read) -> None:
    custom_kind = '[kinds.mine]\nlike = "rtx4060ti"\nmemory = "8 GB"\n'
    cluster = read(OWN.replace('"rtx3060"', '"mine"').replace("host_link", "# ") + custom_kind)
    mine, usual = cluster.kinds[1], DEVICE_KINDS["rtx4060ti"]
    assert (mine.memory_bytes, mine.peak_flops_in) == (8_000_000_000, usual.peak_flops_in)
    assert cluster.bandwidth[0, 1] == 22.2e9 / 2  # its eight lanes


def test_machines_and_their_network_are_named(read: Read) -> None:
    machines = '[machines]\none = ["a", "c"]\ntwo = ["b"]\n'
    text = OWN.replace(HEAD, f'{HEAD}link = "pcie-shared+ethernet-2.5g"\n').replace(
        "[kinds", f"{machines}[kinds"
    )
    cluster = read(text)
    assert cluster.machine_names == ("one", "two")
    assert cluster.bandwidth[0].tolist() == [np.inf, 2.5e9 / 8, 25.1e9]
    assert cluster.link_names == ("one network", "two network", "one PCIe")
    assert cluster.link_names[cluster.link[1, 2]] == "two network"


def test_a_device_in_no_machine_is_in_one_of_its_own(read: Read) -> None:
    left_machine, right_machine = 'left = ["a", "b"]\n', 'right = ["c", "d"]\n'
    apart = LINKED.replace(left_machine, "").replace('"left"', '"b", "a"')
    cluster = read(apart)
    assert cluster.machine_names == ("right", "machine of a", "machine of b")
    assert cluster.machine.tolist() == [1, 2, 0, 0]
    without = apart.replace(f"[machines]\n{right_machine}", "").replace('"right"', '"c", "d"')
    assert read(without).machine_names == ("machine 0",)


BACK = 'destinations = ["left"]\nbandwidth = 2e9'
ALONE = 's = ["left"]\ndestinations = ["right"]', 's = ["a"]\ndestinations = ["a"]'
APART = LINKED.replace('right = ["c", "d"]\n', "").replace('"right"', '"c", "d"')
WRONG = [
    # what to replace, by what, and the error
    (LINKED, "bandwidth = 15e9", "", "links[1].bandwidth: expected one, here or of the whole file"),
    (LINKED, 's = ["right"]', 's = ["e"]', "links[1].sources[0]: expected one of a, b, c, d, left"),
    (LINKED, BACK, BACK.replace("left", "a"), "links: expected a link for each pair of devices, "),
    (LINKED, BACK, BACK.replace('"left"', '"left", "d"'), "links[3]: expected each pair of device"),
    (LINKED, *ALONE, "links[2]: expected a pair of different devices, got none"),
    (LINKED, '"pair"', '"byte"', "links[0].for_each: invalid enum value 'byte'"),
    (LINKED, '["c", "d"]', '["c", "e"]', "machines.right[1]: expected one of a, b, c, d, got 'e'"),
    (LINKED, '["c", "d"]', '["c", "b"]', "machines.right[1]: expected each device in one machine"),
    (LINKED, "left = ", "d = ", "machines: expected names that no device has, got 'd'"),
    (LINKED, '["c", "d"]', "[]", "machines.right: expected a device, got none"),
    (APART, "left =", '"machine of c" =', "machines: expected names that no device has, got 'mac"),
    (LINKED, 'name = "ethernet"', 'nam = "ethernet"', "links[2]: object "),
    (LINKED, 'name = "ethernet"', 'name = "c bus"', "links[2].name: expected a name that tells"),
    (LINKED, HEAD, f"{HEAD}bandwidth = -1.0\n", "bandwidth: expected a number >= 0, or infinity"),
    (LINKED, "= 150e9", "= 1e-300", "bandwidth[0, 1]: expected at least 5.2e-290 B/s, got 1e-300"),
    (CARD, CARD, "", "object missing required field format"),
    (CARD, "version = 3", "version = 4", "version: expected 3, got 4"),
    (CARD, "peak_flops = 82.6e12", "", "kinds.card: peak_flops: expected a number, or `like` with"),
    (CARD, CARD, f"{HEAD}devices = []", "devices: expected array of length >= 1"),
    (CARD, "[kinds.card]", '[kinds.card]\nlike = "x"', "kinds.card: like: expected one of cpu"),
    (CARD, "[kinds", 'link = "nvlink"\n[kinds', "link: expected no bandwidth beside it, got 'nvl"),
    (CARD, "1008e9", "0", "kinds.card: memory_bandwidth: expected more than 0, got 0.0"),
    (CARD, "24_000_000_000", '"24 GB"', "kinds.card: memory_bytes: expected int"),
    (CARD, "matrix_product", "matmul", "kinds.card: efficiency: expected one of convolution"),
    (CARD, "= 0.8", "= 1.5", "kinds.card: efficiency.matrix_product: expected more than 0 and at"),
    (CARD, 'kind = "card"', 'kind = "cart"', "devices[0].kind: expected card, another known "),
    (OWN, '"22.5 GB"', '"22.5 Gb"', "devices[0].memory: expected a text of a number above 0 and a"),
    (OWN, '"22.5 GB"', '"1 GB"\nmemory_bytes = 5', "devices[0].memory: expected no memory_bytes"),
    (OWN, "0.5", "-0.5", "kinds.rtx3090: speed: expected a finite number >= 0, got -0.5"),
    (OWN, "0.5", "1e-320", "devices[0].op_overhead: expected a finite number >= 0, got inf"),
    (OWN, "pcie-3-x4", "pcie-3-x5", "devices[1].host_link: expected pcie-3-x8, or another of pci"),
    (OWN, HEAD, f"{HEAD}latency = 1.0\n", "latency: expected a bandwidth, or links, beside it"),
    (OWN, HEAD, f"{HEAD}bandwidth = 1e9\n", "devices[1].host_link: expected no bandwidth beside"),
    (OWN, "[kinds", '[machines]\none = ["a"]\n[kinds', "machines: expected each device in one, g"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), WRONG)
def test_what_is_wrong_is_named(
    read: Read, tmp_path: Path, text: str, old: str, new: str, message: str
) -> None:
    assert old in text
    with refused(f"{tmp_path / 'cluster.toml'}: {message}"):
        read(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"launch_overhead": -1e-6}, "launch_overhead: expected a finite number >= 0, got -1e-06"),
        ({"efficiency": 0.5}, "efficiency: expected Efficiency, got 0.5"),
        ({"peak_flops_in": 3.0}, "peak_flops_in: expected a mapping of dtypes to numbers, got 3.0"),
        ({"peak_flops_in": {16: 3.0}}, "peak_flops_in: expected one of "),
    ],
)
def test_a_wrong_field_of_a_kind_is_named(fields: dict[str, Any], message: str) -> None:
    with refused(message):
        replace(DEVICE_KINDS["k80"], **fields)
