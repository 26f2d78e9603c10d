"""Texts with units, in one table; and `import placeto` is quick and needs no screen."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import placeto
from placeto.outputs import file_name, json_text
from placeto.placing.cost_texts import bound_text, overflow_text, too_large_text
from placeto.placing.reports import (
    PUBLISHED_RATES,
    bottleneck_text,
    busy_receivers,
    rate_text,
)
from placeto.problems.options import group_counts
from placeto.progress import clock, progress_text, time_left_text
from placeto.texts import (
    bytes_text,
    change_text,
    cost_text,
    counted,
    flops_text,
    seconds_text,
    share_text,
)
from placeto_graphs import DEVICE_KINDS, PlacementProblem, from_networkx, parse_cluster
from placeto_graphs.errors import not_among
from placeto_simulator import Simulator


def decoding(
    spec: str,
    *,
    bits: float = 4.5,
    tokens: int = 1,
    phases: tuple[int, int] = (0, 0),
    op_type: str = "aten.mm",
    **kind: Any,
) -> PlacementProblem:
    """Return a step of two products, each of a token and a million weights."""
    ops = nx.DiGraph([("a", "b")], tokens=tokens)
    for name, phase in zip(ops, phases, strict=True):
        ops.add_node(name, op_type=op_type, flops=2e6, bytes_accessed=1e6 * bits / 8, phase=phase)
    cluster = parse_cluster(spec)
    kinds = tuple(
        replace(DEVICE_KINDS[name], **kind)
        for name in {device.kind for device in cluster.devices}
        if kind
    )
    graph = from_networkx(ops)
    return PlacementProblem(
        graph=graph,
        cluster=replace(cluster, kinds=kinds),
        compute_time=np.ones((2, cluster.num_devices)),
    )


@pytest.mark.parametrize(
    ("problem", "placement", "key"),
    [
        (decoding("1xrtx3090"), [0, 0], ("GPUs", 4)),
        (decoding("1xrtx3090+1xa100", bits=16.1), [0, 1], ("GPUs", 16)),
        (decoding("1xm2-ultra", bits=4.9), [0, 0], ("Macs", 4)),
        (decoding("1xcpu-ddr4-2ch+1xp40"), [0, 0], ("CPUs", 4)),
        (decoding("1xcpu-ddr4-2ch+1xp40"), [0, 1], ("CPUs and GPUs", 4)),
        (decoding("1xcpu-ddr4-2ch+1xp40", bits=16), [0, 1], None),
        (decoding("1xdgx-spark"), [0, 0], ("GPUs", 4)),
        (decoding("1xmi300x"), [0, 0], None),
        (decoding("1xrtx3090", speed=0.9), [0, 0], None),
        (decoding("1xrtx3090", tokens=4), [0, 0], None),
        (decoding("1xrtx3090", op_type="aten.mul"), [0, 0], None),
        (decoding("1xrtx3090", op_type="aten._grouped_mm"), [0, 0], None),
    ],
)
def test_tokens_per_second_have_the_error_of_such_devices_and_weights(
    problem: PlacementProblem, placement: list[int], key: tuple[str, int] | None
) -> None:
    rate = f"{problem.graph.tokens / 0.01:g} tokens/s"
    expected = f" ({rate})"
    if key is not None:
        least, most = PUBLISHED_RATES[key]
        expected = f" ({rate}; {least:+d} to {most:+d} % from published rates)"
    devices = np.array(placement, np.int32)
    assert rate_text(problem, devices, 0.01) == expected
    assert rate_text(problem, devices, 0.01, is_doubtful=True) == f" ({rate})"


V100S = parse_cluster("2xv100")
UNIT = "MB sent"


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (not_among, ("graph-ml", ["dot", "graphml"]), "expected graphml, or another of dot, got"),
        (not_among, ("dott", ["dot"]), "expected dot, got 'dott'"),
        (not_among, ("xyz", ["dot", "graphml"]), "expected one of dot, graphml, got 'xyz'"),
        (counted, (1, "module"), "1 module"),
        (counted, (1200, "module"), "1,200 modules"),
        *((seconds_text, (value,), text) for value, text in (
            (2152.3, "2,152 s"), (1.5612, "1.561 s"), (0.0123, "12.30 ms"), (25e-6, "25.00 µs"),
            (3e-9, "3 ns"), (999.97, "1,000 s"), (0.99997, "1.000 s"),
        )),
        *((rate_text, (decoding("1xv100", tokens=tokens), np.zeros(2, np.int32), value), text)
          for tokens, value, text in (
            (0, 0.025, " (40 steps/s)"), (0, 1.5, " (0.6667 steps/s)"), (2, 0.0, ""),
            (2, 0.025, " (80 tokens/s)"),
        )),
        (rate_text, (decoding("1xv100", phases=(0, 1)), np.zeros(2, np.int32), 1.0), ""),
        (cost_text, (0.0123,), "12.30 ms"),
        (cost_text, (1234.5, UNIT), "1,234 MB sent"),
        *((change_text, (value,), text) for value, text in (
            (0.0123, "+12.30 ms"), (-1.5, "-1.500 s"), (0.0, "nothing"),
        )),
        *((bytes_text, (value,), text) for value, text in (
            (10_700_000_000, "10.7 GB"), (4_000_000, "4.0 MB"), (4096, "4.1 kB"), (12, "12 B"),
        )),
        (flops_text, (2.195e12,), "2.195 TFLOP"),
        (flops_text, (0,), "0 FLOP"),
        (share_text, (0.1234,), "12.3 %"),
        (file_name, ("a/d-",), "a-d"),
        (file_name, ("nmt:7", {"nmt-7", "nmt-7-2"}), "nmt-7-3"),
        (file_name, ("..", {"problem"}), "problem-2"),
        (progress_text, (500, 2000, 10.0), "500 of at most 2,000, 50/s, at most 0:30 left"),
        (progress_text, (1, 2000, 0.5), "1 of at most 2,000, 2/s"),
        (progress_text, (40, None, 75.0), "40, 0.53/s, 1:15"),
        (time_left_text, (5, 100, 2.0), ", 0:38 left"),
        (time_left_text, (1, 100, 10.0), ", 16:30 left"),
        (time_left_text, (1, 100, 2.0), ""),
        (clock, (3675,), "1:01:15"),
        (group_counts, (128, 1), "[128]"),
        (group_counts, (128, 4), "[128, 90, 117, 154]"),
        (json_text, ({"a": np.float64("inf"), "b": np.arange(2)}, 0), '{"a": null, "b": [0, 1]}'),
        (overflow_text, (V100S, [19_200_000_000, 5]), ", out of memory: v100:0 needs 19.2 GB of 1"),
        (overflow_text, (V100S, [15_000_000_000, 15_300_000_000]), ", may not fit: PyTorch needs "
            "up to 2.0 GB besides tensors, and v100:1 has 1.9 GB left"),
        (overflow_text, (V100S, [15_100_000_000, 5]), ""),
        (overflow_text, (parse_cluster("2xk80"), [10_700_000_000, 5]), ""),
        (bound_text, (1.25, 0, 1), "no placement in 1 group is faster than 1.250 s"),
        (bound_text, (1.25, 10**8, 8), "no placement in 8 groups fits: a device"),
    ],
)  # fmt: skip
def test_values_have_these_texts(text: Any, arguments: tuple[Any, ...], expected: str) -> None:
    written_text = str(text(*arguments))
    assert written_text.startswith(expected)
    assert written_text == expected or len(expected) > 30


def test_a_group_that_fits_no_device_is_named() -> None:
    ops = nx.DiGraph()
    ops.add_node("layer", parameter_bytes=20_000_000_000)
    cluster = parse_cluster("1xrtx3060+1xv100")
    problem = PlacementProblem(
        graph=from_networkx(ops), cluster=cluster, compute_time=np.ones((1, 2))
    )
    assert too_large_text(problem) == (
        ": group layer alone needs 20.0 GB, and v100:0 has the most memory, 17.2 GB"
    )


@pytest.mark.parametrize(("sender", "remarks"), [([0, 1, 2], 1), ([0, 0, 0], 0), ([3, 3, 0], 0)])
def test_a_device_that_receives_more_than_a_slot_carries_is_named(
    sender: list[int], remarks: int
) -> None:
    """Three tensors of 31.5 GB, each of which a bus carries in a second."""
    ops = nx.DiGraph()
    ops.add_edges_from(((maker, "reader") for maker in "abc"), bytes=31_500_000_000)
    problem = PlacementProblem(
        graph=from_networkx(ops),
        cluster=replace(parse_cluster("4xrtx3090"), bandwidth=np.full((4, 4), 31.5e9)),
        compute_time=np.zeros((4, 4)),
    )
    place = dict(zip("abc", sender, strict=True)) | {"reader": 3}
    placement = np.array([place[name] for name in problem.grouping.group_names], np.int32)
    timeline = Simulator(problem).timeline(placement)
    receiver_remarks = busy_receivers(timeline)
    assert len(receiver_remarks) == remarks
    assert bottleneck_text(timeline).partition(" is")[0] == ("the link rtx3090:0 bus to rtx3090:3")
    assert ": busy 100.0 % of the step, and no device more than 0.0 %" in bottleneck_text(timeline)
    computing = replace(problem, compute_time=np.full((4, 4), 1.1))
    assert bottleneck_text(Simulator(computing).timeline(placement)) == ""
    for line in receiver_remarks:
        assert line.startswith("rtx3090:3 receives 94.5 GB over 3 links, for which one takes 3.0")


FOR_A_SCREEN = {"bokeh", "click", "matplotlib", "placeto_experiments", "placeto_tools", "rich"}


def test_no_module_imports_what_a_screen_needs() -> None:
    modules = list(Path(placeto.__path__[0]).rglob("*.py"))
    assert modules
    for path in modules:
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
        assert not imported & FOR_A_SCREEN, path


def test_the_package_is_imported_at_once_and_without_pytorch() -> None:
    check = (
        "import sys, time; began = time.process_time(); import placeto; "
        "print('torch' in sys.modules, time.process_time() - began); placeto.place"
    )
    command = [sys.executable, "-c", check]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert printed[0] == "False"
    assert float(printed[1]) < 0.3


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plaice'"):
        _ = placeto.plaice
    assert set(placeto.__all__) == {name for name in placeto.__all__ if hasattr(placeto, name)}
