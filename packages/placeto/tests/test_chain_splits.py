"""The best split of a chain over unequal devices against dynamic programming over its cuts.

The programs here share nothing with what they check: they know ops, devices and links as lists.
"""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.placing.choices import verdict, worth_telling
from placeto.placing.evaluators import STEP, THROUGHPUT, EvaluatorSpec
from placeto.placing.place_problem import PlaceSettings, place_problem
from placeto.progress import PlainProgress
from placeto_baselines import Choice, LayerChain, MultilevelSearch
from placeto_baselines.bounds import fork_join
from placeto_baselines.search.chains import proposed_stages
from placeto_baselines.search.subsets import ALONE, CHAIN, SEARCHED
from placeto_graphs import Cluster, Device, PlacementProblem, PlacementResult, from_networkx
from placeto_simulator import Simulator

WEIGHTS = 10**9  # bytes of a layer


@dataclass(frozen=True)
class Chain:
    """Layers one behind the other, and devices that reach each other through a host."""

    seconds: list[list[float]]  # of each layer on each device
    tensor: int  # bytes between one layer and the next
    latency: list[float]  # of each device to the host
    bandwidth: list[float]  # the same
    layers_that_fit: list[int]  # on each device

    @property
    def devices(self) -> range:
        return range(len(self.latency))

    def transfer(self, source: int, destination: int) -> float:
        """Seconds of what follows a layer from one device to another."""
        slowest = min(self.bandwidth[source], self.bandwidth[destination])
        return self.latency[source] + self.latency[destination] + self.tensor / slowest

    def problem(self, *, kinds: bool = True) -> PlacementProblem:
        graph = nx.path_graph(len(self.seconds), nx.DiGraph)
        nx.set_node_attributes(graph, WEIGHTS, "parameter_bytes")
        nx.set_edge_attributes(graph, self.tensor, "bytes")
        cluster = Cluster(
            devices=tuple(
                Device(f"d{d}", f"kind{d * kinds}", int((fit + 0.5) * WEIGHTS), 0.0, 0.0)
                for d, fit in enumerate(self.layers_that_fit)
            ),
            bandwidth=np.minimum.outer(self.bandwidth, self.bandwidth),
            latency=np.add.outer(self.latency, self.latency),
        )
        ops = from_networkx(nx.relabel_nodes(graph, lambda layer: f"layer{layer}"))
        return PlacementProblem(graph=ops, cluster=cluster, compute_time=np.array(self.seconds))


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Draw equal layers, two to six, on one to three devices, where all of it fits together."""
    layers, count = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    fit = [draw(st.integers(0, layers)) for _ in range(count)]
    fit[0] += max(0, layers - sum(fit))
    return Chain(
        seconds=[[draw(st.integers(1, 40)) / 10 for _ in range(count)]] * layers,
        tensor=draw(st.integers(0, 10**6)),
        latency=[draw(st.integers(0, 40)) / 40 for _ in range(count)],
        bandwidth=[draw(st.integers(1, 10)) * 1e5 for _ in range(count)],
        layers_that_fit=fit,
    )


def segments(chain: Chain, worth: Callable[[float, int, int, int, int | None], float]) -> float:
    """Return the least cost of a split in which each device has one run of layers, or none.

    The state is the first layer that is left, the devices that are used, and the last one of them;
    ``worth`` gives the cost with one more run: the cost before it, its first layer, the one behind
    its last, its device, and the device before.
    """
    layers = len(chain.seconds)
    states: dict[tuple[int, frozenset[int], int | None], float] = {(0, frozenset(), None): 0.0}
    for first in range(layers):
        for (at, used, last), cost in list(states.items()):
            if at != first:
                continue
            for device in set(chain.devices) - used:
                furthest_end = min(layers, first + chain.layers_that_fit[device])
                for end in range(first + 1, furthest_end + 1):
                    key = end, used | {device}, device
                    total = worth(cost, first, end, device, last)
                    states[key] = min(states.get(key, math.inf), total)
    return min((cost for (at, _, _), cost in states.items() if at == layers), default=math.inf)


def latency_of(chain: Chain) -> float:
    def worth(cost: float, first: int, end: int, device: int, last: int | None) -> float:
        moved = 0.0 if last is None else chain.transfer(last, device)
        return cost + moved + sum(row[device] for row in chain.seconds[first:end])

    return segments(chain, worth)


def time_per_sample_of(chain: Chain) -> float:
    def worth(cost: float, first: int, end: int, device: int, _last: int | None) -> float:
        """A device spends what its slowest link is busy on what it reads and on what it makes."""
        other_devices = set(chain.devices) - {device}
        slowest = [
            min(chain.bandwidth[device], chain.bandwidth[neighbour]) for neighbour in other_devices
        ]
        moves = max((chain.tensor / bandwidth for bandwidth in slowest), default=0.0)
        ends = (first > 0) + (end < len(chain.seconds))
        return max(cost, sum(row[device] for row in chain.seconds[first:end]) + ends * moves)

    return segments(chain, worth)


def search(
    problem: PlacementProblem, max_evaluations: int, evaluator: EvaluatorSpec = STEP
) -> tuple[PlacementResult, float, list[Choice]]:
    settings = PlaceSettings(max_evaluations=max_evaluations, evaluator=evaluator)
    placed = place_problem(problem, settings, PlainProgress(None))
    return placed.result, placed.bound, placed.choices


@pytest.mark.parametrize(
    ("spec", "expected"), [(STEP, latency_of), (THROUGHPUT, time_per_sample_of)]
)
@settings(deadline=None, max_examples=30)
@given(chain=chains())
def test_what_fewer_devices_would_cost_is_told(
    chain: Chain, spec: EvaluatorSpec, expected: Callable[[Chain], float]
) -> None:
    """Each device alone, and of three each pair on which the layers fit."""
    problem = chain.problem()
    result, _, choices = search(problem, 40_000, spec)
    assert result.runtime == pytest.approx(expected(chain), rel=1e-9, abs=1e-12)
    choices_by_kind: dict[str, list[Choice]] = {}
    for choice in choices:
        choices_by_kind.setdefault(choice.kind, []).append(choice)
    if len(chain.devices) == 1:
        assert choices_by_kind == {}
        return
    # Of stages that gain less than 0.1 % each there is no chain.
    for choice in choices_by_kind.get(CHAIN, []):
        assert choice.result.runtime == pytest.approx(expected(chain), rel=3e-3, abs=1e-12)
    layers = len(chain.seconds)
    for choice in choices_by_kind[ALONE]:
        (device,) = choice.devices
        alone = replace(chain, layers_that_fit=[layers * (d == device) for d in chain.devices])
        assert choice.result.runtime == pytest.approx(expected(alone), rel=1e-9, abs=1e-12)
        fits = chain.layers_that_fit[device] >= layers
        assert choice.result.fits(problem.cluster) == fits
        assert not fits or choice.result.runtime >= result.runtime
    pairs = {choice.devices: choice.result for choice in choices_by_kind.get(SEARCHED, [])}
    room = [fit + 0.5 for fit in chain.layers_that_fit]
    assert all(room[a] + room[b] >= layers for a, b in pairs)
    for pair, pair_result in pairs.items():
        fit = [
            most_layers if d in pair else 0 for d, most_layers in enumerate(chain.layers_that_fit)
        ]
        if sum(fit) >= layers:
            best = expected(replace(chain, layers_that_fit=fit))
            assert pair_result.runtime == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("fit", "in_order", "balanced"),
    [
        ([2, 1, 5], [0, 0, 1, 2, 2], [0, 0, 1, 2, 2]),
        ([5, 5, 5], [0, 0, 0, 0, 0], [0, 0, 1, 1, 2]),
        ([4, 1, 5], [0, 0, 0, 0, 1], [0, 0, 1, 2, 2]),
    ],
)
def test_devices_are_filled_in_their_order(
    fit: list[int], in_order: list[int], balanced: list[int]
) -> None:
    """As accelerate's "sequential" and "auto" do; an equal part of the weights is 5 / 3 layers."""
    chain = Chain([[1.0] * 3] * 5, 0, [0.25] * 3, [1e6] * 3, fit)
    _, _, choices = search(chain.problem(), 100)
    filled = {choice.kind: choice.result for choice in choices}
    assert filled["in-order"].placement.tolist() == in_order
    assert filled["balanced"].placement.tolist() == balanced
    assert filled["in-order"].runtime == 5 + 0.5 * (len(set(in_order)) - 1)


@pytest.mark.parametrize(("fit", "is_told"), [(65, True), (64, False)])
def test_a_chain_of_layers_that_devices_in_order_beat_is_not_told(fit: int, is_told: bool) -> None:
    """Layers are two ops, the first one alone: of 128 ops the fast device holds 65, or 63."""
    problem = Chain([[1.0, 2.0]] * 128, 0, [0.0] * 2, [1e6] * 2, [fit, 128]).problem()
    _, _, choices = search(replace(problem, rules=()), 400)
    assert CHAIN in {choice.kind for choice in choices}
    told_kinds = {choice.kind for choice in worth_telling(problem, choices)}
    assert (CHAIN in told_kinds) == is_told


@pytest.mark.parametrize(("micro_batches", "first"), [(1, 1), (8, 3)])
def test_stages_are_proposed_beside_a_large_layer_and_by_micro_batches(
    micro_batches: int, first: int
) -> None:
    """A layer takes 8 s, the other ten 1 s each; a transfer takes 4 s."""
    seconds = [[8.0] * 6, *[[1.0] * 6] * 10]
    problem = Chain(seconds, 0, [2.0] * 6, [1e6] * 6, [11] * 6).problem()
    graph = replace(problem.graph, micro_batch=np.arange(11, dtype=np.int32) % micro_batches)
    problem = replace(problem, graph=graph)
    chain = LayerChain(problem, Simulator(problem), np.arange(11))
    proposals = proposed_stages(chain, range(6), [0] * 6, 16)
    assert len(proposals[0].devices) == first
    stages = [
        [end - begin + 7 * (begin == 0) for begin, end in pairwise(proposal.bounds)]
        for proposal in proposals
    ]
    assert min(map(max, stages)) == 8


@pytest.mark.parametrize(
    ("second", "tensor", "fit", "sentence"),
    [
        ([1.0, 1.5], 0, [2, 2], "Uses d0 alone, as no split is 1 % faster."),
        ([1.0, 0.99], 0, [2, 2], "Uses d0 alone, as no split is 1 % faster."),
        (
            *([1.0, 0.9], 0, [2, 2]),
            "Uses d0 and d1: 5 % faster than d0 alone, within the accuracy of the simulation.",
        ),
        ([1.0, 0.5], 0, [2, 2], "Uses d0 and d1."),
        # A transfer costs an hour; nothing fits the first device, one layer or two the second.
        ([1.0, 1.0], 10**9, [0, 1], "Uses d1 alone."),
        ([1.0, 1.0], 10**9, [0, 2], "Uses d1 alone, as no split is 1 % faster."),
    ],
)
def test_a_split_that_gains_little_or_does_not_fit_is_not_advised(
    second: list[float], tensor: int, fit: list[int], sentence: str
) -> None:
    problem = Chain([[1.0, 2.0], second], tensor, [0.0] * 2, [2.5e5] * 2, fit).problem()
    result, _, choices = search(problem, 100)
    assert verdict(problem, result, choices) == sentence
    assert (len(set(result.placement.tolist())) == 1) == (" alone" in sentence.partition(":")[0])


def test_a_device_that_may_run_nothing_is_no_split_that_does_not_pay() -> None:
    problem = Chain([[1.0, math.inf]] * 2, 0, [0.0] * 2, [1e6] * 2, [2, 2]).problem()
    result, _, choices = search(problem, 10)
    assert verdict(problem, result, choices) == "Uses d0 alone."


def test_what_a_device_cannot_run_is_elsewhere() -> None:
    """The first layer runs on the second device only; the first has room for three."""
    seconds = [[math.inf, 2.0], *[[1.0, 2.0]] * 3]
    problem = Chain(seconds, 0, [0.25] * 2, [1e6] * 2, [3, 4]).problem()
    result, _, choices = search(problem, 100)
    assert result.placement.tolist() == [1, 0, 0, 0]
    placement_by_kind = {choice.kind: choice.result.placement.tolist() for choice in choices}
    filled = {"in-order": [1, 0, 0, 0], "balanced": [1, 0, 1, 1]}
    filled["chain"] = [1, 0, 0, 0]
    assert placement_by_kind == {"alone": [1, 1, 1, 1], **filled}


def test_stages_are_proposed_where_no_device_can_run_all_layers() -> None:
    """The first layer runs on the second device only, the last on the first, with room for two."""
    seconds = [[math.inf, 2.0], *[[1.0, 2.0]] * 2, [1.0, math.inf]]
    problem = Chain(seconds, 0, [0.25] * 2, [1e6] * 2, [2, 4]).problem()
    chain = LayerChain(problem, Simulator(problem), np.arange(4))
    stages = proposed_stages(chain, range(2), [0, 1], 16)
    assert stages[0].device_of_layer().tolist() == [1, 1, 0, 0]


def test_an_interrupt_ends_all_searches_and_the_last_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three pairs one is searched, and nothing behind it; what was found is kept."""
    seconds = [[float(1 + d) for d in range(3)]] * 14
    problem = Chain(seconds, 0, [0.25] * 3, [1e6] * 3, [14] * 3).problem()
    original_search = MultilevelSearch._search

    def searched(self: MultilevelSearch, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        original_search(self, *args)

    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MultilevelSearch, "_search", searched)
        result, _, choices = search(problem, 100_000)
    assert [choice.devices for choice in choices if choice.kind == SEARCHED] == [(0, 1)]
    assert result.evaluations < 2_000  # a search takes 3,333
    assert result.runtime == 14.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(fork_join, "fork_join_bound", interrupted)
    result, bound, choices = search(problem, 3000)
    assert 0 < bound <= result.runtime == 14.0
    searched_for = [choice.result.evaluations for choice in choices if choice.kind == SEARCHED]
    assert 64 < max(searched_for) <= 3000 / 10 / 3 == 3000 / 10 / len(searched_for)
    # With fewer than 64 evaluations on each pair none is searched.
    _, _, choices = search(problem, 1800)
    assert SEARCHED not in {choice.kind for choice in choices}


def test_devices_are_told_apart_by_their_kinds_and_the_times_of_ops_on_them() -> None:
    """Of four equal ones one alone, one pair and one triple; of three with other times each."""
    chain = Chain([[1.0] * 4] * 4, 0, [0.0] * 4, [1e6] * 4, [4] * 4)
    _, _, choices = search(chain.problem(kinds=False), 2000)
    told_devices = [
        choice.devices for choice in choices if choice.kind not in ("in-order", "balanced")
    ]
    assert told_devices == [(0,), (0, 1), (0, 1, 2)]
    # The first device cannot run the first layer; the third is faster than the second.
    seconds = [[math.inf, 2.0, 1.5], [2.0, 2.0, 1.5]]
    problem = Chain(seconds, 0, [0.0] * 3, [1e6] * 3, [4] * 3).problem(kinds=False)
    result, _, choices = search(problem, 2000)
    alone = {choice.devices: choice.result.runtime for choice in choices if choice.kind == ALONE}
    assert alone == {(1,): 4.0, (2,): result.runtime}
    searched = [choice.devices for choice in choices if choice.kind == SEARCHED]
    assert searched == [(0, 1), (0, 2), (1, 2)]
