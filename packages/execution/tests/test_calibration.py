"""Calibration finds the latency, bandwidth and overhead of links and devices that are known."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeto_execution import ExecutionError, calibration
from placeto_execution.calibration import Calibration
from placeto_graphs import PlacementProblem, from_networkx, parse_cluster

NAMES = ["cpu:0", "cpu:1", "cpu:2"]
LATENCY = np.array([[0, 20e-6, 30e-6], [50e-6, 0, 10e-6], [15e-6, 40e-6, 0]])
BANDWIDTH = np.array([[np.inf, 1e9, 2e9], [4e9, np.inf, 0.5e9], [3e9, 8e9, np.inf]])
OVERHEAD = [2e-6, 3e-6, 7e-6]


def chain_step(chain: Any, inputs: tuple[torch.Tensor], **_: Any) -> Any:
    ops = nx.DiGraph()
    ops.add_node("input")
    for op in range(len(chain)):
        ops.add_node(op, bytes_accessed=8.0)
        ops.add_edge(op - 1 if op else "input", op, bytes=inputs[0].nbytes)
    return SimpleNamespace(graph=from_networkx(nx.relabel_nodes(ops, str)))


class KnownDevices:
    """Runs a chain of ops of 1 ms on devices whose links are known; each third run is slow."""

    def __init__(self, step: Any, names: Sequence[str]) -> None:
        self.devices = np.array([NAMES.index(name) for name in names])
        self.problem = PlacementProblem(
            graph=step.graph,
            cluster=parse_cluster(f"{len(names)}xcpu"),
            compute_time=np.zeros((step.graph.num_ops, len(names))),
        )

    def measure(self, placement: NDArray[np.int32], runs: int) -> list[Any]:
        graph, timelines = self.problem.graph, []
        op_device = self.devices[placement[self.problem.grouping.group_of]]
        for run in range(runs):
            start, now = np.zeros(graph.num_ops), 0.0
            ops = np.flatnonzero(graph.bytes_accessed).tolist()
            for op, next_op in zip(ops, [*ops[1:], None], strict=True):
                start[op] = now
                if next_op is not None:
                    source, destination = op_device[op], op_device[next_op]
                    transfer_time = (
                        LATENCY[source, destination]
                        + graph.tensor_bytes[0] / BANDWIDTH[source, destination]
                    )
                    gap = OVERHEAD[source] if source == destination else transfer_time
                    now += 1e-3 + gap * (9 if run % 3 == 0 else 1)
            timelines.append(SimpleNamespace(op_start=start, op_end=start + 1e-3))
        return timelines


@contextmanager
def known_devices(step: Any, names: Sequence[str]) -> Iterator[KnownDevices]:
    yield KnownDevices(step, names)


def test_a_bandwidth_that_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "executor_on", known_devices)
    with pytest.raises(
        ExecutionError,
        match=r"^cpu:0 to cpu:1: expected 4 bytes to take longer than 4, got 2e-05 s",
    ):
        Calibration(NAMES, chain_step, runs=9).links([4, 4])


def test_links_and_devices_that_are_known_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "executor_on", known_devices)
    measured = Calibration(NAMES, chain_step, runs=9)
    cluster = measured.cluster(measured.links([4, 4096, 4 << 20]), ["cpu"] * 3)
    sent = ~np.eye(3, dtype=bool)
    assert cluster.latency[sent] == pytest.approx(LATENCY[sent], rel=1e-3)
    assert cluster.bandwidth[sent] == pytest.approx(BANDWIDTH[sent], rel=1e-3)
    assert [device.op_overhead for device in cluster.devices] == pytest.approx(OVERHEAD, rel=1e-3)
