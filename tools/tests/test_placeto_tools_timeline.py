from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from placeto_graphs import GroupGraph, PlacementProblem, from_networkx, parse_cluster
from placeto_simulator import Simulator
from placeto_tools.plots import COLOURS, layered_positions
from placeto_tools.plots.steps import chart_rows, curves_figure, timeline_figure


def test_a_bus_comes_after_its_device() -> None:
    names, devices, links = chart_rows(parse_cluster("1xcpu+2xk80"))
    assert names == ["cpu:0", "cpu:0 bus", "k80:0", "k80:0 bus", "k80:1", "k80:1 bus"]
    assert devices.tolist() == [0, 2, 4]
    assert links.tolist() == [1, 3, 5]


def test_shared_links_come_last() -> None:
    names, _, _ = chart_rows(parse_cluster("1x(2xk80)+1x(1xk80)"))
    assert names == [
        *("k80:0", "k80:0 bus", "k80:1", "k80:1 bus"),
        *("k80:2", "machine 1 network", "machine 0 network"),
    ]


@pytest.mark.parametrize("link", ["bus", "nvlink", "pcie-shared"])
@given(sizes=st.lists(st.integers(2, 4), min_size=1, max_size=3))
def test_each_device_and_each_link_has_a_row_of_its_own(link: str, sizes: list[int]) -> None:
    cluster = parse_cluster("+".join(f"1x({size}xv100)" for size in sizes), link=link)
    names, devices, links = chart_rows(cluster)
    rows = np.concatenate([devices, links])
    assert sorted(rows.tolist()) == list(range(len(names)))
    assert [names[row] for row in rows] == [*cluster.device_names, *cluster.link_names]


def test_a_bar_of_a_link_ends_when_it_is_free_again_and_not_a_latency_later() -> None:
    """An op of 1 s sends 2 GB for 2 s to an op of 4 s, where it arrives 0.5 s later."""
    ops = nx.DiGraph()
    ops.add_edge("sender", "reader", bytes=2_000_000_000)
    cluster = replace(
        parse_cluster("2xk80"), bandwidth=np.full((2, 2), 1e9), latency=np.full((2, 2), 0.5)
    )
    problem = PlacementProblem(
        graph=from_networkx(ops), cluster=cluster, compute_time=np.array([[1.0, 1.0], [4.0, 4.0]])
    )
    timeline = Simulator(problem, num_threads=1).timeline(np.array([0, 1], np.int32))
    chart, memory = timeline_figure(timeline, "step").axes
    bars = {}
    for collection in chart.collections:
        assert isinstance(collection, PolyCollection)
        extents = [path.get_extents() for path in collection.get_paths()]
        face: Any = collection.get_facecolor()
        colour = to_hex(face[0]).upper() if extents else ""
        bars[colour] = [(box.x0, box.x1, (box.y0 + box.y1) / 2) for box in extents]
    labels = [label.get_text() for label in chart.get_yticklabels()]
    assert labels == ["k80:0", "k80:0 bus", "k80:1", "k80:1 bus"]
    first_start, second_start = timeline.op_start
    assert second_start == pytest.approx(3.5, abs=1e-3)
    assert bars[COLOURS[0]] == [
        pytest.approx((first_start, first_start + 1.0, 0)),
        pytest.approx((second_start, second_start + 4.0, 2)),
    ]
    (start, end, row), *further_bars = bars[COLOURS[3]]
    assert (start, row, further_bars) == (timeline.transfer_start[0], 1, [])
    assert end - start == pytest.approx(2.0)
    assert timeline.transfer_end[0] - start == pytest.approx(2.5)
    assert memory.get_legend_handles_labels()[1] == ["k80:0", "k80:1"]


def test_curves_are_medians_in_a_band_and_placers_without_a_runtime_are_left_out() -> None:
    curves = {
        "failed": [],
        "search": [
            np.array([[1, 4.0], [10, 2.0]]),
            np.array([[2, 5.0], [5, 3.0]]),
            np.array([[1, 9.0], [5, 1.0], [20, 0.5]]),
        ],
    }
    (axes,) = curves_figure(curves, {"bound": 0.25}).axes
    line, _, bound = axes.lines
    places, medians = line.get_data()
    assert np.asarray(places).tolist() == [2, 5, 10, 20]  # from where all are known
    assert np.asarray(medians).tolist() == [5.0, 3.0, 2.0, 2.0]
    (band,) = axes.collections
    extent = band.get_datalim(axes.transData)
    assert (extent.ymin, extent.ymax) == (0.5, 9.0)
    assert [line.get_label(), bound.get_label()] == ["search", "bound"]


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(
    st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))))  # fmt: skip
def test_layers_are_those_of_longest_paths_but_before_the_first_reader_of_inputs(
    drawn: tuple[int, set[tuple[int, int]]],
) -> None:
    count, pairs = drawn
    edges = sorted((a, b) for a, b in pairs if a < b)
    graph = GroupGraph(
        compute_time=np.ones((count, 1)),
        output_bytes=np.ones(count, np.int64),
        parameter_bytes=np.zeros(count, np.int64),
        edges=edges,  # type: ignore[arg-type]
        edge_bytes=np.ones(len(edges), np.int64),
    )
    positions = layered_positions(graph)
    dag = nx.DiGraph(edges)
    dag.add_nodes_from(range(count))
    longest = {
        node: depth for depth, layer in enumerate(nx.topological_generations(dag)) for node in layer
    }
    for node, readers in dag.adj.items():
        first = min((longest[reader] for reader in readers), default=1) - 1
        assert positions[node, 0] == (longest[node] if dag.pred[node] else first)
    for layer_index in set(positions[:, 0]):
        layer = positions[:, 0] == layer_index
        heights = sorted(positions[layer, 1])
        assert np.diff(heights).tolist() == [1.0] * (layer.sum() - 1)
        assert sum(heights) == 0
