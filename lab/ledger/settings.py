"""The settings of the ledger: each is a step on published devices, and its simulated seconds.

Begin to read in `Training`. A setting returns the simulated seconds per sample (a sequence, a word,
a sentence, an image), so that settings of different batches compare.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from ledger.models import Transformer, translation_step
from placeto import capture_step
from placeto.problems.making import (
    EAGER_SECONDS_PER_OP,
    LAUNCH_OVERHEAD,
    SECONDS_OF_KERNEL,
    compute_times,
    make_problem,
)
from placeto.problems.options import GroupingOptions
from placeto.problems.sources import Source
from placeto_baselines import MEtf, MSct, MTopo, SingleDevice
from placeto_graphs import (
    Cluster,
    Grouping,
    OpGraph,
    PlacementProblem,
    from_networkx,
    parse_cluster,
    repeat_micro_batch_problem,
    scheduled,
)
from placeto_simulator import Simulator
from placeto_workloads import training_step

LAYER = re.compile(r"(?:(?:en|de)coder\.)?layers?\.?(\d+)")
WORD_BYTES = 8  # of a generated word, which goes back to the first stage
PLACERS = {"single": SingleDevice(), "m-etf": MEtf(), "m-sct": MSct(), "m-topo": MTopo()}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Devices and their links.

    Attributes
    ----------
    devices, link
        As `parse_cluster` takes them.
    bandwidth, latency, overhead
        Bytes per second of all links, seconds of a message, and of a copy, instead of those of a
        named one.
    """

    devices: str
    link: str | None = None
    bandwidth: float | None = None
    latency: float = 0.0
    overhead: float = 0.0

    @property
    def cluster(self) -> Cluster:
        """The devices."""
        if self.bandwidth is None:
            return parse_cluster(self.devices, link=self.link)
        cluster = parse_cluster(self.devices)
        shape = cluster.bandwidth.shape
        return replace(
            cluster,
            devices=tuple(
                replace(device, transfer_overhead=self.overhead) for device in cluster.devices
            ),
            bandwidth=np.full(shape, self.bandwidth),
            latency=np.full(shape, self.latency),
        )

    def seconds(self) -> float:
        """Return the simulated seconds per sample."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class InStages(Setting):
    """A Transformer in stages, one on each device.

    Attributes
    ----------
    model
        Sizes of the model, and of one micro-batch.
    stages
        Number of layers of each stage; by default equal numbers. The embeddings are with the first
        layers, head and loss with the last ones.
    micro_batches
        Number of micro-batches of a step.
    """

    model: Transformer
    stages: tuple[int, ...] = ()
    micro_batches: int = 1

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """Number of layers of each stage."""
        count = self.cluster.num_devices
        layers = self.stages or (self.model.layers // count,) * count
        if sum(layers) != self.model.layers or len(layers) != count:
            raise ValueError(f"stages: {layers} are not {self.model.layers} layers on {count}")
        return layers

    def problem_of(self, graph: OpGraph, layers: tuple[int, ...]) -> PlacementProblem:
        """Return the problem of placing a micro-batch, whose groups are the stages in order."""
        stage_of_layer = np.repeat(np.arange(len(layers)), layers)
        last = len(layers) - 1
        return _problem_in_stages(graph, self.cluster, stage_of_layer, {"embedding": 0}, last)


@dataclass(frozen=True, kw_only=True)
class Training(InStages):
    """A training step in micro-batches.

    By default devices run backward ops first, as 1F1B does. With ``gpipe`` the backward pass begins
    after the whole forward pass.
    """

    gpipe: bool = False
    optimizer: str = "Adam"

    def problem(self) -> PlacementProblem:
        """Return the problem of the step, whose groups are the stages in order."""
        graph = _captured(self.model, "training", self.optimizer)
        micro_batch = self.problem_of(graph, self.layers_of_stages)
        step = repeat_micro_batch_problem(micro_batch, self.micro_batches)
        step = replace(step, compute_time=compute_times(step.graph, step.cluster))
        if not self.gpipe or self.micro_batches == 1:
            return step
        return scheduled(step, "gpipe", np.arange(step.num_groups, dtype=np.int32))

    def seconds(self) -> float:
        """Return the simulated seconds per sequence."""
        return runtime(self.problem()) / (self.micro_batches * self.model.batch)

    def peak_memory(self) -> NDArray[np.int64]:
        """Return int64[D], the simulated peak memory of each device, in bytes."""
        problem = self.problem()
        placement = np.arange(problem.num_groups, dtype=np.int32)
        peaks: NDArray[np.int64] = Simulator(problem).evaluate(placement[None]).peak_memory[0]
        return peaks


@dataclass(frozen=True, kw_only=True)
class Inference(InStages):
    """Forward passes in micro-batches, for several words one after the other.

    The next word of a micro-batch begins when the last stage has made the one before. A stage is
    one op, which takes as long as its ops one after the other. In eager PyTorch an op takes at
    least as long as its host needs; a kernel of a server takes as long as `place` assumes.
    """

    rounds: int = 1  # number of words
    issued_by: str = ""  # "PyTorch" for a word in eager PyTorch, or "server"

    def seconds(self) -> float:
        """Return the simulated seconds per sequence and word."""
        seconds = np.tile(self.seconds_of_stages(self.model), (self.micro_batches, 1))
        problem = chain_problem(seconds, self.model.boundary_bytes, self.rounds, self.cluster)
        return runtime(problem) / (self.micro_batches * self.model.batch * self.rounds)

    def seconds_of_stages(self, model: Transformer) -> NDArray[np.float64]:
        """Return float64[S], the seconds of the ops of each stage, one after the other.

        One layer of each stage is captured, and counts once for each layer.
        """
        layers = self.layers_of_stages
        graph = _captured(replace(model, layers=len(layers)), "inference")
        problem = self.problem_of(graph, (1,) * len(layers))
        stages = problem.grouping.group_of
        is_of_layer = [LAYER.match(scope) is not None for scope in graph.scopes]
        times = np.where(is_of_layer, np.array(layers)[stages], 1)
        busy_time = problem.busy_time[np.arange(len(stages)), stages]
        if self.issued_by == "PyTorch":
            busy_time = np.where(busy_time, np.maximum(busy_time, EAGER_SECONDS_PER_OP), 0)
        elif self.issued_by == "server":
            launches = [device.op_overhead + LAUNCH_OVERHEAD for device in problem.cluster.devices]
            of_kernel = SECONDS_OF_KERNEL - np.array(launches)[stages]
            busy_time = np.where(busy_time, busy_time + of_kernel, 0)
        return np.bincount(stages, times * busy_time).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Prompt(Inference):
    """The forward pass of a prompt, whole or in chunks; a chunk attends to those before it."""

    prompt: int  # number of words
    chunk: int = 0  # number of words of a chunk; 0 for all

    def seconds(self) -> float:
        """Return the simulated seconds per word."""
        length = self.chunk or self.prompt
        chunks = [
            replace(self.model, length=length, past=past) for past in range(0, self.prompt, length)
        ]
        seconds = np.stack([self.seconds_of_stages(chunk) for chunk in chunks])
        problem = chain_problem(seconds, chunks[0].boundary_bytes, 1, self.cluster)
        return runtime(problem) / self.prompt


@dataclass(frozen=True, kw_only=True)
class Translation(Setting):
    """A training step of an LSTM translator, layer i of encoder and decoder on device i.

    Embeddings and attention are with the bottom layers, the softmax is with the top ones.
    """

    layers: int
    query_layer: int = -1

    def seconds(self) -> float:
        """Return the simulated seconds of a step; all have the same batch."""
        graph = _captured_translator(self.layers, self.query_layer)
        cluster = self.cluster
        last = cluster.num_devices - 1
        device_of_layer = np.minimum(np.arange(self.layers), last)
        return runtime(_problem_in_stages(graph, cluster, device_of_layer, {"softmax": last}, 0))


@dataclass(frozen=True, kw_only=True)
class Inception(Setting):
    """A training step of Inception-V3 by gradient descent, placed by a list scheduler or alone."""

    placer: str
    batch: int = 64

    def seconds(self) -> float:
        """Return the simulated seconds per image."""
        source = Source("inception-v3", _captured_inception(self.batch))
        problem = make_problem(source, self.cluster, GroupingOptions(merging=False))
        placed = PLACERS[self.placer].place(problem, Simulator(problem, num_threads=1))
        return placed.runtime / self.batch


MODES: dict[str, type[Setting]] = {
    "training": Training,
    "inference": Inference,
    "prompt": Prompt,
    "translation": Translation,
    "inception": Inception,
}


@cache  # settings that differ in devices and schedules have one graph
def _captured(model: Transformer, mode: str, optimizer: str = "Adam") -> OpGraph:
    return capture_step(model.step(mode, optimizer), autocast=model.autocast)


@cache
def _captured_translator(layers: int, query_layer: int) -> OpGraph:
    return capture_step(translation_step(layers, query_layer))


@cache
def _captured_inception(batch: int) -> OpGraph:
    step = training_step("inception-v3", batch_size=batch)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return capture_step(step._replace(optimizer=optimizer, updates="after-backward"))


def _problem_in_stages(
    graph: OpGraph,
    cluster: Cluster,
    stage_of_layer: NDArray[np.int64],
    stage_of_scope: Mapping[str, int],
    elsewhere: int,
) -> PlacementProblem:
    """Return the problem whose groups are stages: of layers, of other scopes, and of the rest."""
    stages = np.full(graph.num_ops, elsewhere, np.int32)
    for op, scope in enumerate(graph.scopes):
        layer = LAYER.match(scope)
        named = stage_of_scope.get(scope.partition(".")[0], elsewhere)
        stages[op] = stage_of_layer[int(layer[1])] if layer else named
    for op, op_type in enumerate(graph.op_types):
        if op_type == "input":  # with the first op that reads it
            stages[op] = stages[graph.consumers_of_tensor[graph.tensors_of_op[op][0]][0]]
    return PlacementProblem(
        graph=graph,
        cluster=cluster,
        compute_time=compute_times(graph, cluster),
        grouping=_stages(stages[graph.colocation_leaders], cluster.num_devices),
    )


def _stages(stage_of_op: NDArray[np.int32], count: int) -> Grouping:
    names = tuple(f"stage {stage}" for stage in range(count))
    return Grouping(group_of=stage_of_op, group_names=names)


def chain_problem(
    seconds: NDArray[np.float64], boundary_bytes: int, rounds: int, cluster: Cluster
) -> PlacementProblem:
    """Return the problem of stages that work on micro-batches, whose groups are the stages."""
    count, stages = seconds.shape
    chain = nx.DiGraph()
    for word, batch, stage in np.ndindex(rounds, count, stages):
        chain.add_node((word, batch, stage))
        if stage:
            chain.add_edge((word, batch, stage - 1), (word, batch, stage), bytes=boundary_bytes)
        elif word:
            chain.add_edge((word - 1, batch, stages - 1), (word, batch, stage), bytes=WORD_BYTES)
    # Each stage has one device, so that it does not matter what its ops take on the others.
    of_op = np.broadcast_to(seconds, (rounds, count, stages)).reshape(-1, 1)
    return PlacementProblem(
        graph=from_networkx(nx.relabel_nodes(chain, str)),
        cluster=cluster,
        compute_time=np.repeat(of_op, stages, axis=1),
        grouping=_stages(np.tile(np.arange(stages, dtype=np.int32), rounds * count), stages),
    )


def runtime(problem: PlacementProblem) -> float:
    """Return the simulated seconds with group i on device i."""
    placement = np.arange(problem.num_groups, dtype=np.int32)
    return float(Simulator(problem, num_threads=1).evaluate(placement[None]).runtime[0])
