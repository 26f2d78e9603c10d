"""Layers that run one after another, some on each device: the form that pipelines take.

vLLM and DeepSpeed give each device some layers that run one after another. `layer_split`
returns the split that is the placement, or else the fastest one that is found: dynamic programming
over cut points and sets of devices proposes some, and the evaluator tries their neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeto.errors import InputError
from placeto.exporting.forms import Price, price, steepest_descent
from placeto.exporting.layers import LayerChain, chain_modules
from placeto.exporting.module_scopes import ModuleScopes
from placeto.placing.evaluators import STEP, EvaluatorSpec
from placeto_graphs import (
    SECONDS_PER_BYTE,
    OpGraph,
    Phase,
    PlacementProblem,
    memory_penalised_runtime,
)

MOST_ROUNDS = 20
NO_TIME = 1e-15  # seconds, so that ops without any count at all
LEAST_GAIN = 1e-3  # of a stage more: simulated transfers of few bytes cost less than real ones
STEPS = (1, 2, 4, 8, 16)  # by which a cut moves
MOST_IN_ANY_ORDER = 8  # devices of which all orders are tried; more are in ascending order
NONE = -1
Combine = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Stages:
    """K stages of a chain of N layers."""

    bounds: tuple[int, ...]  # K + 1: the layer that each stage begins with, from 0, and N
    devices: tuple[int, ...]  # of each stage, each another one

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of layers of each stage."""
        return tuple(np.diff(self.bounds).tolist())

    def device_of_layer(self) -> NDArray[np.int32]:
        """Return int32[N]."""
        return np.repeat(np.array(self.devices, np.int32), np.diff(self.bounds))


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """The layers of a model, cut into stages."""

    layers: tuple[str, ...]  # the modules, in the order in which they run
    stages: Stages
    op_devices: NDArray[np.int32]  # [V], the device of each op of the step
    as_placed: bool  # whether the placement has the layers there already
    price: Price


def layer_split(
    problem: PlacementProblem,
    placement: NDArray[np.int32],
    layers: Sequence[str],
    devices: Sequence[int],
    evaluator: EvaluatorSpec = STEP,
) -> LayerSplit:
    """Return which of some devices runs which layers, one after another.

    If the placement, int32[G], has each layer on one device, and the layers of a device in a row,
    it is the split. Otherwise the split is the fastest one found.
    """
    scopes = ModuleScopes(problem.graph)
    chain = LayerChain(problem, scopes, layers, evaluator)
    nearest, as_placed = _nearest(chain, scopes, problem.expand(placement))
    stages = stages_of(nearest)
    if stages is not None and not _can_be(chain, stages, devices):
        stages = None
    as_placed = as_placed and stages is not None
    if stages is None or not as_placed:
        stages = _fastest(chain, stages, devices)
    device_of_layer = stages.device_of_layer()
    return LayerSplit(
        layers=chain.layers,
        stages=stages,
        op_devices=device_of_layer[chain.labels],
        as_placed=as_placed,
        price=price(problem, placement, chain.evaluate(device_of_layer[None]), evaluator),
    )


def stages_of(device_of_layer: NDArray[np.integer]) -> Stages | None:
    """Return the stages of a device for each layer; None if a device has two of them."""
    begins = np.flatnonzero(np.diff(device_of_layer, prepend=NONE)).tolist()
    devices = tuple(device_of_layer[begins].tolist())
    if len(set(devices)) < len(devices):
        return None
    return Stages((*begins, len(device_of_layer)), devices)


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
    return bool(chain.runs[np.arange(len(chain.layers)), stages.device_of_layer()].all())


def _fastest(chain: LayerChain, start: Stages | None, devices: Sequence[int]) -> Stages:
    """Return the fastest stages near those of a start, and of dynamic programming."""
    load, transfer = _chain_costs(chain, devices)
    found = [fastest_stages(load, transfer, each) for each in (np.add, np.maximum)]
    candidates = [Stages(each.bounds, tuple(devices[at] for at in each.devices)) for each in found]
    if start is not None:
        candidates.append(start)

    def costs(stages: Sequence[Stages]) -> NDArray[np.float64]:
        batch = chain.evaluate(np.stack([each.device_of_layer() for each in stages]))
        gains = 1 + LEAST_GAIN * np.array([len(each.devices) for each in stages])
        return memory_penalised_runtime(batch, chain.problem.cluster.memory_bytes) * gains

    def possible(stages: list[Stages]) -> list[Stages]:
        return [each for each in stages if _can_be(chain, each, devices)]

    best = steepest_descent(
        possible(candidates),
        costs,
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
    layers = len(chain.layers)
    held = np.bincount(labels, graph.parameter_bytes, layers)
    held += np.bincount(labels[graph.tensor_producer], _kept_bytes(graph), layers)
    load = np.empty((len(devices), layers + 1, layers + 1))
    seconds = chain.problem.busy_time
    for at, device in enumerate(devices):
        excess = np.maximum(_sums(held) - cluster.devices[device].memory_bytes, 0)
        load[at] = _sums(np.bincount(labels, seconds[:, device], layers))
        load[at] += SECONDS_PER_BYTE * excess

    among = np.ix_(devices, devices)
    overhead = np.array([cluster.devices[each].transfer_overhead for each in devices])
    each = (cluster.latency[among] + overhead[:, None])[..., None]
    per_byte = (1 / cluster.bandwidth[among])[..., None]
    there, back = (
        tensors * each + num_bytes * per_byte
        for tensors, num_bytes in _crossing(graph, labels, layers)
    )
    return load, there + back.swapaxes(0, 1)


def _crossing(
    graph: OpGraph, labels: NDArray[np.int64], layers: int
) -> list[list[NDArray[np.float64]]]:
    """Return how many tensors, and bytes, cross the cut before each layer: forwards, backwards."""
    made = labels[graph.tensor_producer]
    made_at, read_at = labels[graph.edge_producers], labels[graph.edge_consumers]
    found = []
    for extreme in (np.maximum, np.minimum):
        end = made.copy()  # the last layer that reads the tensor in this direction
        extreme.at(end, graph.edges[:, 0], extreme(made_at, read_at))
        low, high = np.minimum(made, end), np.maximum(made, end)
        amounts = []
        for amount in (np.ones(graph.num_tensors), graph.tensor_bytes):
            begins = np.bincount(low + 1, amount, layers + 1)
            amounts.append(np.cumsum(begins - np.bincount(high + 1, amount, layers + 1)))
        found.append(amounts)
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


class _Frontier(NamedTuple):
    """The least costs of the layers before each one, if the last of them are on some device."""

    cost: NDArray[np.float64]
    cut: NDArray[np.int64]  # where the last stage begins
    device: NDArray[np.int64]  # of the stage before, if there is one


def fastest_stages(
    load: NDArray[np.float64], transfer: NDArray[np.float64], combine: Combine
) -> Stages:
    """Return the stages of the least cost, which is the sum of its stages or the slowest of them.

    ``load``, float64[D, N + 1, N + 1], has the seconds of layers i to j - 1 on each device at
    [i, j]; infinity where it cannot run them. ``transfer``, float64[D, D, N + 1], has the seconds
    that a cut before layer i costs, from one device to another. ``combine`` is ``np.add``, or
    ``np.maximum`` for the slowest stage.
    """
    every, ends = range(len(load)), np.arange(load.shape[1])
    in_order = len(every) > MOST_IN_ANY_ORDER

    def before(used: int, last: int) -> int:
        return used if in_order else used ^ 1 << last

    found: dict[tuple[int, int], _Frontier] = {}  # by the set of used devices, and the last one
    for used in [(1 << len(every)) - 1] if in_order else range(1 << len(every)):
        for last in [device for device in every if used >> device & 1]:
            here = _Frontier(load[last, 0].copy(), np.zeros_like(ends), np.full_like(ends, NONE))
            earlier = [device for device in every if before(used, last) >> device & 1]
            if in_order:
                earlier = earlier[:last]
            elif earlier:
                here.cost[:] = np.inf
            for device in reversed(earlier):  # of equal ones the devices are in ascending order
                cost = found[before(used, last), device].cost
                total = combine(cost[:, None], transfer[device, last][:, None] + load[last])
                cut = total.argmin(axis=0)
                better = total[cut, ends] < here.cost
                here.cost[better] = total[cut, ends][better]
                here.cut[better] = cut[better]
                here.device[better] = device
            found[used, last] = here
    used, last = min(found, key=lambda state: (found[state].cost[-1], -state[1]))
    end = int(ends[-1])
    bounds, devices = [end], []
    while last != NONE:
        here = found[used, last]
        devices.append(last)
        used, last, end = before(used, last), int(here.device[end]), int(here.cut[end])
        bounds.append(end)
    return Stages(tuple(bounds[::-1]), tuple(devices[::-1]))


def neighbours(stages: Stages, devices: Sequence[int]) -> list[Stages]:
    """Return stages that differ in one cut, or in the devices of one or two stages."""
    bounds, used = list(stages.bounds), list(stages.devices)
    unused = [device for device in devices if device not in used]
    found = []
    for stage in range(1, len(used)):
        low, begin, high = bounds[stage - 1 : stage + 2]
        moved = {begin + step for step in (*STEPS, *(-step for step in STEPS))}
        found += [
            ([*bounds[:stage], cut, *bounds[stage + 1 :]], used)
            for cut in sorted(moved)
            if low < cut < high
        ]
        for other in range(stage):  # two of them change places
            swapped = used.copy()
            swapped[stage], swapped[other] = used[other], used[stage]
            found.append((bounds, swapped))
        without = bounds[:stage] + bounds[stage + 1 :]  # two of them become one
        found += [(without, used[:gone] + used[gone + 1 :]) for gone in (stage - 1, stage)]
    for stage, (begin, end) in enumerate(pairwise(bounds)):
        inside = {begin + step for step in STEPS} | {end - step for step in STEPS}
        cuts = sorted(cut for cut in inside if begin < cut < end)
        for device in unused:
            found.append((bounds, [*used[:stage], device, *used[stage + 1 :]]))
            for cut in cuts:  # it becomes two
                halved = [*bounds[: stage + 1], cut, *bounds[stage + 1 :]]
                found += [(halved, [*used[:at], device, *used[at:]]) for at in (stage, stage + 1)]
    return [Stages(tuple(bounds), tuple(used)) for bounds, used in found]
