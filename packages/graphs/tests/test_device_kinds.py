"""Kinds of device: what a description may say, and what it leaves out."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_graphs import refused
from placeto_graphs import (
    DEVICE_KINDS,
    Cluster,
    DeviceKind,
    load_cluster,
    parse_cluster,
    save_cluster,
)
from placeto_graphs.clusters.catalogue import WAYS

CARD = """
format = "placeto-cluster"
version = 3
bandwidth = 31.5e9

[kinds.card]
memory_bytes = 24_000_000_000
memory_bandwidth = 1008e9
peak_flops = 82.6e12
peak_flops_in = { float16 = 165.2e12, bfloat16 = 165.2e12 }
efficiency = { matrix_product = 0.8 }

[[devices]]
name = "card:0"
kind = "card"

[[devices]]
name = "card:1"
kind = "card"
memory_bytes = 20_000_000_000
op_overhead = 2e-6
"""


def test_each_kind_of_the_catalogue_reaches_others_by_ways_of_its_own() -> None:
    assert {name: kind.name for name, kind in DEVICE_KINDS.items()} == {name: name for name in WAYS}


def read(folder: Path, text: str) -> Cluster:
    (folder / "cluster.toml").write_text(text)
    return load_cluster(folder / "cluster.toml")


def test_a_card_is_described_once_for_all_its_devices(tmp_path: Path) -> None:
    cluster = read(tmp_path, CARD)
    (card,) = cluster.kinds
    assert (card.name, card.peak_flops, card.memory_bandwidth) == ("card", 82.6e12, 1008e9)
    assert dict(card.peak_flops_in) == {"float16": 165.2e12, "bfloat16": 165.2e12}
    h100 = DEVICE_KINDS["h100"]
    assert card.efficiency == replace(h100.efficiency, matrix_product=0.8)
    assert (card.launch_overhead, card.op_overhead) == (h100.launch_overhead, h100.op_overhead)
    first, second = cluster.devices
    assert (first.memory_bytes, first.op_overhead) == (24_000_000_000, h100.op_overhead)
    assert (second.memory_bytes, second.op_overhead) == (20_000_000_000, 2e-6)
    assert first.transfer_overhead == second.transfer_overhead == 0


def test_what_is_left_out_of_a_kind_of_the_catalogue_is_what_stands_there(tmp_path: Path) -> None:
    text = CARD.replace("card", "cpu").replace("{ matrix_product = 0.8 }", "{}")
    cluster = read(tmp_path, text)
    (kind,) = cluster.kinds
    assert kind.efficiency == DEVICE_KINDS["cpu"].efficiency
    assert kind.launch_overhead == 0
    assert cluster.devices[0].transfer_overhead == 25e-6
    assert "float64" not in kind.peak_flops_in


def test_kinds_survive_files_copies_and_pickles(tmp_path: Path) -> None:
    cluster = replace(
        parse_cluster("1xcpu+2xk80"),
        kinds=(replace(DEVICE_KINDS["a100"], name="my card"), DEVICE_KINDS["k80"]),
    )
    save_cluster(cluster, tmp_path / "cluster.toml")
    read_back = load_cluster(tmp_path / "cluster.toml")
    for other in (read_back, copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):  # noqa: S301
        assert other == cluster
    assert read_back != replace(cluster, kinds=cluster.kinds[:1])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("peak_flops = 82.6e12", "", "kinds.card: peak_flops: expected a number, or `like` with"),
        ("peak_flops = 82.6e12", 'like = "rtx9090"', "kinds.card: like: expected one of cpu, k80,"),
        ("peak_flops = 82.6e12", 'speed = "2"', "kinds.card: speed: expected float, got str ('2')"),
        (
            "[kinds",
            'link = "nvlink"\n[kinds',
            "link: expected no bandwidth beside it, got 'nvlink'",
        ),
        ("1008e9", "0", "kinds.card: memory_bandwidth: expected more than 0, got 0.0"),
        ("24_000_000_000", '"24 GB"', "kinds.card: memory_bytes: expected int"),
        ("{ float16", "{ fp16", "kinds.card: peak_flops_in: expected one of tf32, float64"),
        ("bfloat16 = 165.2e12", "bfloat16 = 0", "kinds.card: peak_flops_in.bfloat16: expected"),
        ("matrix_product", "matmul", "kinds.card: efficiency: expected one of convolution"),
        ("= 0.8", "= 1.5", "kinds.card: efficiency.matrix_product: expected more than 0 and at"),
        (
            'kind = "card"',
            'kind = "rtx9090"',
            "devices[0].memory_bytes: expected a number, or [kinds.rtx9090] with that of",
        ),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CARD
    with refused(f"{tmp_path / 'cluster.toml'}: {message}"):
        read(tmp_path, CARD.replace(old, new))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name: expected a text that is not empty, got ''"),
        ({"launch_overhead": -1e-6}, "launch_overhead: expected a finite number >= 0, got -1e-06"),
        ({"efficiency": 0.5}, "efficiency: expected Efficiency, got 0.5"),
        ({"peak_flops_in": 3.0}, "peak_flops_in: expected a mapping of dtypes to numbers, got 3.0"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    with refused(message):
        replace(DEVICE_KINDS["k80"], **fields)


def test_a_cluster_names_what_is_no_kind() -> None:
    cluster = parse_cluster("2xk80")
    kind: DeviceKind = DEVICE_KINDS["k80"]
    with refused("kinds.name[1]: 'k80' repeats kinds.name[0]"):
        replace(cluster, kinds=(kind, kind))
    with refused("kinds[0]: expected a DeviceKind, got 'k80'"):
        replace(cluster, kinds=("k80",))  # type: ignore[arg-type]


HEAD = 'format = "placeto-cluster"\nversion = 3\n'
OWN = (
    HEAD
    + """
[[devices]]
name = "a"
kind = "rtx3090"
memory = "22.5 GB"

[[devices]]
name = "b"
kind = "rtx3060"
host_link = "pcie-3-x4"

[[devices]]
name = "c"
kind = "cpu-ddr5-2ch"
memory = "1.5 GiB"

[kinds.rtx3090]
speed = 0.5
"""
)


def test_devices_without_links_are_joined_as_in_a_spec(tmp_path: Path) -> None:
    cluster = read(tmp_path, OWN)
    same = parse_cluster("1xrtx3090+1xrtx3060+1xcpu-ddr5-2ch")
    assert cluster.memory_bytes.tolist() == [22_500_000_000, 12_000_000_000, 3 * 2**29]
    slot = 8e9 * 4 / 8 * 128 / 130  # four lanes of 8 GT/s
    assert cluster.bandwidth[1] == pytest.approx([slot, np.inf, slot], rel=2e-3)
    assert cluster.bandwidth[0, 2] == same.bandwidth[0, 2]
    assert cluster.latency.tolist() == same.latency.tolist()
    assert cluster.link.tolist() == same.link.tolist()
    save_cluster(cluster, tmp_path / "saved.toml")
    assert load_cluster(tmp_path / "saved.toml") == cluster


def test_a_speed_scales_what_the_device_computes(tmp_path: Path) -> None:
    cluster = read(tmp_path, OWN)
    (kind,) = cluster.kinds
    usual = DEVICE_KINDS["rtx3090"]
    assert kind.memory_bandwidth == usual.memory_bandwidth / 2
    assert (kind.peak_flops, kind.peak_flops_in["float16"]) == (35.6e12 / 2, 71.2e12 / 2)
    assert kind.launch_overhead == usual.launch_overhead * 2
    assert cluster.devices[0].op_overhead == usual.op_overhead * 2
    assert cluster.devices[1].op_overhead == DEVICE_KINDS["rtx3060"].op_overhead


def test_a_kind_like_another_differs_in_what_it_says(tmp_path: Path) -> None:
    text = OWN.replace('kind = "rtx3060"', 'kind = "mine"')
    own = '[kinds.mine]\nlike = "rtx4060ti"\nmemory = "8 GB"\n'
    cluster = read(tmp_path, (text + own).replace("host_link", "# host_link"))
    mine = cluster.kinds[1]
    usual = DEVICE_KINDS["rtx4060ti"]
    assert (mine.memory_bytes, mine.peak_flops_in) == (8_000_000_000, usual.peak_flops_in)
    assert cluster.bandwidth[0, 1] == 31.5e9 / 2  # its eight lanes


def test_machines_and_their_network_are_named(tmp_path: Path) -> None:
    text = OWN.replace("version = 3", 'version = 3\nlink = "ethernet-2.5g"').replace(
        "[kinds",
        """
[machines]
one = ["a", "c"]
two = ["b"]

[kinds""",
    )
    cluster = read(tmp_path, text)
    assert cluster.bandwidth[0].tolist() == [np.inf, 2.5e9 / 8, 31.5e9]
    assert cluster.link_names[cluster.link[1, 2]] == "machine 1 network"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"22.5 GB"', '"22.5 Gb"', "devices[0].memory: expected a text of a number above 0 and a"),
        ('"22.5 GB"', '"0 GB"', "devices[0].memory: expected a text of a number above 0 and a"),
        ('"22.5 GB"', "22.5", "devices[0].memory: expected a text of a number above 0 and a"),
        ('"22.5 GB"', '"1 GB"\nmemory_bytes = 5', "devices[0].memory: expected no memory_bytes"),
        ('"22.5 GB"', f'"{"9" * 30} TB"', "devices[0].memory_bytes: expected an integer from 1"),
        ("0.5", "-0.5", "kinds.rtx3090: speed: expected a finite number >= 0, got -0.5"),
        ("0.5", "1e-320", "kinds.rtx3090: "),
        (
            "pcie-3-x4",
            "pcie-3-x5",
            "devices[1].host_link: expected one of pcie-3-x4, pcie-3-x8",
        ),
        ("version = 3", "version = 3\nlatency = 1.0", "latency: expected a bandwidth, or links,"),
        ("version = 3", 'version = 3\nlink = "lan"', "link: expected one of bus, nvlink, pcie"),
        ("version = 3", "version = 3\nbandwidth = 1e9", "devices[1].host_link: expected no band"),
        ("[kinds", '[machines]\none = ["a"]\n[kinds', "machines: expected each device in one, got"),
    ],
)
def test_a_wrong_word_of_ones_own_devices_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in OWN
    with refused(f"{tmp_path / 'cluster.toml'}: {message}"):
        read(tmp_path, OWN.replace(old, new))
