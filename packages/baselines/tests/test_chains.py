"""Chains of layers: what they cost on links that differ by direction, and the best of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from baseline_problems import cluster, gpus, op_graph, problem_of
from placeto_baselines import LayerChain, Stages, best_chain, steepest_descent
from placeto_baselines.search.chains import (
    BEAM,
    LEAST_GAIN,
    _kinds,
    chain_costs,
    chain_placement,
    fastest_stages,
    neighbours,
)
from placeto_graphs import Cluster, PlacementProblem, placement_ranks
from plain_evaluator import PlainEvaluator


def one_way_links(count: int, seed: int) -> Cluster:
    """Return GPUs whose links have another bandwidth and latency in each direction."""
    generator = np.random.default_rng(seed)
    shape = (count, count)
    return replace(
        cluster(["k80"] * count, overhead=0.25),
        bandwidth=generator.choice([0.5, 1.0, 4.0], shape),
        latency=generator.choice([0.0, 0.125, 1.0], shape),
    )


def chain_of(problem: PlacementProblem, layer_of_group: Sequence[int] | None = None) -> LayerChain:
    layers = np.arange(problem.num_groups) if layer_of_group is None else np.array(layer_of_group)
    return LayerChain(problem, PlainEvaluator(problem), layers)


def all_stages(num_layers: int, devices: Sequence[int]) -> Iterator[Stages]:
    for count in range(1, min(num_layers, len(devices)) + 1):
        for cuts in itertools.combinations(range(1, num_layers), count - 1):
            for order in itertools.permutations(devices, count):
                yield Stages((0, *cuts, num_layers), order)


def test_a_transfer_costs_what_its_direction_does() -> None:
    """Three layers; what the last one makes is also read in the first, as gradients are."""
    graph = op_graph(4, [(0, 1), (1, 2), (2, 3)], tensor_bytes=np.array([2, 3, 5, 1]))
    links = one_way_links(2, seed=0)
    links = replace(
        links,
        bandwidth=np.array([[1.0, 2.0], [4.0, 1.0]]),
        latency=np.array([[0.0, 10.0], [20.0, 0.0]]),
    )
    chain = chain_of(problem_of(graph, links, np.ones((4, 2))), [0, 1, 2, 0])
    _, _, transfer = chain_costs(chain, [0, 1])
    forwards, backwards = (
        10.25 + 2 / 2,
        20.25 + 5 / 4,
    )  # latency, overhead, and bytes over the bandwidth
    assert transfer[0, 1, 1] == pytest.approx(forwards + backwards)
    assert transfer[0, 1, 2] == pytest.approx(10.25 + 3 / 2 + backwards)
    forwards, backwards = 20.25 + 2 / 4, 10.25 + 5 / 2
    assert transfer[1, 0, 1] == pytest.approx(forwards + backwards)


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_stages_are_the_best_of_all(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_devices, num_layers = 3, 5
    seconds = generator.random((num_devices, num_layers))
    load = np.full((num_devices, num_layers + 1, num_layers + 1), np.inf)
    for begin, end in itertools.combinations(range(num_layers + 1), 2):
        load[:, begin, end] = seconds[:, begin:end].sum(axis=1)
    transfer = generator.random((num_devices, num_devices, num_layers + 1)) / 4

    def cost(stages: Stages) -> float:
        spans = zip(stages.devices, itertools.pairwise(stages.bounds), strict=True)
        total = sum(float(load[device, begin, end]) for device, (begin, end) in spans)
        pairs = zip(itertools.pairwise(stages.devices), stages.bounds[1:], strict=False)
        return total + sum(float(transfer[source, target, cut]) for (source, target), cut in pairs)

    stages_with_costs = fastest_stages(load, transfer, range(num_devices), BEAM)
    for cost_of_stages, stages in stages_with_costs:
        assert cost_of_stages == pytest.approx(cost(stages))
        same_devices = [
            cost(stages_on_same)
            for stages_on_same in all_stages(num_layers, range(num_devices))
            if set(stages_on_same.devices) == set(stages.devices)
            and stages_on_same.devices[-1] == stages.devices[-1]
        ]
        assert cost_of_stages == pytest.approx(min(same_devices))
    costs = [cost_of_stages for cost_of_stages, _ in stages_with_costs]
    assert costs == sorted(costs)
    assert len(costs) == 12  # sets of used devices, and the last one of each


def problem_on_one_way_links(seed: int) -> PlacementProblem:
    generator = np.random.default_rng(seed)
    graph = op_graph(5, [(op, op + 1) for op in range(4)], tensor_bytes=generator.integers(1, 4, 5))
    seconds = generator.choice([1.0, 2.0, 4.0], (5, 3))
    return problem_of(graph, one_way_links(3, seed), seconds)


def ranks_of(chain: LayerChain, stages: Sequence[Stages]) -> list[tuple[bool, float]]:
    batch = chain.evaluate(np.stack([row.device_of_layer() for row in stages]))
    ranks = placement_ranks(batch, chain.problem.cluster.memory_bytes)
    return [
        (lacks, cost * (1 + LEAST_GAIN * len(chain_stages.devices)))
        for (lacks, cost), chain_stages in zip(ranks, stages, strict=True)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_the_best_chain_is_the_best_of_all_stages(seed: int) -> None:
    chain = chain_of(problem_on_one_way_links(seed))
    best = best_chain(chain, range(3))
    assert best is not None
    every = list(all_stages(5, range(3)))
    assert ranks_of(chain, [best]) == [min(ranks_of(chain, every))]
    placement = chain_placement(chain, range(3), 10_000)
    assert placement is not None
    assert placement.tolist() == best.device_of_layer().tolist()


def test_no_more_chains_are_evaluated_than_may_be() -> None:
    class Counting(PlainEvaluator):
        """Counts what it evaluates."""

        count = 0

        def evaluate(self, placements: NDArray[np.int32]):  # type: ignore[no-untyped-def]
            self.count += len(placements)
            return super().evaluate(placements)

    problem = problem_on_one_way_links(0)
    evaluator = Counting(problem)
    chain = LayerChain(problem, evaluator, np.arange(5))
    assert best_chain(chain, range(3), max_evaluations=20) is not None
    assert 10 <= evaluator.count <= 20
    assert best_chain(chain, [1], max_evaluations=20) == Stages((0, 5), (1,))


def test_devices_are_alike_only_if_their_links_are_in_both_directions() -> None:
    links = cluster(["k80"] * 3)
    same = problem_of(op_graph(2, [(0, 1)]), links, np.ones((2, 3)))
    assert _kinds(same, [0, 1, 2]) == [0, 0, 0]
    bandwidth = np.ones((3, 3))
    bandwidth[0, 2] = 2.0
    unlike = replace(same, cluster=replace(links, bandwidth=bandwidth))
    assert _kinds(unlike, [0, 1, 2]) == [0, 1, 2]
    assert _kinds(unlike, [1]) == [0]


def test_devices_are_alike_only_if_they_share_links_with_as_many_others() -> None:
    links = cluster(["k80"] * 4)
    problem = problem_of(op_graph(2, [(0, 1)]), links, np.ones((2, 4)))
    # The first two devices send over one link, the third and the fourth over one each.
    link = np.array([[-1, 0, 0, 0], [0, -1, 0, 0], [1, 1, -1, 1], [2, 2, 2, -1]])
    sharing = replace(problem, cluster=replace(links, link=link, link_names=tuple("abc")))
    assert _kinds(sharing, range(4)) == [0, 0, 2, 2]
    machines = replace(links, machine=np.array([0, 0, 0, 1]), machine_names=tuple("ab"))
    in_machines = replace(problem, cluster=machines)
    assert _kinds(in_machines, range(4)) == [0, 0, 0, 3]
    # Each pair of devices has a link for either direction: their numbers do not count.
    pairs = np.full((4, 4), -1)
    pairs[~np.eye(4, dtype=bool)] = np.random.default_rng(0).permutation(12)
    names = tuple(f"link {number}" for number in range(12))
    apart = replace(problem, cluster=replace(links, link=pairs, link_names=names))
    assert _kinds(apart, range(4)) == [0, 0, 0, 0]


def test_neighbours_are_other_stages_of_all_layers() -> None:
    stages = Stages((0, 2, 6), (0, 1))
    nearby = neighbours(stages, [2])
    for neighbour in nearby:
        assert neighbour.bounds == tuple(sorted(set(neighbour.bounds)))
        assert (neighbour.bounds[0], neighbour.bounds[-1]) == (0, 6)
        assert len(set(neighbour.devices)) == len(neighbour.devices) == len(neighbour.bounds) - 1
    for expected in (
        Stages((0, 3, 6), (0, 1)),
        Stages((0, 2, 6), (1, 0)),
        Stages((0, 2, 6), (2, 1)),
        Stages((0, 6), (0,)),
        Stages((0, 2, 4, 6), (0, 1, 2)),
    ):
        assert expected in nearby


def test_a_layer_runs_where_all_its_groups_can() -> None:
    problem = gpus([[1, 1], [np.inf, 1], [1, np.inf]])
    chain = chain_of(problem, [0, 0, 1])
    assert chain.runs.tolist() == [[False, True], [True, False]]
    assert not chain.can_be(Stages((0, 2), (1,)), [0, 1])
    assert best_chain(chain, [0, 1]) == Stages((0, 1, 2), (1, 0))
    assert best_chain(chain, [1]) is None


def test_a_descent_goes_on_as_long_as_a_neighbour_is_better() -> None:
    def ranks(values: Sequence[int]) -> list[int]:
        return [abs(value - 7) for value in values]

    assert steepest_descent([1, 3], ranks, lambda value: [value - 1, value + 1], 20) == 7
    assert steepest_descent([1, 3], ranks, lambda value: [value - 1, value + 1], 2) == 4
    assert steepest_descent([], ranks, lambda value: [value], 20) is None
