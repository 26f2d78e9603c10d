"""Chains of layers: each device runs some layers one after another, as the stages of a pipeline.

`best_chain` proposes stages by dynamic programming over cuts and devices (`proposed_stages`), and
moves those that the evaluator prices best (`neighbours`, `steepest_descent`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeto_baselines.devices import shared_links
from placeto_graphs import (
    MEMORY_PENALTY,
    EvaluationBatch,
    Evaluator,
    OpGraph,
    Phase,
    PlacementProblem,
    placement_ranks,
)

Candidate = TypeVar("Candidate")

BEAM = 16  # sets of used devices that are kept, of each size: all of up to five devices
WORK_OF_OP = 2.0  # sums of costs in a small part of the time in which an op is simulated
LEAST_WORK = 4_096  # sums that take as long as the calls for any number of layers
LIMITS = (1.0, 1.1, 1.2, 1.4, 2.0, math.inf)  # of the slowest stage, in the least that it can take
MOST_OF_LIMIT = 16
MOST_PROPOSED = 96
DESCENTS = 24  # that begin at proposed stages; fewer miss chains that fit
MOST_ROUNDS = 20
MOST_EVALUATIONS = 2_000
SHARE_IN_TURN = 0.8  # of a step: weights are updated on all devices at once
LEAST_GAIN = 1e-3  # of a stage more: simulated transfers of few bytes cost less than real ones
STEPS = (1, 2, 4, 8)  # by which a cut moves


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


class LayerChain:
    """A problem whose G groups belong to N layers that run one after another.

    Parameters
    ----------
    problem
        Problem to place.
    evaluator
        Evaluator of the problem.
    layer_of_group
        int[G], the layer of each group, from 0 to N - 1; each layer has a group.
    is_free
        bool[G], groups that do not decide where their layer can run; none by default.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        evaluator: Evaluator,
        layer_of_group: NDArray[np.int64],
        is_free: NDArray[np.bool_] | None = None,
    ) -> None:
        self.problem, self.evaluator, self.layer_of_group = problem, evaluator, layer_of_group
        self.num_layers = int(layer_of_group.max()) + 1
        runs = np.isfinite(problem.group_graph.compute_time)
        if is_free is not None:
            runs[is_free] = True
        self.runs = np.ones((self.num_layers, problem.num_devices), np.bool_)  # where a layer can
        np.logical_and.at(self.runs, layer_of_group, runs)

    @property
    def labels(self) -> NDArray[np.int64]:
        """int64[V], the layer of each op."""
        labels: NDArray[np.int64] = self.layer_of_group[self.problem.grouping.group_of]
        return labels

    def evaluate(self, device_of_layer: NDArray[np.int32]) -> EvaluationBatch:
        """Return the costs of B placements of layers.

        Parameters
        ----------
        device_of_layer
            int32[B, N], the device of each layer.
        """
        return self.evaluator.evaluate(device_of_layer[:, self.layer_of_group])

    def can_be(self, stages: Stages, devices: Sequence[int]) -> bool:
        """Return whether stages are on some devices, and can run there."""
        if not set(stages.devices) <= set(devices):
            return False
        return bool(self.runs[np.arange(self.num_layers), stages.device_of_layer()].all())


def best_chain(
    chain: LayerChain,
    devices: Sequence[int],
    starts: Sequence[Stages] = (),
    max_evaluations: int = MOST_EVALUATIONS,
) -> Stages | None:
    """Return the best stages that are found on some devices; None if no stages can run there.

    What fits the memory comes first.

    Parameters
    ----------
    chain
        Problem with its layers.
    devices
        Devices that stages may be on, each one at most.
    starts
        Stages that are tried besides the proposed ones.
    max_evaluations
        About the most stages that are evaluated. To propose some takes a small part of their time.

    Examples
    --------
    >>> chain = LayerChain(problem, evaluator, np.array([0, 1, 0, 1]))
    >>> best_chain(chain, range(problem.num_devices)).sizes
    (1, 1)
    """
    kinds = _kinds(chain.problem, devices)
    kind_of = dict(zip(devices, kinds, strict=True))
    rank_of: dict[Stages, tuple[bool, float]] = {}  # of all that were evaluated

    def ranks(stages: Sequence[Stages]) -> list[tuple[bool, float]]:
        new = [candidate for candidate in dict.fromkeys(stages) if candidate not in rank_of]
        if new:
            batch = chain.evaluate(np.stack([candidate.device_of_layer() for candidate in new]))
            new_ranks = placement_ranks(batch, chain.problem.cluster.memory_bytes)
            for (lacks, cost), candidate in zip(new_ranks, new, strict=True):
                rank_of[candidate] = lacks, cost * (1 + LEAST_GAIN * len(candidate.devices))
        return [rank_of[candidate] for candidate in stages]

    def near(stages: Stages) -> list[Stages]:
        evaluations_left = max_evaluations - len(rank_of)
        if evaluations_left <= 0:
            return []
        rest = [device for device in devices if device not in stages.devices]
        unused = sorted({kind_of[device]: device for device in reversed(rest)}.values())
        candidates = [
            candidate
            for candidate in neighbours(stages, unused)
            if chain.can_be(candidate, devices)
        ]
        step = max(1, math.ceil(len(candidates) / evaluations_left))
        return candidates[::step]  # spread over all of them, if there are too many

    sums = max_evaluations * WORK_OF_OP * chain.problem.graph.num_ops / len(devices) ** 2
    beam = int(np.clip(sums / (chain.num_layers**2 + LEAST_WORK), 1, BEAM))
    proposed = proposed_stages(chain, devices, kinds, beam)
    proposed = proposed[: min(MOST_PROPOSED, max(1, max_evaluations // 4))]
    first = [*(start for start in starts if chain.can_be(start, devices)), *proposed]
    if not first:
        return None
    first_ranks = ranks(first)
    order = sorted(range(len(first)), key=first_ranks.__getitem__)
    ends = [
        steepest_descent([first[index]], ranks, near, MOST_ROUNDS) for index in order[:DESCENTS]
    ]
    return min(filter(None, ends), key=rank_of.__getitem__)


def chain_placement(
    chain: LayerChain, devices: Sequence[int], max_evaluations: float
) -> NDArray[np.int32] | None:
    """Return int32[G], the best chain of layers on some devices, if there is one."""
    max_evaluations = min(max_evaluations, MOST_EVALUATIONS)
    stages = best_chain(chain, devices, max_evaluations=int(max_evaluations))
    return None if stages is None else stages.device_of_layer()[chain.layer_of_group]


def steepest_descent(
    candidates: Sequence[Candidate],
    ranks: Callable[[Sequence[Candidate]], Sequence[Any]],
    neighbours: Callable[[Candidate], Sequence[Candidate]],
    most_rounds: int,
) -> Candidate | None:
    """Return the best candidate, moved to its best neighbour as long as that ranks lower.

    Parameters
    ----------
    candidates
        Candidates to start from; without any the result is None.
    ranks
        Function that returns the rank of each of some candidates; the least is the best.
    neighbours
        Function that returns the neighbours of a candidate.
    most_rounds
        Maximum number of rounds, in each of which all neighbours of one candidate are ranked.
    """
    best, best_rank = None, None
    for _ in range(most_rounds):
        if not candidates:
            break
        candidate_ranks = ranks(candidates)
        place = min(range(len(candidates)), key=candidate_ranks.__getitem__)
        if best_rank is not None and not candidate_ranks[place] < best_rank:
            break
        best, best_rank = candidates[place], candidate_ranks[place]
        candidates = neighbours(best)
    return best


def proposed_stages(
    chain: LayerChain, devices: Sequence[int], kinds: Sequence[int], beam: int
) -> list[Stages]:
    """Return stages for the evaluator to choose from, the most promising first.

    They have the least sum of seconds of all stages of which none takes longer than a limit, for
    several limits, used devices and last devices, and with and without a penalty for memory. A step
    in m micro-batches takes about the m-th part of the sum, and else as long as the slowest stage.
    """
    load, lack, transfer = chain_costs(chain, devices)
    alone = np.maximum(load[:, 0, -1], np.finfo(float).tiny)  # all layers on one device
    # The least that the slowest stage can take: all devices are done at once, ...
    fair = 1 / max((1 / alone).sum(), np.finfo(float).tiny)
    # ... or the largest layer is on its fastest device.
    fair = max(fair, float(np.diagonal(load, 1, 1, 2).min(axis=0).max()))
    in_turn = SHARE_IN_TURN / (chain.problem.graph.micro_batch.max(initial=0) + 1)
    paid = load + lack
    cost_of_stages: dict[Stages, float] = {}
    lacks = {0.0, float(lack[np.isfinite(lack)].max())}  # nothing, or as much as there is
    for limit, lack_limit in product(LIMITS, sorted(lacks)):
        limited = np.where((load <= limit * fair) & (lack <= lack_limit), paid, np.inf)
        for cost, stages in fastest_stages(limited, transfer, kinds, beam)[:MOST_OF_LIMIT]:
            spans = zip(stages.devices, pairwise(stages.bounds), strict=True)
            slowest = max(paid[device, begin, end] for device, (begin, end) in spans)
            named = Stages(stages.bounds, tuple(devices[position] for position in stages.devices))
            cost_of_stages[named] = in_turn * cost + (1 - in_turn) * slowest
    return sorted(cost_of_stages, key=cost_of_stages.__getitem__)


def _kinds(problem: PlacementProblem, devices: Sequence[int]) -> list[int]:
    """Return a number for each device; devices that may change places have the same."""
    cluster, seconds = problem.cluster, problem.compute_time
    links, machines = shared_links(cluster.link), shared_links(cluster.machine)
    unnamed = [replace(device, name="any") for device in cluster.devices]

    def alike(first: int, second: int) -> bool:
        swapped = np.arange(cluster.num_devices)
        swapped[[first, second]] = second, first
        return (
            unnamed[first] == unnamed[second]
            and all(
                np.array_equal(rows[first], rows[second, swapped])
                for matrix in (cluster.bandwidth, cluster.latency)
                for rows in (matrix, matrix.T)
            )
            and np.array_equal(seconds[:, first], seconds[:, second])
            and np.array_equal(links, shared_links(cluster.link[np.ix_(swapped, swapped)]))
            and np.array_equal(machines, shared_links(cluster.machine[swapped]))
        )

    kinds: list[int] = []
    for position, device in enumerate(devices):
        equal = (kind for kind in dict.fromkeys(kinds) if alike(devices[kind], device))
        kinds.append(next(equal, position))
    return kinds


class _Frontier(NamedTuple):
    """The least costs of the layers before each one, if some device has the last of them."""

    cost: NDArray[np.float64]  # [N + 1]
    cut: NDArray[np.int64]  # where the last stage begins
    previous_device: NDArray[np.int64]  # of the stage before


def fastest_stages(
    load: NDArray[np.float64], transfer: NDArray[np.float64], kinds: Sequence[int], beam: int = BEAM
) -> list[tuple[float, Stages]]:
    """Return the cheapest stages on each set of devices with each last one, the cheapest first.

    ``load``, float64[D, N + 1, N + 1], has the cost of layers i to j - 1 on each device at [i, j];
    infinity where it cannot run them. ``transfer``, float64[D, D, N + 1], has the cost of a cut
    before layer i, from one device to another. Devices of a kind are used in their order. Of many
    devices only the most promising sets are followed, ``beam`` of each size.
    """
    rest = load[:, :, -1].min(axis=0)
    rest[-1] = 0.0
    nowhere = np.zeros(len(rest), np.int64)
    states = {
        (frozenset([device]), device): _Frontier(load[device, 0], nowhere, nowhere)
        for device in range(len(load))
        if kinds.index(kinds[device]) == device
    }
    frontiers = dict(states)
    while states:
        by_used: dict[frozenset[int], list[int]] = {}
        for used, last in states:
            by_used.setdefault(used, []).append(last)
        promise = {
            used: min(float((states[used, last].cost + rest).min()) for last in lasts)
            for used, lasts in by_used.items()
        }
        states = {}
        for used in sorted(promise, key=promise.__getitem__)[:beam]:
            lasts = by_used[used]
            costs = np.stack([frontiers[used, last].cost for last in lasts])
            unused = [device for device in range(len(load)) if device not in used]
            nexts = list({kinds[device]: device for device in reversed(unused)}.values())
            # Of the layers before each cut and the transfer there, from each last device to each
            # next one; then of the best last device, and of the stage from that cut to each end.
            reached = costs[:, None] + transfer[np.ix_(lasts, nexts)]
            previous_devices = np.array(lasts)[reached.argmin(axis=0)]
            total = reached.min(axis=0)[:, :, None] + load[nexts]
            cuts = total.argmin(axis=1)
            for device, sums, cut, previous in zip(
                nexts, total, cuts, previous_devices, strict=True
            ):
                cost = sums[cut, np.arange(len(rest))]
                if np.isfinite(cost).any():
                    states[used | {device}, device] = _Frontier(cost, cut, previous[cut])
        frontiers |= states
    ends = [(float(frontier.cost[-1]), used, last) for (used, last), frontier in frontiers.items()]
    ends.sort(key=lambda end: (end[0], len(end[1]), sorted(end[1])))
    return [
        (total, _stages_to(frontiers, used, last))
        for total, used, last in ends
        if math.isfinite(total)
    ]


def _stages_to(
    frontiers: Mapping[tuple[frozenset[int], int], _Frontier], used: frozenset[int], last: int
) -> Stages:
    """Return the stages of all layers behind a frontier, read from the last one backwards."""
    devices, bounds = [last], [len(frontiers[used, last].cost) - 1]
    while len(used) > 1:
        frontier, end = frontiers[used, devices[-1]], bounds[-1]
        used -= {devices[-1]}
        devices.append(int(frontier.previous_device[end]))
        bounds.append(int(frontier.cut[end]))
    return Stages((0, *bounds[::-1]), tuple(devices[::-1]))


def chain_costs(
    chain: LayerChain, devices: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return ``load`` and ``transfer`` of `fastest_stages`, and between them what memory costs."""
    graph, cluster, labels = chain.problem.graph, chain.problem.cluster, chain.labels
    layers = chain.num_layers
    layer_bytes = np.bincount(labels, graph.parameter_bytes, layers)
    layer_bytes += np.bincount(labels[graph.tensor_producer], _kept_bytes(graph), layers)
    seconds = chain.problem.busy_time.T[list(devices)]
    load = np.stack([_sums(np.bincount(labels, column, layers)) for column in seconds])
    memory = cluster.memory_bytes[list(devices)][:, None, None]
    fastest = load[:, np.arange(layers), np.arange(1, layers + 1)].min(axis=0)  # of each layer
    runtime = max(fastest[np.isfinite(fastest)].sum(), np.finfo(np.float64).tiny)
    lack = MEMORY_PENALTY * runtime * np.maximum(_sums(layer_bytes) / memory - 1, 0)
    among = np.ix_(devices, devices)
    overhead = np.array([cluster.devices[device].transfer_overhead for device in devices])
    per_tensor = (cluster.latency[among] + overhead[:, None])[..., None]
    per_byte = (1 / cluster.bandwidth[among])[..., None]
    forwards, backwards = (
        tensors * per_tensor + num_bytes * per_byte
        for tensors, num_bytes in _crossing(graph, labels, layers)
    )
    return load, lack, forwards + backwards.swapaxes(0, 1)


def _crossing(
    graph: OpGraph, labels: NDArray[np.int64], layers: int
) -> list[list[NDArray[np.float64]]]:
    """Return how many tensors, and bytes, cross the cut before each layer: forwards, backwards."""
    layer_of_tensor = labels[graph.tensor_producer]
    made_at, read_at = labels[graph.edge_producers], labels[graph.edge_consumers]
    crossings = []
    for extreme in (np.maximum, np.minimum):
        end = layer_of_tensor.copy()  # the last layer that reads the tensor in this direction
        extreme.at(end, graph.edges[:, 0], extreme(made_at, read_at))
        low, high = np.minimum(layer_of_tensor, end), np.maximum(layer_of_tensor, end)
        amounts = []
        for amount in (np.ones(graph.num_tensors), graph.tensor_bytes):
            begins = np.bincount(low + 1, amount, layers + 1)
            amounts.append(np.cumsum(begins - np.bincount(high + 1, amount, layers + 1)))
        crossings.append(amounts)
    return crossings


def _sums(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of values i to j - 1 at [i, j]; infinity where there are none."""
    is_infinite = np.isinf(values)
    totals = np.append(0, np.cumsum(np.where(is_infinite, 0, values)))
    num_infinite = np.append(0, np.cumsum(is_infinite))
    sums: NDArray[np.float64] = totals - totals[:, None]
    sums[(num_infinite > num_infinite[:, None]) | np.tri(len(totals), dtype=bool)] = np.inf
    return sums


def _kept_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Return int64[T], the bytes of activations that the backward pass reads; else 0."""
    is_kept = np.zeros(graph.num_tensors, bool)
    is_kept[graph.edges[graph.phases[graph.edge_consumers] == Phase.BACKWARD, 0]] = True
    made_by = graph.tensor_producer
    is_kept &= (graph.phases[made_by] == Phase.FORWARD) & ~graph.lives_in_weights
    return graph.tensor_bytes * is_kept


def neighbours(stages: Stages, unused: Sequence[int]) -> list[Stages]:
    """Return stages that differ in one cut or two, or in the devices of one or two stages.

    Of the devices that have none, those that may get some are given.
    """
    bounds, used = list(stages.bounds), list(stages.devices)
    variants = []
    for stage in range(1, len(used)):
        low, begin, high = bounds[stage - 1 : stage + 2]
        moved = {begin + step for step in (*STEPS, *(-step for step in STEPS))}
        variants += [
            ([*bounds[:stage], cut, *bounds[stage + 1 :]], used)
            for cut in sorted(moved)
            if low < cut < high
        ]
        later_stages = range(stage + 1, len(used))
        for other_stage, step, other_step in product(later_stages, (1, -1), (1, -1)):
            both = bounds.copy()
            both[stage] += step
            both[other_stage] += other_step
            if both == sorted(set(both)):
                variants.append((both, used))
        for other_stage in range(stage):  # two of them change places
            swapped = used.copy()
            swapped[stage], swapped[other_stage] = used[other_stage], used[stage]
            sizes = list(stages.sizes)
            sizes[stage], sizes[other_stage] = sizes[other_stage], sizes[stage]
            variants += [(bounds, swapped), (np.cumsum([0, *sizes]).tolist(), swapped)]
        without = bounds[:stage] + bounds[stage + 1 :]  # two of them become one
        variants += [(without, used[:gone] + used[gone + 1 :]) for gone in (stage - 1, stage)]
    for stage, (begin, end) in enumerate(pairwise(bounds)):
        inside = {begin + step for step in STEPS} | {end - step for step in STEPS}
        cuts = sorted(cut for cut in inside if begin < cut < end)
        for device in unused:
            variants.append((bounds, [*used[:stage], device, *used[stage + 1 :]]))
            for cut in cuts:  # it becomes two
                halved = [*bounds[: stage + 1], cut, *bounds[stage + 1 :]]
                variants += [
                    (halved, [*used[:at], device, *used[at:]]) for at in (stage, stage + 1)
                ]
    return [Stages(tuple(bounds), tuple(used)) for bounds, used in variants]
