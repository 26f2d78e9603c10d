"""Layers that run one after another, some on each device: the form that pipelines take.

vLLM and DeepSpeed give each device some layers that run one after another. `layer_split`
returns the split that is the placement, or else the fastest one that is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.layers import LayerChain, chain_modules, layer_chain, layer_stacks
from placeto.exporting.module_scopes import ModuleScopes
from placeto.exporting.restriction import Price, steepest_descent
from placeto.exporting.stage_search import Stages, fastest_stages, neighbours, stages_of
from placeto.placing.costs import costs_of, fits
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import (
    SECONDS_PER_BYTE,
    EvaluationBatch,
    OpGraph,
    Phase,
    PlacementProblem,
)

MOST_ROUNDS = 20
NO_TIME = 1e-15  # seconds, so that ops without any count at all
LEAST_GAIN = 1e-3  # of a stage more: simulated transfers of few bytes cost less than real ones


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """The layers of a model, cut into K stages.

    Attributes
    ----------
    layers : N texts
        The modules, in the order in which they run.
    bounds : K + 1 of int
        The layer that each stage begins with, from 0, and N.
    devices : K of int
        The device of each stage.
    op_devices : int32[V]
        The device of each op of the step.
    as_placed : bool
        True if the placement has the layers there already.
    price : `Price`
        Cost of the split.
    """

    layers: tuple[str, ...]
    bounds: tuple[int, ...]
    devices: tuple[int, ...]
    op_devices: NDArray[np.int32]
    as_placed: bool
    price: Price

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of layers of each stage."""
        return tuple(np.diff(self.bounds).tolist())


def one_stack(scopes: ModuleScopes, library: str) -> tuple[str, ...]:
    """Return the layers of a model that has one stack of them."""
    stacks = layer_stacks(scopes)
    if len(stacks) != 1:
        found = ", ".join(f"{each.name or 'the model'} ({len(each.layers)})" for each in stacks)
        raise InputError(
            f"PROBLEM: expected one stack of layers, such as model.layers, as {library} splits "
            f"one, got {found or 'none'}"
        )
    return stacks[0].layers


def all_layers(scopes: ModuleScopes) -> tuple[str, ...]:
    """Return the layers of all stacks, and the modules before and behind them."""
    modules = chain_modules(scopes)
    if not modules:
        raise InputError("PROBLEM: expected a model whose modules have parameters, got none")
    return modules


def layer_split(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    layers: Sequence[str],
    devices: Sequence[int],
    evaluator: EvaluatorSpec = STEP,
) -> LayerSplit:
    """Return which device runs which layers, one after another.

    If the placement has each layer on one device, and the layers of a device in a row, it is the
    split. Otherwise the split is the fastest one found: dynamic programming proposes it, and the
    evaluator tries its neighbours. A weight that several layers read is on each of their devices.

    Parameters
    ----------
    problem
        The problem, with a graph whose scopes are names of modules.
    placement : int32[G]
        The device of each group.
    layers
        Modules in the order in which they run, such as `one_stack` returns.
    devices
        The devices that can be named; a stage may be on any of them.
    evaluator
        Evaluator of splits: by default the simulated time of a step.
    """
    scopes = ModuleScopes(problem.graph)
    chain = layer_chain(problem, scopes, layers)
    priced_by = _ChainEvaluator(chain, evaluator)
    nearest, as_placed = _nearest(chain, scopes, problem.expand(placement))
    stages = stages_of(nearest)
    if stages is not None and not _can_be(chain, stages, devices):
        stages = None
    as_placed = as_placed and stages is not None
    if stages is None or not as_placed:
        stages = _fastest(priced_by, stages, devices)
    return LayerSplit(
        layers=chain.layers,
        bounds=stages.bounds,
        devices=stages.devices,
        op_devices=stages.device_of_part()[chain.labels],
        as_placed=as_placed,
        price=_price(problem, placement, priced_by, stages),
    )


class _ChainEvaluator:
    """Prices stages of a chain of N layers, with a copy of a shared weight on each device."""

    def __init__(self, chain: LayerChain, spec: EvaluatorSpec) -> None:
        self.chain = chain
        self.spec = spec
        self._evaluator = spec.make(chain.problem, None)

    def evaluate(self, device_of_layer: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of int32[B, N], the device of each layer."""
        placements = np.empty((len(device_of_layer), self.chain.problem.num_groups), np.int32)
        placements[:, self.chain.group_of_layer] = device_of_layer
        priced = self._evaluator.evaluate(placements)
        peaks = priced.peak_memory.copy()
        everyone = np.arange(self.chain.problem.num_devices)
        for weight in self.chain.shared:
            reads = device_of_layer[:, weight.layers, None] == everyone
            copies = reads.any(axis=1) & ~reads[:, 0]
            peaks += copies * weight.num_bytes
        return EvaluationBatch(runtime=priced.runtime, peak_memory=peaks)

    def costs(self, stages: Sequence[Stages]) -> NDArray[np.float64]:
        """Return float64[B], the memory-penalised runtimes, in seconds."""
        batch = self.evaluate(np.stack([each.device_of_part() for each in stages]))
        return costs_of(self.chain.problem, batch)


def _nearest(
    chain: LayerChain, scopes: ModuleScopes, op_devices: NDArray[np.int32]
) -> tuple[NDArray[np.int64], bool]:
    """Return int64[N], where modules with parameters spend most time; whether they spend all."""
    of_op = scopes.outermost(chain_modules(scopes))
    ops = [op for op in scopes.computing if of_op[op] is not None]
    labels, there = chain.labels[ops], op_devices[ops]
    share = np.zeros((len(chain.layers), chain.problem.num_devices))
    np.add.at(share, (labels, there), chain.problem.compute_time[ops, there] + NO_TIME)
    nearest = share.argmax(axis=1)
    return nearest, bool((there == nearest[labels]).all())


def _can_be(chain: LayerChain, stages: Stages, devices: Sequence[int]) -> bool:
    """Whether stages are on some devices, and can run there."""
    if not set(stages.devices) <= set(devices):
        return False
    return bool(_runs(chain)[np.arange(len(chain.layers)), stages.device_of_part()].all())


def _runs(chain: LayerChain) -> NDArray[np.bool_]:
    """Return bool[N, D], whether a device can run a layer."""
    runs: NDArray[np.bool_] = np.isfinite(chain.problem.group_graph.compute_time)
    return runs[chain.group_of_layer]


def _fastest(evaluator: _ChainEvaluator, start: Stages | None, devices: Sequence[int]) -> Stages:
    """Return the fastest stages near those of a start, and of dynamic programming."""
    chain = evaluator.chain
    load, transfer = _chain_costs(chain, devices)
    found = [fastest_stages(load, transfer, each) for each in (np.add, np.maximum)]
    candidates = [Stages(each.bounds, tuple(devices[at] for at in each.devices)) for each in found]
    if start is not None:
        candidates.append(start)

    def possible(stages: list[Stages]) -> list[Stages]:
        return [each for each in stages if _can_be(chain, each, devices)]

    best = steepest_descent(
        possible(candidates),
        lambda stages: (
            evaluator.costs(stages)
            * (1 + LEAST_GAIN * np.array([len(each.devices) for each in stages]))
        ),
        lambda stages: possible(neighbours(stages, devices)),
        MOST_ROUNDS,
    )
    if best is None:
        names = ", ".join(chain.problem.cluster.device_names[each] for each in devices)
        raise InputError(f"PROBLEM: expected devices that can run the layers, got {names}")
    return best


def _chain_costs(
    chain: LayerChain, devices: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ``load`` and ``transfer`` of `fastest_stages` on some devices."""
    graph, cluster, labels = chain.problem.graph, chain.problem.cluster, chain.labels
    parts = len(chain.layers)
    held = np.bincount(labels, graph.parameter_bytes, parts)
    held += np.bincount(labels[graph.tensor_producer], _kept_bytes(graph), parts)
    load = np.empty((len(devices), parts + 1, parts + 1))
    seconds = chain.problem.busy_time
    for at, device in enumerate(devices):
        excess = np.maximum(_sums(held) - cluster.devices[device].memory_bytes, 0)
        load[at] = _sums(np.bincount(labels, seconds[:, device], parts)) + SECONDS_PER_BYTE * excess

    among = np.ix_(devices, devices)
    overhead = np.array([cluster.devices[each].transfer_overhead for each in devices])
    each = (cluster.latency[among] + overhead[:, None])[..., None]
    per_byte = (1 / cluster.bandwidth[among])[..., None]
    there, back = (
        tensors * each + num_bytes * per_byte
        for tensors, num_bytes in _crossing(graph, labels, parts)
    )
    return load, there + back.swapaxes(0, 1)


def _crossing(
    graph: OpGraph, labels: NDArray[np.int64], parts: int
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return how many tensors, and bytes, cross the cut before each part: forwards, backwards."""
    made = labels[graph.tensor_producer]
    made_at, read_at = labels[graph.edge_producers], labels[graph.edge_consumers]
    found = []
    for extreme in (np.maximum, np.minimum):
        end = made.copy()  # the last part that reads the tensor in this direction
        extreme.at(end, graph.edges[:, 0], extreme(made_at, read_at))
        low, high = np.minimum(made, end), np.maximum(made, end)
        amounts = []
        for amount in (np.ones(graph.num_tensors), graph.tensor_bytes):
            begins = np.bincount(low + 1, amount, parts + 1)
            amounts.append(np.cumsum(begins - np.bincount(high + 1, amount, parts + 1)))
        found.append((amounts[0], amounts[1]))
    return found


def _sums(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of values i to j - 1 at [i, j]; infinity where there are none."""
    lasting = np.isinf(values)
    totals, infinite = (
        np.concatenate([[0], np.cumsum(each)]) for each in (np.where(lasting, 0, values), lasting)
    )
    sums: NDArray[np.float64] = totals - totals[:, None]
    sums[(infinite > infinite[:, None]) | np.tri(len(totals), dtype=bool)] = np.inf
    return sums


def _kept_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[T], the bytes of activations that the backward pass reads; else 0."""
    kept = np.zeros(graph.num_tensors, bool)
    kept[graph.edges[graph.phases[graph.edge_consumers] == Phase.BACKWARD, 0]] = True
    made_by = graph.tensor_producer
    kept &= (graph.phases[made_by] == Phase.FORWARD) & (graph.parameter_bytes[made_by] == 0)
    return graph.tensor_bytes * kept


def _price(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    evaluator: _ChainEvaluator,
    stages: Stages,
) -> Price:
    before = evaluator.spec.make(problem, None).evaluate(placement[None])
    after = evaluator.evaluate(stages.device_of_part()[None])
    peaks = tuple(after.peak_memory[0].tolist())
    return Price(float(before.runtime[0]), float(after.runtime[0]), peaks, fits(problem, peaks))
