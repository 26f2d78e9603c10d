import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import parse_cluster
from placeto_tools.plots.figures import chart_rows, curves_figure


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
