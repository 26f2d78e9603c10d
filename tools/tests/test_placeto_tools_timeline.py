import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeto_graphs import parse_cluster
from placeto_tools.plots.steps import chart_rows


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
