"""Tiny problems with a plain evaluator, whose best placements brute force finds."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from placeto_graphs import (
    EvaluationBatch,
    Evaluator,
    PlacementProblem,
    PlacementResult,
    ScheduleBatch,
    from_networkx,
    memory_penalised_runtime,
    parse_cluster,
)
from placeto_policy import Settings, Trainer, UpdateSummary, save_training

K80_BYTES = 10_700_000_000
BANDWIDTH = 7.6e9
# Ten times as fast as by default, for what does not depend on how much is learned.
QUICK = Settings(message_rounds=2, hidden_units=16, minibatches=2, epochs=1)


def train(trainer: Trainer, checkpoint: Path | None = None) -> list[UpdateSummary]:
    """Make the updates that are left, and write the training to a file."""
    summaries = [trainer.update() for _ in range(trainer.updates, trainer.settings.updates)]
    if checkpoint:
        save_training(trainer, checkpoint)
    return summaries


class ListSchedule:
    """Groups run in topological order, each when its inputs are there and its device is free."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.placements_seen = 0

    def evaluate(self, placements: NDArray[np.int32]) -> EvaluationBatch:
        self.placements_seen += len(placements)
        _, end, memory = self._times_and_memory(placements)
        return EvaluationBatch(runtime=end.max(axis=1), peak_memory=memory)

    def schedule(self, placements: NDArray[np.int32]) -> ScheduleBatch:
        start, end, memory = self._times_and_memory(placements)
        return ScheduleBatch(runtime=end.max(axis=1), peak_memory=memory, start=start, end=end)

    def _times_and_memory(
        self, placements: NDArray[np.int32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        placements = self.problem.check_placements(placements)
        start, end = np.zeros((2, *placements.shape))
        memory = np.zeros((len(placements), self.problem.num_devices), np.int64)
        for rows in zip(placements, start, end, memory, strict=True):
            self._run(*rows)
        return start, end, memory

    def _run(
        self,
        placement: NDArray[np.int32],
        start: NDArray[np.float64],
        end: NDArray[np.float64],
        memory: NDArray[np.int64],
    ) -> None:
        graph = self.problem.group_graph
        free = np.zeros(graph.num_devices)
        for group in graph.topological_order:
            device = placement[group]
            ready = free[device]
            for (source, reader), size in zip(graph.edges, graph.edge_bytes, strict=True):
                if reader == group:
                    transfer = size / BANDWIDTH if placement[source] != device else 0.0
                    ready = max(ready, end[source] + transfer)
            start[group] = ready
            end[group] = free[device] = ready + graph.compute_time[group, device]
            memory[device] += int(graph.parameter_bytes[group])


def with_room(problem: PlacementProblem) -> PlacementProblem:
    """Return a problem on devices of much memory: `ListSchedule` counts no tensors."""
    cluster = problem.cluster
    devices = tuple(replace(device, memory_bytes=10**15) for device in cluster.devices)
    return replace(problem, cluster=replace(cluster, devices=devices))


def without_seconds(graph: nx.DiGraph) -> nx.DiGraph:
    """Return a graph without what only its test knows: `from_networkx` refuses it."""
    plain = graph.copy()
    for _, attributes in plain.nodes(data=True):
        attributes.pop("seconds", None)
    return plain


def problem_of(graph: nx.DiGraph, num_devices: int = 2, seconds: float = 1.0) -> PlacementProblem:
    """Return a problem of one op per group; nodes may have ``seconds``."""
    ops = from_networkx(without_seconds(graph))
    times = np.array([graph.nodes[node].get("seconds", seconds) for node in graph.nodes])
    return PlacementProblem(
        graph=ops,
        cluster=parse_cluster(f"{num_devices}xk80"),
        compute_time=np.tile(times[:, None], (1, num_devices)),
    )


def two_chains(length: int = 3) -> PlacementProblem:
    """Return two chains that share nothing; moving data costs a fifth of a group."""
    graph = nx.DiGraph()
    for name in "ab":
        nx.add_path(graph, [f"{name}{step}" for step in range(length)], bytes=int(0.2 * BANDWIDTH))
    return problem_of(graph)


def heavy_chain(length: int = 6) -> PlacementProblem:
    """Return a chain along which moving data costs twice as much as a group."""
    return problem_of(path(length, transfer_seconds=2))


def too_large_for_one(length: int = 6) -> PlacementProblem:
    """Return a chain whose weights fill two devices, though one of them would be faster."""
    graph = path(length, transfer_seconds=0.1)
    nx.set_node_attributes(graph, 2 * K80_BYTES // length, "parameter_bytes")
    return problem_of(graph)


def two_speeds(length: int = 6) -> PlacementProblem:
    """Return a chain that begins fast on either device, and goes on so on the second alone."""
    problem = problem_of(path(length, transfer_seconds=0.2))
    compute_time = problem.compute_time.copy()
    compute_time[length // 2 :, 0] = 3.0
    return replace(problem, compute_time=compute_time)


def two_by_turns(length: int = 6) -> PlacementProblem:
    """Return a chain whose weights fill two devices, each of which is faster at every other op."""
    graph = path(length, transfer_seconds=0.1)
    nx.set_node_attributes(graph, 2 * K80_BYTES // length, "parameter_bytes")
    problem = problem_of(graph)
    compute_time = problem.compute_time.copy()
    compute_time[::2, 0] = compute_time[1::2, 1] = 3.0
    return replace(problem, compute_time=compute_time)


def path(length: int, transfer_seconds: float) -> nx.DiGraph:
    """Return a chain."""
    graph = nx.path_graph(length, create_using=nx.DiGraph)
    nx.set_edge_attributes(graph, int(transfer_seconds * BANDWIDTH), "bytes")
    return graph


def penalised(evaluator: Evaluator, placements: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return R of placements."""
    return memory_penalised_runtime(
        evaluator.evaluate(placements), evaluator.problem.cluster.memory_bytes
    )


def optimum(evaluator: Evaluator) -> float:
    """Return the least R of all placements."""
    problem = evaluator.problem
    every = itertools.product(range(problem.num_devices), repeat=problem.num_groups)
    return float(penalised(evaluator, np.array(list(every), np.int32)).min())


def partly_possible() -> PlacementProblem:
    """Return a chain of three groups, the first of which only the second device can run."""
    problem = problem_of(nx.path_graph(3, create_using=nx.DiGraph))
    compute_time = problem.compute_time.copy()
    compute_time[0, 0] = np.inf
    return replace(problem, compute_time=compute_time)


@dataclass
class Given:
    """A placer that says one placement, and that it took three evaluations to find it."""

    placement: NDArray[np.int32]
    name: str = "given"

    def place(
        self, problem: PlacementProblem, evaluator: Evaluator, *, seed: int = 0
    ) -> PlacementResult:
        del problem, seed
        batch = evaluator.evaluate(self.placement[None])
        return PlacementResult(
            placement=self.placement,
            runtime=float(batch.runtime[0]),
            peak_memory=batch.peak_memory[0],
            evaluations=3,
            seconds=0.0,
            curve=np.array([[3.0, batch.runtime[0]]]),
        )
