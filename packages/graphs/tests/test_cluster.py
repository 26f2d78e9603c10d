import copy
import re
from typing import Any

import numpy as np
import pytest

from placeto_graphs import Cluster, Device, GraphError, parse_cluster


def device(**changes: Any) -> Device:
    fields: dict[str, Any] = {
        "name": "k80:0",
        "kind": "k80",
        "memory_bytes": 10_700_000_000,
        "op_overhead": 5.7e-6,
        "transfer_overhead": 25e-6,
    }
    return Device(**(fields | changes))


def cluster(**changes: Any) -> Cluster:
    fields: dict[str, Any] = {
        "devices": [device(name="a"), device(name="b")],
        "bandwidth": [[0, 1e9], [2e9, 0]],
        "latency": [[0, 1e-6], [0, 0]],
    }
    return Cluster(**(fields | changes))


def test_a_device_is_never_sent_to_from_itself() -> None:
    assert cluster().bandwidth.tolist() == [[np.inf, 1e9], [2e9, np.inf]]
    assert cluster(latency=np.ones((2, 2))).latency.tolist() == [[0, 1], [1, 0]]
    assert not cluster().bandwidth.flags.writeable


def test_infinite_bandwidth_makes_bytes_free() -> None:
    assert np.isinf(cluster(bandwidth=[[1, np.inf], [np.inf, 1]]).bandwidth).all()


def test_by_default_each_device_has_a_bus_for_all_that_it_sends() -> None:
    assert cluster().link.tolist() == [[-1, 0], [1, -1]]
    assert cluster().link_names == ("a bus", "b bus")
    assert parse_cluster("1xk80").link.tolist() == [[-1]]
    assert parse_cluster("1xk80").link_names == ()


def test_a_link_has_the_pairs_that_it_carries() -> None:
    assert [pairs.tolist() for pairs in cluster().link_pairs] == [[[0, 1]], [[1, 0]]]
    shared = cluster(link=[[-1, 0], [0, -1]])
    assert [pairs.tolist() for pairs in shared.link_pairs] == [[[0, 1], [1, 0]]]
    assert parse_cluster("1xk80").link_pairs == []
    machines = parse_cluster("2x(2xk80)")
    for number, pairs in enumerate(machines.link_pairs):
        assert pairs.tolist() == np.argwhere(machines.link == number).tolist()


def test_links_may_be_shared_and_named() -> None:
    shared = cluster(link=[[-1, 0], [0, -1]])
    assert (shared.num_links, shared.link_names) == (1, ("link 0",))
    assert not shared.link.flags.writeable
    assert shared != cluster()
    named = cluster(link=[[-1, 1], [0, -1]], link_names=["to a", "to b"])
    assert named.link_names[named.link[0, 1]] == "to b"
    assert copy.deepcopy(named) == named


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name: expected a text that is not empty, got ''"),
        ({"kind": 3}, "kind: expected a text, got 3"),
        ({"memory_bytes": 0}, "memory_bytes: expected an integer from 1 to"),
        ({"memory_bytes": 1.5}, "memory_bytes: expected integers, got floating-point numbers"),
        ({"op_overhead": -1.0}, "op_overhead: expected a finite number >= 0, got -1.0"),
        ({"transfer_overhead": np.nan}, "transfer_overhead: expected a finite number >= 0"),
        ({"op_overhead": "1"}, "op_overhead: expected numbers, got text"),
    ],
)
def test_a_wrong_device_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        device(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": []}, "devices: expected at least one device, got none"),
        ({"devices": "2xk80"}, "devices: expected a sequence of Device, got '2xk80'"),
        ({"devices": [device(), "b"]}, "devices[1]: expected a Device, got 'b'"),
        ({"devices": [device(), device()]}, "devices.name[1]: 'k80:0' repeats devices.name[0]"),
        ({"bandwidth": [[0, 0], [1, 0]]}, "bandwidth[0, 1]: expected more than 0 B/s, got 0.0"),
        ({"bandwidth": [[0, 1], [-1, 0]]}, "bandwidth[1, 0]: expected a number >= 0, or infinity"),
        ({"bandwidth": [[np.nan, 1], [1, 0]]}, "bandwidth[0, 0]: expected a number >= 0"),
        ({"bandwidth": [1, 2]}, "bandwidth: expected shape (2, 2), got (2,)"),
        ({"latency": [[0, np.inf], [0, 0]]}, "latency[0, 1]: expected a finite number >= 0"),
        ({"latency": [[0]]}, "latency: expected shape (2, 2), got (1, 1)"),
        (
            {"devices": [device(name=f"{number}") for number in range(1025)]},
            "devices: expected at most 1024 devices, got 1025",
        ),
        ({"link": [0, 1]}, "link: expected shape (2, 2), got (2,)"),
        ({"link": [[-1, 0.0], [1.0, -1]]}, "link: expected integers, got floating-point numbers"),
        ({"link": [[0, 0], [0, -1]]}, "link[0, 0]: expected -1 from a device to itself, got 0"),
        ({"link": [[-1, -1], [0, -1]]}, "link[0, 1]: expected a link, got -1"),
        ({"link": [[-1, 2], [0, -1]]}, "link[0, 1]: expected an integer from -1 to 1, got 2"),
        ({"link": [[-1, 1], [1, -1]]}, "link: expected every number from 0 to 1, got none that"),
        (
            {"link": [[-1, 0], [0, -1]], "link_names": ["a", "b"]},
            "link_names: expected 1 texts, got 2",
        ),
        ({"queue": "lifo"}, "queue: expected one of fifo, backward-first, got 'lifo'"),
        ({"queue": 1}, "queue: expected a text, got 1"),
        ({"link_names": ["a", "a"]}, "link_names[1]: 'a' repeats link_names[0]"),
    ],
)
def test_a_wrong_cluster_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        cluster(**changes)
