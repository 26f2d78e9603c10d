"""Clusters by hand and by a short text, and the numbers that stand behind the text."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_graphs import refused
from placeto_graphs import (
    LINK_NAMES,
    Cluster,
    Device,
    GraphError,
    bytes_besides_tensors,
    parse_cluster,
)


def device(**changes: Any) -> Device:
    fields: dict[str, Any] = {"name": "k80:0", "kind": "k80", "memory_bytes": 10_700_000_000}
    return Device(**(fields | {"op_overhead": 5.7e-6, "transfer_overhead": 25e-6} | changes))


def cluster(**changes: Any) -> Cluster:
    fields: dict[str, Any] = {"devices": [device(name="a"), device(name="b")]}
    fields |= {"bandwidth": [[0, 1e9], [2e9, 0]], "latency": [[0, 1e-6], [0, 0]]}
    return Cluster(**(fields | changes))


def test_by_default_each_device_has_a_bus_for_all_that_it_sends_to_others() -> None:
    assert cluster().bandwidth.tolist() == [[np.inf, 1e9], [2e9, np.inf]]
    assert cluster(latency=np.ones((2, 2))).latency.tolist() == [[0, 1], [1, 0]]
    assert not cluster().bandwidth.flags.writeable
    assert cluster().link.tolist() == [[-1, 0], [1, -1]]
    assert cluster().link_names == ("a bus", "b bus")
    assert cluster(devices=[device(name="a"), device(name="machine 0")]).num_devices == 2
    assert [pairs.tolist() for pairs in cluster().link_pairs] == [[[0, 1]], [[1, 0]]]
    alone = parse_cluster("1xk80")
    assert (alone.link.tolist(), alone.link_names, alone.link_pairs) == ([[-1]], (), [])


def test_links_may_be_shared_and_named() -> None:
    shared = cluster(link=[[-1, 0], [0, -1]])
    assert (shared.num_links, shared.link_names) == (1, ("link 0",))
    assert [pairs.tolist() for pairs in shared.link_pairs] == [[[0, 1], [1, 0]]]
    assert shared != cluster()
    named = cluster(link=[[-1, 1], [0, -1]], link_names=["to a", "to b"])
    assert named.link_names[named.link[0, 1]] == "to b"
    assert copy.deepcopy(named) == named


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": []}, "devices: expected 1 to 1024 devices, got 0"),
        ({"devices": [device(), "b"]}, "devices[1]: expected a Device, got 'b'"),
        ({"devices": [device(), device()]}, "devices.name[1]: 'k80:0' repeats devices.name[0]"),
        ({"bandwidth": [[0, 0], [1, 0]]}, "bandwidth[0, 1]: expected more than 0 B/s, got 0.0"),
        ({"bandwidth": [[0, 1], [-1, 0]]}, "bandwidth[1, 0]: expected a number >= 0, or infinity"),
        ({"latency": [[0, np.inf], [0, 0]]}, "latency[0, 1]: expected a finite number >= 0"),
        ({"link": [[0, 0], [0, -1]]}, "link[0, 0]: expected -1 from a device to itself, got 0"),
        ({"link": [[-1, -1], [0, -1]]}, "link[0, 1]: expected a link, got -1"),
        ({"link": [[-1, 1], [1, -1]]}, "link: expected every number from 0 to 1, got none that"),
        ({"machine": [0, 2]}, "machine[1]: expected an integer from 0 to 1, got 2"),
        ({"machine": [1, 1]}, "machine: expected every number from 0 to 1, got none that is 0"),
        ({"machine_names": ["a"]}, "machine_names: expected names that no device has, got 'a'"),
        ({"machine_names": ["m", "n"]}, "machine_names: expected 1 texts, got 2"),
        ({"queue": "lifo"}, "queue: expected fifo, or another of backward-first, got "),
        ({"kinds": ["k80"]}, "kinds[0]: expected a DeviceKind, got 'k80'"),
    ],
)
def test_a_wrong_cluster_is_named(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        cluster(**changes)


WITHIN = ["bus", "nvlink", "pcie", "pcie-shared"]
NETWORKS = {"ethernet-1g": 1e9, "ethernet-25g": 25e9, "infiniband-ndr": 400e9}  # bits per second


def link_name(cluster: Cluster, source: str, destination: str) -> str:
    names = cluster.device_names
    return cluster.link_names[int(cluster.link[names.index(source), names.index(destination)])]


def test_the_published_constants_of_a_k80_and_its_host() -> None:
    """Addanki et al. 2019: overheads, bandwidth and memory of the simulated GPUs."""
    published = parse_cluster("1xcpu+2xk80")
    assert published.devices[2] == device(name="k80:1")
    assert published.bandwidth[1, 2] == published.bandwidth[2, 1] == 7.6e9
    cpu = published.devices[0]
    assert (cpu.op_overhead, cpu.transfer_overhead) == (5.7e-6, 25e-6)
    assert not published.latency.any()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("1xv100", 2 * 10**9),
        ("1xrtx2080", 2 * 10**9),
        ("1xmi300x", 2 * 10**9),
        # Memory that is given as what may be used.
        *((spec, 0) for spec in ("1xk80", "1xm2-max", "1xcpu", "1xcpu-ddr5-2ch")),
    ],
)
def test_a_gpu_needs_memory_besides_tensors(spec: str, expected: int) -> None:
    (from_catalogue,) = parse_cluster(spec).devices
    assert bytes_besides_tensors(from_catalogue) == expected
    assert bytes_besides_tensors(replace(from_catalogue, memory_bytes=10**9)) == 0
    assert bytes_besides_tensors(replace(from_catalogue, kind="mine")) == 0


def test_a_copy_takes_time_beside_its_bytes_and_keeps_its_link_busy() -> None:
    """As was measured of each kind; a K80 and its host have the published overhead alone."""
    kinds = {"cpu": 25, "k80": 25, "p100": 1.35, "v100-32gb": 2.65, "a100": 2.85, "h200": 2.75}
    kinds |= {"rtx3090": 14.8, "cpu-ddr4-2ch": 7.4}
    cluster = parse_cluster("+".join(f"1x{kind}" for kind in kinds))
    overhead = [device.transfer_overhead * 1e6 for device in cluster.devices]
    assert overhead == pytest.approx(list(kinds.values()))
    to_host = np.array([0, 0, 11, 11, 11.75, 8.25, 7.4, 0])
    apart = 1 - np.eye(len(kinds))
    assert cluster.latency * 1e6 == pytest.approx(np.add.outer(to_host, to_host) * apart)
    links = "infiniband-edr", "ethernet-100g"  # from GPU to GPU, or through both hosts
    latency = [parse_cluster("2x(1xv100)", link=link).latency[0, 1] for link in links]
    assert latency == pytest.approx([9.6e-6, 10e-6 + 2 * 11e-6])
    unequal = parse_cluster("1x(1xk80)+1x(1xh100)+1x(1xm1)+1x(1xt4+1xcpu)").latency * 1e6
    assert unequal[1] == pytest.approx([18.25, 0, 18.25, 25.65, 18.25])
    assert unequal[3] == pytest.approx([17.4, 25.65, 17.4, 0, 7.4])


def test_machines_are_joined_by_the_network_card_of_the_source() -> None:
    cluster = parse_cluster(" 2 x ( 1xCPU + 2xK80 ) ")
    assert cluster.device_names == ("cpu:0", "k80:0", "k80:1", "cpu:1", "k80:2", "k80:3")
    assert link_name(cluster, "k80:0", "k80:1") == "k80:0 bus"
    assert link_name(cluster, "k80:0", "k80:2") == "machine 0 network"
    assert link_name(cluster, "cpu:0", "cpu:1") == "machine 0 network"
    assert link_name(cluster, "k80:2", "k80:0") == "machine 1 network"
    assert cluster.num_links == 6 + 2
    assert parse_cluster("1x(1xcpu+4xk80)") == parse_cluster("1xcpu+4xk80", link="bus")


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    within=st.sampled_from([None, *WITHIN]),
    network=st.sampled_from([None, *NETWORKS]),
)
def test_links_keep_to_their_machines(
    sizes: list[int], within: str | None, network: str | None
) -> None:
    """Which pairs share a link, written out pair by pair."""
    spec = "+".join(f"1x({size}xa100)" for size in sizes)
    link = "+".join(name for name in (within, network) if name) or None
    unused = (within and max(sizes) == 1) or (network and len(sizes) == 1)
    if unused and sum(sizes) > 1:
        with pytest.raises(GraphError, match="link: expected"):
            parse_cluster(spec, link=link)
        return
    cluster = parse_cluster(spec, link=link)
    machine = [index for index, size in enumerate(sizes) for _ in range(size)]

    def resource(source: int, destination: int) -> tuple[object, ...]:
        if machine[source] != machine[destination]:
            return "network", machine[source]
        if within == "nvlink":
            return source, destination
        return ("machine", machine[source]) if within == "pcie-shared" else (source,)

    devices = range(len(machine))
    pairs = [(sender, receiver) for sender in devices for receiver in devices if sender != receiver]
    resources = {pair: resource(*pair) for pair in pairs}
    for pair in pairs:
        for another in pairs:
            shared = cluster.link[pair] == cluster.link[another]
            assert shared == (resources[pair] == resources[another])
    for sender, receiver in pairs:
        if machine[sender] != machine[receiver]:
            card = NETWORKS[network] / 8 if network else 1.25e9
            assert cluster.bandwidth[sender, receiver] == min(card, 25.1e9)


# GB/s of one GPU to another, and us of a small copy, as p2pBandwidthLatencyTest was published, and
# whether several peers share them. Eight GPUs have no more NVLinks than four.
@pytest.mark.parametrize(
    ("spec", "link", "pair", "latency", "is_switch"),
    [
        ("4xv100", None, 47.9, 2.65, False),
        ("8xv100", None, 3 * 47.9 / 7, 2.65, False),
        ("8xv100", "bus", 3 * 47.9, 2.65, True),  # the switch of a DGX-2
        ("4xa100", "nvlink", 273 / 3, 2.85, False),
        ("8xh100", None, 376, 2.75, True),
        ("8xh100", "pcie", 37.2, 16.5, True),
        ("2xt4", "pcie-5-x16", 11.4, 14.8, True),
        ("2xrtx5090", "pcie-5-x8", 37.2 / 2, 14.8, True),
    ],
)
def test_gpus_reach_others_as_fast_as_was_measured(
    spec: str, link: str | None, pair: float, latency: float, is_switch: bool
) -> None:
    cluster = parse_cluster(spec, link=link)
    sent = ~np.eye(cluster.num_devices, dtype=bool)
    assert cluster.bandwidth[sent] / 1e9 == pytest.approx(pair)
    assert cluster.latency[sent] * 1e6 == pytest.approx(latency)
    source, destination = cluster.device_names[:2]
    expected = f"{source} bus" if is_switch else f"{source} -> {destination} NVLink"
    assert link_name(cluster, source, destination) == expected


def test_a_card_reaches_the_host_as_fast_as_its_own_slot() -> None:
    """A 4060 Ti has eight lanes of PCI Express 4.0, a T4 sixteen of 3.0, a 3090 sixteen of 4.0."""
    cluster = parse_cluster("1xrtx4060ti+1xt4+1xrtx3090+1xv100+1xh100+2xcpu-ddr4-8ch")
    assert cluster.bandwidth[:5, 5] / 1e9 == pytest.approx([25.1 / 2, 12, 25.1, 12, 52.8])
    assert cluster.bandwidth[5, :5].tolist() == cluster.bandwidth[:5, 5].tolist()
    assert cluster.bandwidth[0, 1:3] / 1e9 == pytest.approx([11.1, 11.1])  # of eight lanes
    assert cluster.bandwidth[5, 6] == 67.2e9  # three UPI of 11.2 GT/s


def test_what_is_not_pinned_reaches_a_card_as_fast_as_the_host_copies_it() -> None:
    """Weights of 14.1 GB in host memory took 2.37 s a word, on PCI Express 3.0."""
    cluster = parse_cluster("1xcpu-ddr4-2ch+2xt4+1xh100", link="pageable")
    assert 14.1e9 / cluster.bandwidth[0, 1] == pytest.approx(2.37, rel=0.15)
    assert cluster.bandwidth[0, 1:].tolist() == cluster.bandwidth[1:, 0].tolist() == [5.3e9] * 3
    assert cluster.bandwidth[1, 2] == 11.4e9  # from card to card


def test_one_device_sends_nothing_over_any_link() -> None:
    for link in LINK_NAMES:
        assert parse_cluster("1xv100", link=link) == parse_cluster("1xv100")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("2xm3-max", "cluster: expected m3-max to be a machine of its own, such as 2x(1xm3-max)"),
        ("1x(1xm1+1xcpu)+1xm1", "cluster: expected either devices or machines, such as 2x(1xcpu"),
        ("", "cluster: expected terms such as 2xk80, joined by +, got ''"),
        ("2xtpu", "cluster: expected cpu, or another of k80, p100"),
        ("0xk80", "cluster: expected a count of at least 1, got '0xk80'"),
        ("2x(1xk80 + 00xcpu)", "cluster: expected a count of at least 1, got '00xcpu'"),
        ("1025xk80", "cluster: expected at most 1024 devices, got 1025"),
        ("2x(2x(1xk80))", "cluster: expected terms such as 2xk80"),
    ],
)
def test_a_wrong_spec_is_shown(spec: str, message: str) -> None:
    with refused(message):
        parse_cluster(spec)


@pytest.mark.parametrize(
    ("spec", "link", "message"),
    [
        ("2xk80", "token-ring", "link: expected one of bus, nvlink, pcie, pcie-shared, pcie-3-x4"),
        ("2xk80", "", "link: expected a text that is not empty, got ''"),
        ("2xv100", "bus+nvlink", "link: expected at most one of bus, nvlink, pcie, pcie-shared"),
        ("2xk80", "nvlink", "link: expected two of one kind of p100, v100, v100-32gb, a100, a100"),
        ("1xcpu+1xv100", "nvlink", "link: expected two of one kind of p100, v100"),
        ("2xk80", "ethernet-10g", "link: expected several machines, such as 2x(4xk80), for 'ether"),
        ("2x(1xv100)", "pcie", "link: expected a machine with several devices for 'pcie', got no"),
    ],
)
def test_a_link_that_joins_nothing_is_refused(spec: str, link: str, message: str) -> None:
    with refused(message):
        parse_cluster(spec, link=link)


@pytest.mark.parametrize(
    ("spec", "link", "fraction"),
    [
        ("2xk80", None, 1.0),  # none is known
        ("2xrtx3090", None, 0.35),
        ("1xcpu+1xrtx3090", None, 1.0),
        ("2xrtx3090", "pcie-3-x16", 0.86),
        ("2xrtx3090", "pcie-5-x16", 0.35),  # the card is slower than the slot
        ("2xrtx3090", "pcie-shared", 1.0),
        ("2xa100", None, 0.76),
        ("2xa100", "pcie", 0.35),
        ("2x(1xh100)", "infiniband-ndr", 0.96),
        ("2x(1xh100)", "ethernet-10g", 1.0),
    ],
)
def test_collectives_reach_a_part_of_links(spec: str, link: str | None, fraction: float) -> None:
    collective_fraction = parse_cluster(spec, link=link).collective_fraction
    assert (1.0 if collective_fraction is None else collective_fraction[0, 1]) == fraction


def test_collectives_reach_some_of_each_link() -> None:
    with refused("collective_fraction[0, 1]: expected more than 0, got 0.0"):
        cluster(collective_fraction=[[1.0, 0.0], [1.0, 1.0]])
    assert cluster(collective_fraction=np.ones((2, 2))) == cluster()
