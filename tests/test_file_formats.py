"""The files, tables and values that pages show are those that the packages read and have."""

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from placeto_graphs import (
    DEVICE_KINDS,
    LINK_NAMES,
    DeviceKind,
    load_cluster,
    load_pipedream_profile,
    load_placement,
    load_problem,
    parse_cluster,
)
from placeto_policy import Settings, preset

FILES = Path("docs/files.md").read_text()
CLUSTERS = Path("docs/clusters.md").read_text()
DEVICES = Path("docs/devices.md").read_text()
SETTINGS = Path("docs/settings.md").read_text()


def sections(page: str, heading: str) -> list[str]:
    """Return the blocks of code under a heading of a page."""
    section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return re.findall(r"```\w*\n(.*?)```", section, flags=re.DOTALL)


def shown(folder: Path, name: str, page: str, heading: str) -> Path:
    """Write the first block under a heading into a file; return its path."""
    (folder / name).write_text(sections(page, heading)[0])
    return folder / name


def test_the_problem_and_its_placement(tmp_path: Path) -> None:
    path = shown(tmp_path, "problem.json", FILES, "Problem")
    problem = load_problem(path)
    assert problem.cluster == parse_cluster("2xk80")
    placement = shown(tmp_path, "placement.json", FILES, "Placement")
    assert load_placement(placement, problem).tolist() == [1]
    required, optional = map(json.loads, sections(FILES, "Problem")[:2])
    for field, value in optional.items():
        required[field] = {**required.get(field, {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(required))
    problem = load_problem(path)
    graph, cluster = problem.graph, problem.cluster
    assert graph.dtype == ("float32", "float32")
    assert (graph.waits.tolist(), graph.held_tensors.tolist()) == ([[1, 0]], [1])
    assert (cluster.link_names, cluster.queue) == (("host bridge",), "backward-first")
    assert cluster.link.tolist() == [[-1, 0], [0, -1]]
    assert problem.rules == ("id", "gradients", "updates", r"scopes:decoder\.step\d+")
    assert [level.group_names for level in problem.levels] == [("linear",), ("weights", "matmul")]


def test_the_cluster(tmp_path: Path) -> None:
    cluster = load_cluster(shown(tmp_path, "a.toml", CLUSTERS, "Links by their numbers"))
    (v100,) = parse_cluster("1xv100").devices
    assert cluster.devices == (
        *parse_cluster("2xk80").devices,
        replace(v100, memory_bytes=32_000_000_000),
    )
    assert cluster.link.tolist() == [[-1, 0, 1], [0, -1, 1], [2, 2, -1]]
    assert cluster.bandwidth[0].tolist() == [np.inf, 7.6e9, 1.25e9]


def test_a_kind_of_device(tmp_path: Path) -> None:
    heading = "A kind of device of your own"
    (card,) = load_cluster(shown(tmp_path, "cluster.toml", DEVICES, heading)).kinds
    assert (card.name, card.peak_flops_in["tf32"]) == ("rtx4070ti", 40.1e12)
    section = DEVICES.partition(f"\n## {heading}")[2]
    documented_fields = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert {*documented_fields, "name"} == {field.name for field in fields(DeviceKind)}


def test_the_devices_of_a_user(tmp_path: Path) -> None:
    cluster = load_cluster(shown(tmp_path, "cluster.toml", CLUSTERS, "Your own devices"))
    assert cluster.memory_bytes.tolist() == [22_500_000_000, 11_400_000_000, 56 * 2**30]
    assert cluster.bandwidth[0].tolist() == [np.inf, 11.4e9 / 4, 25.1e9]
    assert cluster.kinds == (replace(DEVICE_KINDS["rtx3090"], speed=0.87),)


CARD_ROW = (
    r"^\| `([a-z0-9-]+)` \| ([0-9.]+) \| ([0-9.,]+) \| ([0-9.]+) \|(?: ([0-9,]*) \| (.*) \|)?$"
)
NETWORK = r"^\| `((?:ether|infini|thunder)[a-z0-9.-]+)`(?: \(default\))? \| ([0-9.e]+) \|"
CARDS = re.findall(CARD_ROW, DEVICES, flags=re.MULTILINE)
NETWORKS = re.findall(NETWORK, CLUSTERS, flags=re.MULTILINE)


def test_the_tables_have_all_kinds_and_networks() -> None:
    assert {row[0] for row in CARDS} == set(DEVICE_KINDS)
    within = [name for name in LINK_NAMES if name.startswith(("bus", "nvlink", "pcie", "pageable"))]
    assert (*within, *(name for name, _ in NETWORKS)) == LINK_NAMES
    for link, bandwidth in NETWORKS:
        cluster = parse_cluster("2x(1xh200)", link=link)
        assert cluster.bandwidth[0, 1] == float(bandwidth)
        assert cluster.link_names[cluster.link[0, 1]] == "machine 0 network"

    for name, memory, bandwidth, float32, float16, slot in CARDS:
        kind = DEVICE_KINDS[name]
        assert kind.memory_bytes / 2**30 == pytest.approx(float(memory), rel=5e-3), name
        assert kind.memory_bandwidth / 1e9 == float(bandwidth.replace(",", "")), name
        assert kind.peak_flops / 1e12 == float(float32), name
        if float16:
            half = kind.peak_flops_in["float16"] / 1e12
            assert half == pytest.approx(float(float16.replace(",", "")), rel=0.02), name
        if slot:
            alone = parse_cluster(f"1xcpu+1x{name}").bandwidth[0, 1]
            with_slot = parse_cluster(f"1xcpu+1x{name}", link=f"pcie-{slot.replace(' ', '-')}")
            assert with_slot.bandwidth[0, 1] == alone, name


def test_the_specs_of_clusters_and_the_profile(tmp_path: Path) -> None:
    specs = re.findall(r"`(\d+x[a-z0-9+()-]+)`", CLUSTERS)
    assert specs
    for spec in specs:
        assert parse_cluster(spec).num_devices >= 2
    graph = load_pipedream_profile(shown(tmp_path, "graph.txt", FILES, "PipeDream profile"))
    assert graph.num_ops == 5


def rows_of(heading: str) -> dict[str, list[str]]:
    """Return the cells behind each name of the tables of a section."""
    section = SETTINGS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows if row and row[0].startswith("`")}


@pytest.mark.parametrize(("column", "settings"), [(1, Settings()), (2, preset("paper"))])
def test_each_setting_has_its_value(column: int, settings: Settings) -> None:
    sections = ("Network", "Episodes and rewards", "Training")
    documented = {
        name: row[column] for section in sections for name, row in rows_of(section).items()
    }
    values = asdict(settings)
    assert documented.keys() == values.keys()
    for name, text in documented.items():
        assert type(values[name])(text) == values[name]


@pytest.mark.parametrize(("column", "name"), [(0, "general"), (1, "fine-tuning")])
def test_the_other_presets_differ_as_shown(column: int, name: str) -> None:
    documented = {field: row[column] for field, row in rows_of("Presets").items()}
    default, values = asdict(Settings()), asdict(preset(name))
    assert {field for field in values if values[field] != default[field]} <= documented.keys()
    for field, text in documented.items():
        assert type(values[field])(text) == values[field]
