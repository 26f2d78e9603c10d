"""The best split of a chain over unequal devices against dynamic programming over its cuts.

The programs here share nothing with what they check: they know ops, devices and links as lists.
"""

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.placing.choices import ALONE, SEARCHED, Choice, choices_table
from placeto.placing.evaluators import STEP, THROUGHPUT, EvaluatorSpec
from placeto.placing.placements import PlaceSettings, place_problem
from placeto.progress import PlainProgress
from placeto_baselines import MultilevelSearch
from placeto_graphs import (
    Cluster,
    Device,
    PlacementProblem,
    PlacementResult,
    from_networkx,
)
from placeto_simulator import Simulator, ThroughputEvaluator

WEIGHTS = 10**9  # bytes of a layer
SHOWN = settings(deadline=None, max_examples=60)


@dataclass(frozen=True)
class Chain:
    """Layers one behind the other, and devices that reach each other through a host."""

    seconds: list[list[float]]  # of each layer on each device
    tensors: list[int]  # bytes between one layer and the next
    overhead: list[float]  # seconds of each device after an op
    latency: list[float]  # of each device to the host
    bandwidth: list[float]  # the same
    layers_that_fit: list[int]  # on each device

    @property
    def devices(self) -> range:
        return range(len(self.overhead))

    def transfer(self, layer: int, source: int, destination: int) -> float:
        """Seconds of what follows a layer from one device to another."""
        slowest = min(self.bandwidth[source], self.bandwidth[destination])
        return self.latency[source] + self.latency[destination] + self.tensors[layer] / slowest

    def problem(self) -> PlacementProblem:
        count = len(self.devices)
        graph = nx.DiGraph()
        for layer in range(len(self.seconds)):
            graph.add_node(f"layer{layer}", parameter_bytes=WEIGHTS)
        for layer, size in enumerate(self.tensors):
            graph.add_edge(f"layer{layer}", f"layer{layer + 1}", bytes=size)
        ops = from_networkx(graph)
        pairs = itertools.product(self.devices, repeat=2)
        latency = np.array([self.latency[a] + self.latency[b] for a, b in pairs])
        pairs = itertools.product(self.devices, repeat=2)
        bandwidth = np.array([min(self.bandwidth[a], self.bandwidth[b]) for a, b in pairs])
        cluster = Cluster(
            devices=tuple(
                Device(f"d{d}", f"kind{d}", fit * WEIGHTS + WEIGHTS // 2, self.overhead[d], 0.0)
                for d, fit in enumerate(self.layers_that_fit)
            ),
            bandwidth=bandwidth.reshape(count, count),
            latency=latency.reshape(count, count),
        )
        return PlacementProblem(graph=ops, cluster=cluster, compute_time=np.array(self.seconds))


def times(most: float) -> st.SearchStrategy[float]:
    return st.integers(0, 40).map(lambda ticks: ticks * most / 40)


@st.composite
def chains(draw: st.DrawFn, *, equal_layers: bool) -> Chain:
    """Draw a chain of two to six layers on one to three devices, where all of it fits together."""
    layers, count = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    each = [draw(st.integers(1, 40)) / 10 for _ in range(count)]
    rows = 1 if equal_layers else layers
    seconds = [
        [each[d] if equal_layers else draw(times(4.0)) for d in range(count)] for _ in range(rows)
    ]
    sizes = [draw(st.integers(0, 10**6)) for _ in range(1 if equal_layers else layers - 1)]
    fit = [draw(st.integers(0, layers)) for _ in range(count)]
    fit[0] += max(0, layers - sum(fit))
    return Chain(
        seconds=seconds * (layers // rows),
        tensors=sizes * ((layers - 1) // len(sizes)),
        # An overhead that a detour would hide makes detours faster.
        overhead=[0.0] * count if equal_layers else [draw(times(0.5)) for _ in range(count)],
        latency=[draw(times(1.0)) for _ in range(count)],
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
    best = math.inf
    for first in range(layers):
        for (at, used, last), cost in list(states.items()):
            if at != first:
                continue
            for device in set(chain.devices) - used:
                for end in range(first + 1, first + chain.layers_that_fit[device] + 1):
                    if end > layers:
                        break
                    total = worth(cost, first, end, device, last)
                    key = end, used | {device}, device
                    states[key] = min(states.get(key, math.inf), total)
    for (at, _, _), cost in states.items():
        if at == layers:
            best = min(best, cost)
    return best


def latency_of(chain: Chain) -> float:
    def worth(cost: float, first: int, end: int, device: int, last: int | None) -> float:
        moved = 0.0 if last is None else chain.transfer(first - 1, last, device)
        run = [chain.seconds[layer][device] for layer in range(first, end)]
        between = sum(chain.overhead[device] for seconds in run[:-1] if seconds > 0)
        return cost + moved + sum(run) + between

    return segments(chain, worth)


def time_per_sample_of(chain: Chain) -> float:
    layers = len(chain.seconds)

    def moves(layer: int, device: int) -> float:
        """Seconds that a device spends on what follows a layer: over its slowest link."""
        others = set(chain.devices) - {device}
        return max((chain.transfer(layer, device, other) for other in others), default=0.0)

    def worth(cost: float, first: int, end: int, device: int, _last: int | None) -> float:
        run = [chain.seconds[layer][device] for layer in range(first, end)]
        load = sum(run) + sum(chain.overhead[device] for seconds in run if seconds > 0)
        load += moves(first - 1, device) if first else 0.0
        load += moves(end - 1, device) if end < layers else 0.0
        return max(cost, load)

    return segments(chain, worth)


def contiguous(chain: Chain) -> Iterator[list[int]]:
    """Yield placements in which each device has one run of layers, or none, and all fits."""
    for devices in itertools.product(chain.devices, repeat=len(chain.seconds)):
        runs = [device for device, _ in itertools.groupby(devices)]
        fits = all(devices.count(d) <= fit for d, fit in enumerate(chain.layers_that_fit))
        if len(runs) == len(set(runs)) and fits:
            yield list(devices)


def search(
    problem: PlacementProblem, max_evaluations: int, evaluator: EvaluatorSpec = STEP
) -> tuple[PlacementResult, float, list[Choice]]:
    settings = PlaceSettings(max_evaluations=max_evaluations, evaluator=evaluator)
    placed = place_problem(problem, settings, PlainProgress(None))
    return placed.result, placed.bound, placed.choices


OBJECTIVES = [(Simulator, latency_of), (ThroughputEvaluator, time_per_sample_of)]


@pytest.mark.parametrize(("evaluator", "expected"), OBJECTIVES)
@SHOWN
@given(chain=chains(equal_layers=False))
def test_the_best_contiguous_split_is_that_of_dynamic_programming(
    chain: Chain,
    evaluator: type[Simulator] | type[ThroughputEvaluator],
    expected: Callable[[Chain], float],
) -> None:
    placements = np.array(list(contiguous(chain)), np.int32)
    problem = chain.problem()
    found = evaluator(problem).evaluate(placements)
    assert (found.peak_memory <= problem.cluster.memory_bytes).all()
    assert found.runtime.min() == pytest.approx(expected(chain), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("evaluator", "expected"), OBJECTIVES)
@SHOWN
@given(chain=chains(equal_layers=True))
def test_the_search_finds_the_split_of_dynamic_programming(
    chain: Chain,
    evaluator: type[Simulator] | type[ThroughputEvaluator],
    expected: Callable[[Chain], float],
) -> None:
    """Of equal layers no placement is better than a contiguous one, so all are searched."""
    problem = chain.problem()
    result = MultilevelSearch(evaluations=5000).place(problem, evaluator(problem))
    assert result.fits(problem.cluster)
    assert result.runtime == pytest.approx(expected(chain), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "expected"), [(STEP, latency_of), (THROUGHPUT, time_per_sample_of)]
)
@settings(deadline=None, max_examples=20)
@given(chain=chains(equal_layers=True))
def test_what_fewer_devices_would_cost_is_told(
    chain: Chain, spec: EvaluatorSpec, expected: Callable[[Chain], float]
) -> None:
    """Each device alone, and of three each pair on which the layers fit."""
    problem = chain.problem()
    result, _, choices = search(problem, 40_000, spec)
    assert result.runtime == pytest.approx(expected(chain), rel=1e-9, abs=1e-12)
    told: dict[str, list[Choice]] = {}
    for choice in choices:
        told.setdefault(choice.how, []).append(choice)
    if len(chain.devices) == 1:
        assert told == {}
        return
    layers = len(chain.seconds)
    for choice in told[ALONE]:
        (device,) = choice.devices
        alone = replace(chain, layers_that_fit=[layers * (d == device) for d in chain.devices])
        assert choice.result.runtime == pytest.approx(expected(alone), rel=1e-9, abs=1e-12)
        fits = chain.layers_that_fit[device] >= layers
        assert choice.result.fits(problem.cluster) == fits
        assert not fits or choice.result.runtime >= result.runtime
    pairs = {choice.devices: choice.result for choice in told.get(SEARCHED, [])}
    room = [fit + 0.5 for fit in chain.layers_that_fit]
    assert all(room[a] + room[b] >= layers for a, b in pairs)
    for pair, found in pairs.items():
        fit = [most if d in pair else 0 for d, most in enumerate(chain.layers_that_fit)]
        if sum(fit) >= layers:
            best = expected(replace(chain, layers_that_fit=fit))
            assert found.runtime == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_devices_are_filled_in_their_order() -> None:
    """Two layers fit the first device, one the second; the third has the rest."""
    chain = Chain(
        seconds=[[1.0, 1.0, 1.0]] * 5,
        tensors=[0] * 4,
        overhead=[0.0] * 3,
        latency=[0.25] * 3,
        bandwidth=[1e6] * 3,
        layers_that_fit=[2, 1, 5],
    )
    problem = chain.problem()
    _, _, choices = search(problem, 100)
    (filled,) = [choice.result for choice in choices if choice.how == "in-order"]
    assert filled.placement.tolist() == [0, 0, 1, 2, 2]
    assert filled.runtime == 5 + 2 * 0.5


@pytest.mark.parametrize(
    ("seconds", "title"),
    [
        ([[1.0, 2.0], [1.0, 1.5]], "All on d0: do not split"),
        ([[1.0, 2.0], [1.0, 0.99]], "d0 alone is within 1 % of this: do not split"),
        ([[1.0, 2.0], [1.0, 0.5]], "Split over d0, d1"),
    ],
)
def test_a_split_that_gains_little_is_not_advised(seconds: list[list[float]], title: str) -> None:
    problem = Chain(seconds, [0], [0.0] * 2, [0.0] * 2, [1e6] * 2, [2, 2]).problem()
    result, _, choices = search(problem, 100)
    assert choices_table(problem, result, choices, STEP).title == f"{title}. Other choices"


def test_what_a_device_cannot_run_is_elsewhere() -> None:
    """The first layer runs on the second device only; the first has room for three."""
    problem = Chain([[1.0, 2.0]] * 4, [0] * 3, [0.0] * 2, [0.25] * 2, [1e6] * 2, [3, 4]).problem()
    times = problem.compute_time.copy()
    times[0, 0] = np.inf
    problem = replace(problem, compute_time=times)
    result, _, choices = search(problem, 100)
    assert result.placement.tolist() == [1, 0, 0, 0]
    told = {choice.how: choice.result.placement.tolist() for choice in choices}
    assert told == {"alone": [1, 1, 1, 1], "in-order": [1, 0, 0, 0]}


def test_an_interrupt_ends_all_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three pairs one is searched, and nothing behind it."""
    seconds = [[float(1 + d) for d in range(3)]] * 14
    problem = Chain(seconds, [0] * 13, [0.0] * 3, [0.25] * 3, [1e6] * 3, [14] * 3).problem()
    before = MultilevelSearch.place

    def place(self: MultilevelSearch, *args: Any, **named: Any) -> PlacementResult:
        self.report = lambda *_: os.kill(os.getpid(), signal.SIGINT)
        return before(self, *args, **named)

    monkeypatch.setattr(MultilevelSearch, "place", place)
    result, _, choices = search(problem, 100_000)
    assert [choice.devices for choice in choices if choice.how == SEARCHED] == [(0, 1)]
    assert result.evaluations < 10_000
    assert result.runtime == 14.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_equal_devices_are_told_once() -> None:
    """Of four equal devices one alone, one pair and one triple."""
    problem = Chain([[1.0] * 4] * 4, [0] * 3, [0.0] * 4, [0.0] * 4, [1e6] * 4, [4] * 4).problem()
    devices = tuple(replace(device, kind="same") for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    _, _, choices = search(problem, 1000)
    assert [choice.devices for choice in choices if choice.how != "in-order"] == [
        (0,),
        (0, 1),
        (0, 1, 2),
    ]


def test_devices_of_a_kind_on_which_ops_take_other_times_are_told_apart() -> None:
    """The first device cannot run the first layer; the third is faster than the second."""
    seconds = [[math.inf, 2.0, 1.5], [2.0, 2.0, 1.5]]
    problem = Chain(seconds, [0], [0.0] * 3, [0.0] * 3, [1e6] * 3, [4] * 3).problem()
    devices = tuple(replace(device, kind="same") for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    result, _, choices = search(problem, 200)
    alone = {choice.devices: choice.result.runtime for choice in choices if choice.how == ALONE}
    assert alone == {(1,): 4.0, (2,): 3.0}
    assert result.runtime == 3.0
    searched = [choice.devices for choice in choices if choice.how == SEARCHED]
    assert searched == [(0, 1), (0, 2), (1, 2)]


def test_what_fits_no_device_is_not_advised() -> None:
    """One of two layers fits the second device, nothing the first; a transfer costs an hour."""
    for fit, title in (([0, 1], "All on d1. Other"), ([0, 2], "All on d1: do not split. Other")):
        chain = Chain([[1.0] * 2] * 2, [10**9], [0.0] * 2, [0.0] * 2, [2.5e5] * 2, fit)
        problem = chain.problem()
        result, _, choices = search(problem, 100)
        assert choices_table(problem, result, choices, STEP).title.startswith(title)
