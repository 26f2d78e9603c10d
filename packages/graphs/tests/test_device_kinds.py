"""Kinds of device: what a description may say, and what it leaves out."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

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

[kinds.rtx4090]
memory_bytes = 24_000_000_000
memory_bandwidth = 1008e9
peak_flops = 82.6e12
peak_flops_in = { float16 = 165.2e12, bfloat16 = 165.2e12 }
efficiency = { matrix_product = 0.8 }

[[devices]]
name = "rtx4090:0"
kind = "rtx4090"

[[devices]]
name = "rtx4090:1"
kind = "rtx4090"
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
    assert (card.name, card.peak_flops, card.memory_bandwidth) == ("rtx4090", 82.6e12, 1008e9)
    assert dict(card.peak_flops_in) == {"float16": 165.2e12, "bfloat16": 165.2e12}
    h100 = DEVICE_KINDS["h100"]
    assert card.efficiency == replace(h100.efficiency, matrix_product=0.8)
    assert (card.launch_overhead, card.op_overhead) == (h100.launch_overhead, h100.op_overhead)
    first, second = cluster.devices
    assert (first.memory_bytes, first.op_overhead) == (24_000_000_000, h100.op_overhead)
    assert (second.memory_bytes, second.op_overhead) == (20_000_000_000, 2e-6)
    assert first.transfer_overhead == second.transfer_overhead == 0


def test_what_is_left_out_of_a_kind_of_the_catalogue_is_what_stands_there(tmp_path: Path) -> None:
    text = CARD.replace("rtx4090", "cpu").replace("{ matrix_product = 0.8 }", "{}")
    cluster = read(tmp_path, text)
    (kind,) = cluster.kinds
    assert kind.efficiency == DEVICE_KINDS["cpu"].efficiency
    assert kind.launch_overhead == 0
    assert cluster.devices[0].transfer_overhead == 25e-6
    assert "float64" not in kind.peak_flops_in


def test_devices_of_the_catalogue_need_no_numbers(tmp_path: Path) -> None:
    devices = "".join(f'[[devices]]\nname = "v100:{n}"\nkind = "v100"\n' for n in range(2))
    head = 'format = "placeto-cluster"\nversion = 3\nbandwidth = 150e9\nlatency = 2.65e-6\n'
    assert read(tmp_path, head + devices) == parse_cluster("2xv100")


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
        ("version = 3", "version = 2", "kinds: expected it in files of version 3 and later, got"),
        ("peak_flops = 82.6e12", "", "kinds.rtx4090: object missing required field peak_flops"),
        ("82.6e12", "-1", "kinds.rtx4090: peak_flops: expected a finite number >= 0, got -1.0"),
        ("1008e9", "0", "kinds.rtx4090: memory_bandwidth: expected more than 0, got 0.0"),
        ("1008e9", "inf", "kinds.rtx4090: memory_bandwidth: expected a finite number >= 0, got i"),
        ("24_000_000_000", "0", "kinds.rtx4090: memory_bytes: expected an integer from 1 to"),
        ("24_000_000_000", '"24 GB"', "kinds.rtx4090: memory_bytes: expected int, got str ('24"),
        ("{ float16", "{ fp16", "kinds.rtx4090: peak_flops_in: expected tf32, float64, float16"),
        ("bfloat16 = 165.2e12", "bfloat16 = 0", "kinds.rtx4090: peak_flops_in.bfloat16: expected"),
        ("matrix_product", "matmul", "kinds.rtx4090: efficiency: expected convolution, depthwise_"),
        ("= 0.8", "= 1.5", "kinds.rtx4090: efficiency.matrix_product: expected more than 0 and at"),
        ("= 0.8", "= nan", "kinds.rtx4090: efficiency.matrix_product: expected a finite number"),
        ("peak_flops =", "peak_flop =", "kinds.rtx4090: object contains unknown field peak_flop"),
        (
            'kind = "rtx4090"',
            'kind = "rtx3090"',
            "devices[0].memory_bytes: expected a number, or version = 3 and [kinds.rtx3090] with",
        ),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CARD
    with refused(f"{tmp_path / 'cluster.toml'}: {message}"):
        read(tmp_path, CARD.replace(old, new))


def test_files_of_version_2_leave_nothing_out_of_devices(tmp_path: Path) -> None:
    text = CARD.replace("version = 3", "version = 2")
    text = text[: text.index("[kinds")] + text[text.index("[[devices]]") :]
    with refused(f"{tmp_path / 'cluster.toml'}: devices[0].memory_bytes: expected a number, or"):
        read(tmp_path, text.replace("rtx4090", "k80"))


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


@pytest.mark.parametrize("value", [0.0, -0.5, 1.5, float("nan")])
def test_an_efficiency_is_a_part_of_a_whole(value: float) -> None:
    with refused("copy: expected "):
        replace(DEVICE_KINDS["k80"].efficiency, copy=value)


def test_a_cluster_names_what_is_no_kind() -> None:
    cluster = parse_cluster("2xk80")
    kind: DeviceKind = DEVICE_KINDS["k80"]
    with refused("kinds.name[1]: 'k80' repeats kinds.name[0]"):
        replace(cluster, kinds=(kind, kind))
    with refused("kinds[0]: expected a DeviceKind, got 'k80'"):
        replace(cluster, kinds=("k80",))  # type: ignore[arg-type]
