"""Copies of a model as an answer of `place`: never worse than what a person would write down."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

import networkx as nx
import numpy as np
import pytest

from placeto.placing.copies import (
    CopiedModel,
    PlacedCopies,
    best_copies,
    copies_verdict,
    remarks_on_copies,
    with_copies,
)
from placeto.placing.evaluators import STEP
from placeto.placing.place_problem import PlacedProblem, PlaceSettings, place_problem
from placeto.progress import PlainProgress
from placeto_graphs import (
    EvaluationBatch,
    GraphError,
    PlacementProblem,
    copied,
    from_networkx,
    measured_compute_time,
    parse_cluster,
    sharded,
)
from placeto_simulator import Simulator

SECONDS = {"v100": 1.0, "p100": 2.0, "k80": 4.0}
UNEQUAL = "1xv100+1xp100+2xk80"
QUIET = PlainProgress(None)
GIGABYTE = 10**9


class TwoLayers:
    """A step whose times and activations grow with the batch."""

    def __init__(self, spec: str, batch: int, *, activations: int = 1000, weights: int = 1000):
        self.cluster = parse_cluster(spec)
        self.activations, self.weights = activations, weights  # bytes of a layer
        self.model = CopiedModel(batch, cache(self.step), STEP)

    def step(self, samples: int, _micro_batches: int = 1) -> PlacementProblem:
        graph = nx.DiGraph()
        chain = ("batch", "layer0", "layer1", "gradient1", "gradient0")
        times = dict(zip(chain, (0.0, 1.0, 1.0, 2.0, 2.0), strict=True))
        others = [f"{kind}{layer}" for kind in ("weights", "product", "update") for layer in "01"]
        for name in (*chain, *others):
            seconds = times.get(name, 0.0) * samples + 0.1 * name.startswith("update")
            phase = name.startswith(("gradient", "product")) + 2 * name.startswith("update")
            by_kind = {kind: factor * seconds for kind, factor in SECONDS.items()}
            graph.add_node(name, phase=int(phase), measured_time=by_kind)
        for maker, reader in pairwise(chain):
            graph.add_edge(maker, reader, bytes=samples * self.activations)
        for layer in "01":
            graph.add_node(f"weights{layer}", parameter_bytes=self.weights)
            graph.add_edge(f"weights{layer}", f"layer{layer}", bytes=self.weights)
            graph.add_edge(f"weights{layer}", f"gradient{layer}", bytes=self.weights)
            graph.add_edge(f"product{layer}", f"update{layer}", bytes=self.weights)
            for maker in ("layer", "gradient"):
                reader, size = f"product{layer}", samples * self.activations
                graph.add_edge(f"{maker}{layer}", reader, bytes=size)
        ops = from_networkx(graph)
        times_on_devices = measured_compute_time(ops, self.cluster)
        return PlacementProblem(graph=ops, cluster=self.cluster, compute_time=times_on_devices)

    def cost(self, samples: Sequence[int], *, is_sharded: bool = False) -> EvaluationBatch:
        """Return the cost of copies, copy r on device r."""
        steps = [self.step(count) for count in samples]
        problem = (sharded if is_sharded else copied)(steps)
        placement = np.repeat(np.arange(len(samples), dtype=np.int32), steps[0].num_groups)
        return Simulator(problem).evaluate(placement[None])

    def placed(self) -> PlacedProblem:
        whole = self.step(self.model.batch)
        one = place_problem(whole, PlaceSettings(max_evaluations=200), QUIET)
        return with_copies(one, best_copies(self.model.proposals(), QUIET)[0])


def divisions(batch: int, count: int) -> list[tuple[int, ...]]:
    """Return all ways to divide a batch, each part at least 1."""
    if count == 1:
        return [(batch,)]
    return [
        (first, *rest)
        for first in range(1, batch - count + 2)
        for rest in divisions(batch - first, count - 1)
    ]


def test_equal_devices_have_equal_copies() -> None:
    layers = TwoLayers("4xv100", 8)
    placed = layers.placed()
    assert placed.placer == "4 copies"
    assert placed.copies is not None
    assert placed.copies.samples == (2, 2, 2, 2)
    assert placed.result.runtime == layers.cost([2, 2, 2, 2]).runtime[0]
    assert copies_verdict(placed).startswith("Uses 4 copies: ")
    kinds = {choice.kind for choice in placed.choices}
    assert {"alone", "chain", "one copy", "4 copies, sharded"} <= kinds


@pytest.mark.parametrize(("spec", "batch"), [("1xv100+1xk80", 11), (UNEQUAL, 24), ("3xv100", 7)])
def test_samples_are_as_good_as_the_best_of_all_divisions(spec: str, batch: int) -> None:
    layers = TwoLayers(spec, batch)
    placed = layers.placed()
    count = layers.cluster.num_devices
    best = min(layers.cost(samples).runtime[0] for samples in divisions(batch, count))
    assert placed.result.runtime <= 1.001 * best


def test_memory_comes_first() -> None:
    """The faster device has memory for two of eight samples."""
    layers = TwoLayers("1xv100+1xk80", 8, activations=GIGABYTE)
    memory = layers.cost([2, 6]).peak_memory[0]
    assert memory[0] * 2 < layers.cost([5, 3]).peak_memory[0, 0] * 2
    limits = [int(memory[0]), 10**12]
    devices = [
        type(device)(device.name, device.kind, limit, device.op_overhead, device.transfer_overhead)
        for device, limit in zip(layers.cluster.devices, limits, strict=True)
    ]
    layers.cluster = type(layers.cluster)(
        devices=tuple(devices),
        bandwidth=layers.cluster.bandwidth,
        latency=layers.cluster.latency,
    )
    proposals = list(layers.model.proposals())
    balanced = [proposal for proposal in proposals if not proposal.copies.shard][-1]
    assert balanced.copies.samples == (2, 6)
    assert balanced.choice.result.fits(layers.cluster)


@pytest.mark.parametrize("seed", range(10))
def test_the_answer_is_never_worse_than_copies_shards_a_chain_or_one_device(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = str(rng.choice(["2xv100", "4xk80", "1xv100+1xp100", "2xp100+2xk80", "2x(2xv100)"]))
    count = parse_cluster(spec).num_devices
    sizes = {"activations": int(10 ** rng.uniform(3, 10)), "weights": int(10 ** rng.uniform(3, 10))}
    layers = TwoLayers(spec, count * int(rng.integers(1, 4)), **sizes)
    placed = layers.placed()
    memory = layers.cluster.memory_bytes
    equal = [layers.model.batch // count] * count
    for cost in (layers.cost(equal), layers.cost(equal, is_sharded=True)):
        if spec != "2x(2xv100)" and (cost.peak_memory <= memory).all():
            assert placed.result.runtime <= cost.runtime[0]
    for choice in placed.choices:
        if choice.result.fits(layers.cluster):
            assert placed.result.runtime <= choice.result.runtime * 1.01


def test_one_copy_stays_where_it_is_faster_and_shards_can_be_forced() -> None:
    """Gradients of 8 GB take longer than the step of two samples."""
    layers = TwoLayers("2xv100", 2, weights=4 * GIGABYTE)
    placed = layers.placed()
    assert placed.copies is None
    assert copies_verdict(placed) == ""
    assert "2 copies" in {choice.kind for choice in placed.choices}
    shards, *_ = best_copies(layers.model.proposals(only_sharded=True), QUIET)
    forced = with_copies(placed, shards, only_sharded=True)
    assert forced.placer == "2 copies, sharded"
    assert forced.copies is not None
    assert forced.copies.shard


@pytest.mark.parametrize(
    ("stop", "reason"),
    [(GraphError("no such op"), "no such op"), (KeyboardInterrupt(), "interrupted")],
)
def test_copies_priced_before_an_end_count(stop: BaseException, reason: str) -> None:
    layers = TwoLayers(UNEQUAL, 12)

    def proposals() -> Iterator[PlacedCopies]:
        yield next(layers.model.proposals())
        raise stop

    copies, why, _ = best_copies(proposals(), QUIET)
    assert [proposal.choice.kind for proposal in copies] == ["4 copies"]
    assert why == reason
    copies, why, _ = best_copies(layers.model.proposals(), QUIET, seconds=0.0)
    assert [proposal.choice.kind for proposal in copies] == ["4 copies"]
    assert why == "0 s are over; give more seconds"
    copies, why, _ = best_copies(islice(layers.model.proposals(), 1), QUIET, seconds=0.0)
    assert [proposal.choice.kind for proposal in copies] == ["4 copies"]
    assert not why


def test_balanced_copies_have_two_samples_as_one_may_have_other_ops() -> None:
    """Nine samples on three devices of 1, 4 and 4 s for each would be 7 + 1 + 1."""
    layers = TwoLayers("1xv100+2xk80", 9)

    def step(samples: int, micro_batches: int) -> PlacementProblem:
        assert samples > 1
        return layers.step(samples, micro_batches)

    copies, why, _ = best_copies(replace(layers.model, step=step).proposals(), QUIET)
    assert {proposal.copies.samples for proposal in copies} == {(3, 3, 3), (5, 2, 2)}
    assert not why


def test_copies_that_cannot_be_simulated_leave_the_others() -> None:
    layers = TwoLayers("2xv100+2xk80", 8)

    def step(samples: int, micro_batches: int) -> PlacementProblem:
        if samples == 2:
            raise GraphError("no such batch")
        return layers.step(samples, micro_batches)

    copies, why, _ = best_copies(replace(layers.model, step=step).proposals(), QUIET)
    assert {proposal.copies.samples for proposal in copies} == {(4, 4)}
    assert why == "no such batch"


def test_statistics_of_a_batch_and_sums_are_named() -> None:
    step = nx.DiGraph()
    step.add_node("norm", op_type="aten.native_batch_norm")
    step.add_node("loss", op_type="aten.sum")
    step.add_edge("norm", "loss", bytes=4)
    graph = from_networkx(step)
    problem = PlacementProblem(
        graph=graph, cluster=parse_cluster("1xk80"), compute_time=np.ones((2, 1))
    )
    assert [remark.split(" is ")[0] for remark in remarks_on_copies(problem)] == [
        "each copy normalises by the batch statistics of its own samples",
        "the loss",
    ]
